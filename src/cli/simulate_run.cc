#include "cli/simulate_run.h"

#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <set>

#include "base/counted.h"
#include "base/file.h"
#include "base/json.h"
#include "base/say.h"
#include "base/timed.h"
#include "base/units.h"
#include "catalog/call_price.h"
#include "catalog/catalog.h"
#include "catalog/price_list.h"
#include "cli/plan_subject.h"
#include "cli/search.h"
#include "cli/simulate_layout.h"
#include "cli/slow_booking.h"
#include "cost/checkpoint_interval.h"
#include "cost/checkpoint_plan.h"
#include "cost/walls.h"
#include "forecast/booked_step.h"
#include "forecast/forecast.h"
#include "forecast/own_schedule.h"
#include "forecast/recompute.h"
#include "forecast/scaled_run.h"
#include "forecast/searched_step.h"
#include "measure/speeds.h"
#include "runtime/composed_booking.h"
#include "runtime/recompute.h"
#include "sim/failure.h"
#include "sim/markup.h"
#include "sim/world_report.h"
#include "spec/batch_ramp.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"
#include "spec/toml.h"
#include "trace/chrome_trace.h"

namespace trireme::cli {
namespace {

// What a step is simulated of, and how.
struct Subject {
  RunSpec run;  // resolved
  std::string title, device, priced;
  std::string note;                 // assumptions about the devices' links
  std::optional<ScaledRun> scaled;  // priced in closed form; none: booked here
  ClusterSpec cluster;
  double step_flops = 0, peak_flops = 0, memory = 0;  // of the model; of a device
  NumberList memory_of;  // by pipeline rank, with several kinds of devices; else empty
  double memory_at(int pp_rank) const {
    return memory_of.empty() ? memory : double(memory_of[size_t(pp_rank)]);
  }
  double price_per_hour = 0, mtbf_hours = 0;
  std::string currency;  // the price's
  bool own_run = false;  // a layout that this program trains
  double of_bound = 1;   // factor on the prices of a booked step
  bool bound = false;    // priced at peak rates: no step is faster
  int64_t beside = 0;    // bytes that drivers and libraries have
};

std::string layout_text(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  std::string text;
  for (const auto& [name, n] :
       {std::pair{"tp", l.tp}, {"cp", l.cp}, {"ep", l.ep}, {"pp", l.pp}, {"dp", l.dp}})
    if (n > 1) text += fmt::format("{} {} ", name, n);
  return text +
         fmt::format("{}{}, {} of {} x {} tokens, zero {}, recompute {}", l.schedule,
                     l.chunks > 1 ? fmt::format(" x{}", l.chunks) : "",
                     counted(run.microbatches(), "microbatch", "microbatches"), run.batch.micro,
                     run.data.seq_len, l.zero, l.recompute) +
         fp8_text(run.precision);
}

// A layout that this program runs, on a machine that a cluster file describes.
bool is_own_run(const SimulateRunRequest& q, const RunSpec& run) {
  if (q.closed_form || q.run.file.empty()) return false;
  if (!q.cluster.empty() && !q.cluster.ends_with(".toml")) return false;
  if (!q.software.empty() || (q.has_constants() && (q.by_op || run.train.device != "cuda"))) return false;
  const std::string why = why_not_run(run);
  if (!why.empty()) say("note: plan and train refuse this run, so it is priced in closed form: {}\n", why);
  return why.empty();
}

void resolve_own_run(const SimulateRunRequest& q, Subject& s) {
  if (!q.cluster.empty()) s.run.cluster.file = q.cluster;
  s.cluster = cluster_of(s.run);
  s.note = too_few_devices(s.run, s.cluster, false);
  s.run = resolve(s.run, {.native_bf16 = s.cluster.peak.bf16 > 0});
  find_own_schedule(s.run, s.cluster);
  s.run = choose_recompute(s.run, s.cluster, rank_threads_of(s.run));
  q.routing.give_to(s.run);
  const SubjectDevice device = device_of(s.cluster, s.run.precision.compute, s.run.world());
  s.price_per_hour = device.price_per_hour;
  s.currency = device.currency;
  s.mtbf_hours = s.cluster.mtbf_hours;
}

// On GPUs without measured kernels, `plan` and this print the step that the search replays. If the search
// does not know it, they print a replay op by op at the efficiency of the nearest step that it knows.
bool price_as_searched(const SimulateRunRequest& q, Subject& s) {
  if (q.by_op || s.run.train.device != "cuda" || !has_own_devices(s.cluster) ||
      calibration_of(s.run, s.cluster))
    return false;
  const PricedBy by = priced_by("", "", q.site, q.constants);
  const std::optional<NearestStep> n = nearest_step(s.run, s.cluster, by);
  if (n && !n->without.empty()) {
    s.of_bound = over_op_by_op(*n, s.cluster, rank_threads_of(s.run));
    s.priced = fmt::format(
        "op by op from the tapes that its ranks will issue, at peak rates x {:.2f}, as without {}",
        s.of_bound, fmt::join(n->without, ", "));
    if (q.has_constants()) s.priced += "; " + text_of(by);
    return false;
  }
  if (n) s.scaled = searched_run(s.run, s.cluster, by);
  if (!s.scaled) return false;
  s.note = too_few_devices(s.run, s.cluster, true);
  s.device = s.cluster.name;
  s.priced = "layer by layer, as search and plan price trireme's own runs";
  if (q.has_constants()) s.priced += "; " + prices_text(s.run, s.cluster, by, n->step.step_s);
  if (q.share_links) s.priced += "; links are shared";
  s.step_flops = step_flops(step_case_of(*s.scaled), false);
  s.peak_flops = peak_of_ranks(s.cluster, s.run.world(), "bf16") / double(s.run.world());
  s.memory = s.scaled->figures.memory;
  s.memory_of = memory_of_ranks(s.cluster, s.run.layout);
  s.beside = int64_t(beside_bytes(s.run));
  return true;
}

void book(const SimulateRunRequest& q, Subject& s) {
  if (s.run.world() > kMostBookedRanks)
    bad_request("{} ranks: op by op at most {} are priced; leave out {}", s.run.world(), kMostBookedRanks,
                q.by_op ? "--by-op" : "--routing");
  if (q.share_links)
    bad_request("--share-links: a run that is booked here is priced alone; right is with --closed-form");
  s.device = s.cluster.name;
  if (s.priced.empty()) {
    s.priced = "op by op from the tapes that its ranks will issue, at peak rates";
    s.bound = !calibration_of(s.run, s.cluster);
  }
  s.beside = int64_t(beside_bytes(s.run));
  s.step_flops = step_flops_per_token(s.run) * double(s.run.tokens_per_step());
  s.peak_flops = s.cluster.peak_flops(s.run.precision.compute);
  s.memory = double(s.cluster.memory_bytes) / double(ranks_on_device(s.run, s.cluster));
  s.memory_of = memory_of_ranks(s.cluster, s.run.layout);
  if (const bool gpus = s.run.train.device == "cuda";
      s.peak_flops == 0 && ((gpus && s.bound) || s.cluster.memory_bandwidth == 0))
    bad_request(
        "{}: it has no peak.{}, so products have no price; expected a cluster file with peak.{} and "
        "memory_bandwidth, or another precision.compute",
        s.cluster.name, s.run.precision.compute, s.run.precision.compute);
}

void price_in_closed_form(const SimulateRunRequest& q, Subject& s, ScaledRun scaled) {
  const std::string cluster = q.cluster.empty() ? s.run.cluster.file : q.cluster;
  if (cluster.empty())
    bad_request("--cluster is required: a cluster file (.toml) or a device by name, such as H100");
  SubjectDevice device = device_of(cluster, s.run.world());
  complete_figures(device, s.run.world(), "--cluster");
  s.run = scaled.run = resolve(s.run, {.native_bf16 = device.figures.bf16 > 0});
  scaled.figures = device.figures;
  const bool host = s.run.layout.offload_to == "host";
  scaled.offload = host ? device.host : device.disk, scaled.offload_each_way = host;
  scaled.by.device = device.name, scaled.by.software = q.software, scaled.by.site = q.site;
  scaled.software = profile_of(q.software);
  scaled.attention = shipped_catalog().fused_attention_of(q.software);
  if (!q.constants.empty()) price_by_own(scaled.by, read_text(q.constants), q.constants);
  const std::string by =
      scaled.software.ordered() ? "trireme's own overlap, as in search" : text_of(scaled.by);
  if (scaled.software.ordered())
    scaled.kinds = DeviceKinds::of(device.site, s.run.world(), scaled.by, "--cluster");
  s.device = device.name, s.priced = fmt::format("layer by layer in closed form, with {}; {}",
                                                 by.empty() ? "score's constants" : by, curve_text(device));
  s.note = device.note;
  s.cluster = device.site;
  if (q.share_links) s.priced += "; links are shared";
  s.step_flops = step_flops(step_case_of(scaled), false);
  s.peak_flops = peak_of_ranks(device.site, s.run.world(), "bf16") / double(s.run.world());
  s.memory = device.figures.memory;
  s.memory_of = memory_of_ranks(device.site, s.run.layout);
  s.price_per_hour = device.price_per_hour;
  s.currency = device.currency;
  s.mtbf_hours = device.mtbf_hours;
  s.scaled = std::move(scaled);
}

std::string devices_text(const Subject& s) {
  const int64_t n = s.run.world();
  if (s.cluster.kinds.size() > 1) return used_devices_text(s.cluster, n);
  if (s.device.empty()) return fmt::format("{} of {}", counted(n, "rank"), s.run.cluster.file);
  return fmt::format("{} {}", n, s.device);
}

Subject subject_of(const SimulateRunRequest& q) {
  if (!q.run.file.empty() && !q.model.empty())
    bad_request("--model: {}; the run file {} has its own", q.model, q.run.file);
  if (!q.run.file.empty() && !q.layout.empty())
    bad_request("--layout: the run file {} has its own; --set layout.tp=... changes it", q.run.file);
  Subject s;
  ScaledRun scaled;
  s.run = q.run.file.empty() ? run_of_options(q, scaled) : load_run(q.run.file, q.run.sets);
  if (!s.run.batch.ramp.empty())
    say("note: batch.ramp: {}; a step of {} sequences is simulated\n", ramp_text(s.run.batch),
        s.run.batch.global);
  s.own_run = is_own_run(q, s.run);
  if (s.own_run) {
    resolve_own_run(q, s);
    const bool few = s.run.world() <= kMostBookedRanks;
    if (price_as_searched(q, s)) {
      // priced
    } else if (q.has_constants() && s.of_bound == 1) {  // a booking has no constants
      s.own_run = false;
      price_in_closed_form(q, s, std::move(scaled));
    } else if (few || q.by_op || !q.routing.file.empty()) {
      book(q, s);
    } else {  // refuses by name what closed forms do not know
      s.own_run = false;
      price_in_closed_form(q, s, std::move(scaled));
    }
  } else if (!q.routing.file.empty() || q.by_op) {
    bad_request("{}; rows are booked rank by rank, of a RUN of up to {} ranks on a cluster file",
                q.by_op ? "--by-op" : "--routing: " + q.routing.file, kMostBookedRanks);
  } else {
    price_in_closed_form(q, s, std::move(scaled));
  }
  if (const std::string none = no_bf16_text(s.device, s.run.precision.compute); !none.empty())
    s.note += (s.note.empty() ? "" : "; ") + none;
  s.title = fmt::format("{} on {}: {}", q.model.empty() ? q.run.file : q.model, devices_text(s),
                        layout_text(s.run));
  if (q.run.file.empty()) tell_unnamed(s.run, q);
  return s;
}

// A replayed step, of either kind.
struct Outcome {
  std::vector<StepRow> rows;
  std::vector<RankTape> tapes;
  Replay replay;
  std::vector<int> class_of;  // by rank, its row
  int64_t pieces = 0;
  double seconds = 0;
  bool all_ranks = false;
  std::shared_ptr<const void> owned;  // what the tapes point to
  double step_s() const { return double(replay.makespan) * 1e-9; }
};

// Sets the bytes that `plan` prints: the arena's and the drivers'.
void set_booked_bytes(const Subject& s, std::vector<StepRow>& rows) {
  if (!composes(s.run)) return;
  const Schedule schedule = schedule_of(s.run);
  LayerTapes tapes;
  const ComposedRun composed(s.run, schedule, rank_threads_of(s.run), s.cluster, tapes);
  std::map<int, int64_t> known;  // by pipeline rank
  for (StepRow& r : rows) {
    const auto [it, fresh] = known.try_emplace(r.pp);
    if (fresh) it->second = composed.placed(r.pp).arena_bytes;
    r.peak = it->second + s.beside;
  }
}

Outcome simulated(const SimulateRunRequest& q, const Subject& s, const Disturbance& d) {
  if (s.scaled) {
    World w = world_of(*s.scaled);
    w.disturbed = d, w.share_links = q.share_links;
    WorldReplay all = replay_world(w, q.all_ranks);
    std::vector<StepRow> rows = rows_of(w, all);
    if (s.own_run) set_booked_bytes(s, rows);
    return {std::move(rows), all.tapes,   std::move(all.replay), all.class_of,
            all.pieces,      all.seconds, q.all_ranks,           all.owned};
  }
  SlowBooking booking("--closed-form answers at once, layer by layer");
  auto step = std::make_shared<BookedStep>(booked_step(
      s.run, schedule_of(s.run), s.cluster, rank_threads_of(s.run), d, std::ref(booking), s.of_bound));
  if (s.own_run && has_own_devices(s.cluster)) set_booked_bytes(s, step->rows);
  return {step->rows, step->ranks, step->replay, step->class_of, step->pieces, step->seconds, true, step};
}

void write_trace(const SimulateRunRequest& q, const Subject& s, const Outcome& all) {
  std::vector<Span> spans;
  std::set<int> ranks(q.trace_ranks.begin(), q.trace_ranks.end());
  if (ranks.empty())
    for (const StepRow& row : all.rows) ranks.insert(row.rank);
  for (int rank : ranks) {
    if (rank < 0 || size_t(rank) >= all.class_of.size())
      bad_request("--trace-ranks {}: ranks are 0 to {}", rank, all.class_of.size() - 1);
    const StepRow& row = all.rows[size_t(all.class_of[size_t(rank)])];
    for (const Span& span :
         step_spans(all.tapes[row.at], all.replay.ranks[row.at], row.memory, rank, all.replay.makespan))
      spans.push_back(span);
  }
  std::map<std::string, std::string> about = {
      {"run", s.title}, {"machine", s.device}, {"simulated", "prices " + s.priced}};
  if (s.peak_flops > 0) about["peak_flops"] = fmt::format("{:.6g}", s.peak_flops);
  ChromeTraceFile(q.trace, about).write(spans);
}

struct Numbers {
  double step_s = 0, closed_s = 0, tokens_s = 0, mfu = 0, bubble = 0;
};
Numbers numbers_of(const Subject& s, const Outcome& all, bool disturbed) {
  Numbers n;
  n.step_s = all.step_s();
  n.bubble = bubble_of(all.rows);
  if (s.scaled && !disturbed && s.run.layout.shard_group == 0 && s.run.layout.stage_layers.empty() &&
      !s.scaled->kinds && bubble_is_plain(s.run.layout.schedule)) {
    ScaledRun others = *s.scaled;
    others.software = kElsewhere;
    n.closed_s = step_time(step_case_of(others), others.figures, constants_of(others.by)).total;
  }
  if (n.step_s > 0) n.tokens_s = double(s.run.tokens_per_step()) / n.step_s;
  if (n.step_s > 0 && s.peak_flops > 0)
    n.mfu = s.step_flops / (double(s.run.world()) * s.peak_flops * n.step_s);
  return n;
}

// The bubble of estimate, and what the replayed one has in addition.
std::string equal_stages_text(const RunSpec& run, double bubble) {
  const LayoutSpec& l = run.layout;
  if (l.pp == 1 || !bubble_is_plain(l.schedule)) return "";
  const double equal = bubble_share(l.pp, run.microbatches(), l.chunks).value();
  const std::string s = fmt::format("; {:.1f} % of equal stages, as in estimate", 100 * equal);
  return bubble > equal ? s + "; the rest waits for slower stages (embedding, head, layers) and messages" : s;
}

// The row that leaves the least of its device's memory.
std::vector<StepRow>::const_iterator fullest_of(const Subject& s, const Outcome& all) {
  return std::max_element(all.rows.begin(), all.rows.end(), [&](const StepRow& a, const StepRow& b) {
    return double(a.peak) - s.memory_at(a.pp) < double(b.peak) - s.memory_at(b.pp);
  });
}

std::string summary_text(const Subject& s, const Numbers& n, const Outcome& all) {
  const size_t world = all.class_of.size();
  std::string out = fmt::format("step       {}{}, {}{} tokens/s", s.bound ? "at least " : "",
                                seconds_text(n.step_s), s.bound ? "at most " : "", three_digits(n.tokens_s));
  if (n.mfu > 0)
    out += fmt::format(", MFU {}{:.1f} %{}", s.bound ? "at most " : "", 100 * n.mfu,
                       mfu_peak_text(s.run.precision));
  if (n.closed_s > 0)
    out += fmt::format("; closed form ({}) {}, {:+.1f} %",
                       s.scaled && s.scaled->software.ordered() ? "score's, of other software" : "score's",
                       seconds_text(n.closed_s), 100 * (n.step_s / n.closed_s - 1));
  out += fmt::format("\npriced     {}\n", s.priced);
  if (!s.note.empty()) out += fmt::format("assumed    {}\n", s.note);
  out += fmt::format("bubble     {:.1f} % of a rank's own span, at most{}\n", 100 * n.bubble,
                     equal_stages_text(s.run, n.bubble));
  const auto fullest = fullest_of(s, all);
  if (fullest != all.rows.end() && fullest->peak > 0) {
    out += fmt::format("memory     {} at most ({})", bytes_text(double(fullest->peak)), fullest->name);
    if (s.memory > 0)
      out += fmt::format(" of {}{}", capacity_text(s.memory_at(fullest->pp)),
                         double(fullest->peak) > s.memory_at(fullest->pp) ? ": it does NOT fit" : "");
    if (s.scaled && !s.own_run) out += "; closed form, not booked as in search";
    out += "\n";
  }
  out += all.all_ranks ? fmt::format("simulated  all of {}, {}", counted(world, "rank"),
                                     counted(all.rows.size(), "different timeline"))
                       : fmt::format("simulated  {} in place of {}",
                                     counted(all.rows.size(), "class", "classes"), counted(world, "rank"));
  return out + fmt::format(": {} events in {} ({:.2f} million a second)\n", all.pieces,
                           human_seconds(all.seconds),
                           double(all.pieces) / std::max(all.seconds, 1e-9) * 1e-6);
}

// ---- a rank that fails ----

struct Failure {
  int rank = 0;
  double at_s = 0;  // of the run
  FailurePlan plan;
  FailureLoss loss;
};

Failure failure_of(const SimulateRunRequest& q, const Subject& s, const Outcome& whole) {
  Failure f;
  std::tie(f.rank, f.at_s) = pair_of(q.fail, '@', "--fail", "RANK@SECONDS, such as 17@3600");
  constexpr double kMostSeconds = 1e9;
  if (!(f.at_s >= 0 && f.at_s <= kMostSeconds))
    bad_request("--fail: {} seconds; right is a time from the run's start on, 0 to {:.0e}", f.at_s,
                kMostSeconds);
  if (f.rank >= int(s.run.world())) bad_request("--fail {}: ranks are 0 to {}", f.rank, s.run.world() - 1);
  f.plan.step_s = whole.step_s();
  const CheckpointPlan saves =
      checkpoint_plan(checkpoint_case(s.cluster, double(checkpoint_bytes(s.run)), s.run.world(), 0));
  f.plan.save_s = q.save_s >= 0 ? q.save_s : saves.stall_s;
  f.plan.restart_s = q.restart_s;
  const CountOrAuto& every = s.run.train.checkpoint_every;
  f.plan.every = every.count;
  if (every.automatic) {
    const double mtbf = s.mtbf_hours * 3600 / double(s.run.world());
    f.plan.every =
        checkpoint_steps(daly_interval(std::max(f.plan.save_s, 1e-3), mtbf), saves.write_s, f.plan.step_s);
  }
  f.loss = loss_of(f.plan, f.at_s);
  if (f.loss.step > s.run.train.steps)
    bad_request(
        "--fail: {} seconds are behind the run's end: train.steps = {} of {} each; right is a time within "
        "it, or "
        "--set train.steps=N",
        f.at_s, s.run.train.steps, human_seconds(f.plan.step_s));
  return f;
}

std::string failure_text(const Failure& f, const Subject& s, const Outcome& broken) {
  const FailureLoss& l = f.loss;
  const double device_hours = l.lost_s() * double(s.run.world()) / 3600;
  std::string out = fmt::format(
      "failure    rank {} at {} of the run: {} step {}, {} into it{}\n", f.rank, human_seconds(f.at_s),
      l.in_save ? "in the save behind" : "in", l.step, human_seconds(l.into_step_s),
      f.plan.every > 0 ? fmt::format("; saved every {}, {} each", counted(f.plan.every, "step"),
                                     human_seconds(f.plan.save_s))
                       : "; nothing is saved before the end");
  if (!l.in_save)
    out += fmt::format("           the last rank that still could has stopped {} later\n",
                       human_seconds(std::max(0.0, broken.step_s() - l.into_step_s)));
  out += fmt::format(
      "lost       {} of work since {}, {} until it is named and {} of restart: {}, {:.4g} device-hours",
      human_seconds(l.again_s),
      l.saved_step > 0 ? fmt::format("the checkpoint of step {}", l.saved_step) : "the start",
      human_seconds(f.plan.notice_s), human_seconds(f.plan.restart_s), human_seconds(l.lost_s()),
      device_hours);
  if (s.price_per_hour > 0)
    out += ", " + money_text(fmt::format("{:.4g}", device_hours * s.price_per_hour), s.currency);
  return out + "\n";
}

nlohmann::ordered_json json_of(const Failure& f, const Subject& s) {
  return {{"rank", f.rank},
          {"at_s", f.at_s},
          {"step", f.loss.step},
          {"into_step_s", f.loss.into_step_s},
          {"in_save", f.loss.in_save},
          {"saved_step", f.loss.saved_step},
          {"checkpoint_every", f.plan.every},
          {"save_s", f.plan.save_s},
          {"work_lost_s", f.loss.again_s},
          {"waited_s", f.loss.waited_s},
          {"lost_device_hours", f.loss.lost_s() * double(s.run.world()) / 3600}};
}

nlohmann::ordered_json json_of(const Subject& s, const Numbers& n, const Outcome& all,
                               const std::optional<Failure>& failure) {
  nlohmann::ordered_json j = {{"run", s.title},
                              {"priced", s.priced},
                              {"ranks", all.class_of.size()},
                              {"step_s", n.step_s},
                              {"bound", s.bound},
                              {"tokens_per_s", n.tokens_s},
                              {"mfu", n.mfu},
                              {"bubble", n.bubble},
                              {"classes", all.rows.size()},
                              {"events", all.pieces},
                              {"events_per_s", double(all.pieces) / std::max(all.seconds, 1e-9)}};
  if (!s.note.empty()) j["note"] = s.note;
  if (n.closed_s > 0) j["closed_form_s"] = n.closed_s;
  const auto fullest = fullest_of(s, all);
  const int64_t peak = fullest == all.rows.end() ? 0 : fullest->peak;
  if (peak > 0) j["peak_bytes"] = peak;
  if (s.memory > 0)
    j["device_memory_bytes"] = int64_t(fullest == all.rows.end() ? s.memory : s.memory_at(fullest->pp));
  if (failure) j["failure"] = json_of(*failure, s);
  for (const StepRow& r : all.rows) {
    nlohmann::ordered_json use;
    for (size_t u = 0; u < kUses; u++)
      if (r.use[u] > 0) use[std::string(name_of(Use(u)))] = double(r.use[u]) * 1e-9;
    j["groups"].push_back({{"first_rank", r.rank},
                           {"stage", r.pp},
                           {"ranks", r.ranks},
                           {"disturbed", r.disturbed},
                           {"seconds", use},
                           {"bubble", r.span.bubble()},
                           {"peak_bytes", r.peak}});
  }
  return j;
}

std::string page_of(const std::string& title, const std::string& text, const std::string& pictures) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta "
      "charset=\"utf-8\">\n<title>{0}</title>\n{2}<pre>{1}</pre>\n</html>\n",
      escaped(title), escaped(text), pictures);
}

}  // namespace

