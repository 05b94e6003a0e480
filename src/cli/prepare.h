// From a folder of text to a tokenizer and two token shards: what `demo` and `tokenize` share.
#pragma once
#include "cli/cli.h"
#include "text/corpus.h"
#include "text/tokenizer.h"

namespace trireme::cli {

// Learns from the whole corpus; shows progress.
Tokenizer train_tokenizer(const Corpus&, int32_t vocab);

struct Encoded {
  int64_t documents = 0, bytes = 0, tokens = 0;
};
// Writes PREFIX.bin and PREFIX.idx, a document a file; shows progress.
Encoded encode_corpus(const Tokenizer&, const Corpus&, const fs::path& prefix, int threads);

}  // namespace trireme::cli
