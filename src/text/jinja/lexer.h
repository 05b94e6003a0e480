// Tokens of a Jinja template. White space follows transformers: trim_blocks (a line end
// after a block tag goes) and lstrip_blocks (blanks before a block tag that begins its line go).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"
#include "text/jinja/whitespace.h"

namespace trireme::jinja {

struct Token {
  enum class Kind : uint8_t { data, block, block_end, print, print_end, name, text, number, op, end };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;   // data, name, operator, content of a text
  Value number = {};  // an int or a float
};

// Fails naming the line for text that is not a template. The last token is of kind `end`.
std::vector<Token> tokens_of(std::string_view source, Work&, Whitespace = Whitespace::trimmed);

}  // namespace trireme::jinja