std::vector<CLI::Option*> SimulateRunRequest::add_to(CLI::App& verb) {
  run.add_to(verb, false);
  verb.get_option("RUN")->required(false);
  auto* const named =
      verb.add_option("--model", model, "a run without a file: a model by name (llama3-405B, ...)");
  verb.add_option(
      "--layout", layout,
      "with --model: keys of [layout], and micro, global, seq: \"tp=8 pp=16 dp=128 global=2048 seq=8192\"");
  verb.add_option("--cluster", cluster,
                  "a cluster file (.toml), or a device by name: H100, A100-80GB, ... (default: the run's)");
  verb.add_option("--software", software,
                  "whose measured constants price the step: nemo, llama3, ... (trireme score)");
  verb.add_option("--site", site, "and where: dgxc, llama3, ...");
  verb.add_option("--constants", constants,
                  "a file of `trireme score --calibrate` or --fit: its constants, and its own site unless "
                  "--site names another");
  disturbed.add_to(verb);
  verb.add_option("--fail", fail, "a rank that fails so many seconds after the run began: 17@3600")
      ->type_name("RANK@SECONDS");
  const auto seconds = number_between(0, 1e9);
  auto* const save = verb.add_option("--save", save_s,
                                     "seconds that training stands still for a checkpoint (default: its copy "
                                     "to the host, as search has it)");
  save->check(seconds);
  auto* const restart = verb.add_option("--restart", restart_s,
                                        "seconds from a failure that is known to the first step after it")
                            ->check(seconds)
                            ->capture_default_str();
  of_failure = {save, restart};
  verb.add_flag("--all-ranks", all_ranks, "every rank is simulated, though others do the same");
  verb.add_flag("--share-links", share_links,
                "transfers of a rank that are under way at once share its links (closed form)");
  auto* const closed = verb.add_flag("--closed-form", closed_form,
                                     "prices in closed form, also where the run can be booked here");
  verb.add_flag("--by-op", by_op,
                "each rank's ops and collectives, one by one, at the devices' peaks or measured rates")
      ->excludes(closed);
  verb.add_option("--trace", trace, "file for the timeline (chrome://tracing, Perfetto, trireme inspect)");
  verb.add_option("--trace-ranks", trace_ranks, "of these ranks: 0,3 (default: one of each group)")
      ->delimiter(',')
      ->allow_extra_args(false);
  verb.add_option("--memory-svg", memory_svg, "file to draw memory over time into");
  routing.add_to(verb);
  verb.add_option("--columns", columns, "of the comb in text")
      ->check(CLI::Range(10, 1000))
      ->capture_default_str();
  const CLI::Option* const file = verb.get_option("RUN");
  for (const CLI::Option* o : std::as_const(verb).get_options())
    if (o != file && o != named && o != verb.get_help_ptr()) details.push_back(o);
  return {verb.get_option("RUN"), named};
}

