#include "runtime/two_passes.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

// Sanitizers follow stacks, so each change is reported to them.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace trireme {
namespace {

// Only touched pages take memory. Kernels keep little on the stack; oneDNN's code generator needs most.
constexpr size_t kStackBytes = size_t(8) << 20, kGuardBytes = size_t(64) << 10;

}  // namespace

struct TwoPasses::Stacks {
  ucontext_t first{}, second{};
  std::byte* memory = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  void *fake_first = nullptr, *fake_second = nullptr;
  const void* first_bottom = nullptr;
  size_t first_bytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void *fiber_first = nullptr, *fiber_second = nullptr;
#endif

  Stacks() {
    void* p = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED)
      environment_failed("out of memory: the system refused {} bytes for a stack: {}",
                         kGuardBytes + kStackBytes, std::strerror(errno));
    memory = static_cast<std::byte*>(p);
    (void)mprotect(memory, kGuardBytes, PROT_NONE);
  }
  Stacks(const Stacks&) = delete;
  ~Stacks() {
    (void)munmap(memory, kGuardBytes + kStackBytes);
  }
  std::byte* bottom() const {
    return memory + kGuardBytes;
  }
};

TwoPasses::TwoPasses() = default;
TwoPasses::~TwoPasses() = default;

void TwoPasses::to_second() {
  in_second_ = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&stacks_->fake_first, stacks_->bottom(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(stacks_->fiber_second, 0);
#endif
  swapcontext(&stacks_->first, &stacks_->second);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(stacks_->fake_first, nullptr, nullptr);
#endif
  in_second_ = false;
}

void TwoPasses::to_first() {
#if defined(__SANITIZE_ADDRESS__)
  // A stack that is left for good has no fake frames to keep.
  __sanitizer_start_switch_fiber(running_ ? &stacks_->fake_second : nullptr, stacks_->first_bottom,
                                 stacks_->first_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(stacks_->fiber_first, 0);
#endif
  swapcontext(&stacks_->second, &stacks_->first);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(stacks_->fake_second, &stacks_->first_bottom, &stacks_->first_bytes);
#endif
}

void TwoPasses::pause() {
  if (!running_) return;
  if (!in_second_) {
    to_second();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return;
  }
  to_first();
  if (abandon_) throw Abandoned();
}

void TwoPasses::second() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &stacks_->first_bottom, &stacks_->first_bytes);
#endif
  try {
    if (!abandon_) second_function_(of_);
  } catch (const Abandoned&) {
    // The first function's exception is the one that counts.
  } catch (...) {
    error_ = std::current_exception();
  }
  running_ = false;
  to_first();
}

// makecontext() passes integers.
void TwoPasses::begin_second(unsigned high, unsigned low) {
  reinterpret_cast<TwoPasses*>((uintptr_t(high) << 32) | uintptr_t(low))->second();
}

void TwoPasses::run(Function first, Function second, void* of) {
  require(!running_, "two passes within two passes");
  if (!stacks_) stacks_ = std::make_unique<Stacks>();
  getcontext(&stacks_->second);
  stacks_->second.uc_stack.ss_sp = stacks_->bottom();
  stacks_->second.uc_stack.ss_size = kStackBytes;
  stacks_->second.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&stacks_->second, reinterpret_cast<void (*)()>(&TwoPasses::begin_second), 2,
              unsigned(self >> 32), unsigned(self));
#if defined(__SANITIZE_THREAD__)
  stacks_->fiber_first = __tsan_get_current_fiber();
  stacks_->fiber_second = __tsan_create_fiber(0);
#endif
  second_function_ = second;
  of_ = of;
  running_ = true;
  abandon_ = false;
  error_ = nullptr;
  std::exception_ptr failed;
  try {
    first(of);
    while (running_) to_second();
  } catch (...) {
    failed = std::current_exception();
  }
  abandon_ = true;
  while (running_) to_second();
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(stacks_->fiber_second);
#endif
  if (!failed) failed = std::exchange(error_, nullptr);
  if (failed) std::rethrow_exception(failed);
}

}  // namespace trireme
