// Words that one thread writes and others read whole, without a lock: behind a version that is odd while they
// are written (a seqlock).
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace trireme {

template <size_t kWords>
class VersionedWords {
 public:
  using Words = std::array<uint64_t, kWords>;

  // ---- one writer: begin(), any put()s, end() ----
  // Whoever reads a word of this writing sees the odd version too, for each word is released.
  void begin() { version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void put(size_t i, uint64_t word) { words_[i].store(word, std::memory_order_release); }
  void end() { version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // ---- any thread ----
  // Are they of one moment? A writer that is held up between begin() and end(), and one that never pauses,
  // leaves a mixture behind: false, after so many looks. between: called before each word (tests write
  // there).
  template <class Between>
  bool read(Words& out, int looks, const Between& between) const {
    while (looks-- > 0) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; i++) {
        between(i);
        out[i] = words_[i].load(std::memory_order_acquire);
      }
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return true;
    }
    return false;
  }
  bool read(Words& out, int looks) const {
    return read(out, looks, [](size_t) {});
  }

 private:
  std::array<std::atomic<uint64_t>, kWords> words_{};
  std::atomic<uint64_t> version_ = 0;
};

}  // namespace trireme
