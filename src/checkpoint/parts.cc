#include "checkpoint/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {

constexpr size_t kDims = size_t(kMaxDims);
using Dims = std::array<int64_t, kDims>;

// A part with leading dims of one element added up to kMaxDims.
struct Full {
  Dims offset, extent, stride;
  Range range;

  explicit Full(const Part& p) : range(p.range) {
    offset.fill(0), extent.fill(1);
    size_t pad = kDims - size_t(p.box.extent.rank);
    for (size_t d = pad; d < kDims; d++)
      offset[d] = p.box.offset[int(d - pad)], extent[d] = p.box.extent[int(d - pad)];
    int64_t n = 1;
    for (size_t d = kDims; d-- > 0;) stride[d] = n, n *= extent[d];
  }
  // Row-major index in the box of the element at the global coordinates.
  int64_t index(const Dims& at) const {
    int64_t i = 0;
    for (size_t d = 0; d < kDims; d++) i += (at[d] - offset[d]) * stride[d];
    return i;
  }
  // Drops the outermost rows that the range does not touch.
  void narrow(Dims& low, Dims& high) const {
    size_t d = 0;
    while (d + 1 < kDims && extent[d] == 1) d++;
    low[d] = std::max(low[d], offset[d] + range.begin / stride[d]);
    high[d] = std::min(high[d], offset[d] + (range.end + stride[d] - 1) / stride[d]);
  }
};

}  // namespace

Part whole(const Shape& global) {
  Shape zero = global;
  zero.dim.fill(0);
  return {{zero, global}, {0, global.numel()}};
}

std::string why_not_part(const Part& part, const Shape& global) {
  const auto& [offset, extent] = part.box;
  if (offset.rank != global.rank || extent.rank != global.rank)
    return fmt::format("a box of {} dims in a tensor of shape {}", extent.rank, to_string(global));
  for (int d = 0; d < global.rank; d++)
    if (offset[d] < 0 || extent[d] < 0 || offset[d] > global[d] || extent[d] > global[d] - offset[d])
      return fmt::format("the box at {} of extent {} leaves the shape {}", to_string(offset),
                         to_string(extent), to_string(global));
  if (part.range.begin < 0 || part.range.end < part.range.begin || part.range.end > extent.numel())
    return fmt::format("the range [{}, {}) leaves the {} elements of the box", part.range.begin,
                       part.range.end, extent.numel());
  return "";
}

void for_each_run(const Part& to_part, const Part& from_part, const std::function<void(const Overlap&)>& f) {
  require(to_part.box.extent.rank == from_part.box.extent.rank, "two parts of one tensor differ in rank");
  if (to_part.range.size() <= 0 || from_part.range.size() <= 0) return;
  const Full to(to_part), from(from_part);
  Dims low, high;
  for (size_t d = 0; d < kDims; d++) {
    low[d] = std::max(to.offset[d], from.offset[d]);
    high[d] = std::min(to.offset[d] + to.extent[d], from.offset[d] + from.extent[d]);
  }
  to.narrow(low, high);
  from.narrow(low, high);
  for (size_t d = 0; d < kDims; d++)
    if (low[d] >= high[d]) return;

  // Inner dims that both boxes hold alike are contiguous in both: a run spans them and the next dim outwards.
  size_t run_dim = kDims - 1;
  while (run_dim > 0 && to.offset[run_dim] == from.offset[run_dim] &&
         to.extent[run_dim] == from.extent[run_dim] && high[run_dim] - low[run_dim] == to.extent[run_dim])
    run_dim--;
  const int64_t length = (high[run_dim] - low[run_dim]) * to.stride[run_dim];

  for (Dims at = low;;) {
    int64_t t = to.index(at), s = from.index(at);
    int64_t begin = std::max({int64_t(0), to.range.begin - t, from.range.begin - s});
    int64_t end = std::min({length, to.range.end - t, from.range.end - s});
    if (begin < end) f({t + begin, s + begin, end - begin});
    size_t d = run_dim;
    while (d > 0 && ++at[d - 1] == high[d - 1]) at[d - 1] = low[d - 1], d--;
    if (d == 0) return;
  }
}

void Cover::add(const Range& r) {
  if (r.size() <= 0) return;
  if (!filled_.empty() && filled_.back().end == r.begin)
    filled_.back().end = r.end;
  else
    filled_.push_back(r);
}

Range Cover::first_missing(const Range& wanted) {
  std::sort(filled_.begin(), filled_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  int64_t at = wanted.begin;
  for (const Range& r : filled_) {
    if (at >= wanted.end) break;
    if (r.begin > at) return {at, std::min(r.begin, wanted.end)};
    at = std::max(at, r.end);
  }
  return {std::min(at, wanted.end), wanted.end};
}

}  // namespace trireme
