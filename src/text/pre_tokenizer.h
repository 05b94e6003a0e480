// Cuts a normalized text into the words that BPE never merges across: one or more stages, each cutting what
// the one before left.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex_split.h"
#include "text/split.h"

namespace trireme {

class PreTokenizer {
 public:
  void add(SplitPattern pattern) { stages_.push_back(pattern); }
  void add_digits(bool each) { stages_.push_back(Digits{each}); }
  void add_literal(std::string text) { stages_.push_back(Literal{std::move(text)}); }  // not empty
  // Cut before every occurrence; with `after_other`, only where something else stands before it.
  void add_before(std::string text, bool after_other) {
    stages_.push_back(Before{std::move(text), after_other});
  }
  void add_regex(std::shared_ptr<const RegexSplit> regex) { stages_.push_back(std::move(regex)); }

  bool empty() const { return stages_.empty(); }
  // What divide.h asks: whether every stage is of a kind that it knows; whether one is a split pattern, or
  // cuts before a text.
  bool divisible() const;
  bool has_pattern() const;
  bool has_before() const;

  // Calls take(word) for every word in order. Without stages the text is one word.
  template <class Take>
  void split(std::string_view text, Take&& take) const {
    if (stages_.size() == 1)  // nearly always
      if (auto* known = std::get_if<SplitPattern>(&stages_[0])) return split_words(*known, text, take);
    split_from(0, text, take);
  }

 private:
  struct Digits {
    bool each;
  };
  struct Literal {
    std::string text;
  };
  struct Before {
    std::string text;
    bool after_other;
  };
  using Stage = std::variant<SplitPattern, Digits, Literal, Before, std::shared_ptr<const RegexSplit>>;

  // The ends of the pieces that stage i makes of a text.
  void cut(const Stage&, std::string_view text, std::vector<size_t>& ends) const;
  template <class Take>
  void split_from(size_t stage, std::string_view text, Take& take) const {
    if (text.empty()) return;
    if (stage == stages_.size()) {
      take(text);
      return;
    }
    std::vector<size_t> ends;
    cut(stages_[stage], text, ends);
    size_t begin = 0;
    for (size_t end : ends) {
      split_from(stage + 1, text.substr(begin, end - begin), take);
      begin = end;
    }
  }

  std::vector<Stage> stages_;
};

}  // namespace trireme
