// What the author of an op's case writes: operands, launch, reference. README.md shows the whole of it.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "device/kernels.h"
#include "problem.h"

namespace trireme::harness {

enum class Role : uint8_t {
  in,
  out,
  inout
};  // what the op does to it; an `in` operand must come back unchanged

// Values are in row-major logical order, whatever the strides, and exact: `before` holds what the element
// type holds.
struct Operand {
  std::string name;
  Role role = Role::in;
  Tensor tensor;               // on the device
  std::vector<double> before;  // what the op finds; of an `out` operand NaN
  std::vector<double> want;    // reference, unrounded; filled for out and inout
  std::vector<double> got;     // what the op left

  int64_t extent()
      const {  // bytes from the first element to the end of the last, padding between rows included
    int64_t last = 0;
    for (int i = 0; i < tensor.shape.rank; i++) last += (tensor.shape[i] - 1) * tensor.stride[size_t(i)];
    return tensor.numel() > 0 ? (last + 1) * size_of(tensor.dtype) : 0;
  }
};

class Operands {
 public:
  Operand& operator[](std::string_view name);
  const Operand& operator[](std::string_view name) const;
  const std::vector<double>& in(std::string_view name) const { return (*this)[name].before; }
  std::vector<double>& want(std::string_view name) { return (*this)[name].want; }
  std::vector<Operand> list;
};

// Lays operands into one slab. Every byte that is no element (row padding, gaps between operands) holds a NaN
// pattern: reading it poisons the result, writing it is found.
class Builder {
 public:
  using Fill = std::function<double(int64_t index)>;

  // base: where the slab will be on the device; values: draw them (not needed for sizing, meta and perf's
  // outputs).
  Builder(const Problem& problem, std::byte* base) : problem(problem), base_(base) {}
  const Problem& problem;

  // Standard normal values of the operand's own stream, times scale, plus mean.
  Fill gaussian(std::string_view name, double scale = 1, double mean = 0) const;

  // [rows, ..., cols] with stride 1 in the last dim. Problem key pad=n lengthens every row stride by n
  // elements, offset=n starts every operand n elements after a 64-byte boundary. The default fill is
  // gaussian(name).
  Tensor matrix(Role, std::string name, const Shape&, DType, Fill = {});
  // Contiguous, whatever the problem's pad.
  Tensor dense(Role, std::string name, const Shape&, DType, Fill = {});
  // Any outer strides, in elements.
  Tensor strided(Role, std::string name, const Shape&, std::array<int64_t, kMaxDims> stride, DType,
                 Fill = {});

  int64_t bytes() const { return at_; }  // of the slab so far
  Operands& operands() { return operands_; }
  std::vector<Fill>& fills() { return fills_; }

 private:
  std::byte* base_;
  int64_t at_ = 0;
  Operands operands_;
  std::vector<Fill> fills_;
};

// A gradient that the op writes, and the operand that it is the gradient with respect to.
struct GradPair {
  std::string_view input, gradient;
};

class Case {
 public:
  virtual ~Case() = default;
  virtual void build(Builder&) = 0;  // may be called more than once; must not keep state between calls
  virtual void launch(Kernels&) = 0;
  virtual void reference(Operands&) const = 0;  // fills `want` of every out and inout operand, in double
  virtual Cost expense() const = 0;             // of one launch

  // Mode grad, for ops that write gradients: objective is a scalar in double of the `before` values, and each
  // gradient operand is its derivative with respect to the input operand.
  virtual std::vector<GradPair> gradients() const { return {}; }
  virtual double objective(const Operands&) const { return 0; }

  // Are the bits of this output the same for any number of threads?
  virtual bool same_bits_for_any_threads(std::string_view /*output*/) const { return true; }
};

// The plumbing of a case around its Args.
template <class Args>
class CaseOf : public Case {
 public:
  void launch(Kernels& k) override { k.run(args); }
  Cost expense() const override { return cost(args); }

 protected:
  Args args;
};

struct CaseEntry {
  std::string_view op;  // Args::kName, and the name of the problem file
  std::unique_ptr<Case> (*make)();
};
std::span<const CaseEntry> all_cases();  // cases.cc

}  // namespace trireme::harness
