#include "emulate.h"

#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <array>
#include <exception>
#include <vector>

#include "base/rng.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

#if defined(__x86_64__)
// Keeps what a called function must keep on the old stack, goes over to the new one.
extern "C" void trireme_switch_stack(void** from, void* to);
asm(R"(
.text
.globl trireme_switch_stack
.type trireme_switch_stack, @function
trireme_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size trireme_switch_stack, .-trireme_switch_stack
)");
#endif

namespace trireme::emulate {
namespace {

constexpr size_t kStack = 256 << 10;  // of a fiber; pages that nobody touches are never there
constexpr unsigned kMostThreads = 1024;
constexpr int64_t kSharedBytes = 48 << 10, kMostShared = 227 << 10;  // without and with being asked for

enum class Wait : uint8_t { nothing, block, warp, until, a_while, done };

struct Fiber {
#if defined(__x86_64__)
  void* at = nullptr;
#else
  ucontext_t at;
#endif
  Wait wait = Wait::nothing;
  const std::function<bool()>* until = nullptr;
};

// What lanes put for one another. Two in turn: a lane that goes on may put again before others have read.
struct Warp {
  std::array<std::array<uint64_t, 32>, 2> put{};
  std::array<uint8_t, 32> turn{};
};

class Machine {
 public:
  Machine() {
    stacks_ = static_cast<std::byte*>(mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    require(stacks_ != MAP_FAILED, "no memory for the emulation's stacks");
  }

  void run(dim3 grid, unsigned threads, int64_t shared, const std::function<void()>& thread) {
    require(threads > 0 && threads <= kMostThreads && threads % 32 == 0,
            "a block is of 32 to 1,024 threads in whole warps");
    require(shared <= allowed_, "more dynamic shared memory than the kernel may have");
    require(!running_, "a kernel started another");
    shared_.assign(size_t(shared), std::byte(0xff));
    unfenced_.assign(size_t(shared + 15) / 16, 0);
    written_.resize(threads);
    thread_ = &thread, threads_ = threads;
    gridDim = grid, blockDim = {threads, 1, 1};
    const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; i++) {
      const uint64_t b = seed_ ? permute(seed_, i, blocks) : i;
      blockIdx = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)};
      run_block(b);
    }
  }

  void wait_until(const std::function<bool()>& f) {
    fibers_[current_].until = &f;
    wait(Wait::until);
  }
  bool wait_a_while(const std::function<bool()>& f) {
    if (f()) return true;
    fibers_[current_].until = &f;
    wait(Wait::a_while);
    return f();
  }
  void later(std::function<void()> job) {
    if (haste_ == Haste::at_once)
      job();
    else
      jobs_.push_back(std::move(job));
  }

  void at_end(std::function<void()> check) { at_end_.push_back(std::move(check)); }

  std::byte* shared_at(uint32_t address, int64_t bytes) {
    const int64_t at = int64_t(address) - int64_t(shared_base_);
    require(at >= 0 && at + bytes <= int64_t(shared_.size()),
            "an address outside of the block's dynamic shared memory");
    return shared_.data() + at;
  }
  uint32_t address_of(const void* p) {
    const auto* at = static_cast<const std::byte*>(p);
    require(at >= shared_.data() && at < shared_.data() + shared_.size(),
            "the shared address of what is not in dynamic shared memory");
    return shared_base_ + uint32_t(at - shared_.data());
  }
  void mark(uint32_t address, int64_t bytes) {
    shared_at(address, bytes);
    for (uint32_t c = (address - shared_base_) / 16; c <= (address - shared_base_ + bytes - 1) / 16; c++)
      unfenced_[c] = uint16_t(current_ + 1), written_[current_].push_back(c);
  }
  void fence() {
    for (uint32_t c : written_[current_])
      if (unfenced_[c] == current_ + 1) unfenced_[c] = 0;
    written_[current_].clear();
  }
  const std::byte* seen_by_copies(uint32_t address, int64_t bytes) {
    const std::byte* p = shared_at(address, bytes);
    for (uint32_t c = (address - shared_base_) / 16; c <= (address - shared_base_ + bytes - 1) / 16; c++)
      require(unfenced_[c] == 0, "products or copies read what a thread wrote and did not fence");
    return p;
  }
  void wait(Wait w) {
    const unsigned own = current_;
    fibers_[own].wait = w;
    to_scheduler();
    enter(own);
  }
  Warp& warp() { return warps_[current_ / 32]; }

  uint64_t seed_ = 0, begun_ = 0;  // begun_: blocks
  uint64_t clock_ns_ = 0;
  int64_t allowed_ = kSharedBytes;
  std::vector<std::byte> shared_;

