// Logits, losses, every gradient and ten AdamW steps against PyTorch, from a Hugging Face folder through the
// runner. Bounds and their reasons: README.md.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden_case.h"

namespace trireme::golden {
namespace {

// f32.
constexpr double kLogit = 5e-5, kTokenLoss = 2e-5, kGradNorm = 1e-4;
constexpr double kUpdate = 5e-4;    // of how far ten steps moved a tensor
constexpr double kNoSign = 1e-5;    // of a tensor's root mean square: a first gradient whose sign is rounding
constexpr int64_t kNoSignMost = 2;  // such elements of a tensor
// bf16 and f16. Of PyTorch's own error in that type; a loss's error is one draw of noise, so it has a bound
// of its own.
constexpr double kOfPeer = 1.0, kLossBf16 = 2e-3, kStepsBf16 = 6e-3;
constexpr double kLossF16 = 2.5e-4, kStepsF16 = 1.2e-3;

class Golden : public testing::TestWithParam<const char*> {
 protected:
  GoldenCase golden_{GetParam()};
};

double relative(double a, double b) {
  return std::abs(a / b - 1);
}

double worst_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); i++) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

// Keys' biases shift all scores of a query alike where positions are not rotary: no gradient, on paper.
bool has_no_gradient(const ModelSpec& m, const std::string& name) {
  return m.positions == "learned" && name.ends_with("attn.k.bias");
}

void expect_gradients(const ByName& got, const ByName& want) {
  ASSERT_EQ(got.size(), want.size());
  double total = global_norm(want);
  for (const auto& [name, g] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    ASSERT_EQ(got.at(name).size(), g.size()) << name;
    EXPECT_LE(distance(got.at(name), g), std::max(kGradient * norm(g), kNoise * total)) << name;
  }
}

TEST_P(Golden, F32LogitsAndTokenLosses) {
  GoldenRun run(golden_, "f32", "f32", 2);
  EXPECT_LE(worst_difference(run.logits(), golden_.values("logits")), kLogit);
  Values losses = run.token_losses();
  EXPECT_LE(worst_difference(losses, golden_.values("token_losses")), kTokenLoss);
  EXPECT_LE(worst_difference(losses, golden_.values("oracle.token_losses")), kTokenLoss);
}

// Generation: the cache gives PyTorch's logits too.
TEST_P(Golden, F32LogitsThroughTheCache) {
  GoldenRun run(golden_, "f32", "f32", 2);
  Values want = golden_.values("logits");
  auto vocab = size_t(golden_.model().vocab);
  for (int64_t read : {int64_t(1), golden_.seq() / 2}) {
    Values got = run.cached_logits(read);
    ASSERT_EQ(got.size(), want.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++)
      if (int64_t(i / vocab) % golden_.seq() >= read - 1) worst = std::max(worst, std::abs(got[i] - want[i]));
    EXPECT_LE(worst, kLogit) << read << " tokens read";
    EXPECT_GT(worst, 0);
  }
}

// In one microbatch, and in two that add up.
TEST_P(Golden, F32LossAndEveryGradient) {
  for (int64_t micro : {2, 1}) {
    SCOPED_TRACE(micro);
    GoldenRun run(golden_, "f32", "f32", micro);
    StepResult r = run.step(1, 0);
    EXPECT_LE(relative(r.loss, golden_.values("loss")[0]), kLoss);
    EXPECT_LE(relative(r.loss, golden_.values("oracle.loss")[0]), kLoss);
    expect_gradients(run.gradients(), golden_.by_parameter("grad"));
    expect_gradients(run.gradients(), golden_.by_parameter("oracle.grad"));
  }
}

TEST_P(Golden, F32TenSteps) {
  GoldenRun run(golden_, "f32", "f32", 2);
  ByName begin = run.weights(), first;
  Values losses = golden_.values("steps.loss"), norms = golden_.values("steps.grad_norm");
  for (int64_t s = 1; s <= golden_.steps(); s++) {
    StepResult r = run.step(s, s);
    EXPECT_LE(relative(r.loss, losses[size_t(s - 1)]), kLoss) << "step " << s;
    EXPECT_LE(relative(r.grad_norm, norms[size_t(s - 1)]), kGradNorm) << "step " << s;
    if (s == 1) first = run.gradients();
  }
  ByName end = run.weights();
  for (const auto& [name, want] : golden_.by_parameter("final")) {
    if (has_no_gradient(golden_.model(), name)) continue;  // Adam makes steps of any size out of noise
    // So it does of a single element whose first gradient is noise: with no moments yet the step is its sign.
    const Values& g = first.at(name);
    double least = kNoSign * norm(g) / std::sqrt(double(g.size()));
    int64_t left_out = 0;
    for (size_t i = 0; i < want.size(); i++)
      if (g[i] != 0 && std::abs(g[i]) < least) end.at(name)[i] = want[i], left_out++;
    EXPECT_LE(left_out, kNoSignMost) << name;
    EXPECT_LE(distance(end.at(name), want), kUpdate * distance(begin.at(name), want)) << name;
  }
}

