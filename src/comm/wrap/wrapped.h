// What decorators share: a communicator that passes its calls on to another, and hears when they are done.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_set.h"

namespace trireme {

// Its own front checks, counts and announces; the inner one executes. The do_* here and quietly() are the
// only ways to the inner communicator, so that its reports find back to the calls here.
class WrappedCommunicator : public Communicator, private CommObserver {
 public:
  // device: whose streams run the calls; null = each is done when it returns, on the calling thread.
  WrappedCommunicator(std::unique_ptr<Communicator> inner, Device* device)
      : inner_(std::move(inner)),
        device_(device),
        rank_(inner_->rank()),
        size_(inner_->size()),
        group_(inner_->group()) {
    inner_->observe(this);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view group() const override { return group_; }
  std::string_view algorithm(Collective c, int64_t payload) const override {
    return inner_->algorithm(c, payload);
  }
  int64_t moved_bytes() const override { return inner_->moved_bytes(); }

 protected:
  // Around a call: before it and after it was issued to the inner communicator, on the rank's thread.
  virtual void before(const CommCall&) {}
  virtual void after(const CommCall&) {}
  // The call is done, on its stream's thread. Passes it on to our observer unless overridden.
  virtual void finished(const CommCall& call, int64_t begin_ns, int64_t met_ns, int64_t end_ns) {
    tell(call, begin_ns, met_ns, end_ns);
  }
  // The call waits for peers, on the thread that waits.
  virtual void waits(const CommCall& call) {
    if (observer_) observer_->waiting(call);
  }
  void tell(const CommCall& call, int64_t begin_ns, int64_t met_ns, int64_t end_ns) {
    if (observer_) observer_->done(call, begin_ns, met_ns, end_ns);
  }
  // Between these two, of p2p: the messages that the inner communicator is given.
  virtual std::span<const P2p> messages(const P2pArgs& a, const CommCall&) { return a.ops; }
  // A call of the decorator's own, which nobody hears of.
  template <class Call>
  void quietly(const Call& call) {
    under_way_[size_t(inner_calls_++ % kMost)].mine = false;
    call(*inner_);
  }
  // A task of the decorator's own, behind what was issued on the stream.
  void then(Stream s, void (*run)(void* self, int64_t arg), int64_t arg) {
    !device_ || s.id == 0 ? run(this, arg) : device_->enqueue(s, {run, this, arg});
  }
  // A place in a stream, and the rank's thread waiting for it.
  Event mark(Stream s) { return device_ && s.id != 0 ? device_->record(s) : Event{}; }
  void wait(Event e) {
    if (device_ && e.stream != 0) device_->wait({}, e);
  }
  // For destructors of decorators that use then(), while they are whole: the inner communicator goes first,
  // for it knows how to leave when peers will not come.
  void finish() {
    inner_.reset();
    for (int id : streams_) try {
        device_->sync({id});
      } catch (...) {  // the rank's thread met it, or meets it at its next call
      }
  }

  void do_all_reduce(const AllReduceArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.all_reduce(a, s); });
  }
  void do_all_gather(const AllGatherArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.all_gather(a, s); });
  }
  void do_reduce_scatter(const ReduceScatterArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.reduce_scatter(a, s); });
  }
  void do_all_to_all(const AllToAllArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.all_to_all(a, s); });
  }
  void do_broadcast(const BroadcastArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.broadcast(a, s); });
  }
  void do_reduce(const ReduceArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.reduce(a, s); });
  }
  void do_p2p(const P2pArgs& a, Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.p2p({.ops = messages(a, c)}, s); });
  }
  void do_barrier(Stream s, const CommCall& c) override {
    forward(c, [&](Communicator& i) { i.barrier(s); });
  }

 private:
  template <class Call>
  void forward(const CommCall& c, const Call& call) {
    const int id = c.stream.id;
    if (device_ && id != 0 && std::find(streams_.begin(), streams_.end(), id) == streams_.end())
      streams_.push_back(id);
    before(c);
    under_way_[size_t(inner_calls_++ % kMost)] = {c, true};
    call(*inner_);
    after(c);
  }
  void issued(const CommCall&) override {}  // our front said so
  void done(const CommCall& inner, int64_t begin_ns, int64_t met_ns, int64_t end_ns) override {
    const Outer& o = under_way_[size_t(inner.sequence % kMost)];
    if (o.mine) finished(o.call, begin_ns, met_ns, end_ns);
  }
  void waiting(const CommCall& inner) override {
    const Outer& o = under_way_[size_t(inner.sequence % kMost)];
    if (o.mine) waits(o.call);
  }

  // More than a communicator has under way at once (QueuedCommunicator: 64).
  static constexpr int64_t kMost = 256;
  struct Outer {
    CommCall call;
    bool mine = false;
  };
  std::array<Outer, size_t(kMost)> under_way_;
  int64_t inner_calls_ = 0;
  std::vector<int> streams_;  // that calls were issued on, compute apart
  std::unique_ptr<Communicator> inner_;
  Device* device_;
  int rank_, size_;
  std::string group_;
};

// Wraps every group that it makes; control() is as it was.
class WrappedFactory : public CommFactory {
 public:
  explicit WrappedFactory(std::unique_ptr<CommFactory> inner) : owned_(std::move(inner)), inner_(*owned_) {}
  explicit WrappedFactory(CommFactory& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    return wrap(inner_.split(ranks, name), ranks);
  }
  void fail(std::string_view why) override { inner_.fail(why); }
  Communicator& control() override { return inner_.control(); }

 protected:
  virtual std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator>, std::span<const int> ranks) = 0;

 private:
  std::unique_ptr<CommFactory> owned_;
  CommFactory& inner_;
};

}  // namespace trireme
