#include "comm/watch/watchdog.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/no_signals.h"
#include "comm/queued.h"

namespace trireme {
namespace {

class ThreadBoard final : public BeatBoard {
 public:
  explicit ThreadBoard(int world) : all_(size_t(world)) {}
  void exchange(std::span<const Beat> mine) override {
    for (const Beat& b : mine) all_[size_t(b.rank)] = b;
  }
  std::span<const Beat> all() const override { return all_; }
  bool judges() const override { return true; }

 private:
  std::vector<Beat> all_;
};

}  // namespace

std::unique_ptr<BeatBoard> make_thread_board(int world) {
  return std::make_unique<ThreadBoard>(world);
}

struct Watchdog::Impl {
  Impl(std::vector<const Pulse*> pulses, std::unique_ptr<BeatBoard> b, const WatchLimits& l, WatchHooks h)
      : pulses(std::move(pulses)),
        board(std::move(b)),
        limits(l),
        hooks(std::move(h)),
        judge(int(board->all().size()), l),
        beats(this->pulses.size()) {}

  void beat() {
    number++;
    for (size_t i = 0; i < pulses.size(); i++) beats[i] = pulses[i]->beat(number);
    board->exchange(beats);
  }
  void look() {
    if (!board->judges()) return;
    for (const Verdict& v : judge.look(board->all(), 1e-9 * double(comm_now_ns()))) {
      if (!board->says(v)) continue;
      const auto& tell = ends_run(v.fate) ? hooks.end : hooks.warn;
      if (tell) tell(v);
    }
  }
  void run() {
    const std::chrono::duration<double> pause(limits.beat_s);
    std::unique_lock lock(mutex);
    while (!stop) {
      lock.unlock();
      beat(), look();
      lock.lock();
      stopping.wait_for(lock, pause, [&] { return stop; });
    }
    beat();
  }

  std::vector<const Pulse*> pulses;
  std::unique_ptr<BeatBoard> board;
  WatchLimits limits;
  WatchHooks hooks;
  Judge judge;
  std::vector<Beat> beats;
  int64_t number = 0;
  std::mutex mutex;
  std::condition_variable stopping;
  bool stop = false;
  std::thread thread;
};

Watchdog::Watchdog(std::vector<const Pulse*> pulses, std::unique_ptr<BeatBoard> board,
                   const WatchLimits& limits, WatchHooks hooks)
    : impl_(std::make_unique<Impl>(std::move(pulses), std::move(board), limits, std::move(hooks))) {
  NoSignals blocked;  // they are the main thread's
  try {
    impl_->thread = std::thread([i = impl_.get()] { i->run(); });
  } catch (const std::system_error& e) {
    environment_failed("the system gives no thread to watch the ranks: {}", e.what());
  }
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->stopping.notify_all();
  impl_->thread.join();
}

}  // namespace trireme
