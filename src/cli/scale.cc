// trireme scale: scaling laws. Its subcommands are in scale_*.cc.
#include "cli/scale.h"

#include <charconv>
#include <cmath>

#include "base/file.h"
#include "report/run_record.h"
#include "scaling/ladder_file.h"
#include "spec/batch_ramp.h"
#include "spec/parameters.h"

namespace trireme::cli {
namespace {

constexpr int kTail = 20;  // training losses of the last 1/kTail steps stand for a held-out loss

// Points of a finished or unfinished run: its held-out losses, else the mean of its last training losses.
std::vector<LossPoint> points_of_run(const fs::path& folder, std::vector<std::string>& notes) {
  const RunRecord record = read_run_folder(folder);
  if (!record.run) bad_request("{}: no plan.toml; expected the folder of a run", folder.string());
  const RunSpec& run = *record.run;
  LossPoint p;
  p.parameters = active_parameters(run.model);
  p.lr = std::max(0.0, run.optimizer.lr);
  p.batch = double(run.batch.global) * double(run.data.seq_len);
  std::vector<LossPoint> points;
  const auto add = [&](int64_t step, double loss) {
    p.tokens = double(samples_until(run.batch, step)) * double(run.data.seq_len);
    p.flops = 6 * p.parameters * p.tokens;
    p.loss = loss;
    points.push_back(p);
  };
  for (const StepLine& s : record.steps)
    if (known(s.eval_loss)) add(s.step, s.eval_loss);
  const int64_t last = record.steps.empty() ? 0 : record.steps.back().step;
  if (last < run.train.steps)
    notes.push_back(
        fmt::format("{}: step {} of {}: left out, not finished", folder.string(), last, run.train.steps));
  if (last < run.train.steps || !points.empty())
    return last < run.train.steps ? std::vector<LossPoint>() : points;
  double sum = 0;
  int n = 0;
  for (const StepLine& s : record.steps)
    if (known(s.loss) && s.step > last - std::max<int64_t>(1, last / kTail)) {
      sum += s.loss;
      n++;
    }
  if (n > 0) {
    add(last, sum / n);
    notes.push_back(
        fmt::format("{}: no held-out loss; the mean training loss of its last {} steps", folder.string(), n));
  }
  return points;
}

}  // namespace

ScaleRows read_scale_rows(const std::vector<std::string>& paths, int64_t worst) {
  LossTable all;
  ScaleRows rows;
  for (const std::string& path : paths) {
    std::vector<LossPoint> points;
    int runs = 1;
    if (is_ladder(path)) {
      runs = 0;
      for (const LadderEntry& e : read_ladder(path)) {
        if (!e.point || !fs::is_regular_file(fs::path(e.dir) / "metrics.jsonl")) continue;
        for (LossPoint& p : points_of_run(e.dir, rows.notes)) {
          p.run = runs;
          points.push_back(p);
        }
        runs++;
      }
    } else if (fs::is_directory(path)) {
      points = points_of_run(path, rows.notes);
    } else {
      LossTable t = read_loss_table(read_text(path), path);
      points = std::move(t.points);
      runs = t.runs;
      for (const std::string& c : t.ignored)
        rows.notes.push_back(fmt::format("{}: column {} ignored", path, c));
    }
    for (LossPoint& p : points) {
      p.run += all.runs;
      all.points.push_back(p);
    }
    all.runs += runs;
  }
  drop_worst(all, worst);
  rows.points = std::move(all.points);
  return rows;
}

LawFile law_called(const std::string& name) {
  if (name == "besiroglu" || name == "hoffmann") {
    LawFile f;
    if (name == "hoffmann") f.parametric.law = {1.6934, 406.4, 410.7, 0.3392, 0.2849};
    return f;
  }
  return read_law_file(read_text(name), name);
}

double positive(const char* option, const std::string& text) {
  double v = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, v);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(v) || v <= 0)
    bad_request("{} = {}: expected a number above 0, such as 1e21", option, visible(text));
  return v;
}

void add_scale(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("scale",
                                      "scaling laws: plans and trains small runs, fits laws to them, and "
                                      "finds the best size, tokens and samples "
                                      "for a budget\n"
                                      "example: trireme scale fit runs.csv --out law.json\n"
                                      "         trireme scale optimum --law law.json --flops 1e21");
  verb->require_subcommand(1);
  add_scale_plan(*verb);
  add_scale_run(*verb);
  add_scale_fit(*verb);
  add_scale_optimum(*verb);
}

}  // namespace trireme::cli
