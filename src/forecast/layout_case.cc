#include "forecast/layout_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/stage_time.h"
#include "cost/time_to_loss.h"
#include "cost/walls.h"
#include "forecast/layout_bound.h"
#include "forecast/scaled_run.h"
#include "forecast/schedule_idle.h"
#include "spec/rank_kinds.h"

namespace trireme {
namespace {

constexpr KnownSchedule kKnown[] = {
    {"1f1b", PipelineOrder::one_f_one_b, true},
    {"gpipe", PipelineOrder::gpipe, true},
    {"interleaved", PipelineOrder::one_f_one_b, true},
    {"zb-h1", PipelineOrder::zb_h1, false},
    {"zb-h2", PipelineOrder::zb_h2, false},
    {"zb-v", PipelineOrder::zb_v, false},
    {"v-half", PipelineOrder::v_half, false},
    {"v-min", PipelineOrder::v_min, false},
    {"dualpipe-v", PipelineOrder::dualpipe_v, false},
};

// A block's passes with what its collectives keep it waiting for, in the first order of axes: other orders
// have the same schedule's gaps.
PassShares shares_of(const LayoutCase& q, StepCase& c) {
  const Nearest order = std::exchange(c.nearest, Nearest::tensor);
  const ActionSeconds a = layer_actions(c, q.figures, q.fits, c.model.expert_blocks() > 0);
  c.nearest = order;
  return {a.forward.total(), a.input.total() + a.again.total(), a.weight.total()};
}

std::vector<std::string_view> schedules_searched() {
  std::vector<std::string_view> names;
  for (const KnownSchedule& s : kKnown) names.push_back(s.name);
  return names;
}

const KnownSchedule& schedule_named(std::string_view name) {
  for (const KnownSchedule& s : kKnown)
    if (s.name == name) return s;
  bad_request("layout.schedule = \"{}\": no closed form of its idle time; use one of {}", name,
              fmt::join(schedules_searched(), ", "));
}

}  // namespace

RunSpec run_of(const LayoutCase& q, const std::optional<RunSpec>& given) {
  RunSpec run = given.value_or(RunSpec());
  if (!given) {
    run.model = q.model;
    run.model.max_positions = 0;
    run.data.seq_len = q.seq;
    // For its scratch: no processor's is on a device that is searched.
    if (q.run)
      run.train.device = q.run->train.device;
    else if (q.software.taped())
      run.train.device = "cuda";
    run.precision.compute = "bf16";
    if (q.numbers == NumberType::fp8) run.precision.fp8 = "current";
    run.precision.reduce = q.grad_bytes == 2 ? "bf16" : "f32";
    if (q.grad_stored > 0) run.precision.grads = q.grad_stored == 2 ? "bf16" : "f32";
    run.layout.ep_buffer = q.keys.ep_buffer;
    run.layout.cut = q.keys.cut;
  }
  run.data.seq_len = q.seq, run.model.finish(q.seq);
  return run;
}

std::vector<Nearest> orders_alike(const Priced& p) {
  std::vector<Nearest> all;
  for (int i = 0; i < int(kOrders); i++)
    if (p.alike >> i & 1) all.push_back(Nearest(i));
  return all;
}

std::string text_of(const Priced& p) {
  std::string s;
  for (const Nearest n : orders_alike(p)) s += fmt::format("{} \"{}\"", s.empty() ? "" : ",", order_of(n));
  return text_of(p.layout) + (s.empty() ? "" : fmt::format(" (or order{})", s));
}

std::span<const KnownSchedule> known_schedules() {
  return kKnown;
}

// No schedule has been measured to
// idle less than 0.06 of 1F1B's (docs/score.md).
void set_schedule(const LayoutCase& q, StepCase& c, const KnownSchedule& s, int64_t chunks) {
  constexpr double kLeast = 0.06;
  c.chunks = chunks, c.order = s.order, c.bubble = 1;
  if (q.software.ordered() || s.as_1f1b || c.pp == 1) return;
  const double idle = idle_of_1f1b(s.name, c.pp, c.microbatches, shares_of(q, c));
  c.bubble = std::max(kLeast, idle) * (is_v(s.order) ? double(chunks) : 1);
}

void set_again(StepCase& c, Again a) {
  c.recompute = a == Again::full ? 1 : 0;
  c.renorm = a == Again::selective;
}

double stored_grads(const LayoutCase& q, int64_t microbatches) {
  return q.grad_stored > 0 ? q.grad_stored : microbatches > 1 ? 4 : 2;
}

void hold_more(const LayoutCase& q, const SearchLayout& l, StepMemory& m) {
  double more = 0;
  for (const HeldMore& h : q.held_more)
    if (h.schedule == l.schedule && h.zero == l.zero && h.again == l.again)
      more = (h.times - 1) * m.activations + h.bytes;
  for (const BookedMore& b : q.booked_more)
    if (b.layout.holds_as(l)) more = std::max(more, b.bytes);
  if (more == 0) return;
  m.activations += more;
  m.total = m.states + m.activations + m.gradients + m.logits + m.base;
}

double price_of(const LayoutCase& q, int64_t gpus) {
  const double stated = q.price_of_kinds ? used_kinds(q.site, gpus).price_per_hour : 0;
  return stated > 0 ? stated : q.price;
}

ClusterPrice cluster_price(const LayoutCase& q, int64_t gpus) {
  const Goodput g = goodput_of(q, gpus);
  return {g.share, double(g.paid) / 3600 * (q.price > 0 ? price_of(q, gpus) : 1)};
}

void set_price(const LayoutCase& q, const ClusterPrice& c, Priced& p) {
  const double tokens = step_tokens(q, p.layout);
  p.token_s = p.time.total / tokens / c.goodput;
  p.cost = p.token_s * c.cost_s;
  p.headroom = q.figures.memory - p.memory.used();
  p.score = p.token_s;
  if (q.by == RankBy::cost) p.score = p.cost;
  if (q.by == RankBy::loss) p.score = p.token_s * tokens_to_loss(active_parameters(q.model), q.loss, tokens);
}

std::optional<std::string_view> searched_schedule(std::string_view name) {
  for (const KnownSchedule& s : kKnown)
    if (s.name == name) return s.name;
  return std::nullopt;
}

double seconds_of(const LayoutCase& q, const Priced& p) {
  return q.by == RankBy::loss ? p.score : p.token_s;
}
double cost_of(const LayoutCase& q, const Priced& p) {
  return q.by == RankBy::loss ? p.cost / p.token_s * p.score : p.cost;
}

double step_tokens(const LayoutCase& q, const SearchLayout& l) {
  return double(l.global) * double(q.seq);
}

std::shared_ptr<StepBound> bound_of(const LayoutCase& q) {
  return q.bound ? q.bound : std::make_shared<StepBound>(q.model, q.seq, q.keys.cut);
}

StepCase step_case(const LayoutCase& q, const SearchLayout& l) {
  StepCase c{.model = q.model,
             .seq = q.seq,
             .window = q.window,
             .window_share = q.window_share,
             .expert_bias = q.expert_bias};
  c.tp = l.tp, c.pp = l.pp, c.dp = l.dp, c.cp = l.cp, c.ep = l.ep;
  c.micro = l.micro, c.microbatches = l.microbatches();
  c.zero = l.zero, c.shards = l.shards;
  c.stage_layers = l.stage_layers;
  c.grad_bytes = q.grad_bytes, c.grad_stored = stored_grads(q, c.microbatches);
  c.keeping.optimizer = q.optimizer;
  c.numbers = q.numbers;
  c.nearest = l.nearest;
  c.offload = l.offload ? q.disk : 0, c.offload_each_way = q.disk_each_way;
  c.attention = q.attention;
  c.software = q.software, c.cast = c.grad_stored != c.grad_bytes;
  set_layout_keys(c, q.keys);
  set_again(c, l.again);
  const KnownSchedule& schedule = schedule_named(l.schedule);
  set_schedule(q, c, schedule, l.chunks);
  return c;
}

Goodput goodput_of(const LayoutCase& q, int64_t gpus) {
  return goodput(q.reliability, gpus, checkpoint_plan(checkpoint_case_of(q, gpus, 0)).stall_s);
}

CheckpointCase checkpoint_case_of(const LayoutCase& q, int64_t gpus, double step_s) {
  ClusterSpec site = q.site;
  site.nodes = std::max<int64_t>(1, int64_t(std::ceil(double(gpus) / double(site.devices_per_node))));
  const double plain = double(checkpoint_bytes_per_parameter({})) * double(parameters(q.model));
  CheckpointCase c = checkpoint_case(site, q.saved_bytes > 0 ? q.saved_bytes : plain, gpus, step_s);
  c.mtbf_s = q.reliability.mtbf_device_s / double(gpus);
  c.restart_s = q.reliability.restart_s;
  if (q.run) c.stated = q.run->train.checkpoint_every;
  return c;
}

std::shared_ptr<RankBytes> bytes_of(const LayoutCase& q) {
  if (q.bytes) return q.bytes;
  RunSpec run = run_of(q, q.run);
  run.model = q.model;  // --largest tries models of other sizes
  run.model.finish(q.seq);
  return std::make_shared<RankBytes>(std::move(run), q.keys.cut);
}

RankRoom room_of(const LayoutCase& q, const SearchLayout& l) {
  if (!q.kinds) return {};
  RankRoom room{.devices = q.kinds->of_ranks(degrees_of(l)),
                .more = std::vector<double>(size_t(q.kinds->numbers()))};
  for (const int64_t number : *room.devices)
    room.more[size_t(number)] = (q.kinds->at(number).figures.memory - q.figures.memory) * q.memory_share;
  return room;
}

double peak_of(const LayoutCase& q, const SearchLayout& l) {
  if (!q.kinds) return double(l.gpus) * q.figures.bf16;
  return peak_of_ranks(q.kinds->cluster(), l.gpus, "bf16");
}

void LayoutCase::change(const std::function<void(DeviceFigures&, FitValues&)>& f) {
  f(figures, fits);
  if (kinds) kinds = kinds->changed(f);
}

StepMemory closed_memory(const LayoutCase& q, const SearchLayout& l) {
  if (q.software.taped()) return bytes_of(q)->of(l, q.fits[size_t(Fit::base)], room_of(q, l));
  return step_memory(step_case(q, l), q.fits);
}

StepSeconds step_of(const LayoutCase& q, const SearchLayout& l, bool exact) {
  const StepCase c = step_case(q, l);
  if (!q.software.ordered()) return step_time(c, q.figures, q.fits);
  LayoutBound one(q.figures, q.fits, q.keys, q.kinds.get());
  return one.of(*bound_of(q), l.schedule, c, 0, 0, exact);
}

Priced price_layout(const LayoutCase& q, const SearchLayout& l) {
  Priced p{.layout = l, .time = step_of(q, l, true), .memory = {}};
  if (q.software.taped()) {
    p.memory = closed_memory(q, l);
    hold_more(q, l, p.memory);
  } else {
    const StepCase c = step_case(q, l);
    for (const PipelinePlace& place : pipeline_places(c)) {
      StepMemory m = rank_memory(c, q.fits, place);
      hold_more(q, l, m);
      if (m.total > p.memory.total) p.memory = m;
    }
  }
  set_price(q, cluster_price(q, l.gpus), p);
  return p;
}

double mfu_of(const LayoutCase& q, const Priced& p) {
  const double flops = train_flops_per_token(q.model, q.seq) * step_tokens(q, p.layout);
  return flops / (p.time.total * peak_of(q, p.layout));
}

std::vector<std::pair<std::string, double>> tolls_of(const StepSeconds& t) {
  std::vector<std::pair<std::string, double>> all = {{"products", t.products},
                                                     {"attention", t.attention},
                                                     {"norms and activations", t.elementwise},
                                                     {"launches", t.host},
                                                     {"tensor parallel sums", t.tp},
                                                     {"context exchange", t.cp},
                                                     {"experts' exchange", t.ep},
                                                     {"logits and loss", t.head},
                                                     {"pipeline bubble", t.bubble},
                                                     {"messages between stages", t.messages},
                                                     {"gradients and weights", t.gradients},
                                                     {"optimizer", t.optimizer},
                                                     {"offload", t.offload},
                                                     {"jitter and pace", t.jitter}};
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

std::pair<std::string, double> binding_toll(const StepSeconds& t) {
  const auto all = tolls_of(t);
  return all[all[0].first == "products" ? 1 : 0];
}

double bound_s(const LayoutCase& q, const SearchLayout& l, double step_s) {
  LayoutCase roof = q;
  roof.change([](DeviceFigures&, FitValues& fits) { fits = constants_at_the_roof(fits); });
  return std::min(step_of(roof, l, true).total, step_s);
}

StepInterval interval_of(const LayoutCase& q, const Priced& p, double simulated_s) {
  const double simulated = simulated_s > 0 ? simulated_s : p.time.total;
  // An ordered software's closed form is only a bound of its replay.
  const bool bounded = simulated_s > 0 && q.software.ordered();
  const double least = bounded ? simulated : std::min(p.time.total, simulated);
  const double most = bounded ? simulated : std::max(p.time.total, simulated);
  const StepInterval i{std::min(p.time.total, std::max(q.low * least, bound_s(q, p.layout, least))),
                       q.high * most};
  require(i.low <= p.time.total && p.time.total <= i.high, "the step's forecast is inside its interval");
  return i;
}

}  // namespace trireme
