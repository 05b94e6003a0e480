// Requests for memory among the sums of a matrix product, for files compiled for one instruction set;
// included by them alone.
#pragma once
#include "device/cpu/gemm.h"

#define TRIREME_INLINE inline __attribute__((always_inline))

namespace trireme::cpu::gemm {
namespace {  // compiled for other processors too: not for the linker to choose among

// Steps through lines that are wanted soon.
class Asking {
 public:
  Asking(const Lines* soon, int64_t wanted) : at_(soon), end_(soon + wanted) { enter(); }
  TRIREME_INLINE bool more() const { return at_ != end_; }
  TRIREME_INLINE void ask() {
    __builtin_prefetch(line_, 0, 3);
    line_ += 64;
    if (--lines_ > 0) return;
    lines_ = at_->lines;
    line_ = row_ += at_->row;
    if (--rows_ == 0) at_++, enter();
  }
  static int64_t count(const Lines* soon, int64_t wanted) {
    int64_t n = 0;
    for (int64_t i = 0; i < wanted; i++) n += soon[i].rows * soon[i].lines;
    return n;
  }

 private:
  TRIREME_INLINE void enter() {
    if (more()) line_ = row_ = at_->data, lines_ = at_->lines, rows_ = at_->rows;
  }
  const Lines *at_, *end_;
  const std::byte *line_ = nullptr, *row_ = nullptr;
  int64_t lines_ = 0, rows_ = 0;
};

}  // namespace
}  // namespace trireme::cpu::gemm
