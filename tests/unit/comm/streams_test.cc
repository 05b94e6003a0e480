// Collectives beside compute, in several groups and streams: rank threads that wait for one another outside
// of collectives too.
#include <future>

#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

TEST(Streams, CollectivesRunBesideCompute) {
  // Rank 1 comes to the collective only after rank 0 has computed behind it: on one thread this could not
  // end.
  std::promise<void> computed;
  with_ranks(2, [&](Rank& me) {
    Stream s = me.device.stream("dp");
    int64_t x = me.rank + 1;
    if (me.rank == 1) computed.get_future().wait();
    me.all->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, s);
    Event done = me.device.record(s);
    if (me.rank == 0) computed.set_value();
    me.device.wait({}, done);
    EXPECT_EQ(x, 3);
  });
}

TEST(Streams, TwoOfThemDoNotWaitForEachOther) {
  // On stream a rank 0 waits for rank 1, on stream b rank 1 for rank 0's later call: both only when both run.
  std::promise<void> b_done;
  with_ranks(2, [&](Rank& me) {
    Stream a = me.device.stream("a"), b = me.device.stream("b");
    auto other = me.factory.split(ranks_upto(2), "other");
    std::shared_future<void> f;
    int64_t x = 1, y = 10;
    struct Wait {
      std::promise<void>& p;
      int rank;
    } wait{b_done, me.rank};
    if (me.rank == 1)
      me.device.enqueue(a,
                        {[](void* w, int64_t) { static_cast<Wait*>(w)->p.get_future().wait(); }, &wait, 0});
    me.all->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, a);
    other->all_reduce({.buf = Tensor(&y, {1}, DType::i64)}, b);
    me.device.sync(b);
    EXPECT_EQ(y, 20);
    if (me.rank == 0) b_done.set_value();
    me.device.sync(a);
    EXPECT_EQ(x, 2);
  });
}

}  // namespace
}  // namespace trireme
