// GradSync by itself, between rank threads: what goes into one reduction, what becomes of gradients that
// nobody wrote, and that nothing travels before compute has made it.
#include "optim/grad_sync.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <optional>

#include "../comm/ranks.h"
#include "flat_set.h"
#include "program/lower.h"

namespace trireme {
namespace {

using test::DeviceArena;
using test::FlatBuffers;
using testing::Rank;

// Four layers of odd sizes, one of them larger than a block of 4,096.
std::vector<std::vector<ParamDecl>> four_layers() {
  return {{test::param("0.w", {61, 36}, false), test::param("0.b", {53}, false)},
          {test::param("1.w", {71, 67}, false), test::param("1.b", {7}, false)},
          {test::param("2.w", {13, 11}, false), test::param("2.b", {1}, false)},
          {test::param("3.b", {29}, false), test::param("3.w", {5, 7}, false)}};
}

float gradient(int rank, size_t p, int64_t i) {
  return float(normal(uint64_t(rank) * 100 + p, uint64_t(i)));
}

struct Options {
  int zero = 0;
  DType wire = DType::f32;
  int64_t bucket_bytes = 0;
};

// One rank's gradients, and who reduces them. Memory holds no zeros before the first gradient.
struct Reduced {
  // expert_units: of these layers replicas are those of `experts`.
  Reduced(Rank& me, Device& device, const Options& options, const SyncGroups& groups,
          const SyncGroups& experts = {}, std::initializer_list<size_t> expert_units = {})
      : rank(me.rank), device(device) {
    const int shards = groups.shard ? groups.shard->size() : 1;
    set = lay_out(four_layers(), Mesh(), 0, shards);
    for (size_t u : expert_units) set.units[u].experts = true;
    const ShardPlace place{.shards = shards, .shard = groups.shard ? groups.shard->rank() : 0};
    buffers.emplace(set, place, DType::f32, DType::f32, std::vector<StateDecl>{});
    for (Param& p : set.params)
      for (int64_t i = 0; i < p.numel(); i++) buffers->flat.grads.as<float>()[p.offset + i] = 1e30f;
    {
      Owned slots(memory.arena, Bucket::grads, {1 << 18}, DType::f32);
      std::fill_n(slots->as<float>(), slots->numel(), 1e30f);
    }
    if (options.zero < 2)
      for (Param& p : set.params) p.grad = p.view(buffers->flat.grads, p.offset);
    sync.emplace(set, buffers->flat, GradSyncOptions{.zero = options.zero, .wire = options.wire}, groups,
                 experts, nullptr, device, memory.arena);
    sync->start_step();
    policy = {
        .zero = options.zero, .casts = options.wire != DType::f32, .bucket_bytes = options.bucket_bytes};
    shape.units = sync->shapes();
    gathers.emplace(shape, policy, ops);
    reduces.emplace(shape, policy, ops);
  }
  // The runner's part: what the plans have decided.
  void run() {
    for (; ran < ops.size(); ran++) run_unit_op(*sync, ops[ran], set);
  }

  void contribute(size_t p) {
    Param& to = set.params[p];
    std::vector<float> x;
    for (int64_t i = 0; i < to.numel(); i++) x.push_back(gradient(rank, p, i));
    device.kernels().run(CastArgs{.src = Tensor(x.data(), to.stored, DType::f32), .dst = to.grad});
    to.grad_started = true;
  }
  // A backward pass through one layer. gives: does this rank contribute to the parameter?
  void backward(size_t unit, const std::function<bool(size_t)>& gives) {
    reduces->open(uint32_t(unit));
    run();
    for (size_t p = set.units[unit].first; p < set.units[unit].last; p++)
      if (gives(p)) contribute(p);
    reduces->ready(uint32_t(unit));
    run();
  }
  void finish() {
    reduces->finish();
    run();
  }
  // Of this rank's own part: the sum over `ranks` of what each gave.
  void expect_sums(size_t unit, const std::vector<int>& ranks,
                   const std::function<bool(int rank, size_t p)>& gives) const {
    const Unit& u = set.units[unit];
    const Range own = own_part(u, buffers->flat.place);
    const float* got = buffers->flat.own(buffers->flat.grads, set, u).as<float>();
    for (size_t p = u.first; p < u.last; p++) {
      const Range mine = inside(set.params[p], u, own);
      for (int64_t i = mine.begin; i < mine.end; i++) {
        float want = 0;
        for (int r : ranks)
          if (gives(r, p)) want += gradient(r, p, i);
        ASSERT_EQ(got[set.params[p].offset - u.offset + i - own.begin], want)
            << "rank " << rank << " " << set.params[p].decl.name << " element " << i;
      }
    }
  }

