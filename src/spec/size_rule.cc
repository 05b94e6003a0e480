#include "spec/size_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/progress.h"
#include "spec/batch_ramp.h"
#include "spec/parameters.h"

namespace trireme {
namespace {

constexpr double kBatch = 0.58, kBatchPower = 0.571;
constexpr int64_t kMostMicro = 8;
constexpr int64_t kWarmupShare = 10, kMostWarmup = 2000;
constexpr double kMostBatch = 2147483647, kMostSteps = 1e12;

// Sequences of a step whose tokens are to be `wanted`.
int64_t batch_of(double wanted, const RunSpec& run, bool micro_given) {
  const double sequences = std::exp2(std::round(std::log2(std::max(1.0, wanted / double(run.data.seq_len)))));
  const double unit =
      double(run.layout.dp) * double(run.layout.pp) * double(micro_given ? run.batch.micro : 1);
  // At least the last stage of a ramp, which may not shrink.
  const double least = run.batch.ramp.empty() ? 1 : std::ceil(double(run.batch.ramp.back().value) / unit);
  const double most = std::max(least, std::floor(kMostBatch / unit));
  const double units = std::clamp(std::round(sequences / unit), least, most);
  return int64_t(std::min(units * unit, kMostBatch));
}

}  // namespace

int64_t micro_by_rule(const RunSpec& run) {
  const int64_t divisor = divisor_of_batches(run.batch), dp = run.layout.dp, parts = dp * run.layout.pp;
  // The noise scale compares parts of a batch.
  const int64_t least = run.train.noise_scale > 0 ? 2 : 1;
  for (int64_t n = std::min(kMostMicro, divisor / std::max(parts, least)); n > 1; n--)
    if (divisor % (dp * n) == 0 && (divisor % parts != 0 || divisor % (parts * n) == 0)) return n;
  return 1;
}

void ask_for_rules(RunSpec& run) {
  run.model.init_std = kAutomatic;
  run.optimizer.lr = kAutomatic;
  run.optimizer.warmup = kAutomaticCount;
  run.batch.global = kAutomaticCount;
  run.train.steps = kAutomaticCount;
}

double tokens_by_rule(const ModelSpec& m) {
  return kTokensPerParameter * active_parameters(m);
}
double batch_tokens_by_rule(double tokens) {
  return kBatch * std::pow(tokens, kBatchPower);
}

std::string size_text(const RunSpec& run, double tokens) {
  const double step = double(run.batch.global) * double(run.data.seq_len);
  return fmt::format("{:.3g} tokens per {}parameter (by the rule {:.0f}), {} a step (by the rule {})",
                     tokens / active_parameters(run.model), run.model.moe() ? "active " : "",
                     kTokensPerParameter, human_count(step), human_count(batch_tokens_by_rule(tokens)));
}

void apply_size_rule(RunSpec& run, bool micro_given) {
  const bool auto_steps = run.train.steps == kAutomaticCount;
  const double seq = double(run.data.seq_len);
  if (run.batch.global == kAutomaticCount) {
    // steps given: B = b (steps B)^p
    const double wanted =
        auto_steps ? batch_tokens_by_rule(tokens_by_rule(run.model))
                   : std::pow(batch_tokens_by_rule(double(run.train.steps)), 1 / (1 - kBatchPower));
    run.batch.global = batch_of(wanted, run, micro_given);
    if (!micro_given) run.batch.micro = micro_by_rule(run);
  }
  if (auto_steps)
    run.train.steps =
        int64_t(std::clamp(steps_for(run.batch, tokens_by_rule(run.model) / seq), 1.0, kMostSteps));
  if (run.optimizer.warmup == kAutomaticCount)
    run.optimizer.warmup = std::min(run.train.steps / kWarmupShare, kMostWarmup);
}

}  // namespace trireme
