// f16 on CPUs: one adapter for all ops instead of one more instance of every kernel.
//
// No CPU that trireme is built for multiplies f16, and oneDNN has no product of it here: f16 is what GPUs
// compute in, and what a CPU must be able to check, resume and convert. So each f16 operand is widened to f32
// (exact) in scratch, the op's f32 kernel runs, and its f16 outputs are rounded once, to nearest even, beyond
// 65520 to infinity: the very contract of ops.h. An output is widened as well, for an op may add to it or
// leave parts of it as they are. The price, twice the operand's bytes in scratch and in traffic, is booked on
// meta like any other scratch.
#pragma once
#include "device/cpu/launch.h"
#include "device/operands.h"

namespace trireme::cpu {

// Contiguous f32 <- f16 of any strides, and back. Equal shapes.
void widen(const Tensor& f32, const Tensor& half, const Context&);
void round_to_f16(const Tensor& half, const Tensor& f32, const Context&);

// Kernels that take f16 as it is: elementwise ones over whole flat buffers, where a widened copy of the model
// would not fit, and those that only move bits.
template <class A>
bool takes_f16(const A&) {
  return false;
}
inline bool takes_f16(const AdamWArgs&) {
  return true;
}
inline bool takes_f16(const MuonApplyArgs&) {
  return true;
}
inline bool takes_f16(const CastArgs& p) {
  return p.src.dtype != DType::bf16 && p.dst.dtype != DType::bf16;
}
inline bool takes_f16(const CacheAppendArgs&) {
  return true;
}
inline bool takes_f16(const PermuteRowsArgs&) {
  return true;
}
inline bool takes_f16(const ConcatSharedArgs&) {
  return true;
}
inline bool takes_f16(const ZeroArgs&) {
  return true;
}
inline bool takes_f16(const CountNonfiniteArgs&) {
  return true;
}

// The arguments with f32 in place of f16. Operands of one address (dx = dy, residual = c) stay one.
template <class A>
class Widened {
 public:
  // base: of the copies; null where only sizes matter.
  Widened(const A& p, std::byte* base) : args(p), base_(base ? base : reinterpret_cast<std::byte*>(kAlign)) {
    for (auto member : kOperands<A>)
      if (Tensor& t = args.*member; t.dtype == DType::f16) t = in_f32(t);
  }

  A args;
  int64_t bytes() const { return bytes_; }

  void load(const Context& ctx) const {
    for (int i = 0; i < n_; i++) widen(copies_[i].f32, copies_[i].half, ctx);
  }
  void store_outputs(const Context& ctx) const {
    Outputs out = outputs(args);
    for (int o = 0; o < out.n; o++)
      for (int i = 0; i < n_; i++)
        if (copies_[i].f32.data == out.t[o].data) round_to_f16(copies_[i].half, copies_[i].f32, ctx);
  }

 private:
  static constexpr int64_t kAlign = 64;
  struct Copy {
    Tensor half, f32;
  };

  Tensor in_f32(const Tensor& half) {
    if (!half || half.numel() == 0) return Tensor(half.data, half.shape, DType::f32);
    for (int i = 0; i < n_; i++) {
      if (copies_[i].half.data != half.data) continue;
      require(copies_[i].half.shape == half.shape && copies_[i].half.stride == half.stride,
              "two f16 operands of an op share memory under two shapes");
      return copies_[i].f32;
    }
    Tensor f32(base_ + bytes_, half.shape, DType::f32);
    bytes_ += (f32.bytes() + kAlign - 1) / kAlign * kAlign;
    copies_[n_++] = {half, f32};
    return f32;
  }

  std::byte* base_;
  Copy copies_[kOperands<A>.size()];
  int n_ = 0;
  int64_t bytes_ = 0;
};

template <class A>
bool needs_widening(const A& p) {
  bool half = false;
  for (auto member : kOperands<A>) half |= (p.*member).dtype == DType::f16;
  return half && !takes_f16(p);
}

// scratch_bytes() and launch() of launch.h, for any type that ops.h allows.
template <class A>
int64_t scratch_bytes_of_any(const A& p, const Context& ctx) {
  if (!needs_widening(p)) return scratch_bytes(p, ctx);
  Widened<A> w(p, nullptr);
  return w.bytes() + scratch_bytes(w.args, ctx);
}
template <class A>
void launch_any(const A& p, const Tensor& scratch, const Context& ctx) {
  if (!needs_widening(p)) return launch(p, scratch, ctx);
  Widened<A> w(p, scratch.data);
  check(w.args);  // fails where a tensor is missing in device/operands.h
  w.load(ctx);
  int64_t rest = scratch.numel() - w.bytes();
  launch(w.args, rest > 0 ? Tensor(scratch.data + w.bytes(), {rest}, DType::u8) : Tensor(), ctx);
  w.store_outputs(ctx);
}

}  // namespace trireme::cpu
