#include "forecast/searched_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cost/memory.h"
#include "forecast/scaled_run.h"
#include "forecast/untrained_router.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// The search's closed form has the ring of cp alone, no recorded routing and no posted steps.
bool is_searched(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  return (l.cp == 1 || l.cp_method == "ring") && !run.known_routing.rows &&
         run.optimizer.post_validation == "off";
}

}  // namespace

void set_types(LayoutCase& q, const PrecisionSpec& p) {
  const bool half = p.compute == "auto" || p.compute == "bf16";
  if ((p.compute == "fp8" || p.fp8 != "none") && q.figures.fp8 > 0) q.numbers = NumberType::fp8;
  q.grad_bytes = p.reduce == "bf16" || (p.reduce == "auto" && half) ? 2 : 4;
  q.optimizer = double(state_bytes_per_parameter("bf16", "bf16", p.moments)[size_t(Bucket::optimizer)]);
  if (p.grads == "bf16") q.grad_stored = 2;
  if (p.grads == "f32" || (p.grads == "auto" && !half)) q.grad_stored = 4;
}

void set_offload(LayoutCase& q, const RunSpec* run, const SubjectDevice& d) {
  const bool said = run && run->layout.offloads_state();
  const bool own_memory = !run || run->train.device != "cpu";  // a device's, next to the host's
  const bool to_host = said ? run->layout.offload_to == "host" : d.host > 0 && own_memory;
  q.disk = to_host ? d.host : d.disk;
  q.disk_each_way = to_host;
}

LayoutCase layout_case_of(const RunSpec& run, const SubjectDevice& d, PricedBy by) {
  LayoutCase q;
  q.model = run.model;
  q.seq = run.data.seq_len;
  q.device = d.name;
  q.figures = d.figures;
  by.device = d.name;
  q.fits = ordered_constants(constants_of(by));
  q.software = kTrireme;
  q.kinds = DeviceKinds::of(d.site, run.world(), by, "cluster.file");
  q.keys = searched_keys(with_expected_load(run).layout);
  set_types(q, run.precision);
  set_offload(q, &run, d);
  return q;
}

std::optional<SearchLayout> layout_of(const RunSpec& run) {
  const LayoutSpec& o = run.layout;
  const std::optional<std::string_view> schedule = searched_schedule(o.pp > 1 ? o.schedule : "1f1b");
  if (!schedule || !is_searched(run)) return std::nullopt;
  SearchLayout l{.gpus = run.world(), .global = run.batch.global};
  l.tp = o.tp;
  l.pp = o.pp;
  l.dp = o.dp;
  l.cp = o.cp;
  l.ep = o.ep;
  l.micro = run.batch.micro;
  l.chunks = o.pp > 1 ? o.chunks : 1;
  l.schedule = *schedule;
  l.stage_layers = interned(NumberList(o.stage_layers.begin(), o.stage_layers.end()));
  l.again = o.recompute == "none" ? Again::none : o.recompute == "full" ? Again::full : Again::selective;
  l.zero = effective_zero(o);
  l.shards = l.zero == 3 && o.shard_group < replicas_of(o) ? o.shard_group : 0;
  l.offload = o.offloads_state();
  for (const Nearest n : {Nearest::tensor, Nearest::stages, Nearest::replicas})
    if (order_of(n) == o.order) l.nearest = n;
  return l;
}

MeasuredRatios unseen_ratios(bool experts, bool known_software) {
  constexpr MeasuredRatios kDense{0.91, 1.17}, kDenseKnown{0.92, 1.11};
  constexpr MeasuredRatios kExperts{0.74, 1.33}, kExpertsKnown{0.87, 1.20};
  if (experts) return known_software ? kExpertsKnown : kExperts;
  return known_software ? kDenseKnown : kDense;
}

void set_interval(LayoutCase& q, bool known_software) {
  const MeasuredRatios m = unseen_ratios(q.model.moe(), known_software);
  q.low = m.low;
  q.high = m.high;
}

namespace {

ScaledRun scaled_run(const LayoutCase& q, const PricedBy& by, const RunSpec& run) {
  return {.run = run,
          .window = q.window,
          .window_share = q.window_share,
          .expert_bias = q.expert_bias,
          .figures = q.figures,
          .by = by,
          .software = q.software,
          .attention = q.attention,
          .offload = q.disk,
          .offload_each_way = q.disk_each_way,
          .kinds = q.kinds};
}

// A run in the search's terms.
struct SearchedRun {
  LayoutCase request;
  SearchLayout layout;
  PricedBy by;
};
// Nothing: the search has no such layout. Throws bad_request naming what closed forms do not know.
std::optional<SearchedRun> in_terms_of_search(const RunSpec& run, const ClusterSpec& cluster, PricedBy by) {
  SubjectDevice d = device_of(cluster, "bf16", run.world());
  complete_figures(d, run.world(), "cluster.file");
  by.device = d.name;
  LayoutCase q = layout_case_of(run, d, by);
  step_case_of({.run = run, .figures = d.figures, .by = {}, .software = kTrireme, .offload = q.disk});
  const std::optional<SearchLayout> l = layout_of(run);
  if (!l) return std::nullopt;
  q.keys = with_expected_load(run).layout;
  return SearchedRun{std::move(q), *l, std::move(by)};
}

// The result of f(); nothing if it throws bad_request.
template <class F>
auto if_known(const F& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    return std::nullopt;
  }
}

}  // namespace