void SimulateRunRequest::refuse_alone() const {
  for (const CLI::Option* o : details)
    if (o->count() > 0)
      bad_request("{}: goes with a run; give RUN.toml, or --model with --layout", o->get_name());
}

void simulate_run(const SimulateRunRequest& q) {
  if (q.fail.empty())
    for (const CLI::Option* o : q.of_failure)
      if (o->count() > 0) bad_request("{}: only --fail reads it; leave it out", o->get_name());
  const Subject s = subject_of(q);
  Disturbance d = q.disturbed.parsed();
  Outcome all = simulated(q, s, d);
  const Numbers n = numbers_of(s, all, d.any());
  std::string text = summary_text(s, n, all);
  std::optional<Failure> failure;
  if (!q.fail.empty()) {
    failure = failure_of(q, s, all);
    d.failing_rank = failure->rank, d.fails_at = std::llround(failure->loss.into_step_s * 1e9);
    if (!failure->loss.in_save) all = simulated(q, s, d);
    text += failure_text(*failure, s, all);
  }
  constexpr size_t kMostRows = 40;  // in files
  constexpr size_t kScreenRows = 6;
  constexpr size_t kScreenCombs = 3;  // two lines each
  const std::vector<StepRow> shown = chosen_rows(all.rows, kMostRows);
  const Comb comb = comb_of(shown, all.replay.makespan);
  const auto table = [&](const std::vector<StepRow>& rows, std::string_view where) {
    std::string s = text + rows_text(rows, all.replay.makespan);
    if (rows.size() < all.rows.size())
      s += fmt::format("({} more: {})\n", counted(all.rows.size() - rows.size(), "group"), where);
    return s;
  };
  std::vector<MemoryRow> memory;
  for (const StepRow& r : shown) memory.push_back({r.name, r.memory});
  const auto memory_picture = [&] {
    return memory_svg(memory, all.replay.makespan, int64_t(s.memory), s.title);
  };
  if (!q.svg.empty()) write_text_atomic(q.svg, comb_svg(comb, s.title));
  if (!q.memory_svg.empty()) write_text_atomic(q.memory_svg, memory_picture());
  if (!q.html.empty())
    write_text_atomic(
        q.html, page_of(s.title, table(shown, "--json has all"), comb_svg(comb, s.title) + memory_picture()));
  if (!q.trace.empty()) write_trace(q, s, all);
  if (q.run.json) return print_text("{}\n", json_of(s, n, all, failure).dump(2));
  const bool many = all.rows.size() > kScreenRows;
  const std::vector<StepRow> listed = chosen_rows(all.rows, kScreenRows);
  const std::vector<StepRow> drawn = many ? chosen_rows(all.rows, kScreenCombs) : listed;
  print_text("{}\n{}\n{}{}", s.title, table(listed, "--html FILE draws them, --json has all"), comb_legend(),
             comb_text(comb_of(drawn, all.replay.makespan), q.columns));
}

}  // namespace trireme::cli