 private:
  // When what is under way beside the threads is done: at once, when nothing else can go on, or in between.
  enum class Haste : uint8_t { at_once, in_between, at_last };

  void run_block(uint64_t block) {
    // Shared memory of a block holds nothing of another's.
    std::fill(shared_.begin(), shared_.end(), std::byte(0xff));
    fibers_.resize(threads_);
    warps_.assign(threads_ / 32, {});
    order_.resize(threads_);
    const uint64_t key = seed_ ? rng_key(seed_, block, "threads") : 0;
    std::fill(unfenced_.begin(), unfenced_.end(), uint16_t(0));
    for (auto& w : written_) w.clear();
    jobs_.clear(), at_end_.clear();
    haste_ = seed_ ? Haste(below(key, 0, 3)) : Haste::at_last;
    shared_base_ = seed_ ? 1024 + 16 * uint32_t(below(key, 1, 64)) : 1024;
    for (unsigned t = 0; t < threads_; t++) {
      order_[t] = seed_ ? unsigned(permute(key, t, threads_)) : t;
      prepare(t);
    }
    running_ = true;
    begun_++;
    uint64_t draws = 2;
    for (unsigned left = threads_; left > 0;) {
      unsigned ran = 0;
      for (unsigned t : order_)
        if (fibers_[t].wait == Wait::nothing) {
          if (haste_ == Haste::in_between && !jobs_.empty() && below(key, draws++, 16) == 0)
            do_a_job(below(key, draws++, jobs_.size()));
          enter(t);
          from_scheduler(t);
          ran++;
          if (error_) stop_with_error();
          left -= fibers_[t].wait == Wait::done;
        }
      if (left == 0 || release() || ran > 0) continue;
      if (jobs_.empty()) {
        if (!jump()) fail();
        continue;
      }
      do_a_job(seed_ ? below(key, draws++, jobs_.size()) : 0);
      release();
    }
    running_ = false;
    require(jobs_.empty(), "a block ended while copies or products of its were under way");
    for (const auto& check : at_end_) check();
  }
  void do_a_job(uint64_t i) {
    auto job = std::move(jobs_[i]);
    jobs_.erase(jobs_.begin() + ptrdiff_t(i));
    try {
      job();
    } catch (...) {
      stop();
      throw;
    }
  }

  // No thread can run: the clock advances, and threads that wait a while read it.
  bool jump() {
    bool any = false;
    for (Fiber& f : fibers_)
      if (f.wait == Wait::a_while) {
        f.wait = Wait::nothing;
        any = true;
      }
    if (any) clock_ns_ += 3'000'000'000;
    return any;
  }
  // Lets go whoever waits for a barrier that all have reached.
  bool release() {
    bool any = false;
    for (unsigned w = 0; w < threads_; w += 32) any |= release_of(w, w + 32, Wait::warp);
    for (unsigned t = 0; t < threads_; t++)
      if ((fibers_[t].wait == Wait::until || fibers_[t].wait == Wait::a_while) && (*fibers_[t].until)())
        fibers_[t].wait = Wait::nothing, any = true;
    return release_of(0, threads_, Wait::block) || any;
  }
  bool release_of(unsigned begin, unsigned end, Wait w) {
    for (unsigned t = begin; t < end; t++)
      if (fibers_[t].wait != w) return false;
    for (unsigned t = begin; t < end; t++) fibers_[t].wait = Wait::nothing;
    return true;
  }

