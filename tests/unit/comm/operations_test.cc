// Every operation of a backend against a double loop, and the bytes that it says it moved.
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

constexpr int64_t kSizes[] = {1, 2, 3, 7, 64, 129, 1000, 4099};

class Reductions : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Reductions, ::testing::Range(1, 6));

// All results of one operation, from a plain loop.
std::vector<double> all_expected(DType t, Reduce op, int ranks, int64_t n, uint64_t trial) {
  std::vector<Values> in;
  for (int r = 0; r < ranks; r++) in.push_back(brought(t, n, r, trial));
  std::vector<double> out;
  for (int64_t i = 0; i < n; i++) {
    std::vector<double> x;
    for (const Values& v : in) x.push_back(v.get(i));
    out.push_back(reduced(t, op, x));
  }
  return out;
}

TEST_P(Reductions, AllReduceAddsInRankOrder) {
  const int ranks = GetParam();
  with_ranks(ranks, [&](Rank& me) {
    uint64_t trial = 0;
    for (DType t : kAdded)
      for (Reduce op : {Reduce::sum, Reduce::max})
        for (int64_t n : kSizes) {
          Values v = brought(t, n, me.rank, ++trial);
          me.all->all_reduce({.buf = v.tensor(), .op = op}, {});
          std::vector<double> want = all_expected(t, op, ranks, n, trial);
          for (int64_t i = 0; i < n; i++)
            ASSERT_EQ(v.get(i), want[size_t(i)]) << name_of(t) << " " << n << " element " << i;
        }
    expect_moved(*me.all);
  });
}

TEST_P(Reductions, ReduceScatterAndAllGatherMakeAllReduce) {
  const int ranks = GetParam();
  with_ranks(ranks, [&](Rank& me) {
    uint64_t trial = 100;
    for (DType t : kAdded)
      for (int64_t shard : kSizes) {
        const int64_t n = shard * ranks;
        Values one = brought(t, n, me.rank, ++trial), two = one, three = one, apart(t, shard), full(t, n);
        me.all->all_reduce({.buf = one.tensor()}, {});
        // In place: the shard is the rank's part of full.
        Tensor part = two.part(me.rank * shard, shard);
        me.all->reduce_scatter({.full = two.tensor(), .shard = part}, {});
        me.all->all_gather({.shard = part, .full = two.tensor()}, {});
        EXPECT_EQ(one.bytes(), two.bytes()) << name_of(t) << " " << shard;
        me.all->reduce_scatter({.full = three.tensor(), .shard = apart.tensor()}, {});
        me.all->all_gather({.shard = apart.tensor(), .full = full.tensor()}, {});
        EXPECT_EQ(one.bytes(), full.bytes()) << name_of(t) << " " << shard;
      }
    const CommCounts& c = me.all->counts();
    EXPECT_EQ(2 * c[size_t(Collective::all_reduce)].wire,
              c[size_t(Collective::reduce_scatter)].wire + c[size_t(Collective::all_gather)].wire);
    expect_moved(*me.all);
  });
}

TEST_P(Reductions, ReduceLeavesTheOthersAlone) {
  const int ranks = GetParam();
  with_ranks(ranks, [&](Rank& me) {
    uint64_t trial = 200;
    for (DType t : kAdded)
      for (int64_t n : kSizes) {
        const int root = int(n) % ranks;
        Values v = brought(t, n, me.rank, ++trial), before = v;
        me.all->reduce({.buf = v.tensor(), .root = root}, {});
        if (me.rank != root) {
          EXPECT_EQ(v.bytes(), before.bytes());
          continue;
        }
        std::vector<double> want = all_expected(t, Reduce::sum, ranks, n, trial);
        for (int64_t i = 0; i < n; i++) ASSERT_EQ(v.get(i), want[size_t(i)]) << name_of(t) << " " << n;
      }
    expect_moved(*me.all);
  });
}

TEST_P(Reductions, GatherBroadcastAndBytes) {
  const int ranks = GetParam();
  with_ranks(ranks, [&](Rank& me) {
    for (DType t : {DType::u8, DType::u16, DType::bf16, DType::i64})
      for (int64_t n : kSizes) {
        Values mine = brought(t, n, me.rank, 7), all(t, n * ranks);
        me.all->all_gather({.shard = mine.tensor(), .full = all.tensor()}, {});
        for (int r = 0; r < ranks; r++) {
          Values theirs = brought(t, n, r, 7);
          for (int64_t i = 0; i < n; i++) ASSERT_EQ(all.get(r * n + i), theirs.get(i));
        }
        const int root = int(n) % ranks;
        me.all->broadcast({.buf = mine.tensor(), .root = root}, {});
        EXPECT_EQ(mine.bytes(), brought(t, n, root, 7).bytes());
        me.all->barrier({});
      }
    expect_moved(*me.all);
  });
}

