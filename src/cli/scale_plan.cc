// trireme scale plan: a ladder of small runs for a budget, and its price.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/progress.h"
#include "base/say.h"
#include "cli/scale.h"
#include "cli/search.h"
#include "forecast/forecast.h"
#include "scaling/ladder_file.h"
#include "spec/run_schedule.h"
#include "spec/size_rule.h"

namespace trireme::cli {
namespace {

struct LadderPlanRequest {
  RunRequest run;
  std::vector<double> rates, batches;
  std::string flops, hours, out = "ladder", law, cluster;
  int64_t gpus = 8, batch = 0, least_runs = 6, least_steps = 60, most_layers = 0;
};

RunSpec run_of_size(const RunSpec& base, const ModelSpec& model, int64_t batch) {
  RunSpec run = base;
  run.model = model;
  run.batch.global = batch;
  run.batch.ramp.clear();
  run.batch.micro = micro_by_rule(run);
  return run;
}

// Seconds of a token on this machine by the forecast of a step; 0 = the machine was not measured.
double token_seconds(const RunSpec& base, const ModelSpec& model, int64_t batch, const ClusterSpec& here) {
  const RunSpec run = resolved_here(run_of_size(base, model, batch));
  const Forecast f = forecast(run, schedule_of(run), here, rank_threads_of(run));
  return f.step_s / double(batch * run.data.seq_len);
}

// Device-seconds of a token on one device of a cluster, in the best layout of one device.
double token_device_seconds(const LadderPlanRequest& q, const ModelSpec& m, int64_t batch, int64_t seq) {
  PlanSubject s;
  s.cluster = q.cluster;
  s.layers = m.layers;
  s.hidden = m.hidden;
  s.heads = m.heads;
  s.kv_heads = m.kv_heads;
  s.ffn = m.ffn;
  s.vocab = m.vocab;
  s.gpus = 1;
  s.seq = seq;
  SearchOptions o;
  o.global = batch;
  std::optional<RunSpec> none;
  const SearchRequest request = search_request(o, s, none);
  const SearchResult r = search(request);
  return r.best.empty() ? 0 : r.best.front().token_s;
}

struct LadderPrice {
  double here_s = 0, device_s = 0;
};

// Tokens that a size is trained on, all of its stable run and branches.
double tokens_of_size(const LadderDesign& d, size_t s, int64_t seq) {
  double steps = 0;  // sequences
  int64_t last = 0;
  for (const LadderRun& r : d.runs)
    if (r.size == s) {
      steps += double(r.batch * (r.steps - (r.variant ? 0 : last)));
      if (!r.variant) last = r.branches;
    }
  return steps * double(seq);
}

std::string ladder_text(const LadderDesign& d, const RunSpec& base) {
  const auto variants = std::count_if(d.runs.begin(), d.runs.end(), [](auto& r) { return r.variant; });
  std::string s = fmt::format(
      "{} runs of {} sizes at {} budgets of {:.3g} to {:.3g} FLOPs; {:.3g} FLOPs in all (the best of {} "
      "ladders)\n",
      d.runs.size() - size_t(variants), d.sizes.size(), d.levels.size(), d.levels.front(), d.levels.back(),
      d.flops, d.designs);
  if (variants > 0) s += fmt::format("and {} runs with other learning rates or batches\n", variants);
  s += fmt::format("  {:>10}{:>16}{:>8}   tokens per parameter (steps)\n", "parameters", "layers x width",
                   "batch");
  for (size_t i = 0; i < d.sizes.size(); i++) {
    s += fmt::format("  {:>10}{:>16}{:>8}  ", human_count(d.sizes[i].parameters),
                     fmt::format("{} x {}", d.sizes[i].model.layers, d.sizes[i].model.hidden), d.batch[i]);
    for (const LadderRun& r : d.runs)
      if (r.size == i && !r.variant)
        s += fmt::format(" {:.3g} ({})", r.tokens / d.sizes[i].parameters, r.steps);
    s += "\n";
  }
  return s;
}

LadderPrice price_of(const LadderPlanRequest& q, const LadderDesign& d, const RunSpec& base,
                     const std::optional<ClusterSpec>& here) {
  LadderPrice p;
  for (size_t i = 0; i < d.sizes.size(); i++) {
    const double tokens = tokens_of_size(d, i, base.data.seq_len);
    if (here) p.here_s += tokens * token_seconds(base, d.sizes[i].model, d.batch[i], *here);
    if (!q.cluster.empty())
      p.device_s += tokens * token_device_seconds(q, d.sizes[i].model, d.batch[i], base.data.seq_len);
  }
  return p;
}

std::string price_text(const LadderPlanRequest& q, const LadderDesign& d, const LadderPrice& p) {
  std::string s = fmt::format("{} runs", d.runs.size());
  if (p.here_s > 0) s += fmt::format(", {} on this machine", human_seconds(p.here_s));
  if (p.device_s > 0)
    s += fmt::format(", {:.3g} device-hours on {} x {} ({} in all, a run per device)", p.device_s / 3600,
                     q.gpus, q.cluster, human_seconds(p.device_s / double(q.gpus)));
  if (p.here_s == 0) s += "; this machine was not measured: `trireme bench` does that";
  return s + "\n";
}

// Without 1, which the ladder itself has, and without repetitions.
std::vector<double> factors(const char* option, std::vector<double> v) {
  for (const double f : v)
    if (!(f >= 0.01 && f <= 100)) bad_request("{} {}: expected factors from 0.01 to 100", option, f);
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
  std::erase(v, 1.0);
  return v;
}

void plan_ladder(const LadderPlanRequest& q) {
  if (q.flops.empty() == q.hours.empty()) bad_request("--flops or --hours: expected one of the two");
  const RunSpec base = q.run.as_asked();
  LadderRequest l{.sizes = ladder_family(base.model, base.data.seq_len,
                                         q.most_layers > 0 ? q.most_layers : 2 * base.model.layers),
                  .seq = base.data.seq_len,
                  .batch = q.batch,
                  .rates = factors("--rates", q.rates),
                  .batches = factors("--batches", q.batches),
                  .least_runs = q.least_runs,
                  .least_steps = q.least_steps};
  if (!q.law.empty()) l.prior = law_called(q.law).parametric.law;
  std::optional<ClusterSpec> here;
  if (!q.hours.empty()) {
    here = cluster_of(resolved_here(base));
    l.budget = 3600 * positive("--hours", q.hours);
    l.in_seconds = true;
    Progress bar("forecast of sizes", int64_t(l.sizes.size()));
    for (size_t i = 0; i < l.sizes.size(); i++) {
      l.sizes[i].token_cost = token_seconds(base, l.sizes[i].model, q.batch > 0 ? q.batch : 8, *here);
      bar.update(int64_t(i) + 1);
    }
    if (l.sizes.front().token_cost <= 0)
      bad_request("--hours: {} says no speed of this machine; give --flops", base.cluster.file);
  } else {
    l.budget = positive("--flops", q.flops);
    here = known_cluster_of(resolved_here(base));
  }
  const LadderDesign d = design_ladder(l);
  const std::vector<LadderItem> items = ladder_items(d, base, fs::path(q.out).lexically_normal().string());
  write_ladder(q.out, d, items);
  const LadderPrice p = price_of(q, d, base, here);
  if (q.run.json) {
    const nlohmann::ordered_json j = {{"runs", d.runs.size()},        {"sizes", d.sizes.size()},
                                      {"levels", d.levels},           {"flops", d.flops},
                                      {"log_det", d.log_det},         {"seconds_here", p.here_s},
                                      {"device_seconds", p.device_s}, {"folder", q.out}};
    print_text("{}\n", j.dump(2));
    return;
  }
  print_text("{}{}{}: {} run files; next: trireme scale run {}\n", ladder_text(d, base), price_text(q, d, p),
             q.out, items.size(), q.out);
}

}  // namespace

void add_scale_plan(CLI::App& scale) {
  CLI::App* verb =
      scale.add_subcommand("plan",
                           "a ladder of small runs that identifies the law of loss best for a budget: run "
                           "files, and what they cost\n"
                           "example: trireme scale plan configs/run/demo.toml --hours 1 --out ladder\n"
                           "         trireme scale plan run.toml --flops 1e18 --cluster H100 --gpus 8");
  auto q = std::make_shared<LadderPlanRequest>();
  q->run.add_to(*verb);
  verb->add_option("--flops", q->flops, "FLOPs of all runs together, 6 N D");
  verb->add_option("--hours", q->hours, "instead: hours of this machine, by the forecast");
  verb->add_option("--out", q->out, "folder of the run files and runs")
      ->type_name("FOLDER")
      ->capture_default_str();
  verb->add_option("--law", q->law,
                   "law that the ladder is best for (default: besiroglu); as of `scale optimum`");
  verb->add_option("--batch", q->batch,
                   "sequences per step (default: by the rule of run files, for each size)")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option(
          "--rates", q->rates,
          "also runs with these factors on the learning rate, of each size's two shortest runs: 0.5,2")
      ->delimiter(',')
      ->type_name("FACTORS");
  verb->add_option("--batches", q->batches,
                   "also runs with these factors on the batch, of each size's two shortest runs: 0.5,2")
      ->delimiter(',')
      ->type_name("FACTORS");
  verb->add_option("--least-runs", q->least_runs,
                   "runs of the ladder at least, without those of other rates and batches")
      ->check(CLI::Range(6, 1000))
      ->capture_default_str();
  verb->add_option("--least-steps", q->least_steps, "of each run")
      ->check(CLI::Range(10, 1 << 20))
      ->capture_default_str();
  verb->add_option(
          "--most-layers", q->most_layers,
          "sizes are the run's model with 1 to N layers, width in proportion (default: twice its own)")
      ->check(CLI::Range(1, 1000));
  verb->add_option("--cluster", q->cluster, "prices the ladder on these devices too: a file, or one by name");
  verb->add_option("--gpus", q->gpus, "with --cluster: devices, a run on each")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->callback([q] { plan_ladder(*q); });
}

}  // namespace trireme::cli
