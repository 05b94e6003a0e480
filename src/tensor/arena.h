// Placement of a step's memory in one address range, booked by bucket.
//
// An Arena hands out blocks of a range that a device reserved once. Placement is a pure function of the
// sequence of alloc and free calls (best fit, lowest address first, neighbours merged), so the same calls
// over a virtual range on meta give the same addresses, and memory never depends on time. The ledger books
// the exact bytes asked for; high_water() is the end of the highest block ever placed: what the range must
// hold, holes included.
#pragma once
#include <utility>
#include <vector>

#include "tensor/tensor.h"
#include "trace/best_fit.h"
#include "trace/ledger.h"

namespace trireme {

class Arena {
 public:
  static constexpr int64_t kAlign = kBlockAlign;

  // A block that was placed or, with size < 0, freed: bytes from the range's begin, and padded.
  struct Call {
    int64_t at = 0, size = 0;
    Bucket bucket = Bucket::scratch;
    int64_t bytes = 0;  // without padding
  };

  Arena(std::byte* base, int64_t capacity);  // the range outlives the arena
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws Error when the range cannot hold it, naming the bucket and what is booked.
  Tensor alloc(Bucket, const Shape&, DType);
  void free(Bucket, const Tensor&);

  const Ledger& ledger() const { return ledger_; }
  Ledger& ledger() { return ledger_; }
  const BestFit& places() const { return places_; }
  int64_t high_water() const { return places_.high_water(); }
  int64_t capacity() const { return places_.capacity(); }
  int64_t live_blocks() const { return live_; }
  // Bytes from the range's begin to a block of this arena.
  int64_t place_of(const Tensor& t) const { return t.data - base_; }
  void list_calls(std::vector<Call>* in) { calls_ = in; }  // from here on; null: no more

 private:
  std::byte* base_;
  int64_t live_ = 0;
  BestFit places_;
  Ledger ledger_;
  std::vector<Call>* calls_ = nullptr;
};

// A tensor that goes back to its arena at the end of its owner's life. Move-only; empty when default-made.
class Owned {
 public:
  Owned() = default;
  Owned(Arena& arena, Bucket bucket, const Shape& shape, DType dtype)
      : arena_(&arena), bucket_(bucket), tensor_(arena.alloc(bucket, shape, dtype)) {}
  Owned(Owned&& o) noexcept
      : arena_(std::exchange(o.arena_, nullptr)), bucket_(o.bucket_), tensor_(std::exchange(o.tensor_, {})) {}
  Owned& operator=(Owned&& o) noexcept {
    if (this != &o) {
      reset();
      arena_ = std::exchange(o.arena_, nullptr), bucket_ = o.bucket_, tensor_ = std::exchange(o.tensor_, {});
    }
    return *this;
  }
  ~Owned() { reset(); }
  void reset() {
    if (arena_) arena_->free(bucket_, tensor_);
    arena_ = nullptr, tensor_ = {};
  }
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }
  explicit operator bool() const { return arena_ != nullptr; }

 private:
  Arena* arena_ = nullptr;
  Bucket bucket_ = Bucket::scratch;
  Tensor tensor_;
};

}  // namespace trireme
