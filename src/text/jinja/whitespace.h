// The white space of a template that does not reach the text.
#pragma once
#include <cstdint>

namespace trireme::jinja {

// White space around tags without a sign.
enum class Whitespace : uint8_t {
  trimmed,  // as transformers sets it: trim_blocks (a line end after a block tag goes), lstrip_blocks (blanks
            // before a block tag that begins its line go), and no line end at the end
  kept,     // all of it, as lm-evaluation-harness sets it
};

}  // namespace trireme::jinja
