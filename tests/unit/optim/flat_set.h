// Flat buffers of a few parameters on one rank or several, for tests of optimizers.
#pragma once
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace trireme::test {

inline ParamDecl param(std::string name, Shape shape, bool hidden) {
  ParamDecl d;
  d.name = std::move(name), d.global = shape, d.hidden_matrix = hidden, d.decay = shape.rank > 1;
  return d;
}

// The global row-major index of element i of the parameter's box.
inline int64_t global_index(const Param& p, int64_t i) {
  const Shape &s = p.box.extent, &g = p.decl.global;
  if (s.rank == 1) return p.box.offset[0] + i;
  return (p.box.offset[0] + i / s[1]) * g[1] + p.box.offset[1] + i % s[1];
}

// An arena over memory of its device, which its kernels use while it lives.
class DeviceArena {
 public:
  DeviceArena(Device& device, int64_t bytes)
      : device_(device), bytes_(bytes), base_(device.reserve(bytes)), arena(base_, bytes) {
    device.kernels().attach(&arena);
  }
  DeviceArena(const DeviceArena&) = delete;
  ~DeviceArena() {
    device_.kernels().detach(&arena);
    device_.release(base_, bytes_);
  }

 private:
  Device& device_;
  int64_t bytes_;
  std::byte* base_;

 public:
  Arena arena;
};

// What one rank holds, in memory of its own. weights: "f32" trains them themselves.
struct FlatBuffers {
  FlatBuffers(const ParamSet& set, const ShardPlace& place, DType weights, DType grads,
              const std::vector<StateDecl>& states)
      : weights_(buffer(weights == DType::f32 ? 0 : set.numel * size_of(weights))) {
    const int64_t part = set.numel / place.shards;
    flat.place = place;
    auto tensor = [&](int64_t n, DType t) {
      memory_.push_back(buffer(n * size_of(t)));
      return Tensor(memory_.back().data(), {n}, t);
    };
    flat.grads = tensor(set.numel, grads);
    if (weights == DType::f32) {
      flat.weights = flat.master = tensor(set.numel, DType::f32);
    } else {
      flat.weights = tensor(set.numel, weights);
      flat.master = tensor(part, DType::f32);
    }
    for (const StateDecl& s : states)
      flat.state.push_back(tensor(s.of_hidden ? part : others_numel(set, place.shards), s.dtype));
  }
  FlatState flat;

 private:
  static std::vector<std::byte> buffer(int64_t bytes) { return std::vector<std::byte>(size_t(bytes)); }
  std::vector<std::byte> weights_;
  std::vector<std::vector<std::byte>> memory_;
};

// Gives a float to element i of a tensor of f32, bf16 or f16.
inline void set_element(const Tensor& t, int64_t i, float x) {
  if (t.dtype == DType::f32)
    t.as<float>()[i] = x;
  else if (t.dtype == DType::bf16)
    t.as<bf16>()[i] = bf16(x);
  else
    t.as<f16>()[i] = f16(x);
}

}  // namespace trireme::test
