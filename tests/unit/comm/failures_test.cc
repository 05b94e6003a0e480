// Failures while others wait; calls that do not fit together; one group on two streams.
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

TEST(Calls, OfOneGroupOnTwoStreams) {
  with_ranks(3, [](Rank& me) {
    Stream s[2] = {me.device.stream("a"), me.device.stream("b")};
    std::vector<Values> v;
    for (int i = 0; i < 300; i++) v.emplace_back(DType::f32, 1 + i % 50);
    for (int i = 0; i < 300; i++) {
      v[size_t(i)].fill(uint64_t(i * 10 + me.rank));
      me.all->all_reduce({.buf = v[size_t(i)].tensor()}, s[i % 2]);
    }
    me.device.sync(s[0]), me.device.sync(s[1]);
    for (int i = 0; i < 300; i++)
      for (int64_t j = 0; j < v[size_t(i)].size(); j++) {
        std::vector<double> x;
        for (int r = 0; r < 3; r++) {
          Values w(DType::f32, v[size_t(i)].size());
          w.fill(uint64_t(i * 10 + r));
          x.push_back(w.get(j));
        }
        ASSERT_EQ(v[size_t(i)].get(j), reduced(DType::f32, Reduce::sum, x));
      }
  });
}

// What each rank says when rank `bad` fails while all others wait in `call`.
std::vector<std::string> failing(int ranks, int bad, const std::function<void(Rank&, Stream)>& call) {
  return run_ranks({ranks}, [&](Rank& me) {
    if (me.rank == bad) run_failed("no space left");
    Stream s = me.rank % 2 ? me.device.stream("dp") : Stream{};
    call(me, s);
    me.device.sync(s);
  });
}

TEST(Failure, WakesWhoWaits) {
  if (!have_ranks(4)) return;
  static int64_t x[4];
  auto mine = [](Rank& me) { return Tensor(&x[me.rank], {1}, DType::i64); };
  std::vector<std::function<void(Rank&, Stream)>> calls = {
      [&](Rank& me, Stream s) { me.all->all_reduce({.buf = mine(me)}, s); },
      [&](Rank& me, Stream s) { me.all->barrier(s); },
      [&](Rank& me, Stream s) {
        P2p ops[] = {{mine(me), 2, false}};
        me.all->p2p({.ops = ops}, s);
      },
      [&](Rank& me, Stream s) {
        P2p ops[] = {{mine(me), 2, true}};
        me.all->p2p({.ops = ops}, s);
        me.all->barrier(s);  // a small message may be gone without its receiver
      },
      [&](Rank& me, Stream) { agree_max(me.factory.control(), 1); },
  };
  for (auto& call : calls) {
    std::vector<std::string> errors = failing(4, 2, call);
    for (int r = 0; r < 4; r++)
      EXPECT_EQ(errors[size_t(r)], r == 2 ? "no space left" : "rank 2 failed: no space left");
  }
}

TEST(Failure, OfLaterCallsToo) {
  if (!have_ranks(2)) return;
  auto errors = run_ranks({2}, [](Rank& me) {
    me.all->barrier({});
    if (me.rank == 0) me.factory.fail("out of memory");
    me.all->barrier({});
  });
  EXPECT_EQ(errors[1], "rank 0 failed: out of memory");
}

TEST(Failure, ARankThatLeavesWithWorkUnderWay) {
  // Its communicator goes before fail() is called: it must not wait for ever.
  if (!have_ranks(2)) return;
  auto errors = run_ranks({2}, [](Rank& me) {
    static int64_t x[2];
    if (me.rank == 1) return me.all->p2p({}, {});
    Stream s = me.device.stream("dp");
    me.all->all_reduce({.buf = Tensor(&x[0], {1}, DType::i64)}, s);
    run_failed("wrong file");
  });
  EXPECT_EQ(errors[0], "wrong file");
  if (!errors[1].empty()) {  // before it made its call
    EXPECT_EQ(errors[1], "rank 0 failed: wrong file");
  }
}

std::string first_error(int ranks, const std::function<void(Rank&)>& body) {
  for (const std::string& e : run_ranks({ranks}, body))
    if (!e.empty()) return e;
  return "";
}

