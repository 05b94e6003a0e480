#include "spec/lr_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "spec/toml.h"

namespace trireme {
namespace {

constexpr double kWidth = 128;  // at which the constants hold
constexpr double kAdamW = 3.2e-3;
constexpr double kEmbed = 6.4e-3;  // with AdamW
constexpr double kMuon = 1.1e-2;
constexpr double kMuonHead = 4e-3;
constexpr double kMuonEmbed = 3e-2;
constexpr double kStd = 0.02;  // init at width 256; embeddings at any width
// Below this width the rates stay: no sweep has narrower models.
constexpr int64_t kNarrowest = 64;

double to_three_digits(double v) {
  return std::strtod(fmt::format("{:.3g}", v).c_str(), nullptr);
}

}  // namespace

LearningRates learning_rates_by_rule(const RunSpec& run) {
  const OptimizerSpec& o = run.optimizer;
  const double narrow = kWidth / double(std::max(run.model.hidden, kNarrowest));
  if (o.name != "muon") return {.lr = to_three_digits(kAdamW * narrow), .embed_lr = kEmbed};
  const double hidden =
      o.adjust_lr == "original" ? kMuon * 0.2 * std::sqrt(kWidth) : kMuon * std::sqrt(narrow);
  return {
      .lr = to_three_digits(hidden), .adamw_lr = to_three_digits(kMuonHead * narrow), .embed_lr = kMuonEmbed};
}

void apply_init_rule(ModelSpec& m) {
  if (m.init_std != kAutomatic) return;
  m.init_std = to_three_digits(kStd * std::sqrt(256 / double(m.hidden)));
  if (m.tied) return;
  if (m.embed_std == 0) m.embed_std = kStd;
  if (m.head_std == 0)
    m.head_std = to_three_digits(kStd * std::sqrt(256 / kWidth) * kWidth / double(m.hidden));
}

void apply_lr_rule(RunSpec& run) {
  OptimizerSpec& o = run.optimizer;
  if (o.lr != kAutomatic) return;
  const LearningRates rule = learning_rates_by_rule(run);
  o.lr = rule.lr;
  if (o.adamw_lr == 0) o.adamw_lr = rule.adamw_lr;
  if (o.embed_lr == 0) o.embed_lr = rule.embed_lr;
  if (o.min_lr > o.lr)
    bad_request(
        "optimizer.min_lr = {}: is above {}, which optimizer.lr = \"auto\" is for model.hidden = {}; give at "
        "most "
        "that, or a number for lr",
        toml_number(o.min_lr), toml_number(o.lr), run.model.hidden);
}

std::string lr_text(const RunSpec& run) {
  const OptimizerSpec& o = run.optimizer;
  const bool muon = o.name == "muon";
  const LearningRates rule = learning_rates_by_rule(run);
  const double head = muon && o.adamw_lr > 0 ? o.adamw_lr : o.lr;
  const double embed = o.embed_lr > 0 ? o.embed_lr : head;
  const auto rates = [&](double hidden, double of_head, double of_embed) {
    return muon ? fmt::format("hidden matrices {}, head {}, embeddings and norms {}", toml_number(hidden),
                              toml_number(of_head), toml_number(of_embed))
                : fmt::format("hidden matrices and head {}, embeddings and norms {}", toml_number(hidden),
                              toml_number(of_embed));
  };
  const std::string own = rates(o.lr, head, embed);
  const std::string by_rule = rates(rule.lr, rule.adamw_lr, rule.embed_lr);
  return fmt::format("peak learning rates: {} ({}the rule for {} with hidden = {})", own,
                     own == by_rule ? "" : by_rule + " by ", o.name, run.model.hidden);
}

}  // namespace trireme
