// Models of experts in the runner: what meta books is what a step takes, whatever the router chooses; experts
// learn; a shared expert and a gate count. (Gradients: tests/golden, against PyTorch and the loop in double.)
#include <gtest/gtest.h>

#include "cost/flops.h"
#include "tiny.h"

namespace trireme::test {
namespace {

RunSpec moe_run(const char* arch, const char* compute, int64_t microbatches) {
  RunSpec r = tiny_run("llama", compute, microbatches);
  const ModelSpec dense = r.model;
  r.model = ModelSpec::of(arch);
  r.model.vocab = dense.vocab, r.model.layers = 2, r.model.hidden = 36, r.model.heads = 3;
  r.model.kv_heads = 1, r.model.ffn = 20, r.model.experts = 5;
  r.model.experts_per_token = arch == std::string("qwen2_moe") ? 3 : 2;
  if (r.model.latent()) {
    r.model.kv_heads = 3, r.model.kv_rank = 10, r.model.q_rank = arch == std::string("deepseek_v3") ? 14 : 0;
    r.model.nope_head_dim = 6, r.model.rope_head_dim = 4, r.model.v_head_dim = 5;
    r.model.experts = 8, r.model.expert_groups = 4, r.model.top_groups = 2, r.model.dense_layers = 1;
    r.model.shared_ffn = 24, r.model.attn_bias = r.model.q_rank > 0;
  }
  r.model.finish(r.data.seq_len);
  return r;
}

class MoeModels : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(All, MoeModels,
                         ::testing::Combine(::testing::Values("mixtral", "qwen2_moe", "qwen3_moe",
                                                              "deepseek_v2", "deepseek_v3"),
                                            ::testing::Values("f32", "bf16", "f16")));

TEST_P(MoeModels, MetaEqualsTheRunAndTheLossFalls) {
  auto [arch, compute] = GetParam();
  Rig rig(moe_run(arch, compute, 2));
  EXPECT_EQ(rig.runner->params().parameters, parameters(rig.run.model));
  rig.device->kernels().restart_counts();
  rig.runner->arena().ledger().restart_peaks();
  const double first = rig.step(1).loss;
  const Ledger& real = rig.runner->arena().ledger();
  EXPECT_EQ(rig.booking.peak, real.peaks());
  EXPECT_EQ(rig.booking.at_peak, real.at_peak());
  EXPECT_EQ(rig.booking.total, rig.device->kernels().total());
  EXPECT_EQ(rig.booking.launches, rig.device->kernels().launches());
  double last = 0;
  for (int64_t s = 2; s <= 20; s++) {
    last = rig.step(s).loss;
    EXPECT_EQ(rig.booking.peak, real.peaks()) << s;
  }
  EXPECT_LT(last, first - 0.25);
}

// What the closed form counts is what the products of a step are, but for the head's and attention's shares.
TEST(MoeFlops, AreThoseOfTheChosenExperts) {
  RunSpec few = moe_run("mixtral", "f32", 1), more = few;
  more.model.experts_per_token = 4;
  auto booked = [](const RunSpec& r) {
    double flops = 0;
    for (const OpTotal& t : book_training(r, add_step(make_schedule("1f1b", 1, 1, 1)), 1).ops)
      if (t.op.starts_with("grouped_matmul")) flops += t.cost.flops;
    return flops;
  };
  const double tokens = double(few.tokens_per_step());
  EXPECT_DOUBLE_EQ(booked(more), 2 * booked(few));
  EXPECT_DOUBLE_EQ(booked(more) - booked(few),
                   tokens * (train_flops_per_token(more.model, 23) - train_flops_per_token(few.model, 23)));
}

// Dropout of the residual stream: drawn again in the backward pass, booked on meta.
TEST(MoeDropout, IsBookedAndTrains) {
  RunSpec r = moe_run("qwen2_moe", "f32", 1);
  r.model.resid_pdrop = 0.2;
  Rig rig(r);
  rig.device->kernels().restart_counts();
  rig.runner->arena().ledger().restart_peaks();
  const double first = rig.step(1).loss;
  EXPECT_EQ(rig.booking.peak, rig.runner->arena().ledger().peaks());
  EXPECT_EQ(rig.booking.launches, rig.device->kernels().launches());
  for (int64_t s = 2; s <= 19; s++) rig.step(s);
  EXPECT_LT(rig.step(20).loss, first - 0.2);
}

}  // namespace
}  // namespace trireme::test