TEST_P(Reductions, AllToAllWithAnyCounts) {
  const int ranks = GetParam();
  // Rows from rank a to rank b: some none.
  auto rows = [&](int a, int b, uint64_t trial) {
    return int64_t(below(trial, uint64_t(a * ranks + b), 4)) * int64_t(below(trial + 50, uint64_t(b), 2) + 1);
  };
  with_ranks(ranks, [&](Rank& me) {
    for (uint64_t trial = 0; trial < 20; trial++) {
      const int64_t cols = 1 + int64_t(trial) % 5;
      std::vector<int64_t> to, from;
      for (int r = 0; r < ranks; r++)
        to.push_back(rows(me.rank, r, trial)), from.push_back(rows(r, me.rank, trial));
      const int64_t out = std::accumulate(to.begin(), to.end(), int64_t(0));
      const int64_t in = std::accumulate(from.begin(), from.end(), int64_t(0));
      Values send(DType::f32, out * cols), recv(DType::f32, in * cols);
      int64_t at = 0;
      for (int r = 0; r < ranks; r++)
        for (int64_t i = 0; i < to[size_t(r)] * cols; i++)
          send.set(at++, me.rank * 10000 + r * 1000 + double(i));
      me.all->all_to_all({.send = send.tensor().view({out, cols}),
                          .recv = recv.tensor().view({in, cols}),
                          .send_rows = to,
                          .recv_rows = from},
                         {});
      at = 0;
      for (int r = 0; r < ranks; r++)
        for (int64_t i = 0; i < from[size_t(r)] * cols; i++)
          ASSERT_EQ(recv.get(at++), r * 10000 + me.rank * 1000 + double(i));
    }
    expect_moved(*me.all);
  });
}

TEST_P(Reductions, MessagesMeetInTheirOrder) {
  const int ranks = GetParam();
  if (ranks == 1) return;
  with_ranks(ranks, [&](Rank& me) {
    const int next = (me.rank + 1) % ranks, before = (me.rank + ranks - 1) % ranks;
    for (int64_t n : kSizes) {
      Values a(DType::f32, n), b(DType::f32, n), c(DType::f32, n), d(DType::f32, n);
      a.fill(uint64_t(me.rank)), b.fill(uint64_t(me.rank) + 77);
      // Two messages each way at once, and to itself in a world of two.
      P2p batch[] = {{a.tensor(), next, true},
                     {c.tensor(), before, false},
                     {b.tensor(), next, true},
                     {d.tensor(), before, false}};
      me.all->p2p({.ops = batch}, {});
      Values want(DType::f32, n);
      want.fill(uint64_t(before));
      EXPECT_EQ(c.bytes(), want.bytes());
      want.fill(uint64_t(before) + 77);
      EXPECT_EQ(d.bytes(), want.bytes());
    }
    // Only those who are named take part; collectives go on in step.
    if (me.rank < 2) {
      Values v(DType::i64, 3);
      v.fill(5);
      P2p one[] = {{v.tensor(), 1 - me.rank, me.rank == 0}};
      me.all->p2p({.ops = one}, {});
    }
    me.all->barrier({});
    expect_moved(*me.all);
  });
}

TEST(Ordered, BucketsDoNotChangeABit) {
  // One all_reduce of 1,000 elements, or pieces of any sizes: the same bits.
  with_ranks(4, [](Rank& me) {
    for (DType t : {DType::bf16, DType::f32}) {
      Values whole = brought(t, 1000, me.rank, 3), cut = whole;
      me.all->all_reduce({.buf = whole.tensor()}, {});
      for (int64_t i = 0, trial = 0; i < 1000; trial++) {
        int64_t n = std::min<int64_t>(1000 - i, 1 + int64_t(below(9, uint64_t(trial), 200)));
        me.all->all_reduce({.buf = cut.part(i, n)}, {});
        i += n;
      }
      EXPECT_EQ(whole.bytes(), cut.bytes());
    }
  });
}

TEST(Ordered, AddsInRankOrder) {
  // Sums that every order of three values rounds differently: what Values::fill() draws adds up exactly.
  for (int ranks : {3, 4})
    with_ranks(ranks, [&](Rank& me) {
      const double large[] = {1e8, -1e8, 3, 0.7};
      auto of = [&](int rank, int64_t i) { return large[(rank + i) % 4] * double(1 + i % 5); };
      Values v(DType::f32, 1001);
      for (int64_t i = 0; i < v.size(); i++) v.set(i, of(me.rank, i));
      me.all->all_reduce({.buf = v.tensor()}, {});
      for (int64_t i = 0; i < v.size(); i++) {
        std::vector<double> x;
        for (int r = 0; r < ranks; r++) x.push_back(double(float(of(r, i))));
        ASSERT_EQ(v.get(i), reduced(DType::f32, Reduce::sum, x)) << "element " << i;
      }
    });
}

