// The decorators: traced, checked, delayed, alone and one over another.
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "comm/meta/meta_comm.h"
#include "comm/queued.h"
#include "comm/wrap/checked.h"
#include "comm/wrap/delayed.h"
#include "comm/wrap/traced.h"
#include "comm/wrap/wrapped.h"
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

// Ranks over decorated factories; what each threw.
std::vector<std::string> run_wrapped(int n, const Wrap& wrap, const std::function<void(Rank&)>& body,
                                     double grace_s = 1) {
  if (!have_ranks(n)) return {};
  return run_ranks({.ranks = n, .wrap = wrap, .group = "dp", .grace_s = grace_s}, body);
}
constexpr double kAllCall = 30;  // grace: every rank makes the call that fails, and has its own verdict
void expect_none(const std::vector<std::string>& errors) {
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// Every operation once or more, on two streams, with the right results.
void use(Rank& me) {
  const int n = me.all->size();
  Stream s[] = {{}, me.device.stream("dp")};
  for (int i = 0; i < 200; i++) {  // more than any decorator keeps at once
    int64_t x = me.rank + i;
    me.all->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, s[i % 2]);
    if (i % 2) me.device.sync(s[1]);
    ASSERT_EQ(x, n * (n - 1) / 2 + n * i);
  }
  Values full(DType::f32, 6 * n), shard(DType::f32, 6);
  full.fill(1);
  me.all->reduce_scatter({.full = full.tensor(), .shard = shard.tensor()}, s[1]);
  me.all->all_gather({.shard = shard.tensor(), .full = full.tensor()}, s[1]);
  me.all->broadcast({.buf = shard.tensor(), .root = n - 1}, s[1]);
  me.all->reduce({.buf = shard.tensor(), .root = 0}, s[1]);
  P2p ring[] = {{full.part(0, 2), (me.rank + 1) % n, true}, {full.part(2, 2), (me.rank + n - 1) % n, false}};
  if (n > 1) me.all->p2p({.ops = ring}, s[1]);
  std::vector<int64_t> rows(size_t(n), 1);
  Values out(DType::i32, n), in(DType::i32, n);
  out.fill(uint64_t(me.rank));
  me.all->all_to_all({out.tensor(), in.tensor(), rows, rows}, s[1]);
  me.all->barrier(s[1]);
  me.device.sync(s[1]);
  for (int r = 0; r < n; r++) {
    Values theirs(DType::i32, n);
    theirs.fill(uint64_t(r));
    ASSERT_EQ(in.get(r), theirs.get(me.rank));
  }
  expect_moved(*me.all);
}

TEST(Checked, LetsEqualCallsPass) {
  for (int n : {1, 2, 3})
    expect_none(run_wrapped(
        n, [](auto f, Device& d, int) { return make_checked(std::move(f), &d); }, use));
}

TEST(Checked, NamesRanksAndCalls) {
  auto wrap = [](auto f, Device& d, int) { return make_checked(std::move(f), &d); };
  for (bool queued : {false, true}) {
    auto errors = run_wrapped(
        4, wrap,
        [&](Rank& me) {
          Stream s = queued ? me.device.stream("dp") : Stream{};
          Values v(DType::f32, 8), w(DType::bf16, 8), shard(DType::f32, 2);
          me.all->barrier(s);
          if (me.rank == 2)
            me.all->reduce_scatter({v.tensor(), shard.tensor()}, s);
          else if (me.rank == 3)
            me.all->all_reduce({.buf = w.tensor()}, s);
          else
            me.all->all_reduce({.buf = v.tensor()}, s);
          me.device.sync(s);
        },
        kAllCall);
    for (const std::string& e : errors)
      EXPECT_EQ(e,
                "group dp does not agree: rank 0, 1 calls all_reduce of 8 f32 as call 1; rank 2 calls "
                "reduce_scatter of 8 f32 as call 1; rank 3 calls all_reduce of 8 bf16 as call 1");
  }
}

