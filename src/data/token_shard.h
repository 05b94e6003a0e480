// A shard of tokens, memory-mapped: all its documents end to end.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/indexed_dataset.h"
#include "data/loss_mask.h"

namespace trireme {

// The files of a shard, by the name it goes by: "data/train" is data/train.bin + data/train.idx (either may
// be named too). "x.bin" without x.idx, or "x.npy", is a file that raw_shard.h reads: one long document.
struct ShardFiles {
  fs::path bin;
  std::optional<fs::path> idx;
};
ShardFiles shard_files(const fs::path& name);  // bad_request says which file is missing

class TokenShard {
 public:
  static TokenShard open(const fs::path& name);  // bad_request unless both files are sound

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return index_ ? index_->documents() : 1; }
  TokenType type() const { return type_; }
  // Tokenizer::fingerprint() of who made the ids; nothing: the shard does not say.
  std::optional<uint64_t> vocabulary() const { return index_ ? index_->vocabulary() : std::nullopt; }
  std::string name() const { return bin_.path().string(); }
  const MappedFile& bin() const { return bin_; }
  const MappedFile* idx() const { return idx_ ? &*idx_ : nullptr; }
  const IndexView* index() const { return index_ ? &*index_ : nullptr; }
  // The file of the loss mask. Null: every token is a target.
  const MappedFile* mask() const { return mask_ ? &*mask_ : nullptr; }
  // Tokens of [begin, end) that are targets of the loss.
  int64_t targets(int64_t begin, int64_t end) const {
    return mask_ ? targets_.count(begin, end) : end - begin;
  }
  // Replaces ids of tokens [begin, begin + ids.size()) that are not targets by -1.
  void keep_targets(int64_t begin, std::span<int32_t> ids) const {
    if (mask_) targets_.keep(begin, ids);
  }

  // Tokens [begin, begin + out.size()) of the concatenation. An id outside [0, vocab) is a bad_request that
  // names the file, the document, the place in it, the id and the vocabulary. Allocates nothing.
  void read(int64_t begin, std::span<int32_t> out, int64_t vocab) const;
  // Every id of the shard at memory speed; the same error. For the start of a run: it ends before it trains.
  void check_ids(int64_t vocab) const { check_ids(vocab, 0, tokens_); }
  void check_ids(int64_t vocab, int64_t begin, int64_t end) const;  // tokens [begin, end)

  struct Place {
    int64_t document = 0, token = 0;  // token = place within the document
  };
  Place place_of(int64_t token) const;  // 0 <= token < tokens(); slow, for messages and inspection

  // Keeps where documents begin, 8 bytes each, so that the next is quick.
  void know_documents();
  // After know_documents(): the first token of each document that has one, ascending.
  std::span<const int64_t> document_starts() const { return document_starts_; }
  // For each token of [begin, begin + out.size()) its place in its document, or since `begin` where that is
  // less: positions of a window whose documents do not see each other. After know_documents(). Allocates
  // nothing.
  void positions(int64_t begin, std::span<int32_t> out) const;

 private:
  explicit TokenShard(MappedFile bin) : bin_(std::move(bin)) {}
  // Calls visit(first token, pointer to elements, elements) for the runs of .bin that make up [begin, end).
  template <class Visit>
  void visit_runs(int64_t begin, int64_t end, Visit&&) const;
  template <class T>
  void read_as(int64_t begin, std::span<int32_t> out, int64_t vocab) const;
  template <class T>
  void check_as(int64_t vocab, int64_t begin, int64_t end) const;
  [[noreturn]] void refuse_id(int64_t token, int64_t id, int64_t vocab) const;

  MappedFile bin_;
  std::optional<MappedFile> idx_;
  std::optional<IndexView> index_;
  std::optional<MappedFile> mask_;
  LossMask targets_;  // a view of mask_
  TokenType type_ = TokenType::u16;
  int64_t tokens_ = 0;
  int64_t raw_begin_ = 0;  // byte of the first token of a file without an index
  std::vector<int64_t>
      starts_;  // first token of each sequence, and the end; empty when .bin is the concatenation
  std::vector<int64_t> document_starts_;  // first token of each document that has one, ascending
};

}  // namespace trireme
