#include "base/progress.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(1536), "1.54 kB");
  EXPECT_EQ(human_bytes(10 * 1000 - 1), "10.0 kB");
  EXPECT_EQ(human_bytes(int64_t(200) << 20), "210 MB");
  EXPECT_EQ(human_bytes(int64_t(12) << 30), "12.9 GB");
  EXPECT_EQ(human_bytes(-2048), "-2.05 kB");
}

TEST(Human, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1.00 k");
  EXPECT_EQ(human_count(11234), "11.2 k");
  EXPECT_EQ(human_count(999.6e3), "1.00 M");
  EXPECT_EQ(human_count(10.3e6), "10.3 M");
  EXPECT_EQ(human_count(7e9), "7.00 B");
  EXPECT_EQ(human_count(5e15), "5000 T");
}

TEST(Human, Seconds) {
  EXPECT_EQ(human_seconds(0), "0 us");
  EXPECT_EQ(human_seconds(340e-6), "340 us");
  EXPECT_EQ(human_seconds(0.0123), "12 ms");
  EXPECT_EQ(human_seconds(0.9996), "1.00 s");
  EXPECT_EQ(human_seconds(42), "42.0 s");
  EXPECT_EQ(human_seconds(59.97), "1 min 00 s");
  EXPECT_EQ(human_seconds(185), "3 min 05 s");
  EXPECT_EQ(human_seconds(7500), "2 h 05 min");
  EXPECT_EQ(human_seconds(4 * 86400 + 3 * 3600 + 5), "4 d 3 h");
  EXPECT_EQ(human_seconds(-42), "-42.0 s");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "?");
}

double fake_now = 0;

// Collects what a Progress writes, on a clock that only the test moves.
class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() : file_(std::tmpfile()) { fake_now = 0; }
  ~ProgressTest() override { std::fclose(file_); }
  Progress::Options options(bool terminal) {
    Progress::Options o;
    o.out = file_, o.terminal = terminal, o.columns = 60, o.now_s = [] { return fake_now; };
    return o;
  }
  std::string written() {
    std::string s(size_t(std::ftell(file_)), '\0');
    std::rewind(file_);
    EXPECT_EQ(std::fread(s.data(), 1, s.size(), file_), s.size());
    return s;
  }
  std::FILE* file_;
};

TEST_F(ProgressTest, PlainLinesInAPipe) {
  {
    Progress p("train", 100, options(false));
    for (int i = 1; i <= 30; i++) {
      fake_now = i;
      p.update(i, "loss 3.2");
    }
    p.note("valid loss 3.1");
  }
  EXPECT_EQ(written(),
            "train   1 %  loss 3.2\n"
            "train  11 %  loss 3.2  1 min 29 s left\n"
            "train  21 %  loss 3.2  1 min 19 s left\n"
            "valid loss 3.1\n"
            "train  30 %  loss 3.2  1 min 10 s left\n");
}

TEST_F(ProgressTest, PercentagesOfWholeStepsAreWhole) {
  {
    Progress::Options o = options(false);
    o.line_every_s = 0;
    Progress p("train", 100, o);
    for (const int64_t done : {7, 29, 57, 58, 99}) p.update(done);
  }
  const std::string got = written();
  size_t at = 0;
  for (const char* percent : {"  7 %", " 29 %", " 57 %", " 58 %", " 99 %"}) {
    at = got.find(percent, at);
    EXPECT_NE(at, std::string::npos) << percent << " not in " << got;
  }
}

TEST_F(ProgressTest, OneRedrawnLineOnATerminal) {
  {
    Progress p("eval", 4, options(true));
    fake_now = 1;
    p.update(1);
    fake_now = 1.05;
    p.update(2);  // too soon to redraw
    fake_now = 2;
    p.update(3, "ab");
    p.note("hello");
    p.update(4, "ab");
  }
  EXPECT_EQ(written(),
            "\reval [======>                 ]  25 %\x1b[K"
            "\reval [==================>     ]  75 %  ab  500 ms left\x1b[K"
            "\r\x1b[Khello\n"
            "\reval [==================>     ]  75 %  ab  500 ms left\x1b[K"
            "\reval [========================] 100 %  ab\x1b[K\n");
}