TEST(Checked, SeesRootsAndReductions) {
  if (!have_ranks(2)) return;
  auto wrap = [](auto f, Device& d, int) { return make_checked(std::move(f), &d); };
  auto errors = run_wrapped(
      2, wrap,
      [&](Rank& me) {
        Values v(DType::f32, 3);
        me.all->broadcast({.buf = v.tensor(), .root = me.rank}, {});
      },
      kAllCall);
  EXPECT_NE(errors[0].find("rank 0 calls broadcast of 3 f32 with root 0"), std::string::npos);
  EXPECT_NE(errors[0].find("rank 1 calls broadcast of 3 f32 with root 1"), std::string::npos);
  errors = run_wrapped(
      2, wrap,
      [&](Rank& me) {
        Values v(DType::f32, 3);
        me.all->all_reduce({.buf = v.tensor(), .op = me.rank ? Reduce::max : Reduce::sum}, {});
      },
      kAllCall);
  EXPECT_NE(errors[1].find("rank 1 calls all_reduce of 3 f32 (max)"), std::string::npos);
}

// As many bytes, and something else: no backend sees that. Of 3 ranks, in a ring, in one batch each.
TEST(Checked, SeesMessagesOfAnotherType) {
  if (!have_ranks(3)) return;
  auto wrap = [](auto f, Device& d, int) { return make_checked(std::move(f), &d); };
  for (auto [type, n] : {std::pair(DType::bf16, 16), {DType::i32, 8}})
    for (bool queued : {false, true}) {
      auto errors = run_wrapped(3, wrap, [&, type = type, n = n](Rank& me) {
        Stream s = queued ? me.device.stream("dp") : Stream{};
        Values v(DType::f32, 8), in(DType::f32, 8), other(type, n);
        const int to = (me.rank + 1) % 3, from = (me.rank + 2) % 3;
        for (int round = 0; round < 100; round++) {  // more than are kept at once
          P2p ring[] = {{v.tensor(), to, true}, {in.tensor(), from, false}};
          me.all->p2p({.ops = ring}, s);
        }
        P2p last[] = {{v.tensor(), to, true}, {me.rank == 2 ? other.tensor() : in.tensor(), from, false}};
        me.all->p2p({.ops = last}, s);
        me.device.sync(s);
      });
      EXPECT_EQ(  // the others may hear of it, or be done before
          errors[2],
          fmt::format("group dp does not agree: rank 1 sends 8 f32 as message 100 to rank 2, which expects "
                      "{} {} as 100",
                      n, name_of(type)));
    }
}

// Loses a row on its way to rank 1: there the one before stands twice.
class LosesARow final : public WrappedCommunicator {
 public:
  ~LosesARow() override { finish(); }
  LosesARow(std::unique_ptr<Communicator> inner, Device* device)
      : WrappedCommunicator(std::move(inner), device) {}

 private:
  void do_all_to_all(const AllToAllArgs& a, Stream s, const CommCall& c) override {
    WrappedCommunicator::do_all_to_all(a, s, c);
    recv_ = a.recv;
    if (rank() == 1 && calls_++ == 70)  // more than are kept at once
      then(
          s,
          [](void* self, int64_t) {
            const Tensor& t = static_cast<LosesARow*>(self)->recv_;
            std::memcpy(t.data + t.bytes() / 6, t.data, size_t(t.bytes() / 6));
          },
          0);
  }
  Tensor recv_;
  int calls_ = 0;
};
class LosingFactory final : public WrappedFactory {
 public:
  LosingFactory(std::unique_ptr<CommFactory> inner, Device* d)
      : WrappedFactory(std::move(inner)), device_(d) {}

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return std::make_unique<LosesARow>(std::move(c), device_);
  }
  Device* device_;
};

