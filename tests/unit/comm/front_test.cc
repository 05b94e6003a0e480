// What the front counts, by closed forms, and what it tells its observer.
#include "comm/meta/meta_comm.h"
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

TEST(PieceOf, CutsEvenlyAndWhole) {
  for (int size : {1, 2, 3, 5, 8})
    for (int64_t n : {0, 1, 2, 7, 8, 1000, 1001}) {
      int64_t at = 0, least = n, most = 0;
      for (int r = 0; r < size; r++) {
        const Range p = piece_of(n, size, r);
        EXPECT_EQ(p.begin, at);
        at = p.end, least = std::min(least, p.size()), most = std::max(most, p.size());
      }
      EXPECT_EQ(at, n);
      EXPECT_LE(most - least, 1);
    }
}

TEST(WireBytes, AddUpToTheClosedForms) {
  Values v(DType::bf16, 1001), shard(DType::bf16, 7);
  for (int n : {1, 2, 3, 4, 7}) {
    int64_t reduce_all = 0, all_reduce = 0, broadcast = 0;
    Values full(DType::bf16, 7 * n);
    for (int r = 0; r < n; r++) {
      all_reduce += wire_bytes(AllReduceArgs{v.tensor()}, n, r);
      reduce_all += wire_bytes(ReduceArgs{v.tensor(), n - 1}, n, r);
      broadcast += wire_bytes(BroadcastArgs{v.tensor(), 0}, n, r);
      const int64_t gather = wire_bytes(AllGatherArgs{shard.tensor(), full.tensor()}, n, r);
      EXPECT_EQ(gather, 14 * (n - 1));
      EXPECT_EQ(wire_bytes(ReduceScatterArgs{full.tensor(), shard.tensor()}, n, r), gather);
      EXPECT_EQ(wire_bytes(AllReduceArgs{full.tensor()}, n, r), 2 * gather) << "exactly, where n divides it";
    }
    EXPECT_EQ(all_reduce, 2 * (n - 1) * 2002) << "in sum, where it does not";
    EXPECT_EQ(reduce_all, (n - 1) * 2002);
    EXPECT_EQ(broadcast, (n - 1) * 2002);
  }
  const int64_t rows[] = {1, 2, 3};
  Values send(DType::f32, 30);
  EXPECT_EQ(
      wire_bytes(AllToAllArgs{send.tensor().view({6, 5}), send.tensor().view({6, 5}), rows, rows}, 3, 1),
      4 * 20);
  P2p ops[] = {{send.part(0, 3), 1, true}, {send.part(3, 5), 1, false}, {send.part(8, 2), 2, true}};
  EXPECT_EQ(wire_bytes(P2pArgs{ops}, 3, 0), 20);
}

TEST(Front, CountsAndTells) {
  struct Seen : CommObserver {
    std::vector<CommCall> calls;
    void issued(const CommCall& c) override { calls.push_back(c); }
  } seen;
  auto factory = make_meta_comm(1, 4);
  auto c = factory->split(ranks_upto(4), "tp");
  EXPECT_EQ(c->observe(&seen), nullptr);
  Values v(DType::f32, 8), quarter(DType::f32, 2);
  c->all_reduce({.buf = v.tensor(), .op = Reduce::max}, {3});
  c->all_reduce({.buf = v.tensor()}, {});
  c->all_gather({quarter.tensor(), v.tensor()}, {});
  c->broadcast({v.tensor(), 2}, {});
  c->barrier({});
  ASSERT_EQ(seen.calls.size(), 5u);
  for (size_t i = 0; i < 5; i++) EXPECT_EQ(seen.calls[i].sequence, int64_t(i));
  EXPECT_EQ(seen.calls[0].kind, Collective::all_reduce);
  EXPECT_EQ(seen.calls[0].op, Reduce::max);
  EXPECT_EQ(seen.calls[0].stream, Stream{3});
  EXPECT_EQ(seen.calls[0].group, "tp");
  EXPECT_EQ(seen.calls[0].algorithm, "ordered");
  EXPECT_EQ(seen.calls[2].algorithm, "direct");
  EXPECT_EQ(seen.calls[2].payload, 32);
  EXPECT_EQ(seen.calls[2].wire, 24);
  EXPECT_EQ(seen.calls[3].root, 2);
  EXPECT_EQ(seen.calls[3].wire, 0);
  const CommCounts counts = c->counts();
  EXPECT_EQ(counts[size_t(Collective::all_reduce)], (CommCount{2, 64, 96}));
  EXPECT_EQ(counts[size_t(Collective::barrier)], (CommCount{1, 0, 0}));
  c->restart_counts();
  EXPECT_EQ(c->counts(), CommCounts{});
  EXPECT_EQ(c->observe(nullptr), &seen);
  EXPECT_EQ(name_of(Collective::p2p), "p2p");
  EXPECT_EQ(name_of(Collective::barrier), "barrier");
}

}  // namespace
}  // namespace trireme
