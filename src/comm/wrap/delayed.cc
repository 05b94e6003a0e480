#include "comm/wrap/delayed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "comm/algorithms.h"
#include "comm/wrap/wrapped.h"

namespace trireme {

int64_t LinkClock::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
void LinkClock::sleep_until(int64_t ns) {
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns)));
}

namespace {

class DelayedCommunicator final : public WrappedCommunicator {
 public:
  DelayedCommunicator(std::unique_ptr<Communicator> inner, LinkCost link, Device* device, LinkClock& clock)
      : WrappedCommunicator(std::move(inner), device), link_(link), clock_(clock) {}
  ~DelayedCommunicator() override { finish(); }

 private:
  static constexpr int64_t kMost = 64;
  struct Call {
    CommCall call;
    int64_t begin_ns = 0, met_ns = 0;  // met: 0 where the backend does not say
    Event end;                         // of all of it
  };
  Call& of(int64_t sequence) { return calls_[size_t(sequence % kMost)]; }

  void before(const CommCall& c) override {
    Call& mine = of(c.sequence);
    wait(mine.end);  // of the call that was here
    mine = {c, 0, 0, {}};
    then(
        c.stream,
        [](void* self, int64_t n) {
          auto* d = static_cast<DelayedCommunicator*>(self);
          d->of(n).begin_ns = d->clock_.now_ns();
        },
        c.sequence);
  }
  void after(const CommCall& c) override {
    then(
        c.stream, [](void* self, int64_t n) { static_cast<DelayedCommunicator*>(self)->sleep(n); },
        c.sequence);
    of(c.sequence).end = mark(c.stream);
  }
  void finished(const CommCall& c, int64_t, int64_t met_ns, int64_t) override {
    of(c.sequence).met_ns = met_ns;
  }

  void sleep(int64_t sequence) {
    const Call& c = of(sequence);
    const int64_t met = std::max(c.begin_ns, c.met_ns);
    const int64_t end = met + std::llround(1e9 * link_seconds(c.call, {size(), size()}, link_));
    if (clock_.now_ns() < end) clock_.sleep_until(end);
    tell(c.call, c.begin_ns, met, clock_.now_ns());
  }

  LinkCost link_;
  LinkClock& clock_;
  std::array<Call, size_t(kMost)> calls_;
};

class DelayedFactory final : public WrappedFactory {
 public:
  template <class Inner>
  DelayedFactory(Inner&& inner, LinkCost link, Device* device, LinkClock* clock)
      : WrappedFactory(std::forward<Inner>(inner)),
        link_(link),
        device_(device),
        clock_(clock ? *clock : steady_) {
    if (!(link.alpha >= 0 && link.beta >= 0))
      bad_request("a link of {} s and {} s a byte; both must be 0 or more", link.alpha, link.beta);
  }

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return std::make_unique<DelayedCommunicator>(std::move(c), link_, device_, clock_);
  }
  LinkCost link_;
  Device* device_;
  LinkClock steady_;
  LinkClock& clock_;
};

}  // namespace

std::unique_ptr<CommFactory> make_delayed(std::unique_ptr<CommFactory> inner, LinkCost link, Device* device,
                                          LinkClock* clock) {
  return std::make_unique<DelayedFactory>(std::move(inner), link, device, clock);
}

std::unique_ptr<CommFactory> make_delayed(CommFactory& inner, LinkCost link, Device* device,
                                          LinkClock* clock) {
  return std::make_unique<DelayedFactory>(inner, link, device, clock);
}

}  // namespace trireme