// Every rank hears whose row it was, though none of the counts is wrong.
TEST(Checked, SeesARowLostOnItsWay) {
  if (!have_ranks(3)) return;
  auto wrap = [](auto f, Device& d, int) {
    return make_checked(std::make_unique<LosingFactory>(std::move(f), &d), &d);
  };
  for (bool queued : {false, true}) {
    auto errors = run_wrapped(
        3, wrap,
        [&](Rank& me) {
          Stream s = queued ? me.device.stream("dp") : Stream{};
          Values out(DType::f32, 6 * 5), in(DType::f32, 6 * 5);
          out.fill(uint64_t(me.rank) + 3);
          const std::vector<int64_t> rows(3, 2);
          for (int i = 0; i < 75; i++)
            me.all->all_to_all({out.tensor().view({6, 5}), in.tensor().view({6, 5}), rows, rows}, s);
          me.device.sync(s);
        },
        kAllCall);
    for (const std::string& e : errors)
      EXPECT_EQ(e, "group dp: rows that rank 0 sent to rank 1 are not those that arrived, in all_to_all 70");
  }
}

// Does not sleep; says until when it should have.
class FakeClock : public LinkClock {
 public:
  void sleep_until(int64_t ns) override {
    std::lock_guard lock(mutex_);
    until_.push_back(ns);
  }
  std::vector<int64_t> until() {
    std::lock_guard lock(mutex_);
    return until_;
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> until_;
};
struct Times : CommObserver {
  std::vector<std::array<int64_t, 3>> all;
  std::vector<CommCall> calls;
  void issued(const CommCall&) override {}
  void done(const CommCall& c, int64_t begin, int64_t met, int64_t end) override {
    all.push_back({begin, met, end}), calls.push_back(c);
  }
};

TEST(Delayed, EndsWhenTheLinkWould) {
  for (bool queued : {false, true}) {
    std::vector<FakeClock> clocks(2);
    auto wrap = [&](auto f, Device& d, int r) {
      return make_delayed(std::move(f), {.alpha = 1, .beta = 1e-3}, &d, &clocks[size_t(r)]);
    };
    expect_none(run_wrapped(2, wrap, [&](Rank& me) {
      Times times;
      me.all->observe(&times);
      Stream s = queued ? me.device.stream("dp") : Stream{};
      Values v(DType::f32, 1000), shard(DType::f32, 500);
      me.all->all_reduce({.buf = v.tensor()}, s);
      me.all->all_gather({shard.tensor(), v.tensor()}, s);
      P2p one[] = {{v.part(0, 10), 1 - me.rank, me.rank == 0}};
      me.all->p2p({.ops = one}, s);
      me.all->barrier(s);
      me.device.sync(s);
      // 2 rounds and 4,000 bytes each way; 1 and 2,000; 1 and 40 on both sides; 1.
      const double want[] = {2 + 4, 1 + 2, 1 + 0.04, 1};
      std::vector<int64_t> until = clocks[size_t(me.rank)].until();
      ASSERT_EQ(until.size(), 4u);
      ASSERT_EQ(times.all.size(), 4u);
      for (size_t i = 0; i < 4; i++) {
        EXPECT_EQ(until[i] - times.all[i][1], std::llround(want[i] * 1e9));
        EXPECT_LE(times.all[i][0], times.all[i][1]);
      }
    }));
  }
}

TEST(Delayed, ReallySleeps) {
  auto wrap = [](auto f, Device& d, int) { return make_delayed(std::move(f), {.alpha = 1e-3}, &d); };
  expect_none(run_wrapped(2, wrap, [](Rank& me) {
    Times times;
    me.all->observe(&times);
    me.all->barrier({});
    EXPECT_GE(times.all.at(0)[2] - times.all[0][1], 1'000'000);
  }));
  expect_none(run_wrapped(
      3, [](auto f, Device& d, int) { return make_delayed(std::move(f), {}, &d); }, use));
  EXPECT_THROW(make_delayed(make_single(), {.alpha = -1}, nullptr), Error);
}

// Until its peer comes a rank waits: the span's met is no earlier than that.
TEST(Traced, TellsWhenTheLastHadCome) {
  std::vector<std::unique_ptr<CommTracer>> tracers;
  for (int r = 0; r < 2; r++) tracers.push_back(std::make_unique<CommTracer>(r, 100));
  auto wrap = [&](auto f, Device& d, int r) { return make_traced(std::move(f), &d, *tracers[size_t(r)]); };
  expect_none(run_wrapped(2, wrap, [&](Rank& me) {
    CommTracer& tracer = *tracers[size_t(me.rank)];
    int64_t token = 0, late_ns = 0;
    const P2p message[] = {{Tensor(&token, {1}, DType::i64), 1 - me.rank, me.rank == 0}};
    me.all->p2p({.ops = message}, {});  // rank 0 goes to the barrier, and rank 1 lets it
    for (int i = 0; me.rank == 1 && i < 5000; i++) std::this_thread::yield();
    if (me.rank == 1) late_ns = comm_now_ns();
    tracer.start(1);
    me.all->barrier({});
    tracer.stop();
    me.all->broadcast({.buf = Tensor(&late_ns, {1}, DType::i64), .root = 1}, {});
    const std::vector<Span> spans = tracer.take();
    ASSERT_EQ(spans.size(), 1u);
    EXPECT_GE(spans[0].met_ns, late_ns);
    use(me);
  }));
}

// A message that is waited for meets its receiver when it was sent, and a link delays it from then on.
TEST(Delayed, AMessageLeavesWhenItIsSent) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE")) GTEST_SKIP() << "MPI does not say when a message met its receiver";
  auto wrap = [](auto f, Device& d, int) { return make_delayed(std::move(f), {.alpha = 2e-3}, &d); };
  expect_none(run_wrapped(2, wrap, [](Rank& me) {
    Times times;
    me.all->observe(&times);
    int64_t token = 0, sent_ns = 0;
    const P2p message[] = {{Tensor(&token, {1}, DType::i64), 1 - me.rank, me.rank == 0}};
    if (me.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (me.rank == 0) sent_ns = comm_now_ns();
    me.all->p2p({.ops = message}, {});
    me.all->broadcast({.buf = Tensor(&sent_ns, {1}, DType::i64), .root = 0}, {});
    if (me.rank == 0) return;
    EXPECT_GE(times.all.at(0)[1], sent_ns);
    EXPECT_GE(times.all[0][2], sent_ns + 2'000'000);
  }));
}

TEST(Traced, PutsSpansOnTheirLanes) {
  std::vector<std::unique_ptr<CommTracer>> tracers;
  for (int r = 0; r < 3; r++) tracers.push_back(std::make_unique<CommTracer>(r, 1000));
  auto wrap = [&](auto f, Device& d, int r) { return make_traced(std::move(f), &d, *tracers[size_t(r)]); };
  expect_none(run_wrapped(3, wrap, [&](Rank& me) {
    CommTracer& tracer = *tracers[size_t(me.rank)];
    Stream s = me.device.stream("dp");
    tracer.name_lane(s, "dp");
    Values v(DType::f32, 300), w(DType::f32, 300);
    me.all->all_reduce({.buf = v.tensor()}, s);  // before start()
    tracer.start(7);
    tracer.set_action("B", 2);
    me.all->all_reduce({.buf = v.tensor()}, s);
    me.all->broadcast({.buf = w.tensor(), .root = 1}, {});
    tracer.set_action("W", 3);
    me.all->barrier(s);
    tracer.stop();
    me.all->barrier(s);
    me.device.sync(s);
    std::vector<Span> spans = tracer.take();
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[0].lane, "compute");
    EXPECT_EQ(spans[0].name, "broadcast");
    EXPECT_EQ(spans[0].wire_bytes, me.rank == 1 ? 2400 : 0);
    EXPECT_EQ(spans[1].lane, "dp");
    EXPECT_EQ(spans[1].name, "all_reduce");
    EXPECT_EQ(spans[1].group, "dp");
    EXPECT_EQ(spans[1].algorithm, "ordered");
    EXPECT_EQ(spans[1].wire_bytes, 1600);
    EXPECT_EQ(spans[1].action, "B");
    EXPECT_EQ(spans[1].microbatch, 2);
    EXPECT_EQ(spans[2].name, "barrier");
    EXPECT_EQ(spans[2].action, "W");
    for (const Span& x : spans) {
      EXPECT_EQ(x.kind, SpanKind::comm);
      EXPECT_EQ(x.step, 7);
      EXPECT_EQ(x.rank, me.rank);
      EXPECT_LE(x.begin_ns, x.met_ns);
      EXPECT_LE(x.met_ns, x.end_ns);
      EXPECT_GT(x.begin_ns, 0);
    }
    EXPECT_TRUE(tracer.take().empty());
    EXPECT_EQ(tracer.dropped(), 0);
    use(me);
  }));
}

