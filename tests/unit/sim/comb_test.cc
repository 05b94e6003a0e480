// What a rank's waiting is called, of timelines worked out by hand.
#include "sim/comb.h"

#include <gtest/gtest.h>

#include "tapes.h"

namespace trireme {
namespace {

using test::Rank;
using test::replay_of;

// Stage 0 computes until 20, and what it sends takes 3: stage 1 waits for a stage first, then for the wire,
// whether its compute takes the message itself or waits for a stream that does.
TEST(Comb, AMessageThatIsNotSentYetIsABubble) {
  for (const int stream : {0, 2}) {
    Rank a(0), b(1);
    a.op(20, "F").send(2, 1, 0, 3);
    b.op(5, "F").put({.kind = PieceKind::recv, .stream = stream, .peer = 0, .mark = 0}, 0, "recv");
    if (stream > 0) b.wait(stream);
    b.op(4, "F");
    const Replay all = replay_of(a, b);
    EXPECT_EQ(all.makespan, 27);
    const UseTimes use = use_of(stretches_of(b.view(), all.ranks[1], all.makespan));
    EXPECT_EQ(use[size_t(Use::bubble)], 15) << stream;
    EXPECT_EQ(use[size_t(Use::pp)], 3) << stream;
    EXPECT_EQ(use[size_t(Use::other_work)] + use[size_t(Use::forward)], 9) << stream;
  }
}

}  // namespace
}  // namespace trireme
