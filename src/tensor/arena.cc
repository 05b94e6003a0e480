#include "tensor/arena.h"

namespace trireme {

Arena::Arena(std::byte* base, int64_t capacity) : base_(base), places_(capacity) {}

Tensor Arena::alloc(Bucket bucket, const Shape& shape, DType dtype) {
  const int64_t bytes = shape.numel() * size_of(dtype), need = padded_block(bytes), at = places_.place(need);
  if (at < 0)
    run_failed("out of memory: {} bytes for {} do not fit; {} of {} bytes are booked", bytes,
               kBucketNames[size_t(bucket)], ledger_.total(), capacity());
  live_++;
  if (calls_) calls_->push_back({at, need, bucket, bytes});
  ledger_.book(bucket, bytes);
  return Tensor(base_ + at, shape, dtype);
}

void Arena::free(Bucket bucket, const Tensor& t) {
  const int64_t begin = t.data - base_, size = padded_block(t.bytes());
  places_.give_back(begin, size);
  live_--;
  if (calls_) calls_->push_back({begin, -size, bucket, t.bytes()});
  ledger_.release(bucket, t.bytes());
}

}  // namespace trireme