TEST(Records, AreUsedAgainByCallsOfAnotherKind) {
  with_ranks(3, [](Rank& me) {
    for (int i = 0; i < 150; i++) {  // twice through all records; the ranks' kinds meet in different ones
      int64_t x = me.rank;
      if (me.rank > 0) me.all->p2p({}, {});
      me.all->all_reduce({.buf = Tensor(&x, {1}, DType::i64), .op = i % 2 ? Reduce::max : Reduce::sum}, {});
      EXPECT_EQ(x, i % 2 ? 2 : 3);
      me.all->broadcast({.buf = Tensor(&x, {1}, DType::i64), .root = i % 3}, {});
      me.all->barrier({});
    }
  });
}

TEST(Agreements, OfNumbersAndTexts) {
  with_ranks(3, [](Rank& me) {
    Communicator& c = me.factory.control();
    EXPECT_EQ(agree_max(c, me.rank == 1 ? 42 : -5), 42);
    EXPECT_EQ(agree_sum(c, me.rank + 1), 6);
    EXPECT_EQ(broadcast_text(c, me.rank == 2 ? "from the last" : "another", 2), "from the last");
    EXPECT_EQ(broadcast_text(c, "", 0), "");
    std::vector<std::string> texts = gather_texts(c, std::string(size_t(me.rank) * 3, char('a' + me.rank)));
    EXPECT_EQ(texts, (std::vector<std::string>{"", "bbb", "cccccc"}));
  });
}

TEST(Groups, AlongTheMeshAndInParts) {
  with_ranks(6, [](Rank& me) {
    CommSet set(me.factory, Mesh({.dp = 3, .tp = 2}));
    const Axis dp[] = {Axis::dp}, tp[] = {Axis::tp}, both[] = {Axis::dp, Axis::tp};
    auto sum_along = [&](Communicator& c) {
      int64_t x = me.rank + 1;
      c.all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, {});
      return x;
    };
    EXPECT_EQ(sum_along(set.along(dp)), me.rank % 2 ? 2 + 4 + 6 : 1 + 3 + 5);
    EXPECT_EQ(sum_along(set.along(tp)), me.rank / 2 * 4 + 3);
    EXPECT_EQ(sum_along(set.along(both)), 21);
    EXPECT_EQ(sum_along(set.inner(both, 3)), me.rank < 3 ? 6 : 15);
    EXPECT_EQ(sum_along(set.across(both, 3)), 2 * (me.rank % 3 + 1) + 3);
    EXPECT_EQ(set.along(dp).group(), "dp");
    EXPECT_EQ(set.inner(both, 3).group(), "dp+tp inner");
    EXPECT_EQ(&set.along(dp), &set.along(dp));
    EXPECT_EQ(set.counts()[size_t(Collective::all_reduce)].calls, 5);
  });
}

TEST(Single, CopiesThroughItsDevice) {
  for (bool with_device : {false, true}) {
    auto device = make_device("cpu", {.threads = 1});
    auto factory = make_single(with_device ? device.get() : nullptr);
    auto c = factory->split(std::vector<int>{0}, "dp");
    Values shard(DType::f32, 5), full(DType::f32, 5);
    shard.fill(1);
    Stream s = device->stream("dp");
    c->all_gather({.shard = shard.tensor(), .full = full.tensor()}, s);
    device->sync(s);
    EXPECT_EQ(shard.bytes(), full.bytes());
    c->all_reduce({.buf = full.tensor()}, s);
    EXPECT_EQ(shard.bytes(), full.bytes());
    EXPECT_EQ(c->moved_bytes(), 0);
    EXPECT_EQ(agree_sum(factory->control(), 3), 3);
  }
}

// A collective comes to its end while the rank's own thread computes and calls nothing: MPI, too, must not
// need it.
TEST(Progress, IsMadeWhileTheRankComputes) {
  for (int n : {2, 3, 4}) {
    if (!have_ranks(n)) continue;
    with_ranks(n, [&](Rank& me) {
      std::vector<float> x(300'001, float(me.rank + 1));
      std::atomic<bool> done = false;
      const Stream s = me.device.stream("dp");
      me.all->all_reduce({.buf = Tensor(x.data(), {int64_t(x.size())}, DType::f32)}, s);
      me.device.enqueue(
          s, {[](void* d, int64_t) { static_cast<std::atomic<bool>*>(d)->store(true); }, &done, 0});
      const auto begin = std::chrono::steady_clock::now();
      while (!done.load() && std::chrono::steady_clock::now() - begin < std::chrono::minutes(1))
        std::this_thread::yield();
      EXPECT_TRUE(done.load()) << "rank " << me.rank;
      me.device.sync(s);
      EXPECT_EQ(x.back(), float(n * (n + 1) / 2));
    });
  }
}

}  // namespace
}  // namespace trireme
