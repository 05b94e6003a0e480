// What blocks keep, tensor by tensor, by hand.
#include "cost/kept_tensors.h"

#include <gtest/gtest.h>

#include "cost/flops.h"
#include "cost/step_memory.h"

namespace trireme {
namespace {

// Llama 3 70B's block: hidden 8192, 64 heads of 128, 8 of keys and values, feed-forward 28672.
constexpr double kHidden = 8192, kKeys = 1024, kWide = 28672, kRows = 8192;

StepCase llama() {
  StepCase c;
  c.model = ModelSpec::of("llama");
  c.model.layers = 80, c.model.hidden = 8192, c.model.heads = 64, c.model.kv_heads = 8, c.model.ffn = 28672;
  c.model.vocab = 128256, c.seq = 8192, c.keeping.tensors = true;
  c.model.finish(c.seq);
  return c;
}

FitValues plain_values() {
  FitValues v{};
  v.fill(1);
  v[size_t(Fit::base)] = 1e-9;
  return v;
}

double a_row(const StepCase& c, bool experts = false) {
  return kept_tensors(c, experts) / kRows;
}

// Of DeepSeek-V3's kind: latent attention, 8 of 256 experts of 2048 and a shared one.
StepCase deepseek() {
  StepCase c = llama();
  ModelSpec& m = c.model;
  m.hidden = 7168, m.heads = 128, m.kv_heads = 128, m.ffn = 18432, m.layers = 61, m.head_dim = 0;
  m.experts = 256, m.experts_per_token = 8, m.moe_ffn = 2048, m.shared_ffn = 2048, m.dense_layers = 3;
  m.q_rank = 1536, m.kv_rank = 512, m.nope_head_dim = 128, m.rope_head_dim = 64, m.v_head_dim = 128;
  m.finish(c.seq);
  return c;
}

TEST(KeptTensors, ADenseBlockByType) {
  StepCase c = llama();
  // Both norms' inputs and outputs; queries, keys, values and the result; gate and up, and what goes down.
  const double norms = 2 * kHidden, attention = 2 * (kHidden + 2 * kKeys), wide = 2 * 2 * kWide;
  const auto expected = [&](double b, double copy) {
    return 2 * norms + 2 * b * kHidden + attention + (2 + copy) * kHidden + wide + b * kWide;
  };
  EXPECT_NEAR(a_row(c), expected(2, 0), 1e-6);  // the projection reads the very result
  c.numbers = NumberType::fp8;
  EXPECT_NEAR(a_row(c), expected(1, 1), 1e-6);
  c.numbers = NumberType::mxfp8;
  EXPECT_NEAR(a_row(c), expected(1 + 1.0 / 32, 1 + 1.0 / 32), 1e-6);
  c.numbers = NumberType::fp4;
  EXPECT_NEAR(a_row(c), expected(0.5625, 0.5625), 1e-6);
  EXPECT_EQ(layer_activations(c, false), kept_tensors(c, false));
  c.keeping.tensors = false;
  EXPECT_NEAR(layer_activations(c, false) / kRows, 18 * kHidden + 4 * kWide, 1e-6);
}

TEST(KeptTensors, OfTensorParallelRanks) {
  StepCase c = llama();
  const double whole = a_row(c);
  c.tp = 4;
  EXPECT_NEAR(a_row(c), whole / 4, 1e-6);
  c.sequence = false;  // norms lie on every rank
  EXPECT_NEAR(a_row(c), (whole - 8 * kHidden) / 4 + 8 * kHidden, 1e-6);
  c.sequence = true, c.tp = 1, c.keeping.dropout = true;
  EXPECT_NEAR(a_row(c) - whole, 2 * kHidden, 1e-6);
  c.keeping.dropout = false, c.model.activation = "gelu_tanh";
  EXPECT_NEAR(whole - a_row(c), 2 * kWide, 1e-6);
  c.numbers = NumberType::fp8;
  const double eight = a_row(c);
  c.keeping.attention8 = true;  // queries, keys, values, the result
  EXPECT_NEAR(eight - a_row(c), 2 * kHidden + 2 * kKeys, 1e-6);
}

TEST(KeptTensors, ABlockOfExpertsAndLatentAttention) {
  StepCase c = deepseek();
  const double h = 7168, compressed = 1536 + 512, out = 128 * 128, heads = 128 * (2 * 192 + 128);
  const auto expected = [&](double b, double copies) {
    return 2 * h + copies * b * h + 2 * compressed + b * compressed + 2 * heads + 2 * out +
           (b < 2 ? b * out : 0) + 2 * h + 2 * h + (b < 2 ? b * h : 0) + 8 * (b * h + 4 * 2048 + b * 2048) +
           4 * 2048 + b * 2048;
  };
  EXPECT_NEAR(a_row(c, true), expected(2, 1), 1e-6);
  c.numbers = NumberType::fp8;
  EXPECT_NEAR(a_row(c, true), expected(1, 2), 1e-6);
  const double whole = a_row(c, true), dense = a_row(c, false);
  const auto less = [&](auto&& change, bool experts) {
    StepCase other = c;
    change(other.keeping.redo);
    return (experts ? whole : dense) - a_row(other, experts);
  };
  EXPECT_NEAR(less([](RedoneModules& r) { r.up_projections = true; }, true), 2 * heads + compressed, 1e-6);
  EXPECT_NEAR(less([](RedoneModules& r) { r.expert_activations = true; }, true), 8 * 2048, 1e-6);
  EXPECT_NEAR(less([](RedoneModules& r) { r.expert_activations = true; }, false), 0, 1e-6);
  EXPECT_NEAR(less([](RedoneModules& r) { r.norms = true; }, true), 2 * h + 2 * h + h, 1e-6);
  EXPECT_NEAR(less([](RedoneModules& r) { r.norms = true; }, false), 2 * h + h, 1e-6);
  EXPECT_NEAR(less([](RedoneModules& r) { r.dense_feed_forward = true; }, false), h + 5 * 18432, 1e-6);
  EXPECT_NEAR(less([](RedoneModules& r) { r.dense_feed_forward = true; }, true), 0, 1e-6);
}

// JAX keeps a block's input and what its policy names.
TEST(KeptTensors, OfACheckpointedBlock) {
  StepCase c = llama();
  c.recompute = 0.5, c.renorm = true, c.keeping.tensors = false;
  const auto kept = [&](SavedProducts s) {
    c.saved = s;
    return kept_bytes(c, plain_values(), false) / kRows - 2 * kHidden;
  };
  const double qkv = 2 * (kHidden + 2 * kKeys);
  EXPECT_NEAR(kept(SavedProducts::qkv), qkv, 1e-6);
  EXPECT_NEAR(kept(SavedProducts::qkv_out), qkv + 2 * kHidden, 1e-6);
  EXPECT_NEAR(kept(SavedProducts::all), qkv + 4 * kHidden + 4 * kWide, 1e-6);
  EXPECT_NE(kept(SavedProducts::by_share), kept(SavedProducts::qkv));
}

TEST(KeptTensors, WeightsByType) {
  StepCase c;
  const auto bytes = [&](NumberType n, bool weights8, bool cast, bool transposed) {
    c.numbers = n, c.keeping.weights8 = weights8, c.keeping.cast_weights = cast;
    c.keeping.transposed = transposed;
    return weight_bytes(c);
  };
  EXPECT_EQ(bytes(NumberType::half, true, false, true), 2);
  EXPECT_EQ(bytes(NumberType::fp8, false, false, false), 2);
  EXPECT_EQ(bytes(NumberType::fp8, true, false, false), 1);
  EXPECT_EQ(bytes(NumberType::fp8, true, false, true), 2);
  EXPECT_EQ(bytes(NumberType::fp8, false, true, true), 4);
  EXPECT_EQ(bytes(NumberType::mxfp8, true, false, false), 2 + 2.0 / 32);
  EXPECT_EQ(bytes(NumberType::fp4, true, false, false), 2 + 2 * 0.5625);
}

// Of states: weights of blocks by type, tables in 16 bits, moments and gradients as the source has them; of
// activations: blocks that wait elsewhere.
TEST(StepMemory, StatesAndWhatWaitsElsewhere) {
  const FitValues v = plain_values();
  StepCase c = llama();
  c.dp = 8, c.zero = 1, c.grad_stored = 2, c.numbers = NumberType::fp8, c.keeping.weights8 = true;
  const double tables = 2 * double(c.model.hidden * c.model.vocab);
  const double blocks = 80 * double(block_parameters(c.model));
  EXPECT_NEAR(step_memory(c, v).states, (1 + 2 + 12.0 / 8) * blocks + (2 + 2 + 12.0 / 8) * tables, 10);
  c.keeping.optimizer = 8;
  EXPECT_NEAR(step_memory(c, v).states, (1 + 2 + 1) * blocks + (2 + 2 + 1) * tables, 10);
  c.keeping.divided_gradients = true;
  EXPECT_NEAR(step_memory(c, v).states, (1 + 0.25 + 1) * blocks + (2 + 0.25 + 1) * tables, 10);
  c.keeping.offloaded = 20;  // but where weights are divided none
  const double all = step_memory(c, v).activations;
  c.zero = 3;
  EXPECT_NEAR(all - step_memory(c, v).activations, 20 * kept_tensors(c, false), 10);
  c = llama(), c.recompute = 1;
  const double inputs = step_memory(c, v).activations;
  c.keeping.inputs_elsewhere = true;
  EXPECT_NEAR(inputs - step_memory(c, v).activations, 79 * 2 * kHidden * kRows, 10);
}

}  // namespace
}  // namespace trireme
