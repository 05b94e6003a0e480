// Which tokens of a shard are targets of the loss: NAME.mask next to NAME.bin and NAME.idx.
//
// NAME.mask, little endian, without padding:
//   8 bytes  "TRIRMSK\0"
//   u64      n, the number of tokens of the shard
//   (n + 7) / 8 bytes: bit i % 8 (1 << i % 8) of byte i / 8 is 1 if token i of the concatenation is a target;
//            the bits after the last token are 0
// The index has the file's xxh3 (indexed_dataset.h). A shard whose index has none has no mask, and every
// token is a target.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

// A checked view of the bytes of a .mask, which must outlive it.
class LossMask {
 public:
  LossMask() = default;
  // bad_request, naming `name`, unless the file has the form above and a bit for each of `tokens`.
  static LossMask parse(std::span<const std::byte> file, int64_t tokens, std::string_view name);

  bool target(int64_t token) const { return (uint8_t(bits_[token / 8]) >> (token % 8) & 1) != 0; }
  int64_t count(int64_t begin, int64_t end) const;         // targets among tokens [begin, end)
  void keep(int64_t begin, std::span<int32_t> ids) const;  // -1 in place of ids that are not targets

 private:
  const std::byte* bits_ = nullptr;
  int64_t tokens_ = 0;
};

// Collects a mask token by token, in memory.
class LossMaskBits {
 public:
  void add(bool target);
  int64_t tokens() const { return tokens_; }
  int64_t targets() const { return targets_; }
  std::string file() const;  // content of the .mask

 private:
  std::string bits_;
  int64_t tokens_ = 0;
  int64_t targets_ = 0;
};

}  // namespace trireme
