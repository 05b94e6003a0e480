// TOML as a flat list of keys: what the readers of specs work on. The one place that knows toml++.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"

namespace trireme {

struct TomlTable {};  // a table's own entry; its keys follow as entries of their own
struct TomlTables {   // [[key]] ...; an entry key[i] for each, from 1, and its keys as key[i].x
  size_t count = 0;
};
using TomlLists = std::vector<std::vector<double>>;  // at least one
struct TomlOther {                                   // dates, times, lists of other things
  std::string kind;                                  // with its article: "a date"
};
struct TomlEntry {
  std::string key;  // "section.key"
  std::variant<std::string, bool, int64_t, double, std::vector<double>, std::vector<std::string>, TomlTable,
               TomlOther, TomlTables, TomlLists>
      value;         // an empty list is one of numbers
  int line = 0;      // from 1; 0 = from --set
  std::string text;  // the value as it was written, for --set
};

// Entries in the order of the file. A syntax error is a bad request "FILE:LINE: what is wrong".
std::vector<TomlEntry> parse_toml(std::string_view text, std::string_view file);

// A whole small file; one of more than `most` bytes is a bad request before it is read.
inline constexpr uint64_t kMostTomlBytes = 1 << 20;
std::string read_small(const fs::path&, uint64_t most);

// "key=value" of a --set: TOML's value syntax, or a bare string. A bad request when there is no key or no
// value.
std::vector<TomlEntry> parse_set(std::string_view assignment);

std::string toml_string(std::string_view);  // quoted and escaped
std::string toml_number(double);            // shortest text that reads back as the same double

// For messages: quoted, one line, unprintable bytes escaped, long text cut.
std::string shown(std::string_view);
std::string shown_key(std::string_view);     // the same without quotes where it is a plain key
std::string shown(const TomlEntry&);         // the value
std::string_view kind_of(const TomlEntry&);  // "a whole number", "a string", ...

}  // namespace trireme