  int rank;
  Device& device;
  ParamSet set;
  DeviceArena memory{device, 4 << 20};
  std::optional<FlatBuffers> buffers;
  std::optional<GradSync> sync;
  RankShape shape;
  ShardPolicy policy;
  std::vector<Op> ops;
  size_t ran = 0;  // operations that have run
  std::optional<GatherPlan> gathers;
  std::optional<ReducePlan> reduces;
};

bool everything(int, size_t) {
  return true;
}

// A layer's parameter may get no gradient on one rank, or on none: it counts as zero, whatever was in memory.
TEST(GradSync, WhatNobodyWroteIsZero) {
  auto gives = [](int rank, size_t p) { return p != 2 && p != 5 && (int(p) + rank) % 3 != 0; };
  for (int ranks : {1, 3, 4})
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, zero {}", ranks, zero));
      testing::with_ranks(ranks, [&](Rank& me) {
        SyncGroups groups;
        if (ranks > 1) (zero == 0 ? groups.replicas : groups.shard) = me.all.get();
        Reduced r(me, me.device, {.zero = ranks == 1 ? 0 : zero}, groups);
        for (size_t u = 4; u-- > 0;) r.backward(u, [&](size_t p) { return gives(me.rank, p); });
        r.finish();
        for (size_t u = 0; u < 4; u++) r.expect_sums(u, testing::ranks_upto(ranks), gives);
      });
    }
}

// Plain data parallelism: neighbours go together; layers that come in another order go as they come, once.
TEST(GradSync, ABucketHasNeighboursOnly) {
  struct Case {
    std::vector<size_t> order;
    int64_t bucket_bytes, calls;
  };
  const int64_t all = 1 << 20, two = 2 * 4 * (61 * 36 + 53);
  for (const Case& c : {Case{{3, 2, 1, 0}, all, 1}, Case{{3, 2, 1, 0}, 0, 4}, Case{{3, 1, 2, 0}, two, 4},
                        Case{{2, 0, 1, 3}, two, 4}, Case{{1, 0, 3, 2}, all, 2}, Case{{0, 2, 1, 3}, all, 3}}) {
    SCOPED_TRACE(fmt::format("{}, buckets of {}", fmt::join(c.order, " "), c.bucket_bytes));
    testing::with_ranks(4, [&](Rank& me) {
      Reduced r(me, me.device, {.zero = 0, .bucket_bytes = c.bucket_bytes}, {.replicas = me.all.get()});
      for (size_t u : c.order) r.backward(u, [](size_t) { return true; });
      r.finish();
      for (size_t u = 0; u < 4; u++) r.expect_sums(u, {0, 1, 2, 3}, everything);
      EXPECT_EQ(me.all->counts()[size_t(Collective::all_reduce)].calls, c.calls);
    });
  }
}

// Neighbours whose replicas are other ranks: each goes to its own, in its own bucket.
TEST(GradSync, ABucketHasOneGroupOnly) {
  testing::with_ranks(4, [](Rank& me) {
    const std::vector<int> pair = me.rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    auto replicas = me.factory.split(pair, "edp");
    Reduced r(me, me.device, {.zero = 0, .bucket_bytes = 1 << 20}, {.replicas = me.all.get()},
              {.replicas = replicas.get()}, {1, 3});
    for (size_t u = 4; u-- > 0;) r.backward(u, [](size_t) { return true; });
    r.finish();
    for (size_t u = 0; u < 4; u++) r.expect_sums(u, u % 2 ? pair : std::vector{0, 1, 2, 3}, everything);
    EXPECT_EQ(me.all->counts()[size_t(Collective::all_reduce)].calls, 2);
    EXPECT_EQ(replicas->counts()[size_t(Collective::all_reduce)].calls, 2);
  });
}

// A CPU computes on the rank's own thread, so what is issued is done: only other devices would show a wait
// that is missing. This one keeps the promise of Device::wait in numbers: how much of compute's work stands
// before what is issued on "dp" from here on.
class CountingDevice final : public Device, public OpObserver {
 public:
  explicit CountingDevice(Device& inner) : inner_(inner) { inner.kernels().observe(this); }
  ~CountingDevice() override { inner_.kernels().observe(nullptr); }
  int64_t launched() const { return launched_; }
  int64_t before_dp() const { return before_dp_; }

