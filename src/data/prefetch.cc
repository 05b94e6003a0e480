#include "data/prefetch.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/no_signals.h"

namespace trireme {

Prefetcher::Prefetcher(DataLoader& loader, const Options& options)
    : loader_(loader),
      options_(options),
      rows_(size_t(loader.options().micro * loader.options().seq_len)),
      ring_(size_t(options.depth)),
      front_{options.first_step, 0},
      next_(front_) {
  require(options.depth >= 1, "a prefetcher reads at least one microbatch ahead");
  for (Slot& s : ring_) s.numbers.resize(3 * rows_);
  NoSignals blocked;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& e) {
    run_failed("the system gives no thread to read data ahead ({}): data.prefetch = 0 does without",
               e.what());
  }
}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_one();
  thread_.join();
}

Prefetcher::Place Prefetcher::after(Place p) const {
  return p.microbatch + 1 < loader_.microbatches() ? Place{p.step, p.microbatch + 1} : Place{p.step + 1, 0};
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
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] {
      return stop_ || (!failed_ && count_ < ring_.size() && next_.step <= options_.last_step);
    });
    if (stop_) return;
    // The slot behind the filled ones is nobody else's while it is filled: begin_again() leaves begin_ and
    // count_ such that it stays so.
    Slot& slot = ring_[(begin_ + count_) % ring_.size()];
    const Place place = next_;
    const uint64_t generation = generation_;
    lock.unlock();
    fill(slot, place);
    lock.lock();
    if (generation != generation_) continue;
    count_++;
    next_ = after(place);
    failed_ = slot.error != nullptr;
    filled_.notify_one();
  }
}

void Prefetcher::begin_again(Place place) {
  generation_++;
  begin_ = (begin_ + count_) % ring_.size(), count_ = 0;
  front_ = next_ = place;
  failed_ = false;
  wanted_.notify_one();
}

void Prefetcher::get(int64_t step, int64_t microbatch, std::span<int32_t> tokens, std::span<int32_t> targets,
                     std::span<int32_t> positions) {
  require(tokens.size() == rows_ && targets.size() == rows_ && positions.size() == rows_,
          "Prefetcher::get(): each buffer holds [micro, seq_len]");
  require(step <= options_.last_step, "Prefetcher::get() beyond the last step");
  const Place place{step, microbatch};
  std::unique_lock lock(mutex_);
  if (place != front_) begin_again(place);
  filled_.wait(lock, [&] { return count_ > 0; });
  Slot& slot = ring_[begin_];
  if (slot.error) {
    std::exception_ptr error = std::exchange(slot.error, nullptr);
    begin_ = (begin_ + 1) % ring_.size(), count_ = 0;
    front_ = {-1, -1};  // whoever asks again reads again
    std::rethrow_exception(error);
  }
  lock.unlock();  // a filled slot is the reader's
  std::span<const int32_t> all(slot.numbers);
  std::copy_n(all.begin(), rows_, tokens.begin());
  std::copy_n(all.begin() + int64_t(rows_), rows_, targets.begin());
  std::copy_n(all.begin() + 2 * int64_t(rows_), rows_, positions.begin());
  lock.lock();
  begin_ = (begin_ + 1) % ring_.size(), count_--;
  front_ = after(front_);
  wanted_.notify_one();
}

}  // namespace trireme
