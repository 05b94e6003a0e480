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

}  // namespace
}  // namespace trireme::thread
