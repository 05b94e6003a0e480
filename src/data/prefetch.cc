#include "data/prefetch.h"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/no_signals.h"
#include "base/own_faults.h"

namespace trireme {
namespace {

// Woken by the main thread, the kernel would put an ordinary thread in its place at once, and the step would
// wait for what it was to be spared. A batch thread gets its share of the cores, but pushes nobody aside
// (sched(7)). Whoever was given another policy keeps it.
void push_nobody_aside() {
  sched_param none{};
  if (sched_getscheduler(0) == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace

Prefetcher::Prefetcher(DataLoader& loader, const Options& options)
    : loader_(loader),
      options_(options),
      rows_(size_t(loader.options().batch.micro * loader.options().seq_len)),
      ring_(size_t(options.depth)),
      front_{options.first_step, 0} {
  require(options.depth >= 1, "a prefetcher reads at least one microbatch ahead");
  for (Slot& s : ring_) s.numbers.resize(3 * rows_);
  NoSignals blocked;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& e) {
    environment_failed("the system gives no thread to read data ahead ({}): data.prefetch = 0 does without",
                       e.what());
  }
}

Prefetcher::~Prefetcher() {
  stop_ = true;
  ring_bell();
  thread_.join();
}

void Prefetcher::ring_bell() {
  bell_.fetch_add(1);
  bell_.notify_one();
}

Prefetcher::Place Prefetcher::after(Place p) const {
  return p.microbatch + 1 < loader_.microbatches(p.step) ? Place{p.step, p.microbatch + 1}
                                                         : Place{p.step + 1, 0};
}

void Prefetcher::fill(Slot& slot, Place p) {
  std::span<int32_t> all(slot.numbers);
  slot.error = nullptr;
  try {
    loader_.get(p.step, p.microbatch, options_.dp_rank, all.first(rows_), all.subspan(rows_, rows_),
                all.last(rows_));
  } catch (...) {
    slot.error = std::current_exception();
  }
}

void Prefetcher::work() {
  take_own_faults();
  push_nobody_aside();
  Place next{options_.first_step, 0};
  size_t write = 0;
  uint32_t obeyed = 0;
  bool failed = false;  // after an error nothing is read until the next order
  for (;;) {
    const uint32_t bell = bell_.load();  // before anything is looked at: what changes later rings again
    if (stop_) return;
    if (const uint32_t order = order_.load(); order != obeyed) {
      obeyed = order, next = order_place_, write = read_,
      failed = false;  // the caller waits: its members rest
      filled_ = taken_.load();
      answer_ = order;
      answer_.notify_one();
      continue;
    }
    const uint32_t filled = filled_.load();
    if (failed || filled - taken_.load() == ring_.size() || next.step > options_.last_step) {
      bell_.wait(bell);
      continue;
    }
    fill(ring_[write], next);
    failed = ring_[write].error != nullptr;
    next = after(next), write = (write + 1) % ring_.size();
    filled_ = filled + 1;
    filled_.notify_one();
  }
}

void Prefetcher::begin_again(Place place) {
  order_place_ = place;
  const uint32_t order = order_.fetch_add(1) + 1;
  ring_bell();
  for (uint32_t a = answer_.load(); a != order; a = answer_.load()) answer_.wait(a);
  front_ = place;
}

void Prefetcher::get(int64_t step, int64_t microbatch, std::span<int32_t> tokens, std::span<int32_t> targets,
                     std::span<int32_t> positions) {
  require(tokens.size() == rows_ && targets.size() == rows_ && positions.size() == rows_,
          "Prefetcher::get(): each buffer holds [micro, seq_len]");
  require(step <= options_.last_step, "Prefetcher::get() beyond the last step");
  const Place place{step, microbatch};
  if (place != front_) begin_again(place);
  const uint32_t taken = taken_.load();
  filled_.wait(taken);
  Slot& slot = ring_[read_];
  if (slot.error) {
    front_ = {-1, -1};  // whoever asks again reads again
    std::rethrow_exception(std::exchange(slot.error, nullptr));
  }
  std::span<const int32_t> all(slot.numbers);
  std::copy_n(all.begin(), rows_, tokens.begin());
  std::copy_n(all.begin() + int64_t(rows_), rows_, targets.begin());
  std::copy_n(all.begin() + 2 * int64_t(rows_), rows_, positions.begin());
  read_ = (read_ + 1) % ring_.size();
  front_ = after(place);
  taken_ = taken + 1;
  ring_bell();
}

}  // namespace trireme
