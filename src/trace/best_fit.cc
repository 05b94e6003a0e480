#include "trace/best_fit.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {

BestFit::BestFit(int64_t capacity) : capacity_(capacity) {
  holes_.reserve(1024);
  if (capacity > 0) holes_.push_back({0, capacity});
}

int64_t BestFit::place(int64_t size) {
  // The open end is the last resort, whatever its size: so placement does not depend on the capacity.
  Hole* best = nullptr;
  const bool open = !holes_.empty() && holes_.back().begin + holes_.back().size == capacity_;
  for (size_t i = 0, n = holes_.size() - open; i < n; i++) {
    Hole& h = holes_[i];
    if (h.size < size || (best && h.size >= best->size)) continue;
    best = &h;
    if (h.size == size) break;
  }
  if (!best && open && holes_.back().size >= size) best = &holes_.back();
  if (!best) return -1;
  const int64_t at = best->begin;
  best->begin += size, best->size -= size;
  if (best->size == 0) holes_.erase(holes_.begin() + (best - holes_.data()));
  high_water_ = std::max(high_water_, at + size);
  return at;
}

void BestFit::give_back(int64_t begin, int64_t size) {
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
}

}  // namespace trireme
