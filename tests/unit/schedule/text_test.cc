#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

TEST(Text, EveryKind) {
  const std::string text =
      "0F0 0B1 1I3 1W3 0R0 0SendF2 1RecvF2 1SendB2 0RecvB2 0Unshard 0Reshard 0ReduceGrad 0Step\n";
  const Schedule s = parse_schedule(text);
  EXPECT_EQ(to_text(s), text);
  ASSERT_EQ(s.ranks.size(), 1u);
  ASSERT_EQ(s.ranks[0].size(), 13u);
  for (size_t i = 0; i < 13; i++) EXPECT_EQ(size_t(s.ranks[0][i].kind), i);
  EXPECT_EQ(s.ranks[0][5], (Action{Act::SendF, 0, 2}));
  EXPECT_EQ(s.ranks[0][11], (Action{Act::ReduceGrad, 0, -1}));
  EXPECT_EQ(s.stages, 2);
  EXPECT_EQ(s.microbatches, 4);
}

TEST(Text, BlankLinesAndCommentsAreSkipped) {
  const Schedule s = parse_schedule("# 1F1B, p = 2\n\n 0F0\t0B0  # first\r\n\n1F0 1B0");
  EXPECT_EQ(to_text(s), "0F0 0B0\n1F0 1B0\n");
}

TEST(Text, ParseIsTheInverse) {
  const uint64_t key = rng_key(11, 0, "schedule");
  uint64_t draw = 0;
  const auto pick = [&](uint64_t n) { return int(below(key, draw++, n)); };
  for (int trial = 0; trial < 200; trial++) {
    Schedule s;
    for (int r = pick(5); r >= 0; r--) {
      auto& actions = s.ranks.emplace_back();
      for (int t = pick(20); t >= 0; t--) {
        Action a{Act(pick(13)), int16_t(pick(trial % 2 ? 5 : 32768))};
        if (has_microbatch(a.kind)) a.mb = int16_t(pick(trial % 2 ? 5 : 32768));
        if (pick(3) == 0) a.overlap = uint16_t(1 + pick(65535));
        s.stages = std::max(s.stages, a.stage + 1), s.microbatches = std::max(s.microbatches, a.mb + 1);
        actions.push_back(a);
      }
    }
    ASSERT_EQ(parse_schedule(to_text(s)), s) << to_text(s);
  }
}

TEST(Text, ErrorsNameLineTokenAndWhatIsRight) {
  const std::pair<const char*, const char*> cases[] = {
      {"0F0 F0", "schedule line 1: \"F0\" does not begin with a stage number; right is"},
      {"0F0\n\n1X0", "schedule line 3: \"1X0\" names no kind of action; right is"},
      {"0f0", "\"0f0\" names no kind of action"},
      {"0", "\"0\" names no kind of action"},
      {"0F", "\"0F\" has no microbatch number"},
      {"0F-1", "\"0F-1\" has no microbatch number"},
      {"-1F0", "\"-1F0\" does not begin with a stage number"},
      {"0F32768", "\"0F32768\" has no microbatch number"},
      {"99999999999999F0", "does not begin with a stage number"},
      {"0Step3", "\"0Step3\" has a microbatch, which its kind does not take"},
      {"0F0@0", "\"0F0@0\" has no overlap id from 1 to 65535"},
      {"0F0@", "\"0F0@\" has no overlap id"},
      {"0F0;", "\"0F0;\" goes on after its end"},
      {"0F0@1x", "goes on after its end"},
      {"# nothing\n", "schedule: the text has no action"},
      {"", "schedule: the text has no action"},
  };
  for (const auto& [text, want] : cases) {
    try {
      parse_schedule(text);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      EXPECT_NE(std::string(e.what()).find(want), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace trireme
