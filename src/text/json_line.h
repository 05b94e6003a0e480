// One line of JSON Lines: the text under a key, without a tree of the rest.
//
// Reads what Python's json module writes and reads: JSON, the numbers NaN, Infinity and -Infinity, and
// numbers of any length. A lone surrogate in a string becomes U+FFFD. The last value of a repeated key
// counts.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct JsonLine {
  std::string error;              // why the line is not a JSON object, with the byte; empty: it is one
  std::vector<std::string> keys;  // the first of the object's keys, for messages
  bool has_key = false, is_string = false;
  std::string text;  // under the key
};
JsonLine read_json_line(std::string_view line, std::string_view key);

// Why a line that a strict parser rejected is not a JSON object, with the byte: "the line ends before a } at
// byte 27".
std::string json_fault(std::string_view line);

}  // namespace trireme
