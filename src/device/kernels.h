// The one checked and counted front of all operations.
#pragma once
#include <span>

#include "device/ops.h"
#include "tensor/arena.h"
#include "tensor/stream.h"

namespace trireme {

// Sees every op after it was launched: traces, profiles on meta, the search for a non-finite value.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(std::string_view op) {}  // its scratch is taken, the launch comes next
  virtual void after(std::string_view op, const Cost&, const Outputs&) = 0;
};

// Launches of an op that one kernel took, of ops that have several kernels.
struct KernelCount {
  std::string_view op, kernel;
  int64_t launches = 0;
};

// run(args): check, take scratch from the arena, launch, count. Backends implement launch and scratch_bytes.
class Kernels {
 public:
  virtual ~Kernels() = default;

  template <class A>
  void run(const A& args, Stream stream = {}) {
    check(args);
    int64_t bytes = scratch_bytes(args);
    if (bytes > 0) {
      require(arena_ != nullptr, "an op needs scratch and no arena is attached");
      Owned scratch(*arena_, Bucket::scratch, Shape{bytes}, DType::u8);
      if (observer_) observer_->before(A::kName);
      launch(args, *scratch, stream);
    } else {
      if (observer_) observer_->before(A::kName);
      launch(args, Tensor(), stream);
    }
    Cost c = cost(args);
    total_ += c;
    launches_++;
    if (observer_) observer_->after(A::kName, c, outputs(args));
  }

  // Bytes of scratch that run(args) would take.
  template <class A>
  int64_t scratch_of(const A& args) {
    check(args);
    return scratch_bytes(args);
  }

  // Are MatmulGeluArgs and MatmulGeluBackwardArgs of this type better than their parts one after the other?
  // Their gelu may be of what was not rounded: where recompute makes it anew, the last bits may differ.
  virtual bool gelu_in_products(DType) const { return false; }

  // Does this device run OrthogonaliseArgs for f32 matrices of this size? A function of the size alone.
  virtual bool orthogonalises(int64_t rows, int64_t cols) const { return false; }
  // The kernel that took the last launch ("" = its op has one kernel), and how many launches each took so
  // far.
  virtual std::string_view last_kernel() const { return {}; }
  virtual std::span<const KernelCount> kernels_taken() const { return {}; }

  void attach(Arena* arena) { arena_ = arena; }  // where scratch comes from
  void detach(const Arena* arena) {
    if (arena_ == arena) arena_ = nullptr;
  }
  OpObserver* observe(OpObserver* o) { return std::exchange(observer_, o); }
  const Cost& total() const { return total_; }
  int64_t launches() const { return launches_; }
  void restart_counts() { total_ = {}, launches_ = 0; }

 protected:
  bool observed() const { return observer_ != nullptr; }

 private:
  friend class ReplayKernels;  // which hands launches on (replay.cc)
#define TRIREME_OP_HOOKS(Args)                                         \
  virtual void launch(const Args&, const Tensor& scratch, Stream) = 0; \
  virtual int64_t scratch_bytes(const Args&) {                         \
    return 0;                                                          \
  }
  TRIREME_OPS(TRIREME_OP_HOOKS)
#undef TRIREME_OP_HOOKS

  Arena* arena_ = nullptr;
  OpObserver* observer_ = nullptr;
  Cost total_;
  int64_t launches_ = 0;
};

}  // namespace trireme
