#include "cost/phases.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/walls.h"

namespace trireme {
namespace {

ModelSpec phase_model(const char* arch) {
  ModelSpec m = ModelSpec::of(arch);
  m.layers = 5, m.hidden = 240, m.heads = 6, m.vocab = 1013;
  if (!m.latent()) m.kv_heads = m.arch == "gpt2" ? 6 : 2;
  if (m.moe()) m.experts = 7, m.experts_per_token = 3, m.moe_ffn = 56, m.expert_groups = m.top_groups = 1;
  m.finish(97);
  return m;
}
constexpr const char* kModels[] = {"gpt2",      "llama",       "qwen3",      "mixtral",
                                   "qwen2_moe", "deepseek_v2", "deepseek_v3"};

// cost/flops.h counts the same work another way.
TEST(Phases, FlopsAreThoseOfTheModel) {
  for (const char* arch : kModels) {
    const ModelSpec m = phase_model(arch);
    const double rows = 3 * 97, head = 2.0 * 240 * 1013;
    const double training =
        sum_of(phase_parts({.model = m, .phase = Phase::training, .tokens = 97, .batch = 3})).flops;
    EXPECT_NEAR(training / (rows * train_flops_per_token(m, 97)), 1, 1e-12) << arch;
    const double prefill =
        sum_of(phase_parts({.model = m, .phase = Phase::prefill, .tokens = 97, .batch = 3})).flops;
    EXPECT_NEAR(prefill / (rows * (forward_flops_per_token(m, 97) - head) + 3 * head), 1, 1e-12) << arch;
    if (m.latent()) continue;
    // A token that sees c others: as one of a sequence of 2 c, whose mean is that.
    const double decode =
        sum_of(phase_parts({.model = m, .phase = Phase::decode, .tokens = 50, .batch = 4})).flops;
    EXPECT_NEAR(decode / (4 * forward_flops_per_token(m, 100)), 1, 1e-12) << arch;
  }
}

TEST(Phases, DecodeReadsEveryWeightAndTheWholeCache) {
  const ModelSpec m = phase_model("llama");
  const double layers = 5, h = 240, q = 240, kv = 2 * 40, f = double(m.ffn), rows = 4;
  const double weights = 2 * (layers * (h * (q + 2 * kv) + q * h + 3 * h * f) + h * 1013);
  const double rows_moved = 2 * rows * (layers * (h + q + 2 * kv + q + h + h + 2 * f + f + h) + h + 1013);
  const double attention = kv_cache_bytes(m, 50, rows) + 2 * rows * layers * 2 * q;
  const double elementwise = 2 * rows * layers * (10 * h + 3 * f);
  const double bytes =
      sum_of(phase_parts({.model = m, .phase = Phase::decode, .tokens = 50, .batch = rows})).bytes;
  EXPECT_NEAR(bytes / (weights + rows_moved + attention + elementwise), 1, 1e-12);
}

TEST(Phases, ExpertsAreReadAsFarAsTheyAreChosen) {
  const ModelSpec m = phase_model("mixtral");
  const double expert = 2.0 * 5 * 3 * 240 * 56;  // bytes of one expert in all layers
  const auto bytes = [&](double batch) {
    return phase_parts({.model = m, .phase = Phase::decode, .tokens = 50, .batch = batch})[0].bytes;
  };
  const double row = bytes(2000) - bytes(1999);  // all experts are read: a row adds what it alone moves
  EXPECT_NEAR(bytes(2) - bytes(1) - row, expert * (7 * (1 - std::pow(4.0 / 7, 2)) - 3), 1e-3 * expert);
}

// What tp devices have together: all FLOPs, all weights, the cache once where heads divide.
TEST(Phases, TensorParallelDividesFlops) {
  for (const Phase p : {Phase::training, Phase::prefill, Phase::decode}) {
    PhaseCase one{.model = phase_model("llama"), .phase = p, .tokens = 97, .batch = 3};
    PhaseCase two = one;
    two.tp = 2;
    const auto a = phase_parts(one), b = phase_parts(two);
    EXPECT_NEAR(2 * sum_of(b).flops / sum_of(a).flops, 1, 1e-12);
    EXPECT_LT(sum_of(b).bytes, sum_of(a).bytes);
    EXPECT_GT(2 * sum_of(b).bytes, sum_of(a).bytes);  // inputs of divided products are whole on each
  }
}

TEST(Phases, WireBytes) {
  PhaseCase c{.model = phase_model("llama"), .tokens = 97, .batch = 3};
  EXPECT_EQ(tensor_wire_bytes(c), 0);
  c.tp = 3;
  EXPECT_NEAR(tensor_wire_bytes(c), 4 * 5 * 2 * (2.0 / 3) * 2 * (3 * 97) * 240, 1e-6);
  c.microbatches = 4;
  EXPECT_NEAR(gradient_wire_bytes(c, 5), 2 * 0.8 * 2 * double(parameters(c.model)) / 3 / 4, 1e-6);
  c.phase = Phase::decode;
  EXPECT_NEAR(tensor_wire_bytes(c), 2 * 5 * 2 * (2.0 / 3) * 2 * 3 * 240, 1e-6);
  EXPECT_EQ(gradient_wire_bytes(c, 5), 0);
  EXPECT_THROW(phase_parts({.model = c.model}), Error);
}

}  // namespace
}  // namespace trireme
