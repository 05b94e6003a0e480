#include "cost/step_memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cost/flops.h"
#include "cost/pipeline_layers.h"
#include "step_cases.h"

namespace trireme {
namespace {
using testing::all_blocks;
using testing::experts;
using testing::one;
using testing::values;

// The fullest of three stages has experts in all of its layers, and in the backward pass one layer's
// gradients in 16 bits beside the step's.
TEST(StepMemory, TheFullestStageHasExpertsAlone) {
  StepCase c = experts();
  c.pp = 3, c.dp = 8, c.ep = 8, c.grad_stored = 4;
  const StepMemory m = step_memory(c, values());
  const double expert = 3 * 24.0 * 3 * 1024 * 512 / 8;  // of three layers, one rank's
  const double dense = 3 * double(block_parameters(c.model)) - 8 * expert + 5000.0 * 1024;
  EXPECT_NEAR(m.states, expert * (2 + 4 + 12) + dense * (2 + 4 + 12 / 8.0), 1);
  EXPECT_NEAR(m.gradients, 2 * (expert / 3 + (dense - 5000.0 * 1024) / 3), 1);
  EXPECT_DOUBLE_EQ(m.total, m.states + m.activations + m.gradients + m.logits + m.base);
  EXPECT_NEAR(backward_bytes(c, true), m.gradients, 1);
}

// Of eight stages the first holds eight microbatches, and no more than there are; tables are on the first and
// the last.
TEST(StepMemory, OfStagesByHand) {
  StepCase c = one();
  c.pp = 8, c.microbatches = 16, c.grad_stored = 2;
  const StepMemory many = step_memory(c, values());
  c.microbatches = 2;
  const double between = 2.0 * 2048 * double(c.model.hidden);  // what a backward pass begins with
  EXPECT_NEAR((rank_memory(c, values(), pipeline_places(c).at[0]).activations - between) /
                  (many.activations - between),
              2.0 / 8, 1e-12);
  const double stage = all_blocks(c.model) / 8 + double(c.model.hidden * c.model.vocab);
  EXPECT_NEAR(many.states / (16 * stage), 1, 1e-9);
  EXPECT_EQ(many.logits, 0);
}

// What softwares keep where others do not, each of one thing.
TEST(StepMemory, KeepingByHand) {
  const FitValues v = values();
  StepCase c = one();  // one stage, hidden 3072, ffn 12288
  c.tp = 4, c.dp = 8;
  const double rows = 2048, layers = 24, h = 3072, f = double(c.model.ffn), vocab = 51200;
  const StepMemory plain = step_memory(c, v);
  const double parameters = plain.states / 18;
  const auto with = [&](auto&& change) {
    StepCase other = c;
    change(other.keeping);
    return step_memory(other, v);
  };
  const auto more = [&](const StepMemory& m) {
    return (m.activations - plain.activations) / (layers * rows);
  };
  EXPECT_NEAR(more(with([](Keeping& k) { k.hidden = 16; })), -2 * h / 4, 1e-6);
  EXPECT_NEAR(more(with([](Keeping& k) { k.ffn = 6; })), 2 * f / 4, 1e-6);
  EXPECT_NEAR(more(with([](Keeping& k) { k.gathered = true; })), 4 * h * 3 / 4, 1e-6);
  const double logits = rows * vocab / 4;
  EXPECT_NEAR(with([](Keeping& k) { k.loss = 12; }).logits, 14 * logits, 1);
  EXPECT_NEAR(with([](Keeping& k) { k.loss_parts = 16; }).logits, 18 * logits, 1);
  // Gradients of a stage, less what of activations has gone when they are there; DDP's buckets beside them,
  // with ZeRO none.
  c.recompute = 1;
  const double gone = layers * rows * 2 * h / 4 + 6 * logits;
  EXPECT_NEAR(with([](Keeping& k) { k.gradients = true; }).gradients, 4 * parameters - gone, 1);
  c.zero = 1;
  EXPECT_NEAR(with([](Keeping& k) { k.gradients = true; }).gradients, 2 * parameters - gone, 1);
  c.recompute = 0, c.micro = 8;  // more has gone than comes: a block's
  EXPECT_NEAR(with([](Keeping& k) { k.gradients = true; }).gradients, backward_bytes(c, false), 1);
  c.micro = 1;
  c.tp = 1;
  EXPECT_NEAR(with([](Keeping& k) { k.loss_parts = 16; }).logits, 6 * 4 * logits, 1);
}

// FSDP2: 16 bytes a parameter among all; of one stage both tables and three blocks' weights in 16 bits beside
// one's gradients in 16 bits and f32; of a pipeline's all of a stage's, and its gradients in f32.
TEST(StepMemory, Fsdp2ByHand) {
  const FitValues v = values();
  StepCase c = one();
  c.dp = 8, c.zero = 3, c.keeping.fsdp = true;
  const double tables = 2 * double(c.model.hidden * c.model.vocab), block = double(block_parameters(c.model));
  const double all = all_blocks(c.model) + tables;
  StepMemory m = step_memory(c, v);
  EXPECT_NEAR(m.states, 16 * all / 8, 1);
  EXPECT_NEAR(m.gradients, 2 * tables + (3 * 2 + 2 + 4) * block, 1);
  c.pp = 4, c.microbatches = 8;
  m = step_memory(c, v);
  EXPECT_NEAR(m.states, 16 * (6 * block + tables / 2) / 8, 1);
  const double messages =
      (2 * 8 + 4) * 2048 * 2 * 3072.0;  // room for each of either way, and what is in flight
  EXPECT_NEAR(m.gradients, 6 * (6 * block + tables / 2) + 2 * block + messages, 1);
}

// By operation: of a block its input, queries, values, attention's result and the gate; with tensor
// parallelism the sums behind attention and feed-forward too.
TEST(StepMemory, SelectiveByOperationByHand) {
  StepCase c = one();
  c.model.kv_heads = 8, c.recompute = 0.5, c.keeping.products = true;
  const double h = 3072, f = double(c.model.ffn);
  EXPECT_NEAR(kept_bytes(c, values(), false) / 2048, 2 * h + 2 * (2 * h + h / 3) + 2 * f, 1e-6);
  c.tp = 4;
  EXPECT_NEAR(kept_bytes(c, values(), false) / 2048, (2 * h + 2 * (2 * h + h / 3) + 2 * f + 4 * h) / 4, 1e-6);
  c.recompute = 1;
  EXPECT_NEAR(kept_bytes(c, values(), false) / 2048, 2 * h / 4, 1e-6);
}

// Of four ranks of six blocks: behind its input gradient a microbatch holds what its weight gradients read,
// all of a block and the gradient that came in, however much is done again; ZB-H1's last rank has four such
// and their logits in 16 bits, one of them in f32 too.
TEST(StepMemory, OfMicrobatchesThatWait) {
  StepCase c = one();
  c.pp = 4, c.microbatches = 16, c.order = PipelineOrder::zb_h1;
  const double between = 2.0 * 2048 * 3072, block = layer_activations(c, false), half = 2.0 * 2048 * 51200;
  for (const double again : {0.0, 1.0}) {
    c.recompute = again;
    const StepMemory m = step_memory(c, values());
    EXPECT_NEAR(m.activations, 6 * 4 * (block + between), 1e-9 * m.activations) << again;
    EXPECT_NEAR(m.logits, 4 * half + 2 * half, 1e-9 * m.logits) << again;
  }
  // The first: three before, and one behind.
  const StepMemory first = rank_memory(c, values(), pipeline_places(c).at[0]);
  EXPECT_NEAR(first.activations, 6 * (3 * between + block + between), 1e-9 * first.activations);
  EXPECT_EQ(first.logits, 0);
  // 1F1B's first does one block again, which goes with its weight gradient.
  c.order = PipelineOrder::one_f_one_b;
  const StepMemory plain = rank_memory(c, values(), pipeline_places(c).at[0]);
  EXPECT_NEAR(plain.activations, 6 * 4 * between + block, 1e-9 * plain.activations);
  // Scores of unfused attention are not read again.
  c.order = PipelineOrder::zb_h1, c.recompute = 0, c.attention = AttentionKind::unfused;
  const double scores = 2048.0 * 5 * 24 * 2048;
  EXPECT_NEAR(layer_activations(c, false), block + scores, 1);
  EXPECT_NEAR(waiting_bytes(c, values(), false), between - scores, 1);
  EXPECT_NEAR(rank_memory(c, values(), pipeline_places(c).at[0]).activations,
              6 * 4 * (block + scores) + between, 1e-9 * 6 * 4 * block);
}

// 22 blocks on 8 ranks: two on the first and on the last, which have tables, and three between (Qi et al.
// 2024); of a V the first has both tables, and one block less.
TEST(StepMemory, RanksWithTablesHaveFewerBlocks) {
  StepCase c = one();
  c.model.layers = 22, c.pp = 8, c.microbatches = 24;
  const double block = all_blocks(c.model) / 22, table = 51200.0 * 3072;
  const auto of = [&](int i) { return pipeline_places(c).at[size_t(i)]; };
  ASSERT_EQ(pipeline_places(c).count, 4);
  EXPECT_EQ(of(0).layers, 2);
  EXPECT_EQ(of(1).layers, 2);
  EXPECT_EQ(of(2).rank, 1);
  EXPECT_EQ(of(3).rank, 6);
  EXPECT_EQ(of(2).layers, 3);
  EXPECT_NEAR(rank_states(c, of(0)) / 18, 2 * block + table, 1);
  EXPECT_NEAR(rank_states(c, of(2)) / 18, 3 * block, 1);
  EXPECT_NEAR(least_memory(c) / 18, std::max(2 * block + table, 3 * block), 1);
  c.model.layers = 23;  // of one less the last
  EXPECT_EQ(of(0).layers, 3);
  EXPECT_EQ(of(1).layers, 2);
  c.order = PipelineOrder::zb_v, c.chunks = 2, c.model.layers = 31;
  ASSERT_EQ(pipeline_places(c).count, 3);
  EXPECT_NEAR(rank_states(c, of(0)) / 18, 3 * block + 2 * table, 1);
  EXPECT_NEAR(rank_states(c, of(1)) / 18, 4 * block, 1);
}

// ZeRO 2 of five replicas: weights whole, gradients and the optimizer's twelve bytes a fifth.
TEST(StepMemory, Zero2DividesGradients) {
  StepCase c = one();
  c.dp = 5, c.zero = 2, c.grad_stored = 4;
  const double all = all_blocks(c.model) + 2.0 * double(c.model.hidden * c.model.vocab);
  EXPECT_NEAR(step_memory(c, values()).states / (all * (2 + 4.0 / 5 + 12.0 / 5)), 1, 1e-9);
}

// Shard groups of four: dense parameters are divided by four of 16 replicas, experts by the two that they
// have. Of what norms and activations put out a row keeps none: 4 h, and 2 of each of its experts' width.
TEST(StepMemory, OfExpertsByHand) {
  StepCase c = one();
  c.model = ModelSpec::of("mixtral");
  c.model.layers = 6, c.model.hidden = 1024, c.model.heads = 16, c.model.experts = 8, c.model.vocab = 5000;
  c.model.experts_per_token = 2, c.model.moe_ffn = 700;
  c.model.finish(c.seq);
  c.dp = 16, c.ep = 8, c.grad_stored = 4, c.zero = 3, c.shards = 4;
  const double experts = 6.0 * 8 * 3 * 1024 * 700, dense = all_blocks(c.model) - experts + 2.0 * 1024 * 5000;
  EXPECT_NEAR(step_memory(c, values()).states, 18 * (dense / 4 + experts / 8 / 2), 1);
  const double kept = step_memory(c, values()).activations;
  c.renorm = true;
  const double less = 5 * 2048.0 * (4 * 1024 + 2 * 2 * 700);  // all but one layer
  EXPECT_NEAR(kept - step_memory(c, values()).activations, less, 1e-9 * kept);
}

// Selective recompute keeps nothing of the scores, which it computes again: 8 GB of them here.
TEST(StepMemory, ScoresThatAreComputedAgainAreNotKept) {
  StepCase c = one();
  c.attention = AttentionKind::unfused;
  const double scores = 2048.0 * 5 * 24 * 2048, kept = kept_bytes(c, values(), false);
  c.recompute_attention = true;
  EXPECT_NEAR(kept - kept_bytes(c, values(), false), scores, 1);
  c.attention = AttentionKind::flash2;
  EXPECT_NEAR(kept - kept_bytes(c, values(), false), scores, 1);  // of which there are none to begin with
}

}  // namespace
}  // namespace trireme
