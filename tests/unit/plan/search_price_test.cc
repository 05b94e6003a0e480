// What a candidate of the search costs, by hand.
#include <gtest/gtest.h>

#include "cost/flops.h"
#include "cost/time_to_loss.h"
#include "cost/walls.h"
#include "sanitized.h"
#include "search_requests.h"

namespace trireme {
namespace {

using test::small_experts;
using test::small_request;

constexpr SearchLayout kTwelve{.gpus = 12, .global = 24, .tp = 2, .dp = 6, .micro = 2};

TEST(SearchPrice, OfATokenByHand) {
  SearchRequest q = small_request();
  q.price = 2.5, q.reliability.mtbf_device_s = 3e5, q.reliability.spares = 3;
  const Priced p = price_layout(q, kTwelve);
  const Goodput g = goodput(q.reliability, 12, 12 * double(parameters(q.model)) / 12 / 20e9);
  ASSERT_LT(g.share, 0.97);
  const double tokens = 24 * 1536;
  EXPECT_NEAR(p.token_s, p.time.total / (tokens * g.share), 1e-12 * p.token_s);
  EXPECT_NEAR(p.cost, p.token_s * (12 + 3 * 8) * 2.5 / 3600, 1e-12 * p.cost);  // three machines stand by
  q.price = 0;
  EXPECT_NEAR(price_layout(q, kTwelve).cost, p.token_s * 36 / 3600, 1e-12 * p.cost);  // device-hours
  const StepMemory& m = p.memory;
  EXPECT_NEAR(p.headroom, 3e9 - m.states - m.activations - m.gradients - m.logits - 1e8, 1);
  const double flops = train_flops_per_token(q.model, 1536) * tokens;
  EXPECT_NEAR(mfu_of(q, p), flops / (p.time.total * 12 * 300e12), 1e-12);
}

// A token visits two experts of six: the loss is that of the parameters that it visits.
TEST(SearchPrice, UntilALossIsOfWhatATokenVisits) {
  SearchRequest q = small_experts();
  q.by = RankBy::loss, q.loss = 3.2;
  const Priced p = price_layout(q, {.gpus = 6, .global = 24, .dp = 6});
  const double visited = double(parameters(q.model)) - 6.0 * (6 - 2) * 3 * 512 * 1024;
  EXPECT_NEAR(p.score, p.token_s * tokens_to_loss(visited, 3.2, 24 * 1536), 1e-9 * p.score);
}

// A chunked schedule's idle time is said relative to 1F1B's, of a V too, which has two chunks.
TEST(SearchPrice, BubblesAreRelativeTo1F1B) {
  SearchRequest q = small_request();
  q.model.vocab = 300;  // a head for which no stage has fewer blocks
  const auto bubble = [&](std::string_view name, int64_t chunks, int64_t microbatches = 24) {
    return price_layout(
               q,
               {.gpus = 3, .global = microbatches, .pp = 3, .micro = 1, .chunks = chunks, .schedule = name})
        .time.bubble;
  };
  const double plain = bubble("1f1b", 1);
  ASSERT_GT(plain, 0);
  EXPECT_NEAR(bubble("gpipe", 1) / plain, 1, 1e-12);
  EXPECT_NEAR(bubble("interleaved", 4) / plain, 0.25, 1e-12);  // Narayanan et al. 2021: 1 / v
  // Of zero-bubble schedules not a fixed share: of few microbatches as much as 1F1B, of many less, never
  // nothing.
  for (const auto& [name, chunks] : {std::pair{"zb-h1", 1}, {"zb-h2", 1}, {"zb-v", 2}}) {
    EXPECT_GE(bubble(name, chunks), 0.06 * plain * (1 - 1e-12)) << name;
    EXPECT_LT(bubble(name, chunks), plain) << name;
  }
  EXPECT_GT(bubble("zb-h2", 1, 1), 2 * bubble("zb-h2", 1));
}

TEST(SearchPrice, APartOfTheMemoryMayBePlannedWith) {
  SearchRequest q = small_request();
  q.memory_share = 0.5;
  const SearchResult r = search(q);
  ASSERT_FALSE(r.best.empty());
  for (const Priced& p : r.best) EXPECT_LE(p.memory.total, 1.5e9) << text_of(p.layout);
  q.memory_share = 1, q.figures.memory = 1.5e9;
  EXPECT_EQ(search(q).fits, r.fits);
}

// Of the layouts that are faster and do not fit, the leanest that twice the memory holds.
TEST(SearchPrice, MoreMemoryIsNamedByTheLeanest) {
  if (test::kSanitized) GTEST_SKIP() << "two whole searches; other tests run them over fewer layouts";
  SearchRequest q = small_request();
  q.figures.memory = 1.2e9;
  const SearchResult r = search(q);
  ASSERT_FALSE(r.best.empty());
  const SearchWhy w = why(q, r);
  SearchRequest all = q;
  all.figures.memory = 2.4e9, all.best = 1000000;
  double leanest = 1e300;
  for (const Priced& p : search(all).best)
    if (p.score < r.best[0].score && p.memory.total > 1.2e9) leanest = std::min(leanest, p.memory.total);
  ASSERT_LT(leanest, 1e300);
  EXPECT_EQ(w.with_memory.memory.total, leanest);
  EXPECT_LT(w.with_memory.score, r.best[0].score);
  // What binds is the largest part of the step beside its products.
  const StepSeconds& t = r.best[0].time;
  EXPECT_NE(w.binds, "products");
  EXPECT_EQ(w.binds_s, std::max({t.attention, t.elementwise, t.host, t.tp, t.cp, t.ep, t.head, t.bubble,
                                 t.messages, t.gradients, t.optimizer, t.offload, t.jitter}));
}

}  // namespace
}  // namespace trireme
