#include "data/loss_mask.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace trireme {
namespace {

constexpr int64_t kMaskHeader = sizeof(kMaskMagic) + 8;

}  // namespace

LossMask LossMask::parse(std::span<const std::byte> file, int64_t tokens, std::string_view name) {
  if (int64_t(file.size()) < kMaskHeader || std::memcmp(file.data(), kMaskMagic, sizeof(kMaskMagic)) != 0)
    bad_request("{}: not a loss mask; run trireme tokenize --chat again", name);
  uint64_t n = 0;
  std::memcpy(&n, file.data() + sizeof(kMaskMagic), sizeof n);
  if (n != uint64_t(tokens))
    bad_request("{}: a mask of {} tokens, and the shard has {}; the files belong to two shards", name, n,
                tokens);
  if (int64_t(file.size()) != kMaskHeader + (tokens + 7) / 8)
    bad_request("{}: {} bytes; a mask of {} tokens has {}", name, file.size(), tokens,
                kMaskHeader + (tokens + 7) / 8);
  LossMask mask;
  mask.bits_ = file.data() + kMaskHeader;
  mask.tokens_ = tokens;
  if (tokens % 8 != 0 && uint8_t(mask.bits_[tokens / 8]) >> (tokens % 8) != 0)
    bad_request("{}: bits are set after the last token", name);
  return mask;
}

int64_t LossMask::count(int64_t begin, int64_t end) const {
  require(begin >= 0 && begin <= end && end <= tokens_, "LossMask::count() outside the shard");
  int64_t n = 0;
  for (; begin < end && begin % 8 != 0; begin++) n += target(begin);
  for (; begin + 8 <= end; begin += 8) n += std::popcount(uint8_t(bits_[begin / 8]));
  for (; begin < end; begin++) n += target(begin);
  return n;
}

void LossMask::keep(int64_t begin, std::span<int32_t> ids) const {
  require(begin >= 0 && begin + int64_t(ids.size()) <= tokens_, "LossMask::keep() outside the shard");
  for (size_t i = 0; i < ids.size(); i++)
    if (!target(begin + int64_t(i))) ids[i] = -1;
}

void LossMaskBits::add(bool target) {
  if (tokens_ % 8 == 0) bits_ += '\0';
  if (target) bits_.back() = char(uint8_t(bits_.back()) | 1 << (tokens_ % 8));
  targets_ += target;
  tokens_++;
}

std::string LossMaskBits::file() const {
  std::string out(kMaskMagic, sizeof(kMaskMagic));
  const uint64_t n = uint64_t(tokens_);
  out.append(reinterpret_cast<const char*>(&n), sizeof n);
  return out + bits_;
}

}  // namespace trireme