struct Errors {
  double global = 0, worst = 0;
};
Errors errors_of(const ModelSpec& model, const ByName& got, const ByName& oracle) {
  double total = global_norm(oracle), sum = 0;
  Errors e;
  for (const auto& [name, g] : oracle) {
    double d = distance(got.at(name), g);
    sum += d * d;
    if (!has_no_gradient(model, name)) e.worst = std::max(e.worst, d / norm(g));
  }
  e.global = std::sqrt(sum) / total;
  return e;
}

struct LowPrecision {
  const char *compute, *peer;
  std::vector<const char*> grads;
  double loss, steps;  // bounds
};
const LowPrecision kBf16{"bf16", "pytorch_bf16_error", {"f32", "bf16"}, kLossBf16, kStepsBf16};
const LowPrecision kF16{"f16", "pytorch_f16_error", {"f32"}, kLossF16, kStepsF16};

// How far from the f64 oracle, next to PyTorch in the same precision (meta.json).
void expect_no_further_than_pytorch(const GoldenCase& golden, const LowPrecision& low) {
  const nlohmann::json& peer = golden.meta().at(low.peer);
  double peer_logits = peer.at("logits_relative"), peer_global = peer.at("gradient_global_relative");
  double peer_worst = 0;
  for (const auto& [name, error] : peer.at("gradient_relative").items())
    peer_worst = std::max(peer_worst, error.get<double>());
  Values exact = golden.values("logits");  // f32: exact, next to bf16 and f16
  for (const char* grads : low.grads) {
    SCOPED_TRACE(grads);
    GoldenRun run(golden, low.compute, grads, 2);
    double logits = distance(run.logits(), exact) / norm(exact);
    StepResult r = run.step(1, 0);
    double loss = relative(r.loss, golden.values("oracle.loss")[0]);
    Errors e = errors_of(golden.model(), run.gradients(), golden.by_parameter("oracle.grad"));
    fmt::print(
        "{} with {} gradients, of PyTorch's error: logits {:.2f}, gradients {:.2f}, the worst {:.2f}; loss "
        "{:.1e}\n",
        low.compute, grads, logits / peer_logits, e.global / peer_global, e.worst / peer_worst, loss);
    EXPECT_FALSE(r.skipped);
    EXPECT_LE(logits, kOfPeer * peer_logits);
    EXPECT_LE(loss, low.loss);
    EXPECT_LE(e.global, kOfPeer * peer_global);
    EXPECT_LE(e.worst, kOfPeer * peer_worst);
  }
}
TEST_P(Golden, Bf16NoFurtherFromTheOracleThanPyTorch) {
  expect_no_further_than_pytorch(golden_, kBf16);
}
TEST_P(Golden, F16NoFurtherFromTheOracleThanPyTorch) {
  expect_no_further_than_pytorch(golden_, kF16);
}

// Of models of experts PyTorch's own error: in ten steps some choices are made otherwise, there too.
double steps_bound(const GoldenCase& golden, const LowPrecision& low) {
  const double peer = golden.meta().at(low.peer).at("step_loss_relative_max");
  return golden.model().moe() ? std::max(low.steps, kOfPeer * peer) : low.steps;
}

void expect_ten_steps(const GoldenCase& golden, const LowPrecision& low) {
  GoldenRun run(golden, low.compute, "f32", 1);
  Values losses = golden.values("oracle.steps.loss");
  double worst = 0;
  for (int64_t s = 1; s <= golden.steps(); s++)
    worst = std::max(worst, relative(run.step(s, s).loss, losses[size_t(s - 1)]));
  fmt::print("{}: losses of ten steps within {:.1e}\n", low.compute, worst);
  EXPECT_LE(worst, steps_bound(golden, low));
}
TEST_P(Golden, Bf16TenSteps) {
  expect_ten_steps(golden_, kBf16);
}
TEST_P(Golden, F16TenSteps) {
  expect_ten_steps(golden_, kF16);
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Golden,
                         testing::Values("gpt2", "gpt2_untied", "llama2", "llama3", "llama_linear",
                                         "llama_yarn", "llama_bias", "qwen2", "qwen2_tied", "qwen3",
                                         "qwen3_tied", "mixtral", "qwen2_moe", "qwen2_moe_dense", "qwen3_moe",
                                         "deepseek_v2", "deepseek_v3", "deepseek_yarn"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trireme::golden
