// layout.recompute = "auto": what is let go first, and no more than a limit makes needful.
#include "forecast/recompute.h"

#include <gtest/gtest.h>

#include "cost/flops.h"
#include "forecast/forecast.h"
#include "runtime/recompute.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec small(const char* arch, int64_t limit) {
  RunSpec r;
  r.model = ModelSpec::of(arch);
  r.model.vocab = 61, r.model.layers = 5, r.model.hidden = 36, r.model.heads = 3, r.model.kv_heads = 3;
  r.model.ffn = 100;
  r.data.seq_len = 23;
  r.batch.micro = 4, r.batch.global = 4;
  r.precision.compute = "f32", r.precision.grads = "f32", r.precision.reduce = "f32";
  r.layout.recompute = "auto", r.layout.recompute_limit = limit;
  r.train.steps = 20, r.train.threads = 1;
  r.model.finish(r.data.seq_len);
  return r;
}

int64_t arena(const RunSpec& r) {
  return book_training(r, schedule_of(r), 1).arena_bytes;
}
RunSpec with(RunSpec r, const std::string& recompute) {
  r.layout.recompute = recompute, r.layout.recompute_limit = 0;
  return r;
}

TEST(ChooseRecompute, WhatCostsLeastByTheByteComesFirst) {
  const RunSpec r = small("llama", 0);
  const std::vector<Texts> order = recompute_order(r.model, r.data.seq_len);
  ASSERT_EQ(order.size(), 6u);
  EXPECT_TRUE(order[0].empty());
  EXPECT_EQ(order[1], Texts::of({"n1", "n2", "a"}));
  EXPECT_EQ(order[2], Texts::of({"n1", "n2", "a", "o"}));  // 2 s a element; products 2 h, here more
  EXPECT_EQ(order.back().size(), 7u);
  // Long sequences: attention last.
  EXPECT_EQ(recompute_order(r.model, 4096).back().list.back(), "o");
  // Experts and latent attention have tensors of the same names.
  RunSpec experts = small("mixtral", 0);
  experts.model.ffn = 0;  // of no block
  EXPECT_EQ(recompute_order(experts.model, 23)[1], Texts::of({"n1", "n2", "a"}));
  EXPECT_EQ(recompute_order(experts.model, 23).back().size(), 7u);
  ModelSpec latent = ModelSpec::of("deepseek_v2");
  latent.hidden = 5120;
  latent.heads = latent.kv_heads = 128;
  latent.finish(4096);
  const std::vector<Texts> compressed = recompute_order(latent, 4096);
  EXPECT_EQ(compressed.back().size(), 7u);
  // Queries, keys and values come from 2,048 compressed columns, "mid" from 16,384.
  const auto place = [&](const std::string& name) {
    const std::vector<std::string>& all = compressed.back().list;
    return std::find(all.begin(), all.end(), name) - all.begin();
  };
  EXPECT_LT(place("qkv"), place("o"));
  EXPECT_LT(place("o"), place("mid"));
}

// At every limit: it fits, and less would not. FLOPs grow as the limit falls.
TEST(ChooseRecompute, TakesTheLeastThatFits) {
  const int64_t most = arena(with(small("llama", 0), "none")), least = arena(with(small("llama", 0), "full"));
  ASSERT_LT(least, most);
  double before = 0;
  int partly = 0;
  for (int i = 0; i <= 24; i++) {
    const int64_t limit = most - (most - least) * i / 24;
    SCOPED_TRACE(limit);
    const RunSpec r = choose_recompute(small("llama", limit), {}, 1);
    EXPECT_LE(arena(r), limit);
    EXPECT_TRUE(problems_of(r).empty());
    EXPECT_EQ(i == 0, r.layout.recompute == "none");
    EXPECT_GE(recompute_flops_per_token(r), before);
    before = recompute_flops_per_token(r);
    partly += r.layout.recompute_blocks > 0;
    if (r.layout.recompute_blocks < 2) continue;
    RunSpec fewer = r;
    fewer.layout.recompute_blocks--;
    EXPECT_GT(arena(fewer), limit);
  }
  EXPECT_GT(before, 4 * block_flops_per_token(small("llama", 0).model, 23, false));
  EXPECT_GT(partly, 5);
}

TEST(ChooseRecompute, SaysWhyNot) {
  const auto why = [](const RunSpec& r, const ClusterSpec& c) {
    try {
      choose_recompute(r, c, 1);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(why(small("llama", 5000), {}).find("with all blocks computed again a rank still takes"),
            std::string::npos);
  EXPECT_NE(why(small("llama", 0), {}).find("give layout.recompute_limit"), std::string::npos);
  ClusterSpec c;
  c.memory_bytes = int64_t(1) << 40;
  EXPECT_EQ(choose_recompute(small("llama", 0), c, 1).layout.recompute, "none");
  const RunSpec plain = with(small("llama", 0), "none");
  const Booking b = book_training(plain, schedule_of(plain), 1);
  c.memory_bytes = b.arena_bytes + b.snapshot_bytes;  // what checkpoints are written from is there too
  EXPECT_EQ(choose_recompute(small("llama", 0), c, 1).layout.recompute, "none");
  c.memory_bytes--;
  EXPECT_NE(choose_recompute(small("llama", 0), c, 1).layout.recompute, "none");
}

// The fullest stage sets the number of blocks of all, and one fewer would not fit it.
TEST(ChooseRecompute, OfEveryStage) {
  RunSpec r = small("llama", 0);
  r.layout.pp = 2, r.batch.global = 16, r.model.layers = 8;
  const int64_t most = arena(with(r, "none")), least = arena(with(r, "full"));
  int partly = 0;
  for (int i = 1; i < 8; i++) {
    r.layout.recompute_limit = most - (most - least) * i / 8;
    SCOPED_TRACE(r.layout.recompute_limit);
    const RunSpec chosen = choose_recompute(r, {}, 1);
    EXPECT_LE(arena(chosen), r.layout.recompute_limit);
    EXPECT_NE(recompute_text(chosen, forecast(chosen, schedule_of(chosen), {}, 1)).find("computed again"),
              std::string::npos);
    if (chosen.layout.recompute_blocks < 2) continue;
    partly++;
    RunSpec fewer = chosen;
    fewer.layout.recompute_blocks--;
    EXPECT_GT(arena(fewer), r.layout.recompute_limit);
  }
  EXPECT_GT(partly, 0);
}

}  // namespace
}  // namespace trireme