StepTotals replayed_step(const LayoutCase& q, const PricedBy& by, const RunSpec& run) {
  return step_totals(world_of(scaled_run(q, by, run)));
}

std::optional<ScaledRun> searched_run(const RunSpec& run, const ClusterSpec& cluster, const PricedBy& by) {
  return if_known([&]() -> std::optional<ScaledRun> {
    const std::optional<SearchedRun> s = in_terms_of_search(run, cluster, by);
    if (!s) return std::nullopt;
    ScaledRun scaled = scaled_run(s->request, s->by, run);
    world_of(scaled);  // it refuses by name what it does not know
    return scaled;
  });
}

std::optional<SearchedStep> searched_step(const RunSpec& run, const ClusterSpec& cluster,
                                          const PricedBy& by) {
  return if_known([&]() -> std::optional<SearchedStep> {
    std::optional<SearchedRun> known = in_terms_of_search(run, cluster, by);
    if (!known) return std::nullopt;
    LayoutCase& q = known->request;
    const Priced p = price_layout(q, known->layout);
    SearchedStep s{.step_s = p.time.total, .closed_s = p.time.total};
    try {
      s.step_s = double(replayed_step(q, known->by, run).makespan) * 1e-9;
    } catch (const Error& e) {
      if (e.fault != Fault::request) throw;
    }
    set_interval(q, false);
    s.interval = interval_of(q, p, s.step_s);
    for (const auto& [name, seconds] : tolls_of(p.time)) s.tolls.emplace_back(name, seconds / p.time.total);
    s.roof_s = bound_s(q, known->layout, s.step_s);
    return s;
  });
}

namespace {

// The run without the settings that the search does not know; adds their keys to `without`.
RunSpec known_part(const RunSpec& run, std::vector<std::string>& without) {
  RunSpec known = run;
  const auto reset = [&](std::string_view key, auto& value, const auto& to) {
    if (value == to) return;
    value = to;
    without.emplace_back(key);
  };
  const RunSpec plain;
  LayoutSpec& l = known.layout;
  if (run.lora.active()) known.lora = {}, without.emplace_back("lora");
  reset("optimizer.name", known.optimizer.name, plain.optimizer.name);
  reset("optimizer.post_validation", known.optimizer.post_validation, "off");
  if (run.known_routing.rows) known.known_routing = {}, without.emplace_back("--routing");
  reset("layout.recompute_blocks", l.recompute_blocks, plain.layout.recompute_blocks);
  if (l.recompute == "selective")
    reset("layout.recompute_tensors", l.recompute_tensors, plain.layout.recompute_tensors);
  reset("layout.recompute_shard", l.recompute_shard, false);
  reset("layout.tp_chunks", l.tp_chunks, int64_t(1));
  if (l.cp > 1) reset("layout.cp_method", l.cp_method, "ring");
  if (l.offloads_inputs()) reset("layout.offload", l.offload, l.offloads_state() ? "state" : "none");
  return known;
}

}  // namespace

std::optional<NearestStep> nearest_step(const RunSpec& run, const ClusterSpec& cluster, const PricedBy& by) {
  if (std::optional<SearchedStep> s = searched_step(run, cluster, by); s && !run.lora.active())
    return NearestStep{std::move(*s), {}, run};
  NearestStep n;
  RunSpec known = known_part(run, n.without);
  if (n.without.empty()) return std::nullopt;
  std::optional<SearchedStep> s = searched_step(known, cluster, by);
  if (!s) return std::nullopt;
  n.step = std::move(*s);
  n.run = std::move(known);
  return n;
}

std::string prices_text(const RunSpec& run, const ClusterSpec& cluster, const PricedBy& by, double step_s) {
  const std::string text = text_of(by);
  if (text.empty()) return "";
  const std::optional<SearchedStep> shipped = searched_step(run, cluster, {});
  return shipped ? text + fmt::format("; this step is x {:.3f} of the shipped constants'",
                                      step_s / shipped->step_s)
                 : text;
}

std::string why_no_nearest_step(const RunSpec& run, const ClusterSpec& cluster) {
  std::vector<std::string> without;
  try {
    in_terms_of_search(known_part(run, without), cluster, {});
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    return e.what();
  }
  return "";
}

}  // namespace trireme
