// Random sequences of operations on several groups and streams at once, each result held against a plain
// loop.
#include <numeric>

#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

// What happens, drawn alike on every rank.
struct Drawn {
  int group, stream;
  Collective kind;
  DType dtype;
  int64_t n;
  int root;
};

constexpr int kGroups = 4, kStreams = 3;

// World of 4: everybody, two halves, the odd and the even, everybody once more.
std::vector<int> ranks_of(int group, int rank) {
  if (group == 1) return rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
  if (group == 2) return rank % 2 ? std::vector{1, 3} : std::vector{0, 2};
  return {0, 1, 2, 3};
}

Drawn draw(uint64_t seed, int i) {
  auto pick = [&](int what, int n) {
    return int(below(seed + uint64_t(what) * 7919, uint64_t(i), uint64_t(n)));
  };
  const DType types[] = {DType::f32, DType::bf16, DType::i64};
  const Collective kinds[] = {Collective::all_reduce, Collective::all_gather,     Collective::reduce_scatter,
                              Collective::broadcast,  Collective::reduce,         Collective::barrier,
                              Collective::p2p,        Collective::reduce_scatter, Collective::all_reduce};
  return {pick(1, kGroups),  pick(2, kStreams), kinds[pick(3, 9)],
          types[pick(4, 3)], 1 + pick(5, 300),  pick(6, 100)};
}

// One call, its buffers, and what must be in them. Buffers live until all streams are through.
struct Doing {
  Drawn d;
  std::vector<int> ranks;
  int me = 0, size = 0;
  Values a, b;
  uint64_t seed = 0;

  Doing(Drawn drawn, int rank, int i)
      : d(drawn), ranks(ranks_of(drawn.group, rank)), a(d.dtype, 1), b(d.dtype, 1), seed(uint64_t(i) * 64) {
    size = int(ranks.size());
    while (ranks[size_t(me)] != rank) me++;
    d.root %= size;
    a = brought(me);
    b = Values(d.dtype, d.kind == Collective::all_gather ? d.n * size : d.n);
  }
  int64_t elements() const { return d.kind == Collective::reduce_scatter ? d.n * size : d.n; }
  Values brought(int r) const {
    Values v(d.dtype, elements());
    v.fill(seed + uint64_t(ranks[size_t(r)]));
    return v;
  }

  void issue(Communicator& c, Stream s) {
    switch (d.kind) {
      case Collective::all_reduce:
        return c.all_reduce({.buf = a.tensor()}, s);
      case Collective::all_gather:
        return c.all_gather({.shard = a.tensor(), .full = b.tensor()}, s);
      case Collective::reduce_scatter:
        return c.reduce_scatter({.full = a.tensor(), .shard = b.tensor()}, s);
      case Collective::broadcast:
        return c.broadcast({.buf = a.tensor(), .root = d.root}, s);
      case Collective::reduce:
        return c.reduce({.buf = a.tensor(), .root = d.root}, s);
      case Collective::p2p: {
        P2p ops[] = {{b.tensor(), (me + size - 1) % size, false}, {a.tensor(), (me + 1) % size, true}};
        return c.p2p({.ops = ops}, s);
      }
      default:
        return c.barrier(s);
    }
  }

  double sum(int64_t i) const {
    std::vector<double> x;
    for (int r = 0; r < size; r++) x.push_back(brought(r).get(i));
    return reduced(d.dtype, Reduce::sum, x);
  }
  void check() const {
    const int64_t places[] = {0, d.n / 2, d.n - 1};
    for (int64_t i : places) switch (d.kind) {
        case Collective::all_reduce:
          ASSERT_EQ(a.get(i), sum(i));
          break;
        case Collective::all_gather:
          for (int r = 0; r < size; r++) ASSERT_EQ(b.get(r * d.n + i), brought(r).get(i));
          break;
        case Collective::reduce_scatter:
          ASSERT_EQ(b.get(i), sum(me * d.n + i));
          break;
        case Collective::broadcast:
          ASSERT_EQ(a.get(i), brought(d.root).get(i));
          break;
        case Collective::reduce:
          ASSERT_EQ(a.get(i), me == d.root ? sum(i) : brought(me).get(i));
          break;
        case Collective::p2p:
          ASSERT_EQ(b.get(i), brought((me + size - 1) % size).get(i));
          break;
        default:
          break;
      }
  }
};

class RandomCalls : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Orders, RandomCalls, ::testing::Values("ordered", "ring", "halving"));

TEST_P(RandomCalls, OnSeveralGroupsAndStreams) {
  // Sums of two ranks are the same in any order; fast orders are only asked for those and for the rest.
  const bool ordered = GetParam() == "ordered";
  for (uint64_t seed : {11, 12, 13})
    with_ranks(4, {.algorithm = GetParam()}, [&](Rank& me) {
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int g = 0; g < kGroups; g++)
        groups.push_back(me.factory.split(ranks_of(g, me.rank), fmt::format("g{}", g)));
      Stream streams[kStreams] = {me.device.stream("a"), me.device.stream("b"), me.device.stream("compute")};
      std::vector<Doing> doing;
      constexpr int kCalls = 250;
      doing.reserve(kCalls);
      for (int i = 0; i < kCalls; i++) {
        Drawn d = draw(seed, i);
        if (!ordered && d.group % 3 == 0 && d.dtype != DType::i64) d.dtype = DType::i64;
        doing.emplace_back(d, me.rank, i);
        doing.back().issue(*groups[size_t(d.group)], streams[d.stream]);
        if (i % 17 == 0) {
          EXPECT_EQ(agree_max(me.factory.control(), i + me.rank), i + 3);
        }
      }
      for (Stream s : streams) me.device.sync(s);
      for (const Doing& x : doing) x.check();
      for (auto& c : groups) expect_moved(*c);
    });
}

}  // namespace
}  // namespace trireme
