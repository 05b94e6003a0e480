// Schedules drawn: by hand.
#include "sim/draw.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/published.h"

namespace trireme {
namespace {

TEST(Draw, EachTimeSlotWhereThereIsRoom) {
  EXPECT_EQ(grid_of(timeline_of(one_f_one_b(2, 2), {}), 80),
            "   0 F0 F1 .  .  B0--- .  B1---\n"
            "   1 .  F0 B0--- F1 B1--- .  .\n");
  EXPECT_EQ(grid_of(timeline_of(parse_schedule("0F0 1F0 1I0 1W0 0I0 0W0"), {}), 80),
            "   0 F0 f0 i0 w0 I0 W0\n");
}

TEST(Draw, OtherwiseALetterAColumn) {
  EXPECT_EQ(grid_of(timeline_of(one_f_one_b(2, 2), {}), 9), "   0 FF..BB.BB\n   1 .FBBFBB..\n");
}

TEST(Draw, SvgHasEveryAction) {
  const std::string svg = svg_of(timeline_of(zb_h1(3, 4), {}), "t");
  size_t rects = 0;
  for (size_t at = 0; (at = svg.find("<rect", at)) != svg.npos; at++) rects++;
  EXPECT_EQ(rects, 3u + 3u * 4u * 3u);
}

TEST(Draw, TitlesAndTextsMayHaveAnyCharacters) {
  const ScheduleTimeline t = timeline_of(gpipe(2, 2), {});
  const std::string page = html_of(t, "a<b & \"c\"", "<script>");
  EXPECT_EQ(page.find("<script>"), page.npos);
  EXPECT_NE(page.find("<title>a&lt;b &amp; &quot;c&quot;</title>"), page.npos);
  EXPECT_EQ(svg_of(t, "a<b").find("a<b"), page.npos);
}

TEST(Draw, StagesOfUnequalTimes) {
  const std::vector<StageTimes> times = {{.forward = 1, .input = 1, .weight = 1},
                                         {.forward = 2, .input = 1, .weight = 2}};
  EXPECT_EQ(grid_of(timeline_of_stages(zb_h1(2, 2), times), 80),
            "   0 F0 F1 .  .  I0 W0 .  I1 W1 .  .\n"
            "   1 .  F0--- I0 F1--- I1 W0--- W1---\n");
}

TEST(PublishedFormulas, AgreeWithWhatComesOut) {
  for (std::string_view name : schedule_names())
    for (int p : {2, 4, 8})
      for (const StageTimes& t : {StageTimes{.forward = 6, .input = 6, .weight = 6},
                                  StageTimes{.forward = 12, .input = 12, .weight = 6},
                                  StageTimes{.forward = 18, .input = 12, .weight = 6}}) {
        const int v = default_chunks(name), m = 3 * p;
        const ScheduleTimeline out =
            timeline_of(make_schedule(name, p, v, m),
                        {.forward = t.forward / v, .input = t.input / v, .weight = t.weight / v});
        const auto paper = published_of(name, p, v, m, t);
        ASSERT_TRUE(paper);
        if (paper->idle) {
          EXPECT_EQ(*paper->idle, out.bubble.idle) << name << " " << p;
        }
        if (paper->most_held) {
          const auto most = std::max_element(out.held.begin(), out.held.end(),
                                             [](auto& a, auto& b) { return a.all() < b.all(); });
          EXPECT_EQ(*paper->most_held, most->all()) << name << " " << p;
        }
        for (size_t r = 0; r < paper->held.size(); r++) EXPECT_EQ(paper->held[r], out.held[r].all()) << name;
      }
  EXPECT_FALSE(published_of("own", 2, 1, 4, {}));
}

}  // namespace
}  // namespace trireme