  std::string_view name() const override { return inner_.name(); }
  bool has_data() const override { return inner_.has_data(); }
  bool native(DType t) const override { return inner_.native(t); }
  std::byte* reserve(int64_t bytes) override { return inner_.reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { inner_.release(p, bytes); }
  void copy(const Tensor& dst, const Tensor& src, Stream s) override { inner_.copy(dst, src, s); }
  void upload(const Tensor& dst, const void* src) override { inner_.upload(dst, src); }
  void download(void* dst, const Tensor& src) override { inner_.download(dst, src); }
  void enqueue(Stream s, HostTask task) override { inner_.enqueue(s, task); }
  Kernels& kernels() override { return inner_.kernels(); }
  void sync(Stream s) override { inner_.sync(s); }
  Stream stream(std::string_view name) override { return inner_.stream(name); }
  Event record(Stream s) override { return s.id == 0 ? Event{0, launched_} : inner_.record(s); }
  void wait(Stream s, Event e) override {
    if (s.id != 0 && e.stream == 0) before_dp_ = std::max(before_dp_, e.mark);
    if (e.stream != 0) inner_.wait(s, e);
  }

 private:
  void after(std::string_view, const Cost&, const Outputs&) override { launched_++; }
  Device& inner_;
  int64_t launched_ = 0, before_dp_ = 0;
};

TEST(GradSync, NothingTravelsBeforeComputeHasMadeIt) {
  for (int zero : {0, 1, 2, 3})
    for (DType wire : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("zero {}, {} on the wire", zero, name_of(wire)));
      testing::with_ranks(3, [&](Rank& me) {
        CountingDevice device(me.device);
        struct Issued : CommObserver {
          explicit Issued(CountingDevice& d) : device(d) {}
          void issued(const CommCall& c) override {
            EXPECT_EQ(device.before_dp(), device.launched()) << name_of(c.kind) << " " << c.sequence;
            calls++;
          }
          CountingDevice& device;
          int calls = 0;
        } observer(device);
        SyncGroups groups;
        (zero == 0 ? groups.replicas : groups.shard) = me.all.get();
        Reduced r(me, device, {.zero = zero, .wire = wire}, groups);
        me.all->observe(&observer);
        for (uint32_t u = 4; u-- > 0;) r.gathers->add({u, true});
        for (uint32_t u = 4; u-- > 0;) {
          r.gathers->need(u);
          r.run();
          r.backward(u, [](size_t) { return true; });
          r.gathers->done(u);
          r.run();
        }
        r.finish();
        for (size_t u = 0; u < 4; u++) {
          const Tensor own = r.buffers->flat.own(r.buffers->flat.weights, r.set, r.set.units[u]);
          device.kernels().run(ZeroArgs{.y = own});  // an update
          r.sync->run({.kind = OpKind::spread, .unit = int32_t(u)});
        }
        r.sync->run({.kind = OpKind::settle});
        me.all->observe(nullptr);
        EXPECT_EQ(observer.calls, zero == 0 ? 4 : 8);
      });
    }
}

}  // namespace
}  // namespace trireme