  // Fibers that were not done are left where they are.
  void stop() {
    running_ = false;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stacks_, kStack * kMostThreads);
#endif
  }
  [[noreturn]] void stop_with_error() {
    stop();
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  [[noreturn]] void fail() {
    unsigned at_block = 0, at_warp = 0, until = 0, done = 0;
    for (const Fiber& f : fibers_)
      at_block += f.wait == Wait::block, at_warp += f.wait == Wait::warp, until += f.wait == Wait::until,
          done += f.wait == Wait::done;
    stop();
    run_failed(
        "emulation: block ({}, {}, {}) cannot go on: {} threads wait at a barrier of the block, {} at a "
        "warp's, "
        "{} have returned, {} wait for a phase, a turn or a count",
        blockIdx.x, blockIdx.y, blockIdx.z, at_block, at_warp, done, until);
  }

  void enter(unsigned t) {
    current_ = t;
    threadIdx = {t, 0, 0};
  }

#if defined(__x86_64__)
  void prepare(unsigned t) {
    auto* top = reinterpret_cast<void**>(stacks_ + kStack * (t + 1));
    top[-1] = nullptr;                                  // nobody returns there
    top[-2] = reinterpret_cast<void*>(&Machine::body);  // where the first switch returns to
    fibers_[t].at = top - 8;                            // below it six registers
    std::fill(top - 8, top - 2, nullptr);
    fibers_[t].wait = Wait::nothing;
  }
  void from_scheduler(unsigned t) {
    trireme_switch_stack(&scheduler_, fibers_[t].at);
  }
  void to_scheduler() {
    trireme_switch_stack(&fibers_[current_].at, scheduler_);
  }
  void* scheduler_ = nullptr;
#else
  void prepare(unsigned t) {
    Fiber& f = fibers_[t];
    require(getcontext(&f.at) == 0, "getcontext");
    f.at.uc_stack.ss_sp = stacks_ + kStack * t;
    f.at.uc_stack.ss_size = kStack;
    f.at.uc_link = nullptr;
    makecontext(&f.at, &Machine::body, 0);
    f.wait = Wait::nothing;
  }
  void from_scheduler(unsigned t) {
    swapcontext(&scheduler_, &fibers_[t].at);
  }
  void to_scheduler() {
    swapcontext(&fibers_[current_].at, &scheduler_);
  }
  ucontext_t scheduler_;
#endif

  static void body();

  std::byte* stacks_;
  const std::function<void()>* thread_ = nullptr;
  unsigned threads_ = 0, current_ = 0;
  bool running_ = false;
  std::exception_ptr error_;  // of the fiber that stopped the kernel
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;
  std::vector<std::function<void()>> jobs_, at_end_;
  Haste haste_ = Haste::at_last;
  uint32_t shared_base_ = 0;                    // the address of shared_'s first byte
  std::vector<uint16_t> unfenced_;              // of 16 bytes of shared_: 1 + the thread that wrote them
  std::vector<std::vector<uint32_t>> written_;  // of a thread, since its last fence
};

Machine& machine() {
  static Machine m;
  return m;
}

void Machine::body() {
  Machine& m = machine();
  try {
    (*m.thread_)();
  } catch (...) {
    m.error_ = std::current_exception();
  }
  m.wait(Wait::done);
}

}  // namespace

void set_order(uint64_t seed) {
  machine().seed_ = seed;
}
void run(dim3 grid, unsigned threads, int64_t shared, const std::function<void()>& thread) {
  machine().run(grid, threads, shared, thread);
}
void allow_shared(int64_t bytes) {
  require(bytes <= kMostShared, "more dynamic shared memory than a block can have");
  machine().allowed_ = std::max(bytes, machine().allowed_);
}
std::byte* dynamic_shared() {
  return machine().shared_.data();
}

void set_bytes(void* p, int value, int64_t bytes) {
  if (bytes > 0) std::memset(p, value, size_t(bytes));
}
void copy_bytes(void* dst, const void* src, int64_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, size_t(bytes));
}
void require_aligned(const void* p, uintptr_t bytes) {
  require(reinterpret_cast<uintptr_t>(p) % bytes == 0, "a vector load or store at an odd address");
}

void block_barrier() {
  machine().wait(Wait::block);
}
void wait_until(const std::function<bool()>& f) {
  machine().wait_until(f);
}
bool wait_a_while(const std::function<bool()>& f) {
  return machine().wait_a_while(f);
}
uint32_t clock_ns() {
  return uint32_t(machine().clock_ns_);
}
void trap() {
  throw Trapped();
}
void later(std::function<void()> job) {
  machine().later(std::move(job));
}
void at_end(std::function<void()> check) {
  machine().at_end(std::move(check));
}
uint64_t blocks_begun() {
  return machine().begun_;
}
uint32_t shared_address(const void* p) {
  return machine().address_of(p);
}
std::byte* shared_at(uint32_t address, int64_t bytes) {
  return machine().shared_at(address, bytes);
}
void written_by_thread(uint32_t address, int64_t bytes) {
  machine().mark(address, bytes);
}
void fence_async() {
  machine().fence();
}
const std::byte* seen_by_copies(uint32_t address, int64_t bytes) {
  return machine().seen_by_copies(address, bytes);
}
uint64_t exchange(uint64_t own, unsigned from) {
  const unsigned lane = threadIdx.x % 32;
  Warp& w = machine().warp();
  const unsigned turn = w.turn[lane]++ % 2;
  w.put[turn][lane] = own;
  machine().wait(Wait::warp);
  return w.put[turn][from];
}
unsigned ballot(bool set) {
  const unsigned lane = threadIdx.x % 32;
  Warp& w = machine().warp();
  const unsigned turn = w.turn[lane]++ % 2;
  w.put[turn][lane] = set;
  machine().wait(Wait::warp);
  unsigned bits = 0;
  for (unsigned l = 0; l < 32; l++) bits |= unsigned(w.put[turn][l]) << l;
  return bits;
}

}  // namespace trireme::emulate
