#include "comm/wrap/watched.h"

#include "comm/wrap/wrapped.h"

namespace trireme {
namespace {

class WatchedCommunicator final : public WrappedCommunicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, std::span<const int> ranks, Device* device,
                      Pulse& pulse)
      : WrappedCommunicator(std::move(inner), device), pulse_(pulse), group_(pulse.join(group(), ranks)) {}
  ~WatchedCommunicator() override { finish(); }

 private:
  void before(const CommCall& c) override { pulse_.issued(group_, c.kind); }
  void finished(const CommCall& c, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    pulse_.done(group_, c.kind);
    tell(c, begin_ns, met_ns, end_ns);
  }
  void waits(const CommCall& c) override {
    pulse_.waits();
    WrappedCommunicator::waits(c);
  }
  Pulse& pulse_;
  size_t group_;
};

// control() is the inner factory's own: it is listened to.
class ControlListener final : public CommObserver {
 public:
  ControlListener(Communicator& control, std::span<const int> ranks, Pulse& pulse)
      : control_(control), pulse_(pulse), group_(pulse.join(control.group(), ranks)) {
    before_ = control.observe(this);
  }
  ~ControlListener() override { control_.observe(before_); }
  void issued(const CommCall& c) override {
    pulse_.issued(group_, c.kind);
    if (before_) before_->issued(c);
  }
  void done(const CommCall& c, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    pulse_.done(group_, c.kind);
    if (before_) before_->done(c, begin_ns, met_ns, end_ns);
  }
  void waiting(const CommCall& c) override {
    pulse_.waits();
    if (before_) before_->waiting(c);
  }

 private:
  Communicator& control_;
  Pulse& pulse_;
  size_t group_;
  CommObserver* before_ = nullptr;
};

std::vector<int> all_ranks(int world) {
  std::vector<int> r(static_cast<size_t>(world));
  for (int i = 0; i < world; i++) r[size_t(i)] = i;
  return r;
}

class WatchedFactory final : public WrappedFactory {
 public:
  WatchedFactory(CommFactory& inner, Device* device, Pulse& pulse)
      : WrappedFactory(inner),
        device_(device),
        pulse_(pulse),
        control_(inner.control(), all_ranks(inner.world()), pulse) {}

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int> ranks) override {
    return std::make_unique<WatchedCommunicator>(std::move(c), ranks, device_, pulse_);
  }
  Device* device_;
  Pulse& pulse_;
  ControlListener control_;
};

}  // namespace

std::unique_ptr<CommFactory> make_watched(CommFactory& inner, Device* device, Pulse& pulse) {
  return std::make_unique<WatchedFactory>(inner, device, pulse);
}

}  // namespace trireme
