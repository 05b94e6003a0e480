// A case built for one problem on one device, with its memory.
#pragma once
#include "case.h"
#include "device/device.h"

namespace trireme::harness {

// Floats: every value drawn, or 65,521 values repeated, for times alone. A GPU's operands have billions,
// drawing takes 50 ns each, and their image on the host would take gigabytes.
enum class Draws { all, repeated };

class Instance {
 public:
  // scratch: bytes that the op's scratch may take (what meta booked), with a guard behind them. repeated:
  // Operand::before stays empty, outputs and padding are not poisoned, and fetch() and trespass() are not
  // there.
  Instance(const CaseEntry&, const Problem&, Device&, int64_t scratch, Draws = Draws::all);
  Instance(const Instance&) = delete;
  ~Instance();

  void reset();   // the operands as they were built, outputs and scratch poisoned
  void launch();  // once
  void finish();  // waits for what was launched
  void fetch();   // what the op left, into Operand::got
  // What the op wrote that it may not: a changed input, padding, guard or scratch beyond its size; "" if
  // nothing. After fetch().
  std::string trespass() const;

  // The bytes of the operand as fetched, in logical order.
  std::vector<std::byte> bits(const Operand&) const;

  Case& the_case() { return *case_; }
  Operands& operands() { return builder_.operands(); }
  int64_t scratch_peak() const { return arena_.ledger().peak(Bucket::scratch); }
  Kernels& kernels() { return device_.kernels(); }

 private:
  static int64_t slab_bytes(Case&, const Problem&);
  void put_repeated(const Operand&, const Builder::Fill&);
  Tensor slab() const { return Tensor(slab_, {slab_size_}, DType::u8); }
  Tensor guarded_scratch() const { return Tensor(scratch_, {scratch_size_}, DType::u8); }

  std::unique_ptr<Case> case_;
  Device& device_;
  Draws draws_;
  int64_t slab_size_, scratch_limit_, scratch_size_;
  std::byte *slab_, *scratch_;
  Builder builder_;
  Arena arena_;
  std::vector<std::byte> initial_, left_, scratch_left_;  // host images
};

// Bytes of scratch that the op books on meta, standing for `device` with so many threads.
int64_t planned_scratch(const CaseEntry&, const Problem&, std::string_view device, int threads);

// Calls f(logical index, byte offset from the tensor's data) for each element in row-major order.
template <class F>
void for_each_element(const Tensor& t, F&& f) {
  std::array<int64_t, kMaxDims> i{};
  int64_t n = t.numel(), size = size_of(t.dtype);
  for (int64_t at = 0; at < n; at++) {
    int64_t offset = 0;
    for (int d = 0; d < t.shape.rank; d++) offset += i[size_t(d)] * t.stride[size_t(d)];
    f(at, offset * size);
    for (int d = t.shape.rank - 1; d >= 0 && ++i[size_t(d)] == t.shape[d]; d--) i[size_t(d)] = 0;
  }
}

}  // namespace trireme::harness
