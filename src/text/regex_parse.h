// Reads a split pattern as Oniguruma does, the engine of the tokenizers library (ONIG_SYNTAX_ONIGURUMA,
// UTF-8).
//
// Only what is known to mean the same after the translation of regex_split.cc is accepted. A character, a
// class or a property becomes its explicit set of code points. So neither the engine nor its Unicode version
// decides what it matches. All other syntax is an error that names the pattern and the construct.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/char_set.h"

namespace trireme {

struct RegexNode {
  enum class Kind {
    chars,         // one character of sets[set]
    sequence,      // all children, in order
    alternatives,  // the first child that leads to a match
    repeat,        // children[0], least to most times (most -1: any number)
    atomic,        // children[0]; its first match is final
    look,          // children[0] matches, or not, at this place (before it, if behind); takes no characters
    text_begin,
    text_end,
    search_begin,  // \G
  };
  enum class Mode { greedy, lazy, possessive };
  Kind kind = Kind::sequence;
  std::vector<RegexNode> children;
  size_t set = 0;
  char letter = 0;        // lower case of a literal ASCII letter
  bool any_case = false;  // a literal under (?i)
  int32_t least = 0, most = 0;
  Mode mode = Mode::greedy;
  bool behind = false, negative = false;
};

struct ParsedRegex {
  RegexNode root;
  std::vector<CharSet> sets;  // distinct
};

// `what` names the pattern in messages. bad_request: it is wrong, or not in the accepted part of the
// language.
ParsedRegex parse_regex(std::string_view pattern, std::string_view what);

}  // namespace trireme
