// Where the best layout changes: on one side of the point a search finds the same division, on the other not.
#include "search/search_flip.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

SearchRequest request_to_flip() {
  SearchRequest q;
  q.model = ModelSpec::of("llama");
  q.model.layers = 12, q.model.hidden = 1536, q.model.heads = 12, q.model.kv_heads = 4, q.model.ffn = 4096;
  q.model.vocab = 32000;
  q.seq = 2048, q.name = "small", q.device = "test";
  q.model.finish(q.seq);
  q.figures = {.bf16 = 300e12,
               .memory = 12e9,
               .bandwidth = 2e12,
               .bus = 200e9,
               .near = 4,
               .nic = 20e9,
               .attention = 150e12};
  // Not those that a fit made: another fit would move ties, next to which there is more than one change.
  q.fits.fill(1);
  q.fits[size_t(Fit::host)] = q.fits[size_t(Fit::host_moe)] = q.fits[size_t(Fit::each)] = 1e-4;
  q.fits[size_t(Fit::jitter)] = q.fits[size_t(Fit::step)] = q.fits[size_t(Fit::ring)] = 1e-6;
  q.fits[size_t(Fit::base)] = 1e9;
  q.gpus = {12}, q.globals = {24}, q.best = 3;
  return q;
}

void turn(SearchRequest& q, std::string_view knob, double value) {
  if (knob == "near") q.figures.bus = value;
  if (knob == "far") q.figures.nic = value;
  if (knob == "memory") q.figures.memory = value;
  if (knob == "peak") q.figures.attention *= value / q.figures.bf16, q.figures.bf16 = value;
  if (knob == "batch") q.globals = {std::llround(value)};
}

TEST(SearchFlip, TheSameOnOneSideAnotherOnTheOther) {
  const SearchRequest q = request_to_flip();
  const Priced best = search(q).divisions.front();
  const std::vector<FlipPoint> all = flip_points(q, best, flip_knobs());
  ASSERT_EQ(all.size(), 10u);
  const auto division_at = [&](const FlipPoint& p, double value) {
    SearchRequest turned = q;
    turn(turned, p.knob, value);
    const SearchResult r = search(turned);
    return r.best.empty() ? std::string("nothing") : division_text(r.best[0].layout);
  };
  int flips = 0;
  for (const FlipPoint& p : all) {
    SCOPED_TRACE(fmt::format("{} {} -> {}", p.knob, p.now, p.at));
    EXPECT_EQ(p.knob == "batch", p.now == 24);
    if (!p.any) {
      EXPECT_EQ(division_at(p, p.at), division_text(best.layout));
      continue;
    }
    flips++;
    const double inside =
        p.knob == "batch" ? (p.rises() ? p.at / 2 : p.at * 2)
                          : (p.rises() ? p.at / (1 + 1.05 * kFlipWithin) : p.at * (1 + 1.05 * kFlipWithin));
    EXPECT_EQ(division_at(p, inside), division_text(best.layout));
    EXPECT_EQ(division_at(p, p.at), p.fits ? division_text(p.after.layout) : "nothing");
    EXPECT_LE(std::abs(std::log2(p.at / p.now)), std::log2(kMostTurned) + 1e-9);
  }
  EXPECT_GE(flips, 3);
  const std::string text = flips_text(all);
  for (const FlipPoint& p : all)
    if (p.any && p.fits) {
      EXPECT_NE(text.find(text_of(p.after.layout)), std::string::npos) << text;
    }
  EXPECT_EQ(nlohmann::json::parse(flips_json(all)).size(), all.size());
}

// Less and less memory: from flip to flip, until nothing fits, which is said.
TEST(SearchFlip, MemoryUntilNothingFits) {
  SearchRequest q = request_to_flip();
  q.globals = {12};
  bool fits = true;
  for (int i = 0; i < 40 && fits; i++) {
    const SearchResult r = search(q);
    ASSERT_FALSE(r.best.empty());
    const FlipPoint p = flip_points(q, r.divisions.front(), {"memory"})[0];
    ASSERT_TRUE(p.any);
    EXPECT_LT(p.at, q.figures.memory);
    fits = p.fits, q.figures.memory = p.at;
    if (!fits) {
      EXPECT_NE(flips_text({p}).find("nothing fits when a device's memory falls below"), std::string::npos);
    }
  }
  EXPECT_FALSE(fits);
  EXPECT_TRUE(search(q).best.empty());
  q.figures.memory *= 1 + 2 * kFlipWithin;
  const SearchResult r = search(q);
  ASSERT_FALSE(r.best.empty());
  EXPECT_THROW(flip_points(q, r.divisions.front(), {"nessie"}), Error);
  SearchRequest odd = request_to_flip();
  odd.globals = {3};  // half of three sequences is no batch
  for (const FlipPoint& p : flip_points(odd, search(odd).divisions.front(), {"batch"}))
    EXPECT_EQ(p.at, std::floor(p.at));
  q.figures.nic = 0;
  EXPECT_TRUE(flip_points(q, r.divisions.front(), {"far"}).empty());
}

}  // namespace
}  // namespace trireme
