// Balancing losses of routers against autograd in double over all experts (tools/make_balance_goldens.py),
// which holds their value against transformers' own: what is reported, and every gradient of the model.
#include <gtest/gtest.h>

#include "golden_case.h"

namespace trireme::golden {
namespace {

struct Balanced {
  const char *folder, *unit;
  int64_t micro;
};
class BalanceGolden : public testing::TestWithParam<Balanced> {
 protected:
  GoldenCase golden_{GetParam().folder};
  SafetensorsFile file_{golden_.folder() / "balance.safetensors"};
  std::string unit_ = GetParam().unit;
};
// Sequences are the same units in one microbatch and in two, and a global unit is the whole batch, here one
// microbatch.
INSTANTIATE_TEST_SUITE_P(
    All, BalanceGolden,
    testing::Values(Balanced{"mixtral", "sequence", 2}, Balanced{"mixtral", "sequence", 1},
                    Balanced{"mixtral", "microbatch", 2}, Balanced{"mixtral", "global", 2},
                    Balanced{"qwen2_moe", "sequence", 1}, Balanced{"qwen2_moe", "microbatch", 2}));

TEST_P(BalanceGolden, LossesAndEveryGradient) {
  GoldenRun run(golden_, "f32", "f32", GetParam().micro, {.aux_loss = 0.5, .z_loss = 0.05, .unit = unit_});
  const std::string unit = unit_ == "global" ? "microbatch" : unit_;
  const StepResult r = run.step(1, 0);
  EXPECT_NEAR(r.loss, golden_.values(file_, unit + ".loss")[0], kLoss * r.loss);
  EXPECT_NEAR(r.aux_loss, golden_.values(file_, unit + ".aux")[0], kLoss * r.aux_loss);
  EXPECT_NEAR(r.z_loss, golden_.values(file_, unit + ".z")[0], kLoss * r.z_loss);
  const ByName want = golden_.by_parameter(file_, unit + ".grad"), got = run.gradients();
  const double total = global_norm(want);
  for (const auto& [name, g] : want)
    EXPECT_LE(distance(got.at(name), g), std::max(kGradient * norm(g), kNoise * total)) << name;
  const ByName plain = golden_.by_parameter("oracle.grad");
  EXPECT_GT(distance(want.at("blocks.0.moe.router.weight"), plain.at("blocks.0.moe.router.weight")),
            0.1 * norm(plain.at("blocks.0.moe.router.weight")));
}

// A loss scale multiplies what balancing losses add as well.
TEST(BalanceGoldenF16, GradientsOfTheRouterAreUnscaled) {
  const GoldenCase golden("mixtral");
  const SafetensorsFile file(golden.folder() / "balance.safetensors");
  GoldenRun run(golden, "f16", "f32", 2, {.aux_loss = 0.5, .z_loss = 0.05});
  EXPECT_FALSE(run.step(1, 0).skipped);
  const ByName want = golden.by_parameter(file, "sequence.grad"), got = run.gradients();
  for (const char* name : {"blocks.0.moe.router.weight", "blocks.1.moe.router.weight"})
    EXPECT_LE(distance(got.at(name), want.at(name)), 0.01 * norm(want.at(name))) << name;
}

}  // namespace
}  // namespace trireme::golden
