// Fills a spec from TOML entries and collects everything that is wrong, to be reported at once.
#pragma once
#include <climits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {

class Reader {
 public:
  // Of entries with the same key the last one counts: those of --set come after the file's.
  Reader(std::vector<TomlEntry> entries, std::string file);

  // Fields that were given take their values; a bad value is a problem and leaves the field as it was.
  template <class S>
  void read(S& spec) {
    Walk walk([&](const FieldInfo& info, FieldRef ref) { field(info, ref); },
              [&](const std::string& key, std::string_view) { section(key); },
              [&](const std::string& key, size_t size) { return tables(key, size); });
    spec.visit(walk);
  }

  const TomlEntry* given(const std::string& key) const;  // null if not given
  bool failed(const std::string& key) const { return failed_.count(key) > 0; }
  void skip(const std::string& key);  // someone else has dealt with this key

  // A problem of one key that was given, or of the whole file: "FILE:LINE: key: text".
  void problem(const std::string& key, const std::string& text);
  // A contradiction between keys, at the first of them that was given, with its value. `text` is a whole
  // sentence. Not reported if reading one of the keys failed.
  void problem(const std::vector<std::string>& keys, const std::string& text);
  // Did reading one of these keys fail? Then what looks contradictory may be only a consequence.
  bool any_failed(const std::vector<std::string>& keys) const;
  bool clean() const { return problems_.empty(); }
  void failure(const std::string& line) { problems_.emplace_back(INT_MAX, line); }  // of --set

  // Keys that no spec asked for, each with what may have been meant. Call after all read()s.
  void report_unknown();
  // One Error (request) with all problems, a line each in the order of the file; nothing if there are none.
  void raise() const;

 private:
  void field(const FieldInfo&, FieldRef);
  void section(const std::string& key);
  size_t tables(const std::string& key, size_t size);
  std::string place(const std::string& key) const;

  std::string file_;
  std::map<std::string, TomlEntry> entries_;
  std::set<std::string> fields_, sections_, failed_, skipped_;
  std::vector<std::pair<int, std::string>> problems_;  // line to sort by, text
};

}  // namespace trireme
