// From text to a tokenizer and two token shards: what `demo` and `tokenize` share.
#pragma once
#include <vector>

#include "cli/cli.h"
#include "text/corpus.h"
#include "text/document_stream.h"
#include "text/tokenizer.h"

namespace trireme::cli {

// Documents to learn from and to encode, in order.
struct CorpusTexts {
  std::vector<TextSource> sources;
  std::string key = "text";               // of JSON Lines
  double hold_out = 0;                    // share of JSON Lines' documents
  bool skip_bad_lines = false;            // leaves out JSON Lines that cannot be read
  Specials specials = Specials::as_text;  // in texts
  SkippedFiles skipped;                   // of folders
  int64_t bytes() const;
};
// Gathers folders (their text files), text files and JSON Lines, in the order given. Names and first lines
// tell JSON Lines from text. A file that is neither (compressed, a table, UTF-16) is a bad_request, or left
// out if it is in a folder. With a share to hold out there is at least one document on each side: a single
// text file is divided.
CorpusTexts gather_texts(const std::vector<std::string>& paths, const std::vector<std::string>& extensions,
                         const std::string& key, double hold_out);
CorpusTexts texts_of(const Corpus&);  // a document a file, none held out

struct LearnOptions {
  int32_t vocab = 4096;
  SplitPattern pattern = SplitPattern::gpt2;
  std::vector<std::string> specials = {std::string(kEndOfText)};
  int threads = 1;
};
// Throws Error (interrupted) after a signal.
void leave_if_interrupted();

// Where nothing is held out: bad_request if a shard VALID is there. It would pass for the held-out part of
// these texts, and its ids may be another tokenizer's.
void refuse_old_valid(const CorpusTexts&, const fs::path& valid);

// Learns from what is not held out; shows progress.
Tokenizer train_tokenizer(const CorpusTexts&, const LearnOptions&);

struct Encoded {
  int64_t documents = 0, bytes = 0, tokens = 0;
};
struct EncodedTexts {
  Encoded train, valid;
  double seconds = 0;
  int64_t skipped = 0;        // lines
  std::string first_skipped;  // why, with file and line
};
// Writes TRAIN.bin and .idx, and VALID.bin and .idx of what is held out; shows progress. `end_of_text` closes
// every document, -1 = nothing does. before_commit() is called when all is written, before the shards take
// their names. An interrupt ends it with Fault::interrupted, and leaves nothing.
EncodedTexts encode_texts(const Tokenizer&, const CorpusTexts&, const fs::path& train, const fs::path& valid,
                          int threads, int32_t end_of_text, const std::function<void()>& before_commit = {},
                          const std::string& what = "encode");
// `what` begins its progress line.
Encoded encode_corpus(const Tokenizer&, const Corpus&, const fs::path& prefix, int threads,
                      const std::string& what);

}  // namespace trireme::cli
