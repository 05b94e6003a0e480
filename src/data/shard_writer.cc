#include "data/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"

namespace trireme {
namespace {

constexpr size_t kBuffer = size_t(1) << 20;  // bytes kept before a write

// Collects small pieces into large writes.
class IndexFile {
 public:
  explicit IndexFile(const fs::path& path) : file_(path) {}
  template <class T>
  void put(T value) {
    buffer_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    if (buffer_.size() >= kBuffer) flush();
  }
  void put_bytes(std::string_view bytes) { buffer_ += bytes; }
  void flush() {
    file_.write(buffer_);
    hash_.add(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  // Hash of all bytes so far.
  uint64_t hash() {
    flush();
    return hash_.value();
  }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  Hasher hash_;
  std::string buffer_;
};

}  // namespace

ShardWriter::ShardWriter(const fs::path& prefix, int64_t vocab, std::optional<uint64_t> vocabulary)
    : bin_path_(prefix.string() + ".bin"),
      idx_path_(prefix.string() + ".idx"),
      vocab_(vocab),
      vocabulary_(vocabulary),
      type_(token_type_for(vocab)),
      bin_(bin_path_) {
  require(vocab >= 1 && vocab <= int64_t(INT32_MAX) + 1, "ShardWriter: vocab out of range");
}

void ShardWriter::add_document(std::span<const int32_t> ids) {
  append(ids);
  end_document();
}

void ShardWriter::add_document(std::span<const int32_t> ids, std::span<const uint8_t> targets) {
  require(ids.size() == targets.size(), "ShardWriter: one mask value per token");
  if (!mask_) {
    require(documents() == 0, "ShardWriter: documents with and without a loss mask");
    mask_.emplace();
  }
  add_document(ids);
  for (size_t i = 0; i < targets.size(); i++) mask_->add(i > 0 && targets[i] != 0);
}

void ShardWriter::append(std::span<const int32_t> ids) {
  if (int64_t(ids.size()) > INT32_MAX - open_)
    bad_request("{}: document {} has {} tokens; the format holds at most {}", bin_path_.string(), documents(),
                open_ + int64_t(ids.size()), INT32_MAX);
  for (size_t i = 0; i < ids.size(); i++)
    if (ids[i] < 0 || ids[i] >= vocab_)
      bad_request("{}: token {} of document {} is {}, outside the vocabulary of {}", bin_path_.string(),
                  open_ + int64_t(i), documents(), ids[i], vocab_);
  const size_t size = size_t(size_of(type_)), before = buffer_.size();
  buffer_.resize(before + ids.size() * size);
  std::byte* to = buffer_.data() + before;
  if (type_ == TokenType::i32) {
    if (!ids.empty()) std::memcpy(to, ids.data(), ids.size_bytes());
  } else {
    for (size_t i = 0; i < ids.size(); i++) {
      uint16_t id = uint16_t(ids[i]);
      std::memcpy(to + 2 * i, &id, 2);
    }
  }
  open_ += int64_t(ids.size());
  tokens_ += int64_t(ids.size());
  if (buffer_.size() >= kBuffer) flush();
}

void ShardWriter::end_document() {
  lengths_.push_back(int32_t(open_));
  open_ = 0;
}

void ShardWriter::flush() {
  bin_.write(buffer_.data(), buffer_.size());
  bin_hash_.add(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void ShardWriter::commit() {
  require(open_ == 0, "ShardWriter::commit(): a document is not ended");
  flush();
  IndexFile idx(idx_path_);
  idx.put_bytes({kIndexMagic, sizeof(kIndexMagic)});
  idx.put(uint64_t(1));
  idx.put(uint8_t(type_));
  idx.put(uint64_t(lengths_.size()));
  idx.put(uint64_t(lengths_.size() + 1));
  for (int32_t n : lengths_) idx.put(n);
  int64_t at = 0;
  for (int32_t n : lengths_) idx.put(at), at += n * size_of(type_);
  for (size_t d = 0; d <= lengths_.size(); d++) idx.put(int64_t(d));
  const uint64_t before = idx.hash();
  idx.put_bytes({kContentMagic, sizeof(kContentMagic)});
  idx.put(bin_hash_.value());
  idx.put(before);
  if (vocabulary_) {
    idx.put_bytes({kVocabularyMagic, sizeof(kVocabularyMagic)});
    idx.put(*vocabulary_);
  }
  const fs::path mask_path = fs::path(bin_path_).replace_extension(".mask");
  std::optional<AtomicFile> mask;
  if (mask_) {
    require(mask_->tokens() == tokens_, "ShardWriter: a loss mask covers every token");
    const std::string bytes = mask_->file();
    mask.emplace(mask_path);
    mask->write(bytes);
    idx.put_bytes({kMaskMagic, sizeof(kMaskMagic)});
    idx.put(hash64(bytes.data(), bytes.size()));
  }
  idx.flush();

  std::error_code error;
  if (fs::remove(idx_path_, error)) sync_folder(idx_path_.has_parent_path() ? idx_path_.parent_path() : ".");
  if (error) bad_request("cannot replace {}: {}", idx_path_.string(), error.message());
  fs::remove(mask_path, error);
  if (error) bad_request("cannot replace {}: {}", mask_path.string(), error.message());
  bin_.commit();
  if (mask) mask->commit();
  idx.commit();
}

}  // namespace trireme
