#include "scaling/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "search/search_sweep.h"
#include "spec/lr_rule.h"
#include "spec/parameters.h"
#include "spec/size_rule.h"

namespace trireme {
namespace {

constexpr double kDecay = 0.1;     // share of a wsd schedule that lowers the rate
constexpr int kSizesVariants = 2;  // runs of a size, the shortest first, that have variants

using Info = std::array<std::array<double, 5>, 5>;

void add_run(Info& info, const ChinchillaLaw& law, const Allocation& a) {
  const double by_n = law.A * std::pow(a.parameters, -law.alpha);
  const double by_d = law.B * std::pow(a.tokens, -law.beta);
  const double loss = law.E + by_n + by_d;
  const double g[5] = {law.E / loss, by_n / loss, by_d / loss, -by_n * std::log(a.parameters) / loss,
                       -by_d * std::log(a.tokens) / loss};
  for (size_t i = 0; i < 5; i++)
    for (size_t j = 0; j < 5; j++) info[i][j] += g[i] * g[j];
}

// -infinity: singular.
double log_det(Info m) {
  double sum = 0;
  for (size_t j = 0; j < 5; j++) {
    for (size_t k = 0; k < j; k++) m[j][j] -= m[j][k] * m[j][k];
    if (!(m[j][j] > 1e-18)) return -INFINITY;
    m[j][j] = std::sqrt(m[j][j]);
    sum += 2 * std::log(m[j][j]);
    for (size_t i = j + 1; i < 5; i++) {
      for (size_t k = 0; k < j; k++) m[i][j] -= m[i][k] * m[j][k];
      m[i][j] /= m[j][j];
    }
  }
  return sum;
}

int64_t batch_of_size(const LadderRequest& q, const LadderSize& s, double tokens) {
  if (q.batch > 0) return q.batch;
  const double sequences = batch_tokens_by_rule(tokens) / double(q.seq);
  // Few steps say little: a batch leaves at least least_steps.
  const double most = tokens / (double(q.least_steps) * double(q.seq));
  return int64_t(std::exp2(std::floor(std::log2(std::max(1.0, std::min(sequences, most))))));
}

int64_t varied_batch(int64_t batch, double factor) {
  return std::max<int64_t>(1, std::llround(double(batch) * factor));
}

// Steps of a run are a multiple of this, so that its variants have the same tokens: the fits compare such
// runs.
int64_t granule(const LadderRequest& q, int64_t batch) {
  int64_t all = 1;
  for (const double f : q.batches) {
    const int64_t other = varied_batch(batch, f);
    all = std::lcm(all, other / std::gcd(batch, other));
    if (all > q.least_steps / 4)
      bad_request(
          "batches: a factor of {} on {} sequences makes no equal tokens; expected factors such as 0.5 or 2",
          f, batch);
  }
  return all;
}

// Trained in full, besides the ladder's own run `r`.
void add_variants(LadderDesign& d, const LadderRequest& q, const LadderSize& s, const LadderRun& r) {
  const auto add = [&](double rate, int64_t batch) {
    LadderRun v = r;
    const double step = double(batch) * double(q.seq);
    v.rate = rate;
    v.batch = batch;
    v.variant = true;
    v.branches = 0;
    v.steps = int64_t(std::llround(r.tokens / step));
    v.tokens = double(v.steps) * step;
    if (v.steps < q.least_steps || (rate == 1 && batch == r.batch)) return;
    d.cost += s.token_cost * v.tokens;
    d.flops += 6 * s.parameters * v.tokens;
    d.runs.push_back(v);
  };
  for (const double f : q.rates) add(f, r.batch);
  for (const double f : q.batches) add(1, varied_batch(r.batch, f));
}

// The ladder of these sizes with its highest level at `top`; no runs: it is not one.
LadderDesign ladder_at(const LadderRequest& q, const std::vector<size_t>& sizes, int levels, double ratio,
                       double top) {
  LadderDesign d;
  for (int l = levels - 1; l >= 0; l--) d.levels.push_back(top / std::pow(ratio, l));
  std::vector<Allocation> best;  // by level
  for (const double flops : d.levels) best.push_back(chinchilla_optimum(q.prior, flops));
  std::vector<std::vector<double>> of_level(d.levels.size());
  Info info{};
  for (const size_t i : sizes) {
    const LadderSize& s = q.sizes[i];
    std::vector<std::pair<size_t, double>> tokens;
    for (size_t l = 0; l < d.levels.size(); l++) {
      const double t = d.levels[l] / (6 * s.parameters);
      const double ratio = t / s.parameters / (best[l].tokens / best[l].parameters);
      if (ratio >= q.least_ratio && ratio <= q.most_ratio) tokens.emplace_back(l, t);
    }
    if (tokens.empty()) continue;
    const int64_t batch = batch_of_size(q, s, tokens.front().second);
    const double step = double(batch) * double(q.seq);
    double last = 0;
    int of_size = 0;
    for (const auto& [level, t] : tokens) {
      LadderRun r{d.sizes.size(), d.levels[level]};
      r.batch = batch;
      const int64_t steps = of_size < kSizesVariants ? granule(q, batch) : 1;
      r.steps = steps * int64_t(std::llround(t / (step * double(steps))));
      if (r.steps < q.least_steps) continue;
      r.branches = r.steps - std::max<int64_t>(1, int64_t(double(r.steps) * kDecay));
      r.tokens = double(r.steps) * step;
      // The stable run resumes at the last branching; each branch is paid in full.
      d.cost += s.token_cost * step * (double(r.branches) - last + double(r.steps - r.branches));
      d.flops += 6 * s.parameters * step * (double(r.branches) - last + double(r.steps - r.branches));
      last = double(r.branches);
      d.runs.push_back(r);
      of_level[level].push_back(s.parameters);
      add_run(info, q.prior, {s.parameters, r.tokens});
      if (of_size++ < kSizesVariants) add_variants(d, q, s, r);
    }
    if (last == 0) continue;
    d.sizes.push_back(s);
    d.batch.push_back(batch);
  }
  for (size_t l = 0; l < d.levels.size(); l++) {
    const std::vector<double>& n = of_level[l];
    if (n.size() < 3 || n.front() > best[l].parameters || n.back() < best[l].parameters) d.runs.clear();
  }
  d.log_det = log_det(info);
  return d;
}

// The highest level that the budget pays for.
LadderDesign within_budget(const LadderRequest& q, const std::vector<size_t>& sizes, int levels,
                           double ratio) {
  const double smallest = q.sizes[sizes.front()].parameters;
  double low = std::log(6 * smallest * smallest * 1e-3);
  double high = std::log(6 * std::pow(q.sizes[sizes.back()].parameters, 2) * 1e4) + levels * std::log(ratio);
  for (int i = 0; i < 24; i++) {
    const double middle = 0.5 * (low + high);
    (ladder_at(q, sizes, levels, ratio, std::exp(middle)).cost > q.budget ? high : low) = middle;
  }
  return ladder_at(q, sizes, levels, ratio, std::exp(low));
}

}  // namespace

std::vector<LadderSize> ladder_family(const ModelSpec& base, int64_t seq, int64_t most_layers) {
  std::vector<LadderSize> all;
  for (int64_t layers = 1; layers <= most_layers; layers++)
    for (const int64_t depth : {layers, layers + (layers + 1) / 2}) {
      LadderSize s{scaled_model(base, layers, seq)};
      s.model.layers = depth;
      s.parameters = active_parameters(s.model);
      s.token_cost = 6 * s.parameters;
      all.push_back(std::move(s));
    }
  std::stable_sort(all.begin(), all.end(),
                   [](const LadderSize& a, const LadderSize& b) { return a.parameters < b.parameters; });
  std::vector<LadderSize> sizes;
  for (LadderSize& s : all)
    if (sizes.empty() || s.parameters > 1.2 * sizes.back().parameters) sizes.push_back(std::move(s));
  return sizes;
}

double log_determinant(const ChinchillaLaw& law, const std::vector<Allocation>& runs) {
  Info info{};
  for (const Allocation& a : runs) add_run(info, law, a);
  return log_det(info);
}

LadderDesign design_ladder(const LadderRequest& q) {
  LadderDesign best;
  best.log_det = -INFINITY;
  int64_t designs = 0;
  for (const size_t stride : {1, 2, 3})
    for (size_t first = 0; first < q.sizes.size(); first++)
      for (size_t count = 3; count <= 8; count++) {
        std::vector<size_t> sizes;
        for (size_t i = 0; i < count && first + i * stride < q.sizes.size(); i++)
          sizes.push_back(first + i * stride);
        if (sizes.size() < count) break;
        for (const int levels : {3, 4, 5})
          for (const double ratio : {2.0, 3.0, 4.0}) {
            LadderDesign d = within_budget(q, sizes, levels, ratio);
            designs++;
            const auto own = std::count_if(d.runs.begin(), d.runs.end(), [](auto& r) { return !r.variant; });
            if (own < q.least_runs || d.cost > q.budget || d.cost < 0.5 * q.budget) continue;
            if (d.log_det > best.log_det) best = std::move(d);
          }
      }
  best.designs = designs;
  if (best.runs.empty())
    bad_request(
        "no ladder of {} runs or more spends the budget of {:.3g} {}: sizes from {:.3g} to {:.3g} "
        "parameters, {} steps per run at least; expected another budget, or another range of sizes",
        q.least_runs, q.budget, q.in_seconds ? "s" : "FLOPs", q.sizes.front().parameters,
        q.sizes.back().parameters, q.least_steps);
  return best;
}

namespace {

// A run of a size, without its place, steps and schedule.
LadderItem item_of(const LadderDesign& d, const LadderRun& r, const RunSpec& base) {
  LadderItem item;
  item.size = r.size;
  item.parameters = d.sizes[r.size].parameters;
  item.run = base;
  item.run.model = d.sizes[r.size].model;
  item.run.batch.global = r.batch;
  item.run.batch.ramp.clear();
  item.run.batch.micro = micro_by_rule(item.run);
  item.run.train.keep = 1;
  item.run.train.keep_best = "off";
  item.run.train.checkpoint_every = {.count = 0};
  item.run.train.eval_every = 0;
  return item;
}

void place(LadderItem& item, const std::string& folder, const std::string& name, const std::string& schedule,
           int64_t steps) {
  item.name = name;
  item.run.train.dir = folder + "/runs/" + name;
  item.run.train.steps = steps;
  item.run.optimizer.schedule = schedule;
}

void make_point(LadderItem& item, const LadderRun& r) {
  item.point = true;
  item.tokens = r.tokens;
  item.flops = 6 * item.parameters * r.tokens;
}

void scale_rates(RunSpec& run, double factor) {
  if (factor == 1) return;
  apply_lr_rule(run);
  run.optimizer.lr *= factor;
  run.optimizer.adamw_lr *= factor;
  run.optimizer.embed_lr *= factor;
  run.optimizer.min_lr *= factor;
}

}  // namespace

std::vector<LadderItem> ladder_items(const LadderDesign& d, const RunSpec& base, const std::string& folder) {
  std::vector<LadderItem> items;
  for (size_t s = 0; s < d.sizes.size(); s++) {
    int part = 0;
    std::string last;
    int64_t last_step = 0;
    for (const LadderRun& r : d.runs) {
      if (r.size != s) continue;
      LadderItem point = item_of(d, r, base);
      make_point(point, r);
      if (r.variant) {
        const std::string what =
            r.rate != 1 ? fmt::format("lr{:g}", r.rate) : fmt::format("batch{}", r.batch);
        scale_rates(point.run, r.rate);
        place(point, folder, fmt::format("s{}-run-{}-{}", s + 1, part, what), "wsd", r.steps);
        items.push_back(std::move(point));
        continue;
      }
      part++;
      LadderItem stable = item_of(d, r, base);
      place(stable, folder, fmt::format("s{}-stable-{}", s + 1, part), "constant", r.branches);
      place(point, folder, fmt::format("s{}-run-{}", s + 1, part), "wsd", r.steps);
      stable.after = last;
      if (!last.empty()) stable.run.train.branch = fmt::format("{}/runs/{}@{}", folder, last, last_step);
      point.after = stable.name;
      point.run.train.branch = fmt::format("{}@{}", stable.run.train.dir, r.branches);
      last = stable.name;
      last_step = r.branches;
      items.push_back(std::move(stable));
      items.push_back(std::move(point));
    }
    // One warmup for all of a size: a tenth of its shortest run.
    int64_t shortest = INT64_MAX;
    for (const LadderItem& i : items)
      if (i.size == s && i.point) shortest = std::min(shortest, i.run.train.steps);
    for (LadderItem& i : items)
      if (i.size == s) i.run.optimizer.warmup = std::max<int64_t>(1, shortest / 10);
  }
  return items;
}

}  // namespace trireme
