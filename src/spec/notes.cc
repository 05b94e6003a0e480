#include "spec/notes.h"

#include <fmt/format.h>

#include "spec/batch_ramp.h"
#include "spec/run_schedule.h"
#include "spec/toml.h"

namespace trireme {
namespace {

void note_foreign_parts(const ModelSpec& m, std::vector<std::string>& out) {
  const ModelSpec own = ModelSpec::of(m.arch);
  std::string keys;
  auto foreign = [&](std::string_view key, const std::string& is, const std::string& others) {
    keys += fmt::format("{}model.{} = {} where {} has {}", keys.empty() ? "" : ", ", key, shown(is), m.arch,
                        shown(others));
  };
  if (m.norm != own.norm) foreign("norm", m.norm, own.norm);
  if ((m.activation == "swiglu") != (own.activation == "swiglu"))
    foreign("activation", m.activation, own.activation);
  if (m.positions != own.positions) foreign("positions", m.positions, own.positions);
  if (!keys.empty())
    out.push_back(
        keys + ": it trains, but cannot be exported as a Hugging Face model; remove the lines unless meant");
}

void note_learning_rate(const RunSpec& run, std::vector<std::string>& out) {
  const OptimizerSpec& o = run.optimizer;
  if (o.lr == 0)
    out.push_back("optimizer.lr = 0: the weights stay as they are");
  else if (o.lr > 0 && o.warmup > run.train.steps)
    out.push_back(fmt::format(
        "optimizer.warmup = {} of train.steps = {}: the learning rate ends at {:.3g} and never reaches lr = "
        "{}",
        o.warmup, run.train.steps, o.lr * double(run.train.steps) / double(o.warmup), toml_number(o.lr)));
}

void note_sharding(const LayoutSpec& l, std::vector<std::string>& out) {
  if (l.zero == 0 || effective_zero(l) > 0) return;
  out.push_back(
      replicas_of(l) == 1
          ? fmt::format("layout.zero = {} shards over dp x cp, which is 1: each rank holds all of its "
                        "state",
                        l.zero)
          : fmt::format("layout.zero = {} with layout.shard_group = 1: each rank holds all of its state",
                        l.zero));
}

// The gradient norm's error if a sum of n terms is rounded to bf16 after each (docs/plan.md has the
// measurements).
std::string_view bf16_sum_error(int64_t n) {
  struct Measured {
    int64_t most;
    std::string_view error;
  };
  static constexpr Measured kMeasured[] = {
      {256, "less than 0.1 %"}, {512, "about 0.3 %"}, {1024, "up to 3 %"}, {4096, "up to 35 %"}};
  for (const Measured& m : kMeasured)
    if (n <= m.most) return m.error;
  return "35 % or more";
}

// Sums that are rounded to bf16 after each addition.
void note_bf16_sums(const RunSpec& run, std::vector<std::string>& out) {
  const PrecisionSpec& p = run.precision;
  if (p.grads == "bf16" && run.microbatches() > 1)
    out.push_back(
        fmt::format("precision.grads = \"bf16\": the sum over {} microbatches is rounded to 8 bits after "
                    "each, so the gradient norm "
                    "is {} too small; \"f32\" (also \"auto\") is exact and takes 2 bytes more per parameter",
                    run.microbatches(), bf16_sum_error(run.microbatches())));
  constexpr int64_t kMany = 512;
  const bool halves = p.reduce == "bf16" || (p.reduce == "auto" && p.compute == "bf16");
  const int64_t replicas = replicas_of(run.layout);
  const std::string& order = run.train.sum_order;
  // Halving rounds log2(replicas) times; "auto" may be NCCL's ring.
  if (halves && replicas >= kMany && (order == "ring" || (order == "auto" && run.train.comm == "nccl")))
    out.push_back(
        fmt::format("train.sum_order = \"{}\" with precision.reduce = \"bf16\": a sum over {} replicas may "
                    "be rounded to 8 bits "
                    "after each, so the gradient norm is {} too small; precision.reduce = \"f32\" is exact "
                    "and sends twice "
                    "the bytes",
                    order, replicas, bf16_sum_error(replicas)));
  if (p.reduce == "bf16" && (p.compute == "f32" || p.compute == "f16") && replicas > 1)
    out.push_back(
        fmt::format("precision.reduce = \"bf16\" with precision.compute = \"{}\": gradients keep 8 bits on "
                    "the wire (an error of "
                    "up to 0.4 % each); \"f32\" keeps all and sends twice the bytes",
                    p.compute));
}

// Numbers that a type of the run cannot hold.
void note_lost_range(const RunSpec& run, std::vector<std::string>& out) {
  const PrecisionSpec& p = run.precision;
  const OptimizerSpec& o = run.optimizer;
  constexpr double kSmallScale = 1024, kSmallestF16 = 0x1p-24;
  const double scale = p.loss_scale.dynamic ? p.initial_scale : p.loss_scale.number;
  if (p.compute == "f16" && scale < kSmallScale)
    out.push_back(fmt::format(
        "precision.{} = {} with precision.compute = \"f16\": gradients below {:.1g} become 0{}; use {}",
        p.loss_scale.dynamic ? "initial_scale" : "loss_scale", toml_number(scale), kSmallestF16 / scale,
        p.loss_scale.dynamic ? fmt::format(" until the scale has grown, once per {} steps", p.growth_interval)
                             : "",
        p.loss_scale.dynamic ? "65536, the default" : "\"dynamic\""));
  if (p.fp8 != "none")
    out.push_back(
        fmt::format("precision.fp8 = \"{}\": linear layers round their operands to 8-bit floats ({}), so "
                    "losses differ from "
                    "16-bit runs; compare a short run with precision.fp8 = \"none\" before a long one",
                    p.fp8,
                    p.fp8 == "block" ? "an error of up to 6 % of each number"
                                     : "of gradients up to 12 % of each number"));
  constexpr double kSmallestF32 = 0x1p-126;
  if (o.eps < kSmallestF32)
    out.push_back(
        fmt::format("optimizer.eps = {}: below f32's smallest number, {:.1e}, so it may count as 0, and a "
                    "weight without a gradient "
                    "becomes NaN; use 1e-30 or more",
                    toml_number(o.eps), kSmallestF32));
  for (const double beta : o.betas)
    if (beta < 1 && float(beta) == 1)
      out.push_back(
          fmt::format("optimizer.betas: {} is 1 in f32, in which moments are computed, so a moment stays 0; "
                      "use 0.9999999 or less",
                      toml_number(beta)));
  constexpr double kHalfUlpOfOne = 0x1p-25;
  if (o.lr > 0 && o.lr < kHalfUlpOfOne)
    out.push_back(
        fmt::format("optimizer.lr = {}: a step of a weight near 1, such as a norm's, is below half of f32's "
                    "last bit and is rounded "
                    "away; use {:.0e} or more",
                    toml_number(o.lr), kHalfUlpOfOne));
}

void note_ramp(const RunSpec& run, std::vector<std::string>& out) {
  const int64_t last = global_at(run.batch, run.train.steps);
  if (last < run.batch.global)
    out.push_back(
        fmt::format("batch.ramp with train.steps = {}: the run ends with a batch of {} and never reaches "
                    "batch.global = {}",
                    run.train.steps, last, run.batch.global));
}

}  // namespace

std::vector<std::string> notes_of(const RunSpec& run) {
  std::vector<std::string> out;
  note_foreign_parts(run.model, out);
  note_learning_rate(run, out);
  note_sharding(run.layout, out);
  note_ramp(run, out);
  note_bf16_sums(run, out);
  note_lost_range(run, out);
  return out;
}

}  // namespace trireme
