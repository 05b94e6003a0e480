#include "base/interrupt.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <string_view>

#include "base/error.h"

namespace trireme {
namespace {

TEST(Interrupt, TheFirstSignalSetsTheFlag) {
  for (int s : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    install_interrupt_handlers();
    clear_interrupt();
    EXPECT_FALSE(interrupt_requested());
    EXPECT_EQ(interrupt_signal(), 0);
    raise(s);
    EXPECT_TRUE(interrupt_requested());
    EXPECT_EQ(interrupt_signal(), s);
    clear_interrupt();
  }
}

TEST(Interrupt, AHangUpThatIsIgnoredStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  install_interrupt_handlers();
  clear_interrupt();
  raise(SIGHUP);
  EXPECT_FALSE(interrupt_requested());
  signal(SIGHUP, SIG_DFL);
  install_interrupt_handlers();
}

TEST(InterruptDeathTest, TheSecondSignalLeavesAtOnce) {
  const auto two = [](int first, int second) {
    install_interrupt_handlers();
    clear_interrupt();
    raise(first);
    raise(second);
    exit(0);
  };
  EXPECT_EXIT(two(SIGTERM, SIGTERM), ::testing::ExitedWithCode(3), "a second signal: leaves at once");
  EXPECT_EXIT(two(SIGUSR1, SIGINT), ::testing::ExitedWithCode(3), "");
}

// Who presses Ctrl-C at a terminal is answered; a pipe, where every rank would say it, is not.
TEST(Interrupt, ATerminalIsToldAtTheFirstSignal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0 || !ptsname(terminal))
    GTEST_SKIP() << "this machine has no pseudo-terminals";
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int screen = open(ptsname(terminal), O_RDWR | O_NOCTTY), before = dup(STDERR_FILENO);
  if (screen < 0) GTEST_SKIP() << "this machine does not show its pseudo-terminals";
  for (const int to : {pipe_ends[1], screen}) {
    dup2(to, STDERR_FILENO);
    install_interrupt_handlers();
    clear_interrupt();
    raise(SIGINT);
    dup2(before, STDERR_FILENO);
    clear_interrupt();
  }
  install_interrupt_handlers();
  close(pipe_ends[1]);
  char said[256];
  EXPECT_EQ(read(pipe_ends[0], said, sizeof said), 0);
  pollfd ready{.fd = terminal, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&ready, 1, 10000), 1) << "nothing was said";
  const ssize_t n = read(terminal, said, sizeof said);
  ASSERT_GT(n, 0);
  EXPECT_NE(std::string_view(said, size_t(n)).find("stops in good order"), std::string_view::npos);
  for (const int fd : {pipe_ends[0], screen, terminal, before}) close(fd);
}

// What a supervisor passes on may have found this process already.
TEST(InterruptDeathTest, APassedOnSignalIsNotASecondOne) {
  const auto come = [](int direct, int passed_on) {
    install_interrupt_handlers();
    clear_interrupt();
    for (int i = 0; i < direct; i++) raise(SIGTERM);
    for (int i = 0; i < passed_on; i++) {
      sigqueue(getpid(), SIGTERM, {});
      usleep(1000);  // signals that wait are one; the thread sanitizer lets them wait for a call like this
    }
    exit(interrupt_requested() ? 0 : 7);
  };
  EXPECT_EXIT(come(1, 1), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(come(0, 1), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(come(2, 0), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(come(1, 2), ::testing::ExitedWithCode(3), "");
}

TEST(Interrupt, CanBeRequestedWithoutASignal) {
  clear_interrupt();
  request_interrupt();
  EXPECT_TRUE(interrupt_requested());
  EXPECT_EQ(interrupt_signal(), 0);
  clear_interrupt();
}

TEST(Duration, Units) {
  EXPECT_EQ(parse_duration("--stop-after", "90s"), 90);
  EXPECT_EQ(parse_duration("--stop-after", "55m"), 3300);
  EXPECT_EQ(parse_duration("--stop-after", "1.5h"), 5400);
  EXPECT_EQ(parse_duration("--stop-after", "2d"), 172800);
  EXPECT_EQ(parse_duration("--stop-after", "0s"), 0);
}

TEST(Duration, ErrorsNameKeyValueAndWhatIsRight) {
  for (const char* text : {"", "m", "55", "55x", "5 m", "-5m", "nanm", "infs", "1e999s", "5mm", "0x5m"}) {
    try {
      parse_duration("--stop-after", text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      EXPECT_EQ(std::string(e.what()), "--stop-after = \"" + std::string(text) +
                                           "\": write a number and a unit as 55m (s, m, h or d)");
    }
  }
}

TEST(Deadline, Passes) {
  EXPECT_FALSE(Deadline().passed());
  EXPECT_TRUE(std::isinf(Deadline().seconds_left()));
  EXPECT_TRUE(Deadline::after(0).passed());
  EXPECT_TRUE(Deadline::after(-1).passed());
  EXPECT_FALSE(Deadline::after(3600).passed());
  EXPECT_LE(Deadline::after(3600).seconds_left(), 3600);
  EXPECT_GT(Deadline::after(3600).seconds_left(), 3000);
  EXPECT_FALSE(Deadline::after(1e300).passed());  // no overflow
}

}  // namespace
}  // namespace trireme
