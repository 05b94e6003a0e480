// Writes a token shard in Megatron's format, document by document.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/hasher.h"
#include "data/indexed_dataset.h"
#include "data/loss_mask.h"

namespace trireme {

// Tokens go to <prefix>.bin.part as they come; the index, 4 bytes a document, stays in memory. Nothing is
// seen under the shard's name before commit(), and a crash inside commit() leaves no pair of files that do
// not belong together: the old index goes first, then .bin is published, then .idx.
class ShardWriter {
 public:
  // Ids are in [0, vocab); their type is token_type_for(vocab). vocabulary: Tokenizer::fingerprint() of who
  // made them, which the index then says. The folder must exist.
  ShardWriter(const fs::path& prefix, int64_t vocab, std::optional<uint64_t> vocabulary = {});

  void add_document(std::span<const int32_t> ids);  // one document of one sequence; may be empty
  // A document with a loss mask: targets[i] != 0 if ids[i] is a target. A document's first token never is
  // one: nothing of its document is before it. Requires: the shard's documents all come this way.
  void add_document(std::span<const int32_t> ids, std::span<const uint8_t> targets);
  // The same piece by piece, for documents larger than memory.
  void append(std::span<const int32_t> ids);
  void end_document();
  void commit();

  int64_t tokens() const { return tokens_; }
  int64_t targets() const { return mask_ ? mask_->targets() : tokens_; }
  int64_t documents() const { return int64_t(lengths_.size()); }

 private:
  void flush();

  fs::path bin_path_, idx_path_;
  int64_t vocab_;
  std::optional<uint64_t> vocabulary_;
  TokenType type_;
  AtomicFile bin_;
  Hasher bin_hash_;  // hash of the bytes written to bin_
  std::vector<std::byte> buffer_;
  std::vector<int32_t> lengths_;
  std::optional<LossMaskBits> mask_;
  int64_t open_ = 0;  // tokens of the document that is not ended
  int64_t tokens_ = 0;
};

}  // namespace trireme