TEST(Decorators, OverOneAnother) {
  std::vector<std::unique_ptr<CommTracer>> tracers;
  for (int r = 0; r < 3; r++) tracers.push_back(std::make_unique<CommTracer>(r, 50));
  std::vector<FakeClock> clocks(3);
  auto wrap = [&](auto f, Device& d, int r) {
    auto checked = make_checked(std::move(f), &d);
    auto delayed = make_delayed(std::move(checked), {.alpha = 0.5}, &d, &clocks[size_t(r)]);
    return make_traced(std::move(delayed), &d, *tracers[size_t(r)]);
  };
  expect_none(run_wrapped(3, wrap, [&](Rank& me) {
    CommTracer& tracer = *tracers[size_t(me.rank)];
    tracer.start(1);
    use(me);
    EXPECT_EQ(tracer.take().size(), 100u) << "50 of each lane";
    EXPECT_EQ(tracer.dropped(), 207 - 100);
    EXPECT_EQ(clocks[size_t(me.rank)].until().size(), 207u);
  }));
}

TEST(Decorators, AFailureStillWakes) {
  if (!have_ranks(3)) return;
  auto wrap = [](auto f, Device& d, int) {
    return make_delayed(make_checked(std::move(f), &d), {.alpha = 1e-5}, &d);
  };
  auto errors = run_wrapped(3, wrap, [](Rank& me) {
    Values v(DType::f32, 5);
    Stream s = me.device.stream("dp");
    me.all->all_reduce({.buf = v.tensor()}, s);
    if (me.rank == 1) run_failed("its disk is full");
    me.all->all_reduce({.buf = v.tensor()}, s);
    me.device.sync(s);
  });
  EXPECT_EQ(errors[1], "its disk is full");
  for (int r : {0, 2}) EXPECT_EQ(errors[size_t(r)].find("rank 1 failed: "), 0u) << errors[size_t(r)];
}

