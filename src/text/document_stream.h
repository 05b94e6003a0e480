// Documents out of text files and JSON Lines, in order and in batches of bounded size: corpora larger than
// memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "text/divide.h"

namespace trireme {

// A file of documents: a text, which is one (or a range of its bytes is), or JSON Lines, a document a line.
struct TextSource {
  fs::path path;
  std::string name;  // of the file among the others: decides what is held out
  bool json_lines = false;
  int64_t begin = 0, end = 0;  // bytes
  bool held_out = false;       // for text; of JSON Lines each document is decided upon
};

// A piece of a document, or the line that holds one.
struct DocumentPart {
  size_t begin = 0, bytes = 0;  // in the batch's bytes
  int32_t source = 0;
  int64_t line = 0;  // of JSON Lines, from 1; 0 = text
  bool first = true, last = true;
  bool held_out = false;
};

struct DocumentBatch {
  std::string bytes;
  std::vector<DocumentPart> parts;  // in order
};

class DocumentStream {
 public:
  struct Options {
    std::string key = "text";                // of JSON Lines: what holds the text
    double hold_out = 0;                     // share of JSON Lines' documents; by a hash of file and line
    bool skip_bad_lines = false;             // leaves out JSON Lines that cannot be read
    size_t batch_bytes = size_t(1) << 20;    // a batch is longer only where a document cannot be divided,
    size_t longest_bytes = size_t(1) << 30;  // and never longer than this
  };
  DocumentStream(std::vector<TextSource>, Divider, Options);
  ~DocumentStream();

  int64_t total_bytes() const { return total_; }
  // The next batch; false at the end. One thread at a time. What it holds depends on nothing but files and
  // options.
  bool next(DocumentBatch&);
  // The text of a part: itself, or decoded into `buffer`. Any thread. bad_request names file, line and key.
  std::string_view text(const DocumentBatch&, const DocumentPart&, std::string& buffer) const;
  // Whether a part that cannot be read, or encoded, is left out.
  bool may_skip(const DocumentPart& part) const { return options_.skip_bad_lines && part.line > 0; }
  // "FILE", or "FILE, line N" of JSON Lines: for messages.
  std::string place_of(const DocumentPart&) const;

 private:
  class File;
  void add_text(DocumentBatch&);
  void add_lines(DocumentBatch&);

  std::vector<TextSource> sources_;
  Divider divider_;
  Options options_;
  int64_t total_ = 0;
  size_t source_ = 0;  // the one that is read
  std::unique_ptr<File> file_;
  int64_t at_ = 0;    // next byte of it
  int64_t line_ = 0;  // lines seen
};

}  // namespace trireme