TEST_F(ProgressTest, NeverWiderThanTheTerminal) {
  {
    Progress p("train", 4, options(true));
    p.update(1, std::string(100, 'x'));
  }
  const std::string s = written();
  EXPECT_EQ(s.substr(s.size() - 4), "\x1b[K\n");
  EXPECT_EQ(s.size(), 1 + 59 + 4u);
}

// A narrow terminal takes from the bar, then from the text; how much is left stays in sight.
TEST_F(ProgressTest, TheTimeLeftIsTheLastToGo) {
  const auto at = [&](int columns, const std::string& text) {
    std::rewind(file_);
    fake_now = 0;
    Progress::Options o = options(true);
    o.columns = columns, o.redraw_every_s = 0;
    Progress p("train", 100, o);
    p.update(10);
    fake_now = 40;
    p.update(50, text);
    const std::string all = written();
    const size_t begin = all.rfind('\r') + 1;
    return all.substr(begin, all.rfind("\x1b[K") - begin);
  };
  EXPECT_EQ(at(80, "loss 3.2"), "train [============>           ]  50 %  loss 3.2  50.0 s left");
  EXPECT_EQ(at(56, "loss 3.2"), "train [====>   ]  50 %  loss 3.2  50.0 s left");
  EXPECT_EQ(at(80, "step 1234  loss 3.2140  11.2 k tokens/s  MFU 45.0 %  memory 1.50 GiB"),
            "train [====>   ]  50 %  step 1234  loss 3.2140  11.2 k tokens/s  50.0 s left");
  EXPECT_EQ(at(46, "loss 3.2"), "train [====>   ]  50 %  loss 3.2  50.0 s left");
  EXPECT_EQ(at(45, "loss 3.2"), "train  50 %  loss 3.2  50.0 s left");
  EXPECT_EQ(at(30, "loss 3.2  2 tokens/s"), "train  50 %  los  50.0 s left");
  EXPECT_EQ(at(20, "loss 3.2"), "train  50 %  50.0 s");
}

TEST_F(ProgressTest, ALineEachSoMuchOfTheWork) {
  {
    Progress::Options o = options(false);
    o.line_every = 4;
    Progress p("train", 10, o);
    for (int i = 1; i <= 10; i++) p.update(i), p.update(i, "again");
  }
  EXPECT_EQ(written(),
            "train  10 %\n"
            "train  40 %  0 us left\n"
            "train  80 %  0 us left\n"
            "train 100 %  again\n");
}

TEST(Human, ExactBytes) {
  EXPECT_EQ(exact_bytes(1), "1 byte");
  EXPECT_EQ(exact_bytes(999), "999 bytes");
  EXPECT_EQ(exact_bytes(1537), "1537 bytes (1.54 kB)");
}

TEST_F(ProgressTest, ResumedWorkDoesNotCountInTheSpeed) {
  {
    Progress::Options o = options(false);
    o.begin = 50;
    Progress p("train", 100, o);
    fake_now = 10;
    p.update(60);  // how long these ten took, warm-up and all, says little
    fake_now = 12;
    p.update(64);
  }
  EXPECT_EQ(written(), "train  60 %\ntrain  64 %  18.0 s left\n");
}

TEST_F(ProgressTest, WithoutATotalOnlyTheCount) {
  {
    Progress p("read", 0, options(false));
    p.update(7, "files");
  }
  EXPECT_EQ(written(), "read 7  files\n");
}

TEST_F(ProgressTest, SilentWithoutUpdates) {
  { Progress p("train", 4, options(true)); }
  EXPECT_EQ(written(), "");
}

}  // namespace
}  // namespace trireme