TEST(Meta, CountsAndMovesNothing) {
  struct Seen : CommObserver {
    std::vector<CommCall> calls;
    void issued(const CommCall& c) override { calls.push_back(c); }
  } seen;
  auto factory = make_meta_comm(3, 1000, {.algorithm = "halving"});
  CommSet set(*factory, Mesh({.dp = 500, .tp = 2}));
  set.observe(&seen);
  const Axis dp[] = {Axis::dp};
  Communicator& c = set.along(dp);
  EXPECT_EQ(c.size(), 500);
  EXPECT_EQ(c.rank(), 1);
  auto* nowhere = reinterpret_cast<std::byte*>(uintptr_t(1) << 56);
  c.all_reduce({.buf = Tensor(nowhere, {1001}, DType::bf16)}, {});
  c.all_gather({.shard = Tensor(nowhere, {7}, DType::f32), .full = Tensor(nowhere, {3500}, DType::f32)}, {});
  ASSERT_EQ(seen.calls.size(), 2u);
  EXPECT_EQ(seen.calls[0].algorithm, "halving");
  EXPECT_EQ(seen.calls[0].wire, 2 * (1001 - 2) * 2) << "rank 1 owns 2 of 1,001 elements, rank 0 three";
  EXPECT_EQ(seen.calls[1].wire, 499 * 28);
  EXPECT_EQ(c.moved_bytes(), 0);
  EXPECT_EQ(agree_sum(factory->control(), 2), 2000);
  EXPECT_EQ(agree_max(factory->control(), 2), 2);
  EXPECT_EQ(broadcast_text(factory->control(), "text"), "text");
  EXPECT_EQ(gather_texts(factory->control(), "ab").at(999), "ab");
}

}  // namespace
}  // namespace trireme
