// JSON Lines: one document a line, its text under one key. The form in which most corpora are handed around.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trireme {

// The text under `key` of one line; bad_request begins with `where`; of a key that is missing it names those
// that are there, and ends with what_to_do.
std::string json_text(std::string_view line, const std::string& key, const std::string& where,
                      std::string_view what_to_do = {});
bool is_json_lines(const fs::path&);  // by its name: .jsonl, .ndjson or .jl in any case
// By its content: the first lines that are not blank, one or two, are JSON objects. With a key, also a string
// under it.
bool looks_like_json_lines(const fs::path&, const std::string& key = {});

// A mapped .jsonl: lines are found once and parsed when asked for, by any thread. Lines of blanks are no
// documents.
class JsonLines {
 public:
  explicit JsonLines(const fs::path&, std::string key = "text");

  int64_t documents() const { return int64_t(lines_.size()); }
  int64_t bytes() const { return int64_t(file_.bytes().size()); }
  // The text of a document: fits ReadDocument of encode_documents. bad_request names file, line and key if
  // the line is not a JSON object (as Python writes them, json_line.h), or has no string under the key.
  std::string read(int64_t document) const;

 private:
  struct Line {
    uint64_t begin, bytes;
    int64_t number;  // from 1, as editors count
  };
  MappedFile file_;
  std::string key_;
  std::vector<Line> lines_;
};

}  // namespace trireme
