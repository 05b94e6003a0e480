// The content of token shards: what a run's identity has of its data, and whether it still holds.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file_stamp.h"
#include "base/hasher.h"
#include "data/token_shard.h"

namespace trireme {

// Digests of a shard's files, each byte included. Paths are not part of it.
struct ShardContent {
  FileDigest bin;
  std::optional<FileDigest> idx = {};   // none: a raw .bin
  std::optional<FileDigest> mask = {};  // none: every token is a target
  bool operator==(const ShardContent&) const = default;
};

// Digests the shard's bytes as they are mapped now.
ShardContent content_of(const TokenShard&);

// Checks every id against the vocabulary (TokenShard::check_ids) and digests every byte, in one pass over the
// file. bad_request if the index has a record of the content (`tokenize` writes it) and the bytes differ.
ShardContent check_content(const TokenShard&, int64_t vocab);

// Hash of the sizes, of the first MiB of the index and of 64 pages at equal distances: a few milliseconds
// whatever the size. Ranks of other machines compare their copy of a shard by it.
uint64_t sample_of(const TokenShard&);

// Stamps of a shard's files, by the name it goes by. Take them before the shard is opened.
struct ShardStamps {
  std::optional<FileStamp> bin;
  std::optional<FileStamp> idx;
  std::optional<FileStamp> mask = {};
  bool operator==(const ShardStamps&) const = default;
};
ShardStamps stamps_of(const fs::path& name);

// One shard of a run, compared with the content that it had when the run started.
class WatchedShard {
 public:
  // stamps: the files' stamps before they were opened and digested.
  WatchedShard(std::string key, ShardStamps stamps, ShardContent content);

  // The mapping of `shard`, which the run reads: one stat() per file. If the file changed in place, its
  // content is digested again. run_failed naming the file if it became shorter or has other content. A file
  // that was moved, removed or replaced by another file does not change the mapping.
  void check_mapped(const TokenShard& shard);
  // The same for the files that go by this name now, which may have replaced those of the start.
  void check_named(const fs::path& name);
  const ShardContent& content() const { return content_; }

 private:
  std::string key_;  // "data.train" or "data.valid"
  ShardContent content_;
  ShardStamps stamps_;
};

// "big.bin: 800000 bytes -> 4096 bytes", or the same size and "other content". Empty if the content is equal.
// bin and idx name the shard's files.
std::string content_difference(const ShardContent& before, const ShardContent& now, const std::string& bin,
                               const std::string& idx);

}  // namespace trireme
