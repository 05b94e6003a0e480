#include "cost/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cost/flops.h"
#include "cost/pipeline_layers.h"
#include "cost/stage_time.h"
#include "cost/step_memory.h"
#include "step_cases.h"

namespace trireme {
namespace {
using testing::all_blocks;
using testing::device;
using testing::experts;
using testing::held_parameters;
using testing::one;
using testing::values;

TEST(StepTime, PartsAddUp) {
  for (uint64_t i = 0; i < 200; ++i) {
    StepCase c = one();
    const auto draw = [i](uint64_t what, int n) { return int64_t(uniform(5, i * 16 + what) * n); };
    c.tp = int64_t{1} << draw(0, 4), c.pp = 1 + draw(1, 6), c.dp = 1 + draw(2, 5), c.cp = 1 + draw(3, 3);
    c.micro = 1 + draw(4, 4), c.microbatches = 1 + draw(5, 30), c.zero = int(draw(6, 4));
    c.recompute = double(draw(7, 2));
    FitValues v = values();
    for (size_t f = 0; f < kFits; ++f) v[f] *= 0.5 + uniform(6, i * 32 + f);
    const StepSeconds t = step_time(c, device(), v);
    const double parts = t.products + t.attention + t.elementwise + t.host + t.tp + t.cp + t.ep + t.head +
                         t.bubble + t.messages + t.gradients + t.optimizer + t.offload + t.jitter;
    EXPECT_NEAR(parts / t.total, 1, 1e-9);
    EXPECT_GT(t.total, 0);
    // No faster than the arithmetic allows.
    EXPECT_GE(t.total, step_flops(c, false) * 0.4 / (device().bf16 * double(c.gpus())));
  }
}

// A batch of more sequences than 64 bits count, as options allow.
TEST(StepTime, FlopsOfAnEndlessBatchAreAProportion) {
  StepCase c = one();
  const double flops = step_flops(c, false);
  c.dp = 1'000'000'007, c.micro = 999'999'937, c.microbatches = 1'000'000'000;
  const double sequences = double(c.dp) * double(c.micro) * double(c.microbatches);
  EXPECT_NEAR(step_flops(c, false) / flops / sequences, 1, 1e-12);
}

TEST(StepTime, ProductsReachThePeakWhereSidesAreLong) {
  StepCase c = one();
  c.model.hidden = 1 << 20, c.model.head_dim = 0, c.model.heads = 1 << 13, c.model.kv_heads = 0,
  c.model.ffn = 1 << 22;
  c.micro = 512, c.model.layers = 1, c.model.vocab = 1;
  c.model.finish(c.seq);
  const StepSeconds t = step_time(c, device(), values());
  const double products = 3 * 2 * double(block_parameters(c.model)) * double(c.micro * c.seq);
  EXPECT_NEAR(t.products * device().bf16 / products, 1, 0.01);
}

TEST(StepTime, BubbleOf1F1B) {
  StepCase c = one();
  c.model.vocab = 1;  // no head to speak of: equal stages
  c.pp = 4, c.microbatches = 12;
  FitValues v = values();
  v[size_t(Fit::pp)] = 1e-12;
  const StepSeconds t = step_time(c, device(), v);
  const double work = t.total - t.bubble - t.optimizer;
  EXPECT_NEAR(t.bubble / work, 3.0 / 12, 0.01);
  c.chunks = 3;
  EXPECT_NEAR(step_time(c, device(), v).bubble / t.bubble, 1.0 / 3, 1e-6);
}

TEST(StepTime, Directions) {
  const StepCase c = one();
  const double base = step_time(c, device(), values()).total;
  StepCase again = c;
  again.recompute = 1;
  EXPECT_GT(step_time(again, device(), values()).total, 1.2 * base);
  EXPECT_LT(step_time(again, device(), values()).total, 1.34 * base);
  StepCase eight = c;
  eight.numbers = NumberType::fp8;
  EXPECT_LT(step_time(eight, device(), values()).total, 0.75 * base);
  StepCase window = c;
  window.window = 128, window.window_share = 0.5;
  EXPECT_LT(step_time(window, device(), values()).attention,
            0.6 * step_time(c, device(), values()).attention);
  DeviceFigures slow = device();
  slow.nic /= 4;
  StepCase wide = c;
  wide.dp = 64;
  EXPECT_GT(step_time(wide, slow, values()).gradients, 3.9 * step_time(wide, device(), values()).gradients);
}

// A tensor parallel collective of eight near ranks takes what NCCL's all_reduce of 8 H200 is measured to
// (data/published_microbench.json, nccl_allreduce_busbw_gbps_8xH200).
TEST(StepTime, ShortCollectivesOfTensorParallelRanks) {
  StepCase c = one();
  c.tp = 8;
  c.model.layers = 1;
  c.model.hidden = 1024;
  c.seq = 2048;
  DeviceFigures h200 = device();
  h200.bus = 360e9;  // data/score_catalog.json
  struct Point {
    double sequences;  // of 4 MiB
    double bandwidth;
  };
  for (const Point& p : {Point{0.5, 64.53e9}, Point{1, 107.16e9}, Point{2, 155.53e9}, Point{4, 219.89e9},
                         Point{8, 275.84e9}}) {
    c.micro = 2;
    c.seq = int64_t(1024 * p.sequences);
    const double bytes = p.sequences * (1 << 22);
    const double measured = bytes * 2 * 7 / 8 / p.bandwidth;
    constexpr int kOfALayer = 4;
    EXPECT_NEAR(step_time(c, h200, values()).tp / kOfALayer / measured, 1, 0.12) << p.sequences;
  }
}

// ZeRO 3 that moves lists of tensors cuts every rank's slice of each tensor. A microbatch gathers twice and
// sums once; recompute gathers once more.
TEST(StepTime, ZeroThreeOfLists) {
  StepCase c = one();
  c.dp = 128;
  c.zero = 3;
  c.microbatches = 5;
  StepCase lists = c;
  lists.sliced = 4;
  const auto more = [&] {
    return step_time(lists, device(), values()).gradients - step_time(c, device(), values()).gradients;
  };
  constexpr double kSlice = 12e-6;
  const double once = kSlice * 4 * 24 * 128;
  EXPECT_NEAR(more(), 5 * 3 * once, 1e-9);
  c.recompute = lists.recompute = 1;
  EXPECT_NEAR(more(), 5 * 4 * once, 1e-9);
}

// Biases that are added expert by expert are traffic: of experts' rows alone, and of nothing else.
TEST(StepTime, ExpertsBiasesAreTraffic) {
  StepCase c = one();
  const auto bytes = [](const StepCase& of) { return step_time(of, device(), values()).elementwise; };
  const double dense = bytes(c);
  c.expert_bias = true;
  EXPECT_EQ(bytes(c), dense);
  c.model.experts = 8, c.model.experts_per_token = 2, c.model.moe_ffn = c.model.ffn;
  const double with = step_time(c, device(), values()).total, more = bytes(c);
  c.expert_bias = false;
  const StepSeconds plain = step_time(c, device(), values());
  // 28 bytes forward and 1.7 times that backward, of two choices' hidden sizes of each row.
  const double rows = double(c.micro * c.microbatches * c.seq * c.model.layers);
  const double expected = 2.7 * 28 * 2 * double(c.model.hidden) * rows * values()[size_t(Fit::routing)] /
                          (0.8 * device().bandwidth);
  EXPECT_NEAR(more - plain.elementwise, expected, 1e-6 * expected);
  EXPECT_GT(with, plain.total);
}

// Small messages among tensor parallel ranks cost what NCCL's all-reduce was measured at: in a node of 8, and
// on two.
TEST(StepTime, SmallTensorCollectivesCostTheirLatency) {
  StepCase c = one();
  c.seq = 1, c.micro = 1, c.microbatches = 1, c.model.layers = 1, c.tp = 16;
  FitValues v = values();
  v[size_t(Fit::tp)] = 1;
  EXPECT_NEAR(step_time(c, device(), v).tp / 4, 55.5e-6, 2e-6);
  c.tp = 8;
  EXPECT_NEAR(step_time(c, device(), v).tp / 4, 12.9e-6, 2e-6);
}

// Shard groups that stay in a node gather over its links; what their replicas sum once a step comes on top.
TEST(StepTime, HybridShardingGathersNearAndSumsFar) {
  StepCase c = one();
  c.dp = 64, c.microbatches = 8, c.zero = 3;
  FitValues v = values();
  const double all = step_time(c, device(), v).gradients;
  c.shards = 8;
  const double hybrid = step_time(c, device(), v).gradients;
  EXPECT_LT(hybrid, all);
  DeviceFigures slow = device();
  slow.nic /= 100;  // what is left among groups still goes over it
  EXPECT_GT(step_time(c, slow, v).gradients, 2 * hybrid);
  c.shards = 64;
  EXPECT_DOUBLE_EQ(step_time(c, device(), v).gradients, all);
}

TEST(StepTime, WhoIsNearPaysLess) {
  StepCase c = one();
  c.tp = 4, c.pp = 2, c.dp = 4, c.microbatches = 4;
  const auto of = [&](Nearest n) {
    c.nearest = n;
    return step_time(c, device(), values());
  };
  const StepSeconds tensor = of(Nearest::tensor), stages = of(Nearest::stages),
                    replicas = of(Nearest::replicas);
  EXPECT_LT(stages.messages, tensor.messages);
  EXPECT_GT(replicas.tp, 2 * tensor.tp);
  EXPECT_LT(replicas.gradients, tensor.gradients);
  EXPECT_EQ(stages.tp, tensor.tp);
  // In one node nobody is far.
  c.pp = 1, c.dp = 2;
  EXPECT_EQ(of(Nearest::replicas).gradients, of(Nearest::tensor).gradients);
}

TEST(StepTime, SelectiveAndOffloadTradeTimeForMemory) {
  StepCase c = one();
  c.micro = 4, c.dp = 2, c.zero = 1;
  FitValues v = values();
  v[size_t(Fit::kept)] = 1;
  const StepSeconds plain = step_time(c, device(), v);
  const StepMemory whole = step_memory(c, v);
  c.renorm = true;
  const StepMemory renormed = step_memory(c, v);
  // By hand: a layer keeps 4 bytes a hidden unit and 2 a feed-forward unit less; all but the one at which the
  // backward pass is.
  const double rows = 4.0 * 2048, less = 23 * rows * (4.0 * 3072 + 2.0 * double(c.model.ffn));
  EXPECT_NEAR(whole.activations - renormed.activations, less, 1e-6 * less);
  EXPECT_GT(step_time(c, device(), v).total, plain.total);
  EXPECT_EQ(step_time(c, device(), v).products, plain.products);
  c.renorm = false, c.offload = 5e9;
  const double parameters = step_memory(StepCase(c), v).states / 6;  // 2 of weights, 4 of gradients
  EXPECT_NEAR(whole.states - step_memory(c, v).states, 12 * parameters / 2, 1e-6 * whole.states);
  EXPECT_NEAR(step_time(c, device(), v).offload, 24 * parameters / 2 / 5e9, 1e-6);
  c.offload_each_way = true;
  EXPECT_NEAR(step_time(c, device(), v).offload, 12 * parameters / 2 / 5e9, 1e-6);
}

// What waits elsewhere, 12 bytes of memory less a parameter, is read and written: experts' by their own
// replicas.
TEST(StepTime, OffloadedExpertsAreDividedByTheirOwnReplicas) {
  StepCase c = one();
  c.model = ModelSpec::of("mixtral");
  c.model.layers = 6, c.model.hidden = 1024, c.model.heads = 16, c.model.experts = 8, c.model.vocab = 5000;
  c.model.finish(c.seq);
  c.dp = 16, c.ep = 8, c.zero = 1;
  const FitValues v = values();
  for (int zero : {1, 3}) {
    c.zero = zero, c.offload = 0;
    const double whole = step_memory(c, v).states;
    c.offload = 5e9;
    EXPECT_NEAR(step_time(c, device(), v).offload * 5e9 / (2 * (whole - step_memory(c, v).states)), 1, 1e-9);
  }
}

// A layer with 24 experts on 1, 3 and 12 ranks launches 24, 8 and 2 of them; where launches are all of the
// time, six such layers take so many times as long.
TEST(StepTime, EveryExpertIsLaunched) {
  StepCase c = experts();
  FitValues v = values();
  v[size_t(Fit::each)] = 1;
  for (const int64_t ep : {1, 3, 12}) {
    c.ep = ep;
    const StepSeconds t = step_time(c, device(), v);
    EXPECT_NEAR(t.total / (6 * 24 / double(ep)), 1, 0.05) << ep;
  }
}

// Chunks give the exchange between nodes other work to hide behind; inside the node it is as it was.
TEST(StepTime, ExpertsFarAwayAreHiddenByChunks) {
  StepCase c = experts();
  c.pp = 3, c.microbatches = 6, c.dp = 24, c.ep = 24;
  FitValues v = values();
  v[size_t(Fit::ep)] = 0.1, v[size_t(Fit::ep_far)] = 0.9;
  const auto exchange = [&](double nic, int64_t chunks) {
    DeviceFigures d = device();
    d.nic = nic, c.chunks = chunks;
    return layer_actions(c, d, v, true).forward.ep;
  };
  constexpr double kEndless = 1e30;
  const double near = exchange(kEndless, 1);
  EXPECT_DOUBLE_EQ(exchange(kEndless, 3), near);
  EXPECT_NEAR((exchange(25e9, 1) - near) / (exchange(25e9, 3) - near), 9, 1e-6);
}

// The optimizer's update of experts is divided among their own replicas.
TEST(StepTime, ExpertsAreUpdatedByTheirOwners) {
  StepCase c = experts();
  const FitValues v = values();
  const double all = 6.0 * 24 * 3 * 1024 * 512;
  for (const int64_t ep : {1, 3, 12}) {  // 1 / ep of them on a rank, divided by 12 / ep
    c.ep = ep;
    StepCase none = c;
    none.model.moe_ffn = 1;
    const double more = step_time(c, device(), v).optimizer - step_time(none, device(), v).optimizer;
    EXPECT_NEAR(more / (all * 511 / 512 / 12 * 34 / (0.7 * device().bandwidth)), 1, 1e-6) << ep;
  }
}

// A rank's experts fill the device together: four of a quarter of the rows each take what one of all rows
// takes, but for the sums over fewer rows; one by one each pays for its short sides.
TEST(StepTime, ExpertsFillTheDeviceTogether) {
  StepCase c = experts();
  c.model.layers = 1, c.model.dense_layers = 0, c.model.vocab = 1;
  DeviceFigures wide = device();
  wide.bandwidth = 1e18, wide.k0 = 0;  // no traffic, and sums of any length alike
  const auto products = [&](int64_t ep, bool grouped) {
    c.ep = ep, c.grouped = grouped;
    return step_time(c, wide, values()).products;
  };
  ASSERT_EQ(c.model.experts, 24);
  EXPECT_NEAR(products(3, true) / products(12, true), 1, 0.015);  // of weights' gradients more fill it better
  EXPECT_GT(products(3, false), 1.02 * products(12, false));
  EXPECT_GT(products(12, false), products(12, true));
  EXPECT_DOUBLE_EQ(products(24, false), products(24, true));
}

// Where tensor parallel ranks divide each expert, a rank has its share of all rows' width: as many
// parameters, products of more rows and shorter sides.
TEST(StepTime, ExpertsDividedAmongTensorRanks) {
  StepCase c = experts();
  c.dp = 3, c.tp = 4, c.ep = 3, c.micro = 4;
  DeviceFigures even = device();
  even.k0 = even.m0 = even.n0 = 0, even.bandwidth = 1e18;  // work alone counts
  const double rows_divided = step_time(c, even, values()).products;
  const StepParts by_rows = step_parts(c, device(), values());
  const StepMemory whole = step_memory(c, values());
  c.expert_tp = 4;
  EXPECT_NEAR(step_time(c, even, values()).products / rows_divided, 1, 1e-9);
  EXPECT_NEAR(step_parts(c, device(), values()).experts / (by_rows.experts / 4), 1, 1e-9);
  EXPECT_DOUBLE_EQ(step_parts(c, device(), values()).dense, by_rows.dense);
  const double experts_of_rank = 6.0 * 24 * 3 * 1024 * 512 / 3;
  // ZeRO 1: an optimizer's share is as large, for fewer replicas divide it.
  const double less = experts_of_rank * (1 - 0.25) * (2 + 4);
  EXPECT_NEAR((whole.states - step_memory(c, values()).states) / less, 1, 1e-9);
  EXPECT_NEAR(layer_held(c, true).experts, experts_of_rank / 6 / 4, 1);
}

// Kernels of attention by their own curves; and what is computed again is the forward pass, 1 of 2.84 more.
TEST(StepTime, AttentionByGeneration) {
  StepCase c = one();
  DeviceFigures d = device();
  d.attention = 450e12, d.attention2 = 330e12;
  const auto seconds = [&](AttentionKind k) {
    c.attention = k;
    return step_time(c, d, values()).attention;
  };
  EXPECT_NEAR(seconds(AttentionKind::flash2) / seconds(AttentionKind::flash),
              450.0 / (2048 + 365) / (330.0 / (2048 + 510)), 1e-9);
  const double first = 0.428 * 330 * 2048 / (2048 + 310), second = 330.0 * 2048 / (2048 + 510);
  EXPECT_NEAR(seconds(AttentionKind::flash1) / seconds(AttentionKind::flash2), second / first, 1e-9);
  const double plain = seconds(AttentionKind::flash);
  c.recompute_attention = true;
  EXPECT_NEAR(seconds(AttentionKind::flash) / plain, 1 + 1 / 3.84, 1e-3);
  c.recompute_attention = false;
  const double of128 = seconds(AttentionKind::flash1), fast = seconds(AttentionKind::flash2);
  c.model.heads = c.model.kv_heads = 48, c.model.head_dim = 64;  // as many FLOPs
  EXPECT_NEAR(seconds(AttentionKind::flash1), of128, 1e-9 * of128);
  EXPECT_NEAR(seconds(AttentionKind::flash2) / fast, 1 / 0.88, 1e-9);
}

// Messages hidden but where the pipeline fills and drains, sums but one chunk's; blocks side by side have
// half of the tensor parallel collectives.
TEST(StepTime, WhatIsHidden) {
  StepCase c = one();
  c.model.vocab = 1;  // no head: equal stages
  c.tp = 2, c.pp = 4, c.dp = 4, c.microbatches = 12, c.chunks = 3, c.zero = 1;
  c.messages = StageMessages::waited;
  const StepSeconds open = step_time(c, device(), values());
  c.sums_hidden = c.side_by_side = true;
  c.messages = StageMessages::hidden;
  const StepSeconds hidden = step_time(c, device(), values());
  EXPECT_NEAR(hidden.messages / open.messages, 3.0 / (3 * 12 + 3), 1e-9);
  EXPECT_NEAR(hidden.gradients / open.gradients, 1.0 / 3, 1e-6);
  EXPECT_NEAR(hidden.tp / open.tp, 0.5, 1e-3);
  EXPECT_LT(hidden.elementwise, open.elementwise);
  EXPECT_NEAR(hidden.products / open.products, 1, 1e-3);
}

// Zero 2 keeps no whole gradients, so every microbatch's are reduced: (m + 1) halves of what zero 0 says.
TEST(StepTime, Zero2ReducesEachMicrobatch) {
  StepCase c = one();
  c.dp = 8, c.microbatches = 5, c.grad_bytes = 2, c.zero = 1;
  const double once = step_time(c, device(), values()).gradients;
  c.zero = 2;
  EXPECT_NEAR(step_time(c, device(), values()).gradients / once, 3, 1e-6);
}

// With ZeRO 3: seconds of gathers and sums of a step, by what compute waits for: (compute^3 + moved^3)^(1/3)
// is both together.
double moved_beside(const StepSeconds& t) {
  const double compute = t.products + t.attention + t.elementwise + t.host + t.head;
  return std::cbrt(std::pow(compute + t.gradients, 3) - std::pow(compute, 3));
}

// Every rank begins a collective in turn, for each layer: of gradients once a step, with ZeRO 2 and 3 once a
// microbatch.
TEST(StepTime, CollectivesBeginOnceALayer) {
  StepCase c = one();
  c.dp = 8, c.microbatches = 5;
  FitValues v = values();
  const auto seconds = [&](int zero, double ring) {
    c.zero = zero;
    v[size_t(Fit::ring)] = ring;
    const StepSeconds t = step_time(c, device(), v);
    return zero < 3 ? t.gradients : moved_beside(t);
  };
  const auto starts = [&](int zero) { return seconds(zero, 1e-3) - seconds(zero, 0); };
  const double once = 1e-3 * (8 - 1) * 24;
  EXPECT_NEAR(starts(0), once, 1e-9);
  EXPECT_NEAR(starts(1), once, 1e-9);
  EXPECT_NEAR(starts(2), 5 * once, 1e-9);
  EXPECT_NEAR(starts(3), 5 * once, 1e-9);
}

// Lists of tensors are cut into every replica's slices, a dozen microseconds each, where ZeRO divides; the
// sum of one buffer is not.
TEST(StepTime, SlicesAreCutOneByOne) {
  StepCase c = one();
  c.dp = 16, c.pp = 2;
  const auto more = [&](int zero) {
    c.zero = zero, c.sliced = 0;
    const double flat = step_time(c, device(), values()).gradients;
    c.sliced = 6;
    return step_time(c, device(), values()).gradients - flat;
  };
  const double slices = 6 * 12 * 16;  // tensors, blocks of a stage, replicas
  EXPECT_EQ(more(0), 0);
  EXPECT_NEAR(more(1), slices * 12e-6, 1e-9);
  const HeldParameters held = layer_held(c, false);
  const auto gathered = [&](int64_t sliced) {
    c.sliced = sliced;
    return state_seconds(c, device(), values(), held, 12).gather;
  };
  EXPECT_NEAR(gathered(6) - gathered(0), slices * 12e-6, 1e-9);
  c.dp = 1;
  EXPECT_EQ(more(1), 0);
}

// By hand: among shard groups of 8 near devices a rank sums its eighth with 7 others over its own 25 GB/s.
TEST(StepTime, ShardGroupsSumTheirShardsOverTheNetwork) {
  StepCase c = one();
  c.dp = 64, c.zero = 3, c.shards = 8, c.grad_bytes = 4;
  DeviceFigures d = device();
  d.bus = 1e30;
  FitValues v = values();
  v[size_t(Fit::ring)] = 0;
  const double bytes = held_parameters(c) / 8 * 2 * 4 * 7 / 8;
  EXPECT_NEAR(moved_beside(step_time(c, d, v)) / (bytes / (25e9 * 0.85)), 1, 1e-6);
}

// Compute hides what ZeRO 3 moves if that is much shorter, and never more than itself.
TEST(StepTime, ZeroThreeHidesNoMoreThanItComputes) {
  StepCase c = one();
  c.dp = 64, c.zero = 3;
  DeviceFigures slow = device();
  slow.nic = 1e9;
  FitValues v = values();
  const StepSeconds all = step_time(c, slow, v);
  const double compute = all.products + all.attention + all.elementwise + all.host + all.head;
  const double moved = moved_beside(all);
  ASSERT_GT(moved, 2 * compute);
  EXPECT_GT(all.gradients, moved - compute);
  EXPECT_LT(all.gradients, moved);
  v[size_t(Fit::dp)] = 0.01;
  const StepSeconds little = step_time(c, slow, v);
  EXPECT_NEAR(moved_beside(little) / moved, 0.01, 1e-6);
  EXPECT_LT(little.gradients, 0.1 * 0.01 * moved);
}

// A device's own share of its node's network, of every rank of a ring that is in the node.
TEST(StepTime, RingsByTheDistanceOfTheirRanks) {
  FitValues v = values();
  v[size_t(Fit::ring)] = 0;
  StepCase c = one();
  c.tp = 4, c.dp = 4;  // replicas are 4 apart: two of each ring in a node of 8
  const double bytes = held_parameters(c) * 2 * 4 * 3 / 4;
  EXPECT_NEAR(step_time(c, device(), v).gradients / (bytes / (2 * 25e9 * 0.85)), 1, 1e-9);
  c.nearest = Nearest::replicas;  // neighbours, all of them in the node
  EXPECT_NEAR(step_time(c, device(), v).gradients / (bytes / 200e9), 1, 1e-9);
  c = one(), c.tp = 2, c.pp = 2, c.dp = 4;
  const double held = all_blocks(c.model) / 4 + double(c.model.hidden * c.model.vocab) / 2;
  EXPECT_NEAR(step_time(c, device(), v).gradients / (held * 2 * 4 * 3 / 4 / 200e9), 1, 1e-9);
  c.nearest = Nearest::stages;  // stages lie between replicas: 4 apart
  EXPECT_NEAR(step_time(c, device(), v).gradients / (held * 2 * 4 * 3 / 4 / (2 * 25e9 * 0.85)), 1, 1e-9);
  // Keys and values of 8 heads of 128 of a context of two: neighbours, or with replicas nearer 8 apart.
  c = one(), c.cp = 2, c.dp = 8, c.model.kv_heads = 8;
  const double exchanged = 24 * 3 * 1024.0 * 2 * (8 * 128) * 2;
  EXPECT_NEAR(step_time(c, device(), v).cp / (exchanged / 200e9), 1, 1e-9);
  c.nearest = Nearest::replicas;
  EXPECT_NEAR(step_time(c, device(), v).cp / (exchanged / (25e9 * 0.85)), 1, 1e-9);
  // Eight heads are on 12 ranks of tp, no less than one on each.
  c = one(), c.cp = 2, c.model.kv_heads = 8, c.tp = 12;
  EXPECT_NEAR(step_time(c, device(), v).cp / (exchanged / 8 / (25e9 * 0.85)), 1, 1e-9);
}

// One message each way a chunk and microbatch, which compute waits for, and p - 1 at either end.
TEST(StepTime, MessagesByHand) {
  StepCase c = one();
  c.pp = 4, c.microbatches = 12, c.chunks = 3, c.dp = 4, c.messages = StageMessages::waited;
  const double one_message = 2048.0 * 3072 * 2 / (0.8 * 25e9) + 20e-6;
  EXPECT_NEAR(step_time(c, device(), values()).messages, 2 * one_message * (3 * 12 + 3), 1e-9);
  c.nearest = Nearest::stages;  // four devices: near
  const double near = 2048.0 * 3072 * 2 / (0.8 * 200e9) + 20e-6;
  EXPECT_NEAR(step_time(c, device(), values()).messages, 2 * near * (3 * 12 + 3), 1e-9);
  c.cp = 4, c.dp = 1;  // 16 devices of stages and context: far; a quarter of the rows
  const double far = 2048.0 / 4 * 3072 * 2 / (0.8 * 25e9) + 20e-6;
  EXPECT_NEAR(step_time(c, device(), values()).messages, 2 * far * (3 * 12 + 3), 1e-9);
}

// Several chunks hide messages, one chunk does not; our own runs post them, which hides half.
TEST(StepTime, MessagesBySchedule) {
  StepCase c = one();
  c.pp = 4, c.microbatches = 12, c.dp = 4;
  const auto messages = [&] { return step_time(c, device(), values()).messages; };
  const double one_message = 2048.0 * 3072 * 2 / (0.8 * 25e9) + 20e-6;
  EXPECT_NEAR(messages(), 2 * one_message * (12 + 3), 1e-9);
  c.chunks = 3;
  EXPECT_NEAR(messages(), 2 * one_message * 3, 1e-9);
  c.software = kTrireme;
  EXPECT_NEAR(messages(), 2 * one_message * (3 * 12 / 2 + 3), 1e-9);
}

// Four ranks send a quarter each over the network and gather the rest in their node.
TEST(StepTime, ScatteredMessagesByHand) {
  StepCase c = one();
  c.tp = 4, c.pp = 4, c.microbatches = 12, c.sequence = false;
  const double whole = 2048.0 * 3072 * 2, start = 20e-6;
  EXPECT_NEAR(step_time(c, device(), values()).messages, 2 * 15 * (whole / (0.8 * 25e9) + start), 1e-9);
  c.scatters = true;
  const double parted = whole / 4 / (0.8 * 25e9) + start + whole * 3 / 4 / 200e9;
  EXPECT_NEAR(step_time(c, device(), values()).messages, 2 * 15 * parted, 1e-9);
}

// The last stage has the head beside its layers: with so large a vocabulary all wait for it.
TEST(StepTime, TheLastStageHasTheHead) {
  StepCase c = one();
  c.model.vocab = 2'000'000;
  const StepSeconds whole = step_time(c, device(), values());
  const double layers = whole.products + whole.attention + whole.elementwise + whole.host;
  ASSERT_GT(whole.head, layers / 2);
  c.pp = 2, c.microbatches = 3;
  const StepSeconds t = step_time(c, device(), values());
  EXPECT_NEAR(t.products + t.attention + t.elementwise + t.host + t.head, 3 * (layers / 2 + whole.head),
              1e-9);
  EXPECT_NEAR(t.bubble, layers / 2, 1e-9);  // the other stage's part of one microbatch
}

TEST(StepTime, JitterGrowsWithDoublingsOfNodes) {
  StepCase c = one();
  c.dp = 32;
  FitValues v = values();
  v[size_t(Fit::jitter)] = 0.01;
  const StepSeconds t = step_time(c, device(), v);
  EXPECT_NEAR(t.jitter / (t.total - t.jitter), 0.01 * 2, 1e-12);  // four nodes of eight
}

// 32 ranks of experts in four nodes: of a row's two choices 1.75 nodes are met, and three of four are others.
TEST(StepTime, ARowTravelsToANodeOnce) {
  StepCase c = one();
  c.model = ModelSpec::of("mixtral");
  c.model.layers = 6, c.model.hidden = 1024, c.model.heads = 16, c.model.experts = 32, c.model.vocab = 5000;
  c.model.experts_per_token = 2;
  c.model.finish(c.seq);
  c.dp = 32, c.ep = 32;
  const double row = 2048.0 * 1024 * 2;  // of all rows, once
  const double near = row * 2 * 7 / 8 / (0.65 * 200e9), far = row * 1.75 * 3 / 4 / (0.65 * 25e9);
  EXPECT_NEAR(step_time(c, device(), values()).ep, 6 * 2 * 2 * (near + far), 1e-9);
}

// nanotron's cut: a stage ends behind the block that passes its share. Of 80 blocks and a head of 1.104, the
// first of 16 stages has 6, where each of them would have 5.07.
TEST(PipelineLayers, ByShare) {
  StepCase c = one();
  c.model.layers = 80, c.model.hidden = 8192, c.model.heads = 64, c.model.kv_heads = 64, c.model.ffn = 28672,
  c.model.vocab = 131072, c.cut = StageCut::by_share;
  struct Cut {
    int64_t pp, first, last;
  };
  for (const auto& [pp, first, last] : {Cut{4, 21, 19}, Cut{16, 6, 3}, Cut{32, 3, 1}}) {
    c.pp = pp;
    double all = 0;
    for (int64_t r = 0; r < pp; r++) all += rank_layers(c, r);
    EXPECT_EQ(all, 80) << pp;
    EXPECT_EQ(rank_layers(c, 0), first) << pp;
    EXPECT_EQ(rank_layers(c, pp - 1), last) << pp;
  }
}

// Of a shard group of two of eight replicas a layer is reduced and gathered between two: half of its bytes
// leave a rank.
TEST(StepTime, AShardGroupTalksAmongItself) {
  StepCase c = one();
  c.dp = 8, c.zero = 3, c.shards = 2, c.grad_bytes = 4;
  const HeldParameters held = layer_held(c, false);
  const StateSeconds s = state_seconds(c, device(), values(), held, 0);
  EXPECT_NEAR(s.reduce, held.dense * 4 / 2 / 200e9, 1e-9 * s.reduce);
  EXPECT_NEAR(s.gather, held.dense * 2 / 2 / 200e9, 1e-9 * s.gather);
}

}  // namespace
}  // namespace trireme
