#include "trace/best_fit.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

BestFit::BestFit(int64_t capacity) : capacity_(capacity) {
  begins_.reserve(1024);
  sizes_.reserve(1024);
  if (capacity <= 0) return;
  begins_.push_back(0);
  sizes_.push_back(capacity);
}

void BestFit::erase(size_t hole) {
  begins_.erase(begins_.begin() + ptrdiff_t(hole));
  sizes_.erase(sizes_.begin() + ptrdiff_t(hole));
}

// The first of the smallest holes that have room; their number: none has.
size_t BestFit::best_for(int64_t size) const {
  // The open end is the last resort, whatever its size: so placement does not depend on the capacity.
  const bool open = !sizes_.empty() && begins_.back() + sizes_.back() == capacity_;
  const size_t n = sizes_.size() - open;
  // Bytes that remain of a hole. If the hole is too small, the number is above all others, so no branch
  // depends on a single hole.
  const auto left = [&](size_t i) { return uint64_t(sizes_[i]) - uint64_t(size); };
  constexpr size_t kTogether = 16;
  uint64_t least = uint64_t(1) << 63;
  size_t from = n;
  for (size_t i = 0; i < n && least > 0; i += kTogether) {
    uint64_t here = least;
    for (size_t k = i, end = std::min(n, i + kTogether); k < end; k++) here = std::min(here, left(k));
    if (here >= least) continue;
    least = here;
    from = i;
  }
  if (from == n) return open && sizes_.back() >= size ? n : sizes_.size();
  while (left(from) != least) from++;
  return from;
}

int64_t BestFit::place(int64_t size) {
  const size_t best = best_for(size);
  if (best == sizes_.size()) return -1;
  const int64_t at = begins_[best];
  begins_[best] += size;
  sizes_[best] -= size;
  if (sizes_[best] == 0) erase(best);
  high_water_ = std::max(high_water_, at + size);
  return at;
}

void BestFit::give_back(int64_t begin, int64_t size) {
  const auto next = size_t(std::lower_bound(begins_.begin(), begins_.end(), begin) - begins_.begin());
  const bool last = next == begins_.size();
  const int64_t end_before = next > 0 ? begins_[next - 1] + sizes_[next - 1] : 0;
  require(begin >= 0 && begin + size <= capacity_ && (last || begin + size <= begins_[next]) &&
              end_before <= begin,
          "a block was freed twice or is not of this arena");
  const bool left = next > 0 && end_before == begin;
  const bool right = !last && begin + size == begins_[next];
  if (left && right) {
    sizes_[next - 1] += size + sizes_[next];
    erase(next);
  } else if (left) {
    sizes_[next - 1] += size;
  } else if (right) {
    begins_[next] = begin;
    sizes_[next] += size;
  } else {
    begins_.insert(begins_.begin() + ptrdiff_t(next), begin);
    sizes_.insert(sizes_.begin() + ptrdiff_t(next), size);
  }
}

}  // namespace trireme
