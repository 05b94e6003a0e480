#include "optim/grad_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme {
namespace {

constexpr int kLimbBits = 43;

// Terms come below 2^100: room for 2^27 of them.
int shift_of(double largest) {
  int exponent;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  return 100 - exponent;
}

// Non-negative doubles order as their bits do; a value that is not finite lies above all.
double largest_over(double mine, Communicator& world) {
  int64_t bits = mine == kNonfinite ? std::numeric_limits<int64_t>::max() : std::bit_cast<int64_t>(mine);
  bits = agree_max(world, bits);
  return bits == std::numeric_limits<int64_t>::max() ? kNonfinite : std::bit_cast<double>(bits);
}

}  // namespace

double largest_of(std::span<const double> values) {
  double largest = 0;
  for (double v : values) {
    if (!std::isfinite(v)) return kNonfinite;
    largest = std::max(largest, v);
  }
  return largest;
}

Limbs limbs_of(std::span<const double> values, double largest) {
  if (largest <= 0) return {};
  const int shift = shift_of(largest);
  __int128 sum = 0;
  for (double v : values) sum += __int128(std::ldexp(v, shift));
  constexpr int64_t kMask = (int64_t(1) << kLimbBits) - 1;
  return {int64_t(sum) & kMask, int64_t(sum >> kLimbBits) & kMask, int64_t(sum >> 2 * kLimbBits)};
}

double sum_of(const Limbs& limbs, double largest) {
  if (largest == kNonfinite) return std::nan("");
  if (largest == 0) return 0;
  __int128 sum = limbs[0] + (__int128(limbs[1]) << kLimbBits) + (__int128(limbs[2]) << 2 * kLimbBits);
  return std::ldexp(double(sum), -shift_of(largest));
}

double order_independent_sum(std::span<const double> values) {
  double largest = largest_of(values);
  return sum_of(limbs_of(values, largest), largest);
}

GradNorm::GradNorm(const ParamSet& set, const FlatState& flat, Arena& arena) {
  int64_t n = 0;
  for (const Unit& u : set.units) {
    if (u.frozen) continue;
    // The first replica's share is the largest; every rank books as much.
    ShardPlace first = flat.place_of(u);
    first.replica = 0;
    n += flat_blocks(own_share(u, first).size());
  }
  if (set.divided) n += 2 * int64_t(set.params.size());
  sums_ = Owned(arena, Bucket::scratch, {n}, DType::f64);
}

// Sums of squares of some elements of a unit, from place `at` on; returns where the next ones go.
int64_t GradNorm::add(Device& device, const ParamSet& set, const FlatState& flat, const Unit& u, Range r,
                      int64_t at, Stream stream) {
  if (r.size() == 0) return at;
  const Tensor own = flat.own(flat.grads, set, u);
  device.kernels().run(
      SquareSumsArgs{.x = own.narrow(0, r.begin - own_part(u, flat.place_of(u)).begin, r.size()),
                     .sums = sums_->narrow(0, at, flat_blocks(r.size()))},
      stream);
  return at + flat_blocks(r.size());
}

// Of neighbouring parameters that this rank answers for: the piece of a block that they begin with, then
// whole blocks. A share is of whole blocks, so pieces are the same wherever shares end.
int64_t GradNorm::add_answered(Device& device, const ParamSet& set, const FlatState& flat, const Unit& u,
                               Range share, int64_t at, Stream stream) {
  for (size_t i = u.first, j; i < u.last; i = j) {
    for (j = i + 1; j < u.last && set.params[j].answers == set.params[i].answers;) j++;
    if (!set.params[i].answers) continue;
    const Param &first = set.params[i], &last = set.params[j - 1];
    const int64_t begin = std::max(share.begin, first.offset - u.offset),
                  end = std::min(share.end, last.offset + last.numel() - u.offset);
    if (begin >= end) continue;
    const int64_t block = std::min(end, flat_blocks(begin) * kFlatBlock);
    at = add(device, set, flat, u, {begin, block}, at, stream);
    at = add(device, set, flat, u, {block, end}, at, stream);
  }
  return at;
}

std::span<const double> GradNorm::squares(Device& device, const ParamSet& set, const FlatState& flat,
                                          Stream stream) {
  int64_t at = 0;
  for (const Unit& u : set.units) {
    if (u.frozen) continue;
    const Range share = own_share(u, flat.place_of(u));
    const bool whole =
        std::all_of(set.params.begin() + std::ptrdiff_t(u.first), set.params.begin() + std::ptrdiff_t(u.last),
                    [](const Param& p) { return p.answers; });
    at = whole ? add(device, set, flat, u, share, at, stream)
               : add_answered(device, set, flat, u, share, at, stream);
  }
  // A plan has no numbers, and its model may have more blocks than this host has memory for.
  host_.resize(device.has_data() ? size_t(at) : 0);
  device.download(host_.data(), sums_->narrow(0, 0, at));
  return host_;
}

double GradNorm::compute(Device& device, const ParamSet& set, const FlatState& flat, Communicator* world,
                         Stream stream) {
  const std::span<const double> values = squares(device, set, flat, stream);
  double largest = largest_of(values);
  if (!world || world->size() == 1) return std::sqrt(sum_of(limbs_of(values, largest), largest));
  largest = largest_over(largest, *world);
  Limbs mine = limbs_of(values, largest);
  gathered_.resize(size_t(world->size()));
  gather_bytes(*world, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(gathered_)));
  if (!device.has_data()) return 0;
  Limbs sum{};
  for (const Limbs& l : gathered_)
    for (size_t i = 0; i < l.size(); i++) sum[i] += l[i];
  return std::sqrt(sum_of(sum, largest));
}

}  // namespace trireme
