// A hash map from a pair of token ids to a small value: open addressing, linear probing, at most half full.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme {

// Both ids are >= 0. Values move when the map grows: keep no pointer across insert().
template <class Value>
class PairMap {
 public:
  using Key = uint64_t;
  static Key key(int32_t left, int32_t right) { return Key(uint32_t(left)) << 32 | uint32_t(right); }
  static int32_t left(Key k) { return int32_t(k >> 32); }
  static int32_t right(Key k) { return int32_t(uint32_t(k)); }

  size_t size() const { return size_; }

  const Value* find(Key k) const {
    if (size_ == 0) return nullptr;
    for (size_t at = home(k);; at = (at + 1) & mask_) {
      if (slots_[at].first == k) return &slots_[at].second;
      if (slots_[at].first == kEmpty) return nullptr;
    }
  }
  Value* find(Key k) { return const_cast<Value*>(std::as_const(*this).find(k)); }

  // The value of k, made by Value{} when it is new (second = true).
  std::pair<Value*, bool> insert(Key k) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    for (size_t at = home(k);; at = (at + 1) & mask_) {
      if (slots_[at].first == k) return {&slots_[at].second, false};
      if (slots_[at].first == kEmpty) {
        slots_[at] = {k, Value{}};
        size_++;
        return {&slots_[at].second, true};
      }
    }
  }

 private:
  static constexpr Key kEmpty = ~Key(0);  // no pair of non-negative ids
  size_t home(Key k) const { return size_t((k * 0x9E3779B97F4A7C15ull) >> shift_); }
  void grow() {
    std::vector<std::pair<Key, Value>> old = std::move(slots_);
    size_t capacity = old.empty() ? 16 : 2 * old.size();
    slots_.assign(capacity, {kEmpty, Value{}});
    mask_ = capacity - 1;
    shift_ = old.empty() ? 60 : shift_ - 1;
    for (auto& [k, v] : old) {
      if (k == kEmpty) continue;
      size_t at = home(k);
      while (slots_[at].first != kEmpty) at = (at + 1) & mask_;
      slots_[at] = {k, std::move(v)};
    }
  }

  std::vector<std::pair<Key, Value>> slots_;
  size_t size_ = 0, mask_ = 0;
  int shift_ = 60;
};

}  // namespace trireme
