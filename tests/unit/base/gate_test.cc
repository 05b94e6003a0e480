#include "base/gate.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace trireme {
namespace {

// A wake-up that is lost would leave both threads asleep.
TEST(Gate, LosesNoWakeUp) {
  for (int looks : {1, 100}) {
    Gate gate;
    std::atomic<int> turn = 0;
    auto play = [&](int me) {
      for (int i = 0; i < 3000; i++) {
        gate.wait(looks, [&] { return turn.load() == 2 * i + me; });
        turn.fetch_add(1);
        gate.wake();
      }
    };
    std::thread other(play, 1);
    play(0);
    other.join();
    EXPECT_EQ(turn, 6000);
  }
}

TEST(Gate, ASleeperSaysThatItSleeps) {
  Gate gate;
  std::atomic<int> said = 0;
  std::thread sleeper([&] {
    gate.wait(
        1, [&] { return said.load() >= 3; }, std::chrono::milliseconds(1), [&] { said.fetch_add(1); });
  });
  sleeper.join();
  EXPECT_GE(said, 3) << "nobody woke it";
}

TEST(Gate, WakesEverybody) {
  Gate gate;
  std::atomic<int> waiting = 0, through = 0;
  std::atomic<bool> open = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; i++)
    threads.emplace_back([&] {
      waiting.fetch_add(1);
      gate.wait(1, [&] { return open.load(); });
      through.fetch_add(1);
    });
  while (waiting.load() < 5) std::this_thread::yield();
  EXPECT_EQ(through, 0);
  open = true;
  gate.wake();
  for (auto& t : threads) t.join();
  EXPECT_EQ(through, 5);
}

}  // namespace
}  // namespace trireme
