// Linear layers in 8-bit floats (docs/fp8.md): which, by which recipe, and what delayed scaling remembers.
//
// Of a layer's three products y = x w^T, dx = dy w and dw = dy^T x both operands are rounded to 8 bits, with
// a power of two as scale for each tensor or block of one. Weights, activations and gradients between layers
// stay in the compute type, and so do bias, residual and what is summed.
#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "model/layer.h"
#include "spec/run_spec.h"

namespace trireme {

enum class Fp8Recipe : uint8_t { delayed, current, block };
// What of a linear layer is rounded. x and w to e4m3; dy to e5m2, whose range is larger, or with blocks to
// e4m3.
enum class Fp8Operand : uint8_t { x, w, dy };
inline constexpr std::array<const char*, 3> kFp8Operands = {"x", "w", "dy"};

// Largest magnitudes of a layer's x, w and dy in the last steps, the last one first.
using Fp8History = std::array<std::vector<float>, 3>;
// By layer.
using Fp8Histories = std::map<std::string, Fp8History, std::less<>>;

// A matrix in 8 bits, and its memory.
struct Fp8View {
  Tensor codes, scale;
  Fp8Format format = Fp8Format::e4m3;
  Fp8Blocks blocks;
};
struct Fp8Codes {
  Owned codes, scale;
  Fp8View view;
};

class Fp8Layers {
 public:
  // decls: of the whole model. A pattern that names no linear layer, or a part of one, is a bad request.
  // keeps_inputs: for the backward pass layers may keep codes in place of inputs that are theirs alone.
  Fp8Layers(const PrecisionSpec&, std::span<const std::vector<ParamDecl>> decls, bool keeps_inputs);

  bool delayed() const { return recipe_ == Fp8Recipe::delayed; }
  size_t layers() const { return histories_.size(); }
  bool keeps_inputs() const { return keeps_inputs_; }
  bool has(std::string_view linear) const { return place_.find(linear) != place_.end(); }

  // t [M, N] of the layer in 8 bits. along_rows: it will be summed over its rows (dw), where blocks lie that
  // way too; else over its columns.
  Fp8Codes quantise(Ctx&, std::string_view linear, Fp8Operand, const Tensor& t, bool along_rows) const;
  // How that is, without its tensors.
  Fp8View form(Fp8Operand, bool along_rows) const;

  // ---- delayed scaling: a scale for the step from the largest magnitudes of the steps before ----
  // f32 [3 layers]: the largest of each history (0: none yet, the tensor's own is taken); and seen in this
  // step.
  int64_t magnitudes() const { return 3 * int64_t(layers()); }
  void bind(const Tensor& amax, const Tensor& seen);
  void start_step(Kernels&, Stream) const;
  // After a step whose update was made. all: the ranks that train together; null for one. A maximum over all
  // of them, so every layout has the same scales.
  void end_step(Device&, Communicator* all);
  const Fp8Histories& histories() const { return histories_; }
  // Those of a checkpoint; false where they are not of these layers, too long, or no magnitudes.
  bool restore(Device&, const Fp8Histories&);

 private:
  Tensor at(const Tensor& all, std::string_view linear, Fp8Operand) const;
  void upload_largest(Device&);

  Fp8Recipe recipe_;
  bool keeps_inputs_;
  int margin_;
  size_t length_;  // of a history
  Fp8Histories histories_;
  std::map<std::string, int64_t, std::less<>> place_;  // of a layer's three numbers
  Tensor amax_, seen_;
};

// c (+)= op(a) op(b) + bias + residual.
struct Fp8Product {
  bool trans_a = false, trans_b = false;
  Tensor bias = {}, residual = {};
  bool accumulate = false;
};
void multiply(Ctx&, const Fp8View& a, const Fp8View& b, const Tensor& c, const Fp8Product&);

}  // namespace trireme
