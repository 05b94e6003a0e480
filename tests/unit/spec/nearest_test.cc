// The nearest layout that works, against every layout of as many ranks.
#include "spec/nearest.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "sanitized.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

RunSpec finished(RunSpec r) {
  r.model.finish(r.data.seq_len);
  return r;
}
bool sound(const RunSpec& r) {
  if (!problems_of(r).empty() || !unsupported_of(r).empty()) return false;
  try {
    schedule_of(r);
    return true;
  } catch (const Error&) {
    return false;
  }
}
int changed(const RunSpec& a, const RunSpec& b) {
  return int(diff(a, b).size());
}

TEST(NearestLayout, IsSaidInTheTextOfARefusal) {
  const std::string toml = "[model]\nheads = 6\n[layout]\ntp = 4\n[batch]\nglobal = 24\n";
  auto said = [&](const LoadOptions& o) {
    try {
      parse_run(toml, "run.toml", {}, o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(said({}).find("nearest"), std::string::npos);
  const std::string text = said({.nearest = true});
  EXPECT_NE(text.find("4 does not divide model.heads = 6; give 1 or 2; the nearest layout of 4 ranks that "
                      "works: layout."),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(NearestLayout, ChangesTheFewestKeys) {
  RunSpec r;
  r.model.heads = 6, r.model.kv_heads = 0, r.batch.global = 96, r.batch.micro = 2;
  r.layout.tp = 4;
  const RunSpec two = *nearest_layout(finished(r));  // a factor of tp goes to another axis
  EXPECT_TRUE(sound(two));
  EXPECT_EQ(two.layout.tp, 2) << "nearer than 1";
  EXPECT_EQ(two.world(), 4);
  RunSpec s;
  s.layout.sequence = true;  // says nothing with tp = 1
  EXPECT_EQ(nearest_layout_text(finished(s)),
            "; the nearest layout of 1 rank that works: layout.sequence = false");
  RunSpec b;
  b.batch.global = 6, b.batch.micro = 4;
  EXPECT_EQ(nearest_layout_text(finished(b)), "; the nearest layout of 1 rank that works: batch.micro = 3");
  RunSpec m;
  m.train.steps = 10, m.train.trace_steps = "20";  // nothing of the layout's
  EXPECT_FALSE(nearest_layout(finished(m)));
}

// A schedule that takes two chunks is offered them, not another schedule.
TEST(NearestLayout, OffersTheChunksThatAScheduleTakes) {
  for (const char* schedule : {"zb-v", "v-half", "v-min", "dualpipe-v", "interleaved"}) {
    RunSpec r;
    r.model.layers = 8, r.batch.global = 8, r.batch.micro = 1, r.layout.pp = 2, r.layout.schedule = schedule;
    EXPECT_EQ(nearest_layout_text(finished(r)),
              "; the nearest layout of 2 ranks that works: layout.chunks = 2")
        << schedule;
    r.layout.schedule = "zb-h1", r.layout.chunks = 2;
    EXPECT_EQ(nearest_layout_text(finished(r)),
              "; the nearest layout of 2 ranks that works: layout.chunks = 1");
  }
}

// Drawn layouts that are refused: what is found works, is of as many ranks, and no single key does it better.
TEST(NearestLayout, WorksWhereverOneIsFound) {
  int refused = 0, found = 0;
  for (uint64_t seed = 0; seed < uint64_t(120 / test::one_of(1, 6)); seed++) {
    const uint64_t key = rng_key(seed, 0, "nearest");
    uint64_t n = 0;
    auto one_of = [&](auto... values) {
      const std::array all{values...};
      return all[size_t(below(key, n++, all.size()))];
    };
    RunSpec r;
    if (one_of(false, true)) r.model = ModelSpec::of("mixtral");
    r.model.heads = one_of(3, 4, 8), r.model.kv_heads = 0, r.model.hidden = r.model.heads * 16;
    r.model.layers = one_of(2, 4);
    r.batch.global = one_of(12, 16), r.batch.micro = one_of(1, 2, 5);
    r.layout.dp = one_of(1, 2, 3), r.layout.tp = one_of(1, 2, 3), r.layout.pp = one_of(1, 2, 4);
    r.layout.cp = one_of(1, 2), r.layout.ep = one_of(1, 2, 5), r.layout.zero = one_of(0, 3);
    r.layout.shard_group = one_of(0, 2, 3), r.layout.sequence = one_of(false, true);
    r.layout.schedule = one_of("1f1b", "interleaved", "dualpipe"), r.layout.chunks = one_of(1, 2);
    r.layout.recompute_shard = one_of(false, true);
    r = finished(r);
    if (sound(r)) continue;
    refused++;
    const std::optional<RunSpec> near = nearest_layout(r);
    if (!near) continue;
    found++;
    EXPECT_TRUE(sound(*near)) << seed;
    EXPECT_EQ(near->world(), r.world()) << seed;
    EXPECT_GE(changed(r, *near), 1) << seed;
    // Alone, ep or a key at its default would have been enough.
    for (int64_t ep : {1, 2, 3, 4, 6}) {
      RunSpec other = r;
      other.layout.ep = ep;
      if (ep != r.layout.ep && sound(other)) {
        EXPECT_EQ(changed(r, *near), 1) << seed;
      }
    }
    RunSpec other = r;
    other.layout.schedule = "1f1b";
    if (sound(other)) {
      EXPECT_EQ(changed(r, *near), 1) << seed;
    }
    other = r;
    other.layout.shard_group = 0;
    if (sound(other)) {
      EXPECT_EQ(changed(r, *near), 1) << seed;
    }
  }
  EXPECT_GT(refused, 60 / test::one_of(1, 6));
  if (test::one_of(1, 6) > 1) return;  // a share takes many
  EXPECT_GE(found * 10, refused * 8);
}

// However many ranks: it ends at once.
TEST(NearestLayout, OfManyRanksEnds) {
  RunSpec r;
  r.layout.dp = 5040, r.layout.tp = 3, r.layout.ep = 2, r.layout.sequence = true, r.layout.shard_group = 11;
  r.model.heads = 8;
  nearest_layout(finished(r));
  r.layout.dp = r.layout.tp = r.layout.pp = r.layout.cp = 1 << 20;
  EXPECT_FALSE(nearest_layout(finished(r)));
}

}  // namespace
}  // namespace trireme
