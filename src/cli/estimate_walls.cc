#include "cli/estimate_walls.h"

#include <algorithm>

#include "base/say.h"
#include "catalog/call_price.h"
#include "catalog/catalog.h"
#include "catalog/price_list.h"
#include "cost/flops.h"
#include "cost/walls.h"
#include "estimate/walls.h"
#include "forecast/forecast.h"
#include "forecast/fullest_arena.h"
#include "forecast/run_costs.h"
#include "forecast/scaled_run.h"
#include "forecast/searched_step.h"
#include "search/search.h"
#include "spec/batch_ramp.h"
#include "spec/run_schedule.h"
#include "spec/size_rule.h"
#include "spec/supported.h"

namespace trireme::cli {
namespace {

// Replayed, as the search prices this layout.
StepForecast replayed_form_of(const PlannedRun& p) {
  const RunSpec& run = p.run;
  const StepCase step = step_case_of(
      {.run = run, .figures = p.device.figures, .by = {.device = p.device.name}, .software = kTrireme});
  const LayoutCase q = layout_case_of(run, p.device);
  const double seconds = double(replayed_step(q, {.device = p.device.name}, run).makespan) * 1e-9;
  return {.step_s = seconds,
          .mfu = step_flops(step, false) / (double(step.gpus()) * p.device.figures.bf16 * seconds),
          .tokens = double(step.dp) * double(step.micro) * double(step.microbatches) * double(step.seq),
          .source = "replayed in closed form's prices, as in trireme search"};
}

// As kernels were measured; else of GPUs in closed form; else, and where that form does not know the run, at
// the roof.
StepForecast forecast_of(PlannedRun& p, RunBytes& total) {
  settle(p);
  const Forecast f = forecast(p.run, schedule_of(p.run), p.cluster, rank_threads_of(p.run));
  total = {.bytes = double(f.device_bytes()) + beside_bytes(p.run),
           .fits = f.fits,
           .source = "as in plan",
           .sharing = f.ranks_on_device};
  if (f.step_s == 0) return {};
  if (!f.expected && p.run.train.device == "cuda") {
    try {
      PlannedRun known = p;
      complete_figures(known.device, p.run.world(), "estimate");
      return replayed_form_of(known);
    } catch (const Error& e) {
      if (e.fault != Fault::request) throw;
    }
  }
  return {.step_s = f.step_s,
          .mfu = f.mfu,
          .tokens = double(f.tokens),
          .source = f.closed_form ? "closed form, as in trireme search"
                    : f.expected  ? "expected, trireme plan"
                                  : "bound, trireme plan",
          .bound = !f.expected};
}

// The machines, with the link in a node that the figures have where the file states none.
ClusterSpec machines_of(const SubjectDevice& device) {
  ClusterSpec site = device.site;
  if (site.intra_node.bandwidth == 0) site.intra_node.bandwidth = device.figures.bus;
  return site;
}

// The run's own model and layout, on --cluster or its own machine. MFU: on meta, or of a device by name,
// which nothing can be booked for, in closed form.
void from_run(const RunRequest& request, const WallsRequest& q, const std::string& cluster, WallsCase& c,
              SubjectDevice& device) {
  PlannedRun planned = planned_run(request, cluster);
  if (!planned.note.empty() && !request.json) print_text("{}\n\n", planned.note);
  device = planned.device;
  refuse_adapters(planned.run, "estimate");
  if (planned.booked()) {
    c.forecast = forecast_of(planned, c.total.emplace());
  } else {
    if (q.mfu == 0) c.forecast = replayed_form_of(planned);
    c.total = searched_bytes(planned.run, planned.device);
  }
  const RunSpec& run = planned.run;
  c.of_run = true;
  c.saved_bytes = double(checkpoint_bytes(run));
  c.compute = run.precision.compute;
  c.name = model_name(run.model);
  c.model = run.model;
  c.parameters = double(parameters(run.model));
  c.per = state_bytes_per_parameter(run.precision.compute, run.precision.grads, run.precision.moments);
  c.seq = run.data.seq_len, c.micro = run.batch.micro;
  c.gpus = run.world(), c.tp = run.layout.tp, c.pp = run.layout.pp, c.microbatches = run.microbatches();
  c.zero = effective_zero(run.layout);
  c.recompute = run.layout.recompute == "full";
  c.ep = run.layout.ep;
  if (device.site.devices_per_node > 0) {
    const Mesh mesh = mesh_of(run.layout);
    static constexpr Axis kReplicas[] = {Axis::dp, Axis::cp}, kOfExperts[] = {Axis::edp};
    c.site = machines_of(device);
    c.replicas_at = placement_of(mesh.group(0, kReplicas), run.world(), *c.site);
    c.expert_replicas_at = placement_of(mesh.group(0, kOfExperts), run.world(), *c.site);
  }
  c.chunks = run.layout.chunks, c.plain_bubble = bubble_is_plain(run.layout.schedule);
  c.tokens = double(samples_until(run.batch, run.train.steps)) * double(run.data.seq_len);
}

// The layout that --tp, --pp, ... say. Sequences of a step: those of --microbatches, else of one.
SearchLayout layout_of_options(const WallsCase& c) {
  SearchLayout l{.gpus = c.gpus, .tp = c.tp, .pp = c.pp, .dp = int64_t(c.replicas()), .ep = c.ep};
  l.micro = c.micro;
  l.global = l.dp * c.micro * std::max<int64_t>(1, c.microbatches);
  l.chunks = c.chunks;
  l.schedule = c.chunks > 1 ? "interleaved" : "1f1b";
  l.again = c.recompute ? Again::full : Again::none;
  l.zero = c.zero;
  return l;
}

// The same in the first order of the axes.
void place_replicas(WallsCase& c, const SubjectDevice& device) {
  if (device.name.empty()) return;
  c.site = machines_of(device);
  const auto experts = std::max<int64_t>(1, int64_t(c.replicas()) * c.tp / c.ep);
  c.replicas_at = place_beyond(*c.site, int64_t(c.replicas()), c.tp);
  c.expert_replicas_at = place_beyond(*c.site, experts, c.ep);
  c.replicas_at.sharing = c.expert_replicas_at.sharing = std::min(c.site->devices_per_node, c.gpus);
}

// A trireme run of the options' model and layout, with the types that search's runs have. Its bytes and its
// step are those that search prices.
void price_as_search(WallsCase& c, const SubjectDevice& device) {
  if (!c.model || c.seq == 0 || device.name.empty()) return;
  if (int64_t(c.replicas()) * c.tp % c.ep != 0) return;  // --ep without --gpus
  PlannedRun p{.run = {}, .cluster = {}, .device = device, .note = "", .asked = {}};
  LayoutCase q;
  q.model = *c.model;
  q.seq = c.seq;
  q.software = kTrireme;
  p.run = resolve(with_layout(run_of(q, std::nullopt), layout_of_options(c)), {.native_bf16 = true});
  c.total = searched_bytes(p.run, device);
  if (c.mfu > 0 || c.microbatches == 0) return;
  try {
    complete_figures(p.device, c.gpus, "--cluster");
    c.forecast = replayed_form_of(p);
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    say("note: the step is not known: {}\n", e.what());
  }
}

// Options of experts and of chunks that this model or this pipeline has no use for.
void refuse_without_use(const WallsRequest& q, const WallsCase& c) {
  const int64_t experts = c.model ? c.model->experts : 0;
  for (const auto& [name, n] : {std::pair{"--ep", q.ep}, {"--top-k", q.top_k}}) {
    if (n <= 1 || experts > 0) continue;
    if (!c.model)
      bad_request("{} = {}: the experts are not known; name the model (--model mixtral-8x7B)", name, n);
    bad_request("{} = {}: {} has no experts; leave it out", name, n, c.name);
  }
  if (experts > 0 && q.top_k > experts)
    bad_request("--top-k = {}: {} has {} experts; expected 1 to {}", q.top_k, c.name, experts, experts);
  if (q.chunks > 1 && q.pp == 1)
    bad_request("--chunks = {}: a pipeline's ranks have chunks; give --pp 2 or more, or leave it out",
                q.chunks);
}

void refuse_contradictions(const WallsCase& c) {
  if (c.gpus % (c.tp * c.pp) != 0)
    bad_request("--gpus: {} is no multiple of --tp {} x --pp {}", c.gpus, c.tp, c.pp);
  if (c.reach > 0 && c.used() == 0) bad_request("--reach: {} of what? --mfu says what the run has", c.reach);
}

// Options of money that no line follows from. A budget alone buys device-hours at a price.
void say_unread(const WallsRequest& q, const PlanSubject& subject, const WallsCase& c) {
  const bool buys = c.budget > 0 && c.price > 0;
  if (c.used() == 0)
    for (const auto& [name, given] : {std::pair{"--price", q.price > 0},
                                      {"--region", !subject.region.empty() && !buys},
                                      {"--budget", c.budget > 0 && !buys}})
      if (given)
        say("note: {}: cost needs how fast it is: --mfu, or --tp, --pp, --microbatches and a shape\n", name);
  if (c.budget > 0 && c.price == 0)
    say("note: --budget: what it buys needs a price: --price, or --region and a device\n");
}

// The arena that search confirms a layout with; no bytes: this version does not run it, or booking takes
// longer than a second.
FullestArena booked_arena(const RunSpec& run, const RankRoom& room) {
  constexpr int64_t kMostActions = 8000;  // forward passes of all stages
  if (run.layout.pp * run.layout.chunks * run.microbatches() > kMostActions) return {};
  if (!why_not_run(run).empty()) return {};
  return fullest_arena(run, room);
}

// The option whose value the refusal concerns.
std::string refused_option(Refusal r, const WallsCase& c) {
  if (r == Refusal::layers) return fmt::format("--pp = {}", c.pp);
  if (r == Refusal::experts) return fmt::format("--ep = {}", c.ep);
  return fmt::format("--tp = {}", c.tp);
}

// Refuses what search refuses of the model in this layout. Without --gpus, --ep may exceed the devices that
// the other options need.
void refuse_layout(const WallsCase& c, bool gpus_given) {
  if (!c.model) return;
  const ModelSpec& m = *c.model;
  constexpr double kMostSequences = 1e12;  // per step, so that 64 bits count the tokens
  if (const double n = c.replicas() * double(c.micro) * double(std::max<int64_t>(1, c.microbatches));
      n > kMostSequences)
    bad_request("--microbatches = {}: {:.3g} sequences a step; expected at most {:.0e}", c.microbatches, n,
                kMostSequences);
  // Without --seq no sequence is divided.
  const int64_t seq = c.seq > 0 ? c.seq : c.tp;
  if (const Refusal r = division_refusal(m, seq, layout_of_options(c)); r != Refusal::count)
    bad_request("{}: {}: {} has {} heads, {} of keys and values, {} layers{}", refused_option(r, c),
                text_of(r), c.name, m.heads, m.kv_heads, m.layers,
                m.moe() ? fmt::format(", {} experts", m.experts) : "");
  if (const int64_t ranks = int64_t(c.replicas()) * c.tp; gpus_given && ranks % c.ep != 0)
    bad_request("--ep = {}: must divide the {} ranks of a stage (--gpus {} / --pp {})", c.ep, ranks, c.gpus,
                c.pp);
  if (c.chunks > 1 && !chunks_divide(m.layers, c.pp, c.chunks))
    bad_request("--chunks = {}: --pp {} x {} stages do not divide the {} layers of {}", c.chunks, c.pp,
                c.chunks, m.layers, c.name);
  if (c.chunks > 1 && c.microbatches % c.pp != 0)
    bad_request("--chunks = {}: --microbatches {} must be a multiple of --pp {} with interleaved chunks",
                c.chunks, c.microbatches, c.pp);
}

}  // namespace

std::optional<RunBytes> searched_bytes(const RunSpec& run, SubjectDevice device) {
  try {
    complete_figures(device, run.world(), "--cluster");
    const std::optional<SearchLayout> l = layout_of(run);
    if (!l) return std::nullopt;
    const LayoutCase q = layout_case_of(run, device);
    const StepMemory closed = price_layout(q, *l).memory;
    RunBytes r{.bytes = closed.total, .source = "at least, as the arena's holes are not booked"};
    double more = closed.more;
    if (const FullestArena arena = booked_arena(run, room_of(q, *l)); arena.bytes > 0) {
      r.bytes = double(arena.bytes) + closed.base;
      more = arena.more;
      r.source = "booked as in trireme search";
    }
    r.fits = r.bytes - more <= device.figures.memory;
    return r;
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    return std::nullopt;
  }
}

void WallsRequest::add_to(CLI::App& verb) {
  constexpr double kMost = 1e21, kMostDegree = 1e9;
  const auto number = [&](const char* name, double& to, double low, double high, const char* what) {
    verb.add_option(name, to, what)->check(number_between(low, high));
  };
  verb.add_flag("--arithmetic", arithmetic, "prints the formula of each number under it");
  verb.add_flag("--all", all, "prints all numbers, not only those that fit a screen");
  number("--tokens", tokens, 1, kMost, "to train on (default: 20 a parameter, or the run's)");
  number("--mfu", mfu, 1e-6, 1,
         "share of the peak that training uses, 0.4; else forecast where a layout is known");
  number("--reach", reach, 1e-6, 1, "a better share: what --mfu wastes against it");
  verb.add_option("--price", price, "of a device-hour, in any currency (default: the cluster file's)")
      ->check(number_between(0, 1e9));
  number("--budget", budget, 0, 1e18, "money to spend");
  const auto degree = [&](const char* name, int64_t& to, const char* what) {
    verb.add_option(name, to, what)->check(number_between(1, kMostDegree));
  };
  degree("--micro", micro, "sequences of a microbatch (default: 1)");
  degree("--tp", tp, "tensor parallel degree");
  degree("--pp", pp, "pipeline ranks");
  degree("--microbatches", microbatches, "of a step, of one replica");
  verb.add_option("--zero", zero, "ZeRO stage of one device's total memory")
      ->check(number_between(0, 3))
      ->capture_default_str();
  verb.add_flag("--recompute", recompute, "all blocks are recomputed from their inputs");
  degree("--ep", ep, "expert parallel degree");
  degree("--top-k", top_k, "experts per token (default: the model's)");
  number("--mtbf", mtbf_hours, 1e-3, 1e12, "device-hours between failures (default: the cluster's)");
  number("--save", save_s, 1e-6, 1e9,
         "seconds that training waits for a save (default: its copy to the host)");
  degree("--chunks", chunks, "stages a pipeline rank, interleaved");
}

void estimate_walls(const WallsRequest& q, const PlanSubject& subject, const RunRequest& request) {
  WallsCase c;
  SubjectDevice device;
  if (!request.file.empty()) {
    from_run(request, q, subject.cluster, c, device);
  } else {
    const SubjectModel m = model_of(subject);
    c.name = m.name, c.model = m.shape, c.parameters = m.parameters;
    c.gpus = subject.gpus > 0 ? subject.gpus : q.tp * q.pp;
    c.seq = subject.seq, c.micro = q.micro, c.tp = q.tp, c.pp = q.pp, c.microbatches = q.microbatches;
    c.chunks = q.chunks;
    c.zero = q.zero;
    c.recompute = q.recompute;
    c.ep = q.ep;
    device = device_of(subject.cluster, c.gpus);
  }
  if (!device.note.empty()) say("note: {}\n", device.note);
  const std::string none = no_bf16_text(device.name, c.compute);
  if (!none.empty()) say("note: {}\n", none);
  c.active = c.model && c.model->moe() ? active_parameters(*c.model) : c.parameters;
  if (c.of_run && !device.name.empty() && device.figures.bf16 == 0)
    say("note: {} has no peak.{}: no time and no cost follow\n", device.name, c.compute);
  c.device = device.name, c.device_source = device.source, c.figures = device.figures;
  c.mtbf_hours = q.mtbf_hours > 0 ? q.mtbf_hours : device.mtbf_hours;
  c.save_s = q.save_s;
  if (c.model && c.model->moe()) c.top_k = double(c.model->experts_per_token);
  if (q.top_k > 0) c.top_k = double(q.top_k);
  if (q.tokens > 0) c.tokens = q.tokens;
  if (c.tokens == 0) c.tokens = kTokensPerParameter * c.active, c.tokens_assumed = true;
  c.mfu = q.mfu, c.reach = q.reach, c.budget = q.budget;
  const ListedPrice listed = listed_price(subject.prices, subject.region, device.name);
  const bool is_listed = listed.per_hour > 0;
  c.price = q.price > 0 ? q.price : is_listed ? listed.per_hour : device.price_per_hour;
  if (q.price == 0) c.currency = is_listed ? listed.currency : device.currency;
  c.watts = run_watts(device.site, c.gpus);
  c.power = power_text(device.site, c.gpus);
  c.write_bandwidth = checkpoint_case(device.site, 0, c.gpus, 0).write_bandwidth;
  c.host_bandwidth = device.site.host_bandwidth;
  if (c.of_run && q.save_s == 0) {
    CheckpointCase saves = checkpoint_case(device.site, c.saved_bytes, c.gpus, c.forecast.step_s);
    if (c.mtbf_hours > 0) saves.mtbf_s = c.mtbf_hours * 3600 / double(c.gpus);
    c.saves = checkpoint_plan(saves);
  }
  refuse_contradictions(c);
  if (request.file.empty()) {
    refuse_without_use(q, c);
    refuse_layout(c, subject.gpus > 0);
    place_replicas(c, device);
    price_as_search(c, device);
  }
  if (walls_of(c).empty())
    bad_request(
        "estimate: nothing is given; it takes a run file, --model or --parameters, and --tokens, --cluster, "
        "--gpus, "
        "--mfu, --price");
  say_unread(q, subject, c);
  print_text("{}", request.json ? walls_json(c) + "\n" : walls_text(c, q.arithmetic, q.all));
}

}  // namespace trireme::cli
