#include "tensor/arena.h"

#include <algorithm>

namespace trireme {
namespace {
int64_t padded(int64_t bytes) {
  return std::max<int64_t>(1, (bytes + Arena::kAlign - 1) / Arena::kAlign) * Arena::kAlign;
}
}  // namespace

Arena::Arena(std::byte* base, int64_t capacity) : base_(base), capacity_(capacity) {
  holes_.reserve(1024);
  if (capacity > 0) holes_.push_back({0, capacity});
}

Tensor Arena::alloc(Bucket bucket, const Shape& shape, DType dtype) {
  int64_t bytes = shape.numel() * size_of(dtype), need = padded(bytes);
  // The open end is the last resort, whatever its size: so placement does not depend on the capacity.
  Hole* best = nullptr;
  for (Hole& h : holes_) {
    bool open_end = h.begin + h.size == capacity_;
    if (h.size >= need && (!best || (!open_end && h.size < best->size))) best = &h;
  }
  if (!best)
    run_failed("out of memory: {} bytes for {} do not fit; {} of {} bytes are booked", bytes,
               kBucketNames[size_t(bucket)], ledger_.total(), capacity_);
  int64_t at = best->begin;
  best->begin += need, best->size -= need;
  if (best->size == 0) holes_.erase(holes_.begin() + (best - holes_.data()));
  high_water_ = std::max(high_water_, at + need);
  live_++;
  ledger_.book(bucket, bytes);
  return Tensor(base_ + at, shape, dtype);
}

void Arena::free(Bucket bucket, const Tensor& t) {
  int64_t begin = t.data - base_, size = padded(t.bytes());
  auto next = std::lower_bound(holes_.begin(), holes_.end(), begin,
                               [](const Hole& h, int64_t at) { return h.begin < at; });
  require(begin >= 0 && begin + size <= capacity_ && (next == holes_.end() || begin + size <= next->begin) &&
              (next == holes_.begin() || std::prev(next)->begin + std::prev(next)->size <= begin),
          "a block was freed twice or is not of this arena");
  bool left = next != holes_.begin() && std::prev(next)->begin + std::prev(next)->size == begin;
  bool right = next != holes_.end() && begin + size == next->begin;
  if (left && right) {
    std::prev(next)->size += size + next->size;
    holes_.erase(next);
  } else if (left) {
    std::prev(next)->size += size;
  } else if (right) {
    next->begin = begin, next->size += size;
  } else {
    holes_.insert(next, {begin, size});
  }
  live_--;
  ledger_.release(bucket, t.bytes());
}

}  // namespace trireme
