#include "cli/prepare.h"

#include "data/shard_writer.h"
#include "text/encode_documents.h"
#include "text/train_bpe.h"

namespace trireme::cli {

Tokenizer train_tokenizer(const Corpus& corpus, int32_t vocab) {
  WordCounts counts;
  {
    Progress bar("count words", corpus.bytes);
    int64_t done = 0;
    for (size_t i = 0; i < corpus.files.size(); i++) {
      counts.add(corpus.read(int64_t(i)));
      bar.update(done += corpus.files[i].bytes);
    }
  }
  Progress bar("learn merges", vocab);
  BpeOptions o;
  o.vocab_size = vocab;
  o.progress = [&](int32_t done, int32_t) { bar.update(done); };
  return train_bpe(counts, o);
}

Encoded encode_corpus(const Tokenizer& t, const Corpus& corpus, const fs::path& prefix, int threads) {
  if (prefix.has_parent_path()) make_folders(prefix.parent_path());
  ShardWriter writer(prefix, t.vocab_size());
  Progress bar("encode", corpus.bytes);
  EncodeOptions o;
  o.threads = threads;
  o.end_of_text = t.find_added(kEndOfText).has_value();
  o.progress = [&](int64_t, int64_t bytes, int64_t tokens) {
    bar.update(bytes, human_count(double(tokens)) + " tokens");
  };
  EncodeTotals e = encode_documents(
      t, int64_t(corpus.files.size()), [&](int64_t i) { return corpus.read(i); },
      [&](int64_t, std::span<const int32_t> ids) { writer.add_document(ids); }, o);
  bar.finish();
  writer.commit();
  return {e.documents, e.bytes, e.tokens};
}

}  // namespace trireme::cli
