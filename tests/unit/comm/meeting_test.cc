// Where rank threads meet, alone: a failure in the wrong moment.
#include <gtest/gtest.h>

#include <thread>

#include "comm/thread/group.h"

namespace trireme::thread {
namespace {

// From the moment in which the last has arrived nobody gives up, also who sleeps then and hears of a failure
// first: it may be read already.
TEST(Meeting, AFailureComesTooLateForOneThatIsComplete) {
  for (int i = 0; i < 300; i++) {
    Failure failure;
    Meeting m;
    m.prepare(2);
    QueuedOp ops[2];
    std::atomic<bool> begun = false;
    std::string told;
    std::thread sleeper([&] {
      begun = true;
      try {
        m.arrive(0, ops[0], 0, 1, failure);
        m.finish(0, 1);
      } catch (const Error& e) {
        told = e.what();
      }
    });
    while (!begun) std::this_thread::yield();
    m.arrive(1, ops[1], 0, 1, failure);
    failure.set(1, "too late", true);
    m.wake();
    std::thread last([&] { m.finish(0, 1); });
    sleeper.join();
    if (!told.empty()) m.finish(0, 1);  // in its place, so that the other ends
    last.join();
    ASSERT_EQ(told, "") << i;
  }
}

// A rank may come to a use of a meeting on one stream before it has come to the use before on another: it
// waits until nobody reads that one's records any more, and counts for none of it.
TEST(Meeting, IsNotUsedAgainBeforeAllHaveLeft) {
  for (int i = 0; i < 300; i++) {
    Failure failure;
    Meeting m;
    m.prepare(2);
    QueuedOp ops[2], later[2];
    std::atomic<int> begun = 0;
    std::thread early([&] {
      begun++;
      m.arrive(0, later[0], 1, 1, failure);
      EXPECT_EQ(m.ops()[0], &later[0]);
      EXPECT_EQ(m.ops()[1], &later[1]);
      m.finish(1, 1);
    });
    while (begun < 1) std::this_thread::yield();
    for (int k = 0; k < i % 30; k++) std::this_thread::yield();
    std::atomic<bool> came = false, all_had_come = false;
    std::thread first([&] {
      begun++;
      m.arrive(0, ops[0], 0, 1, failure);
      all_had_come = came.load() && m.ops()[0] == &ops[0] && m.ops()[1] == &ops[1];
      m.finish(0, 1);
    });
    while (begun < 2) std::this_thread::yield();
    for (int k = 0; k < i % 30; k++) std::this_thread::yield();
    came = true;
    m.arrive(1, ops[1], 0, 1, failure);
    EXPECT_EQ(m.ops()[0], &ops[0]);
    m.finish(0, 1);
    first.join();
    ASSERT_TRUE(all_had_come) << i;
    m.arrive(1, later[1], 1, 1, failure);
    m.finish(1, 1);
    early.join();
  }
}

}  // namespace
}  // namespace trireme::thread
