// Random tensors, and random ways to cut them into parts.
#pragma once
#include <map>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/parts.h"

namespace trireme {

inline Shape random_shape(std::mt19937_64& rng, int64_t most) {
  Shape s;
  s.rank = int(rng() % 5);
  for (int d = 0; d < s.rank; d++) s.dim[size_t(d)] = 1 + int64_t(rng() % uint64_t(most));
  return s;
}

inline Part random_part(std::mt19937_64& rng, const Shape& global) {
  Part p = whole(global);
  for (int d = 0; d < global.rank; d++) {
    if (rng() % 3) continue;
    int64_t a = int64_t(rng() % uint64_t(global[d] + 1)), b = int64_t(rng() % uint64_t(global[d] + 1));
    p.box.offset.dim[size_t(d)] = std::min(a, b),
    p.box.extent.dim[size_t(d)] = std::max(a, b) - std::min(a, b);
  }
  uint64_t n = uint64_t(p.box.extent.numel());
  p.range = {0, int64_t(n)};
  if (rng() % 3 == 0) {
    int64_t a = int64_t(rng() % (n + 1)), b = int64_t(rng() % (n + 1));
    p.range = {std::min(a, b), std::max(a, b)};
  }
  return p;
}

// The global row-major index of each element of a part, by counting.
inline std::vector<int64_t> elements_of(const Part& p, const Shape& global) {
  std::vector<int64_t> out;
  for (int64_t i = p.range.begin; i < p.range.end; i++) {
    int64_t rest = i, index = 0, stride = 1;
    for (int d = global.rank - 1; d >= 0; d--) {
      index += (p.box.offset[d] + rest % p.box.extent[d]) * stride;
      rest /= p.box.extent[d], stride *= global[d];
    }
    out.push_back(index);
  }
  return out;
}

// Parts that together hold every element once: each dim cut into random stretches, each box's range into up
// to 3.
inline std::vector<Part> random_split(std::mt19937_64& rng, const Shape& global) {
  std::vector<Slice> boxes = {whole(global).box};
  for (int d = 0; d < global.rank; d++) {
    std::vector<Slice> next;
    for (const Slice& b : boxes) {
      int64_t cut = int64_t(rng() % uint64_t(b.extent[d] + 1));
      if (rng() % 2 || cut == 0 || cut == b.extent[d]) {
        next.push_back(b);
        continue;
      }
      Slice low = b, high = b;
      low.extent.dim[size_t(d)] = cut;
      high.offset.dim[size_t(d)] += cut, high.extent.dim[size_t(d)] -= cut;
      next.push_back(low), next.push_back(high);
    }
    boxes = next;
  }
  std::vector<Part> parts;
  for (const Slice& b : boxes) {
    int64_t n = b.extent.numel(), at = 0;
    for (int piece = 0; piece < 2; piece++) {
      int64_t end = rng() % 2 ? at : at + int64_t(rng() % uint64_t(n - at + 1));  // may be empty
      parts.push_back({b, {at, end}});
      at = end;
    }
    parts.push_back({b, {at, n}});
  }
  std::shuffle(parts.begin(), parts.end(), rng);
  return parts;
}

// A tensor with known contents, and the memory of any of its parts.
struct Whole {
  std::string name;
  Shape global;
  std::vector<float> values;

  Whole(std::string n, const Shape& s, std::mt19937_64& rng)
      : name(std::move(n)), global(s), values(size_t(s.numel())) {
    for (float& v : values) v = float(int64_t(rng() % 2000001) - 1000000) / 1024;
  }
  std::vector<float> part(const Part& p) const {
    std::vector<float> out;
    for (int64_t i : elements_of(p, global)) out.push_back(values[size_t(i)]);
    return out;
  }
};

// Parts with the memory that they point to.
struct Stored {
  std::vector<NamedTensor> tensors;
  std::vector<std::unique_ptr<std::vector<float>>> memory;

  void add(const Whole& w, const Part& p) {
    memory.push_back(std::make_unique<std::vector<float>>(w.part(p)));
    tensors.push_back(
        {w.name, w.global, p.box, p.range, Tensor(memory.back()->data(), {p.range.size()}, DType::f32)});
  }
};

}  // namespace trireme
