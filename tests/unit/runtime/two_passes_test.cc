// Two functions by turns: who runs when, and what exceptions of either do.
#include "runtime/two_passes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace trireme {
namespace {

struct Said {
  TwoPasses passes;
  std::string text;
  int pauses[2] = {0, 0};
  int fails = -1, fails_after = 0;  // which function, after how many pauses
  int left = 0;                     // functions whose objects were destroyed
};

template <int who>
void speak(void* of) {
  Said& s = *static_cast<Said*>(of);
  struct Leaves {
    int& n;
    ~Leaves() { n++; }
  } leaves{s.left};
  for (int i = 0; i < s.pauses[who]; i++) {
    if (who == s.fails && i == s.fails_after) run_failed("{} fails", who);
    s.text += std::to_string(who);
    s.passes.pause();
  }
  s.text += who ? 'b' : 'a';
}

std::string spoken(int first, int second) {
  Said s;
  s.pauses[0] = first;
  s.pauses[1] = second;
  s.passes.run(speak<0>, speak<1>, &s);
  EXPECT_EQ(s.left, 2);
  return s.text;
}

TEST(TwoPasses, GoByTurns) {
  EXPECT_EQ(spoken(2, 2), "0101ab");
  EXPECT_EQ(spoken(3, 1), "010b0a");
  EXPECT_EQ(spoken(1, 3), "01a11b");
  EXPECT_EQ(spoken(0, 2), "a11b");
  EXPECT_EQ(spoken(2, 0), "0b0a");
}

TEST(TwoPasses, RunAgain) {
  Said s;
  s.pauses[0] = s.pauses[1] = 1;
  for (int i = 0; i < 3; i++) s.passes.run(speak<0>, speak<1>, &s);
  EXPECT_EQ(s.text, "01ab01ab01ab");
  s.passes.pause();  // no other function
}

TEST(TwoPasses, EitherMayFail) {
  for (const int fails : {0, 1})
    for (const int after : {0, 1, 2}) {
      Said s;
      s.pauses[0] = s.pauses[1] = 3;
      s.fails = fails;
      s.fails_after = after;
      try {
        s.passes.run(speak<0>, speak<1>, &s);
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_EQ(std::string(e.what()), std::to_string(fails) + " fails");
      }
      // A function that had not begun has nothing to destroy.
      EXPECT_EQ(s.left, fails == 0 && after == 0 ? 1 : 2);
      s.fails = -1;
      s.text.clear();
      s.left = 0;
      s.passes.run(speak<0>, speak<1>, &s);
      EXPECT_EQ(s.left, 2);
    }
}

}  // namespace
}  // namespace trireme
