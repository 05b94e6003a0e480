#include "cli/try_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/machine.h"
#include "base/progress.h"
#include "base/timed.h"
#include "cli/training.h"
#include "report/price_plan.h"
#include "spec/supported.h"
#include "spec/toml.h"
#include "train/event_file.h"

namespace trireme::cli {
namespace {

constexpr double kBusy = 0.1;                            // share of the processors; more spoils a comparison
constexpr int kTurns = 2;                                // per side
constexpr int64_t kFewest = 5, kMost = 60, kWarmUp = 2;  // steps of a turn

// Keys that leave out all that is not a step.
const std::vector<std::string> kStepsAlone = {
    "train.checkpoint_every=0", "train.eval_every=0",     "train.eval_batches=1",      "train.sample_every=0",
    "train.noise_scale=0",      "train.trace_steps=\"\"", "train.record_routing=\"\"", "train.branch=\"\"",
    "train.tensorboard=false",  "batch.ramp=[]",          "optimizer.warmup=0"};

class ScratchFolder {
 public:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) { fs::remove_all(path_); }
  ~ScratchFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// One side: with the change or without.
struct Side {
  RunSpec run;
  ClusterSpec cluster;  // with the rates of its number of ranks and threads
  double planned_s = 0;
  std::vector<double> seconds;  // per turn: the median of its steps
};

// Trains `steps` steps; returns the median seconds of one.
double turn(Side& side, const fs::path& folder, int64_t steps) {
  side.run.train.dir = folder.string();
  side.run.train.steps = steps + kWarmUp;
  fs::remove_all(folder);
  make_folders(folder);
  TrainingSetup t = prepare_training(side.run, side.run.precision, side.cluster, side.run.world());
  side.planned_s = t.forecast.expected ? t.forecast.step_s : 0;
  const TrainSummary s = train_with_progress(side.run, t, true);
  if (s.ending == Ending::interrupted) throw Error("interrupted", Fault::interrupted);
  return double(side.run.tokens_per_step()) / s.tokens_per_s;
}

}  // namespace

TriedChange try_change(const fs::path& folder, const std::vector<std::string>& sets, double seconds) {
  const ScratchFolder scratch(folder / "tried");
  std::array<Side, 2> sides;
  for (size_t i = 0; i < 2; i++) {
    std::vector<std::string> all = kStepsAlone;
    if (i == 1) all.insert(all.end(), sets.begin(), sets.end());
    sides[i].run = resolved_here(load_run(folder / "plan.toml", all));
    refuse_unsupported(sides[i].run);
    if (sides[i].run.world() > 1 && sides[i].run.train.comm != "thread")
      bad_request(
          "--try: the ranks of {} are processes (train.comm = \"{}\"); it needs threads of one process",
          folder.string(), sides[i].run.train.comm);
  }
  for (Side& side : sides) side.cluster = cluster_of(side.run);
  // The first turn says how many steps the others have time for.
  const OthersCpu others;
  Progress bar("try", 1 + 2 * kTurns);
  bar.update(0, "timing a step");
  const double begin = now_s();
  turn(sides[0], scratch.path(), kFewest);
  const double each = std::max(1e-6, (now_s() - begin) / double(kFewest + kWarmUp));
  const double left = seconds - (now_s() - begin);
  const int64_t steps = std::clamp(int64_t(left / (2.0 * kTurns * each)) - kWarmUp, kFewest, kMost);
  for (int i = 0; i < 2 * kTurns; i++) {
    Side& side = sides[size_t(i % 2)];
    bar.update(1 + i, i % 2 ? "with the change" : "without the change");
    side.seconds.push_back(turn(side, scratch.path(), steps));
  }
  bar.update(1 + 2 * kTurns);
  bar.finish();
  TriedChange out{.sets = sets, .steps = steps * kTurns, .others_cpu = others.share()};
  // The faster turn: what disturbs a turn makes it slower.
  out.before_s = *std::min_element(sides[0].seconds.begin(), sides[0].seconds.end());
  out.after_s = *std::min_element(sides[1].seconds.begin(), sides[1].seconds.end());
  if (sides[0].planned_s > 0 && sides[1].planned_s > 0) {
    out.planned_before_s = sides[0].planned_s;
    out.planned_after_s = sides[1].planned_s;
  }
  return out;
}

std::optional<std::string> set_of(const Diagnosis& d) {
  const bool steps = d.key.starts_with("batch.") || d.key.starts_with("layout.") || d.key == "train.graphs" ||
                     d.key == "data.prefetch";
  if (!d.found || !steps) return std::nullopt;
  return d.key + "=" + d.to;
}

std::string tried_text(const TriedChange& t, double promised) {
  constexpr double kNear = 0.05;  // share of a step: noise of a few steps and of the forecast
  const auto change = [](double share) {
    return std::abs(share) < 0.005
               ? std::string("no change")
               : fmt::format("{:.0f} % {}", 100 * std::abs(share), share > 0 ? "less" : "more");
  };
  const double gain = t.gain();
  const bool holds = promised > kNear ? gain >= promised / 2
                                      : std::abs(gain - promised) <= kNear || (promised < 0 && gain < 0);
  const std::string verdict =
      t.others_cpu > kBusy
          ? fmt::format("no verdict: other programs used {:.0f} % of the processors", 100 * t.others_cpu)
          : fmt::format("the forecast {}", holds ? "holds" : "does not hold");
  return fmt::format("{}: forecast {} time per step, measured {} ({} -> {}, {} steps each): {}",
                     fmt::join(t.sets, " "), change(promised), change(gain), human_seconds(t.before_s),
                     human_seconds(t.after_s), t.steps, verdict);
}

void keep_tried(const fs::path& folder, const TriedChange& t, const std::string& text) {
  nlohmann::ordered_json fields = {{"text", text}};
  if (t.sets.size() == 1 && t.others_cpu <= kBusy)
    fields.update({{"set", t.sets[0]}, {"measured", t.gain()}});
  append_event(folder, "tried", std::move(fields));
}

}  // namespace trireme::cli