TEST(Mismatch, IsSaidByEveryRank) {
  if (!have_ranks(3)) return;
  auto errors = run_ranks({3}, [](Rank& me) {
    Values v(DType::f32, me.rank == 2 ? 5 : 4);
    me.all->all_reduce({.buf = v.tensor()}, {});
  });
  const std::string verdict =
      "group all: rank 0 calls all_reduce of 4 f32, rank 2 all_reduce of 5 f32; they must be equal";
  for (const std::string& e : errors)  // some may hear it from another rank first
    EXPECT_NE(e.find(verdict), std::string::npos) << e;
}

TEST(Mismatch, OfTwo) {
  if (!have_ranks(2)) return;
  EXPECT_EQ(first_error(2,
                        [](Rank& me) {
                          Values v(DType::f32, 4);
                          if (me.rank == 0)
                            me.all->all_reduce({.buf = v.tensor()}, {});
                          else
                            me.all->broadcast({.buf = v.tensor()}, {});
                        }),
            "group all: rank 0 calls all_reduce of 4 f32, rank 1 broadcast of 4 f32; they must be equal");
  EXPECT_NE(first_error(2,
                        [](Rank& me) {
                          Values v(DType::f32, 4);
                          P2p one[] = {{v.part(0, me.rank ? 3 : 4), 1 - me.rank, me.rank == 0}};
                          me.all->p2p({.ops = one}, {});
                        })
                .find("rank 0 sends 16 bytes to rank 1, which expects 12"),
            std::string::npos);
}

TEST(Mismatch, OfRowsDoesNotHoldTheOthersUp) {
  if (!have_ranks(3)) return;
  auto errors = run_ranks({3}, [](Rank& me) {
    Values send(DType::f32, 6), recv(DType::f32, 6);
    const int64_t ones[] = {1, 1, 1}, odd[] = {1, 2, 0};
    me.all->all_to_all({.send = send.tensor().view({3, 2}),
                        .recv = recv.tensor().view({3, 2}),
                        .send_rows = me.rank == 0 ? odd : ones,
                        .recv_rows = ones},
                       {});
  });
  EXPECT_NE((errors[1] + errors[2]).find("rank 0 sends"), std::string::npos) << errors[1] << errors[2];
}

TEST(Front, RefusesWhatCannotBe) {
  if (!have_ranks(2)) return;
  auto error_of = [](const std::function<void(Communicator&)>& call) {
    return first_error(2, [&](Rank& me) { call(*me.all); });
  };
  Values f(DType::f32, 10), b(DType::u8, 10);
  const int64_t rows[] = {3, 4};
  // Both refuse it; the second may have heard of the first by then.
  const std::string added = error_of([&](Communicator& c) { c.all_reduce({.buf = b.tensor()}, {}); });
  EXPECT_TRUE(added.find("all_reduce of group all, rank 0 of 2: values of u8 are not added") != added.npos ||
              added.find("all_reduce of group all, rank 1 of 2: values of u8 are not added") != added.npos)
      << added;
  EXPECT_NE(error_of([&](Communicator& c) {
              c.all_gather({f.part(0, 4), f.tensor()}, {});
            }).find("full has 10 elements, and must have 2 x 4"),
            std::string::npos);
  EXPECT_NE(error_of([&](Communicator& c) {
              c.all_gather({b.part(0, 5), f.tensor()}, {});
            }).find("f32 and u8"),
            std::string::npos);
  EXPECT_NE(error_of([&](Communicator& c) {
              c.broadcast({f.tensor(), 2}, {});
            }).find("root is 2"),
            std::string::npos);
  EXPECT_NE(error_of([&](Communicator& c) {
              c.all_to_all({f.tensor(), f.tensor(), rows, rows}, {});
            }).find("add up to 7"),
            std::string::npos);
  EXPECT_NE(error_of([&](Communicator& c) {
              P2p self[] = {{f.tensor(), c.rank(), true}};
              c.p2p({.ops = self}, {});
            }).find("nothing to itself"),
            std::string::npos);
  Tensor strided = f.tensor().view({5, 2}).narrow(1, 0, 1);
  EXPECT_NE(error_of([&](Communicator& c) { c.all_reduce({.buf = strided}, {}); }).find("not contiguous"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme
