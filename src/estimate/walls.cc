#include "estimate/walls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "base/progress.h"
#include "base/units.h"
#include "catalog/constants.h"
#include "catalog/price_list.h"
#include "cost/checkpoint_interval.h"
#include "cost/flops.h"
#include "cost/goodput.h"
#include "cost/step_memory.h"
#include "cost/walls.h"
#include "forecast/scaled_run.h"
#include "spec/size_rule.h"

namespace trireme {
namespace {

constexpr double kDay = 86400, kHour = 3600, kYear = 365.25 * kDay;

std::string plain_number(double x) {
  return fmt::format("{:.6g}", x);
}

// "5.00 M", and small amounts as they are.
std::string amount(double x) {
  return x < 1000 ? fmt::format("{:.3g}", x) : human_count(x);
}

std::string devices_text(int64_t n) {
  return n == 1 ? "one device" : grouped(double(n)) + " devices";
}

std::string percent_of(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

double of_bucket(const BucketBytes& b, Bucket which) {
  return double(b[size_t(which)]);
}

Worked state_line(const WallsCase& c, Bucket b, const char* key, const char* what) {
  const double per = of_bucket(c.per, b);
  return {.key = key,
          .what = what,
          .value = per * c.parameters,
          .unit = "bytes",
          .text = decimal(per * c.parameters, "B"),
          .formula = fmt::format("{} B x P", per),
          .numbers = fmt::format("{} x {}", per, plain_number(c.parameters))};
}

// Bytes of a checkpoint: the run's; else as `train` writes them by default.
double checkpoint_bytes_of(const WallsCase& c) {
  return c.saved_bytes > 0 ? c.saved_bytes : double(checkpoint_bytes_per_parameter({})) * c.parameters;
}

// Parameters of one device before ZeRO, and the number of devices with the same ones. Experts are divided
// by ep, which is part of replicas and of tensor parallel ranks, as in trireme's runs; all others by tp.
struct Held {
  double dense = 0, experts = 0;
  double replicas = 1, expert_replicas = 1;
};
Held held_by_one(const WallsCase& c) {
  const double experts =
      c.model && c.model->moe() ? double(c.model->expert_blocks()) * block_expert_parameters(*c.model) : 0;
  const double pp = double(c.pp);
  const double tp = double(c.tp);
  const double ep = double(c.ep);
  return {.dense = (c.parameters - experts) / (tp * pp),
          .experts = experts / (ep * pp),
          .replicas = c.replicas(),
          .expert_replicas = std::max(1.0, c.replicas() * tp / ep)};
}

double device_state_bytes(const WallsCase& c, int zero) {
  const Held h = held_by_one(c);
  return zero_state_bytes(h.dense, zero, h.replicas, c.per) +
         zero_state_bytes(h.experts, zero, h.expert_replicas, c.per);
}

constexpr double kHalf = 2;  // bytes of a 16-bit gradient

// Bytes of 16-bit gradients that a device has.
double gradient_bytes(const WallsCase& c) {
  const Held h = held_by_one(c);
  return kHalf * (h.dense + h.experts);
}

// Bytes that a device sends in an all-reduce of them, by a ring.
double gradient_bytes_sent(const WallsCase& c) {
  const Held h = held_by_one(c);
  const auto ring = [](double n) { return 2 * (n - 1) / n; };
  return kHalf * (ring(h.replicas) * h.dense + ring(h.expert_replicas) * h.experts);
}

// "P / (tp pp)", of which experts have another divisor, and another number of replicas.
std::string held_numbers(const WallsCase& c) {
  const Held h = held_by_one(c);
  const double parts = double(c.tp * c.pp);
  if (h.experts == 0)
    return fmt::format("P = {}, n = {}, tp pp = {}", plain_number(c.parameters), h.replicas, parts);
  return fmt::format("P = {}, n = {}, tp pp = {}; of experts P = {}, n = {}, ep pp = {}",
                     plain_number(h.dense * parts), h.replicas, parts,
                     plain_number(h.experts * double(c.ep * c.pp)), h.expert_replicas, c.ep * c.pp);
}

void add_zero(const WallsCase& c, std::vector<Worked>& lines) {
  const double memory = c.figures.memory;
  static constexpr std::array<const char*, 4> kFormula = {
      "(w + g + o) P / (tp pp)", "(w + g + o / n) P / (tp pp)", "(w + (g + o) / n) P / (tp pp)",
      "(w + g + o) / n P / (tp pp)"};
  const Held held = held_by_one(c);
  const bool plain = held.experts == 0;
  const double most = std::numeric_limits<double>::infinity();
  const double whole = device_state_bytes(c, 0);
  for (int zero = 0; zero <= 3; ++zero) {
    const double bytes = device_state_bytes(c, zero);
    const double saving = whole / bytes;
    const double limit = zero_saving(zero, most, c.per);
    const double traffic = zero_traffic(zero, double(std::max<int64_t>(1, c.microbatches)));
    Worked w{.key = fmt::format("zero{}", zero),
             .what = fmt::format("on each, ZeRO {}", zero),
             .value = bytes,
             .unit = "bytes"};
    w.text = decimal(bytes, "B");
    if (zero > 0) w.text += fmt::format(", {:.3g} x less", saving);
    if (zero > 0 && (plain || zero < 3))
      w.text += zero == 3 ? " (as many times as replicas)" : fmt::format(" (at most {:.0f} x)", limit);
    w.text += fmt::format(", {:.3g} x the traffic of data parallelism", traffic);
    if (c.microbatches > 1)
      w.text += fmt::format(", {} a step", decimal(traffic * gradient_bytes_sent(c), "B"));
    if (memory > 0) w.text += bytes <= memory ? "" : ": DOES NOT FIT";
    w.formula = kFormula[size_t(zero)];
    w.numbers =
        fmt::format("w = {}, g = {}, o = {}, {}", of_bucket(c.per, Bucket::weights),
                    of_bucket(c.per, Bucket::grads), of_bucket(c.per, Bucket::optimizer), held_numbers(c));
    w.also = {{"saving", saving}, {"traffic", traffic}, {"sent", traffic * gradient_bytes_sent(c)}};
    if (zero < 3) w.also.emplace_back("saving_at_most", limit);
    lines.push_back(w);
  }
}

Worked activation_line(const WallsCase& c, const char* key, std::string what, double layer,
                       std::string formula) {
  const double bytes = double(c.model->layers) * layer;
  return {.key = key,
          .what = std::move(what),
          .value = bytes,
          .unit = "bytes",
          .text = decimal(bytes, "B"),
          .formula = "L " + std::move(formula),
          .numbers = fmt::format("L = {}, s = {}, b = {}, h = {}, a = {}, f = {}, t = {}", c.model->layers,
                                 c.seq, c.micro, c.model->hidden, c.model->heads, c.model->ffn, c.tp)};
}

// Bytes of activations of a microbatch, the mean over layers.
double mean_layer_bytes(const WallsCase& c, AttentionKind attention) {
  StepCase step{.model = *c.model, .seq = c.seq, .tp = c.tp, .micro = c.micro};
  step.attention = attention;
  const double with = double(c.model->expert_blocks()) / double(c.model->layers);
  return (with > 0 ? with * layer_activations(step, true) : 0) +
         (with < 1 ? (1 - with) * layer_activations(step, false) : 0);
}

// "at least ": what follows from a bound of the step.
std::string at_least(const WallsCase& c) {
  return c.mfu == 0 && c.forecast.bound ? "at least " : "";
}

// The bytes that `trireme plan` or `trireme search` prints.
Worked total_of_run(const WallsCase& c) {
  const RunBytes& t = *c.total;
  Worked w{.key = "total",
           .what = "one device in total, " + t.source,
           .value = t.bytes,
           .unit = "bytes",
           .text = bytes_text(t.bytes)};
  if (c.figures.memory > 0) {
    w.text += fmt::format(" of {}", capacity_text(c.figures.memory));
    if (t.sharing > 1) w.text += fmt::format(" that {} ranks share", t.sharing);
    if (!t.fits) w.text += ": DOES NOT FIT";
  }
  w.formula = "the bytes of the run's own layout, its recompute and offload";
  return w;
}

// State and activations of a device. The first stage has min(p, m) microbatches of 1F1B in flight. A run has
// more, so the line does not say if it fits.
Worked parts_line(const WallsCase& c) {
  const double state = device_state_bytes(c, c.zero);
  const double layer = c.recompute ? 2.0 * double(c.seq) * double(c.micro) * double(c.model->hidden)
                                   : mean_layer_bytes(c, AttentionKind::flash);
  const auto flight = double(std::min(c.pp, std::max<int64_t>(1, c.microbatches)));
  const double layers = double(c.model->layers) / double(c.pp);
  const double bytes = state + flight * layers * layer;
  Worked w{.key = "state_and_activations",
           .what = "one device, state and activations alone",
           .value = bytes,
           .unit = "bytes",
           .text = decimal(bytes, "B") + "; no logits, buffers, workspaces, drivers or libraries"};
  w.formula = "state of its ZeRO + min(p, m) L / p activations of a layer";
  w.numbers = fmt::format("{} (ZeRO {}) + {:.0f} x {:.4g} x {}", plain_number(state), c.zero, flight, layers,
                          plain_number(layer));
  w.also = {{"state", state}, {"activations", flight * layers * layer}};
  return w;
}

void add_activations(const WallsCase& c, std::vector<Worked>& lines) {
  const std::string of = fmt::format("activations ({} x {})", c.micro, c.seq);
  const bool plain = !c.model->moe() && !c.model->latent();
  lines.push_back(activation_line(c, "activations_scores_kept", of + ", scores kept",
                                  mean_layer_bytes(c, AttentionKind::unfused),
                                  plain ? "s b h (18 + 4 f / h + 5 a s / h) / t"
                                        : "s b h (18 + experts' and latent parts + 5 a s / h) / t"));
  lines.push_back(
      activation_line(c, "activations", of + ", fused attention", mean_layer_bytes(c, AttentionKind::flash),
                      plain ? "s b h (18 + 4 f / h) / t" : "s b h (18 + experts' and latent parts) / t"));
  ActivationsCase k{.seq = double(c.seq),
                    .micro = double(c.micro),
                    .hidden = double(c.model->hidden),
                    .heads = double(c.model->heads),
                    .tp = double(c.tp)};
  if (c.tp > 1 && plain && c.model->activation != "swiglu") {
    k.kept = KeptActivations::selective;
    lines.push_back(activation_line(c, "activations_no_sequence_parallelism", of + ", sequence undivided",
                                    kept_activation_bytes(k), "s b h (10 + 24 / t)"));
  }
  k.kept = KeptActivations::input;
  lines.push_back(activation_line(c, "activations_full_recompute", of + ", inputs alone",
                                  kept_activation_bytes(k), "2 s b h"));
}

// Their type decides between 16 and 18 bytes per parameter.
const char* gradients_text(const WallsCase& c) {
  return of_bucket(c.per, Bucket::grads) == kHalf ? "gradients in 16 bits" : "gradients in f32";
}

WorkedSection memory_wall(const WallsCase& c) {
  WorkedSection s{.name = "memory", .lines = {}};
  if (c.parameters == 0) return s;
  auto& l = s.lines;
  l.push_back(state_line(c, Bucket::weights, "weights", "weights"));
  l.push_back(state_line(c, Bucket::grads, "grads", gradients_text(c)));
  if (!c.of_run && c.microbatches > 1) l.back().text += "; a run file's, of several microbatches, are f32";
  l.push_back(
      state_line(c, Bucket::optimizer, "optimizer", "optimizer (Adam's two moments, master weights)"));
  const auto per = double(total(c.per)), state = per * c.parameters;
  l.push_back({"state",
               "state",
               state,
               "bytes",
               decimal(state, "B"),
               fmt::format("{} B x P", per),
               fmt::format("{} x {}", per, plain_number(c.parameters)),
               {}});
  const BucketBytes wide = state_bytes_per_parameter("bf16", "f32");
  if (c.per == state_bytes_per_parameter("bf16", "bf16")) {
    const auto per_wide = double(total(wide));
    l.push_back({"state_f32_grads",
                 "state with f32 gradients",
                 per_wide * c.parameters,
                 "bytes",
                 decimal(per_wide * c.parameters, "B"),
                 fmt::format("{} B x P", per_wide),
                 fmt::format("{} x {}", per_wide, plain_number(c.parameters)),
                 {}});
  }
  if (c.figures.memory > 0) {
    const double least = devices_at_least(state, c.figures.memory);
    l.push_back({"devices_at_least",
                 "devices at least, for the state alone",
                 least,
                 "devices",
                 grouped(least),
                 "ceil(state / memory of one)",
                 fmt::format("ceil({} / {}) = ceil({:.3f})", plain_number(state),
                             plain_number(c.figures.memory), state / c.figures.memory),
                 {}});
    const double most = c.figures.memory / per;
    l.push_back({"largest_on_one",
                 "largest model whose state one device holds",
                 most,
                 "parameters",
                 human_count(most) + " parameters",
                 "memory of one / bytes a parameter",
                 fmt::format("{} / {}", plain_number(c.figures.memory), per),
                 {}});
  }
  if (c.replicas() > 1) add_zero(c, l);
  if (c.model && c.seq > 0) {
    add_activations(c, l);
    if (!c.of_run) l.push_back(parts_line(c));
  }
  if (c.total) l.push_back(total_of_run(c));
  const double saved = checkpoint_bytes_of(c) / c.parameters;
  l.push_back({"checkpoint",
               "a checkpoint (f32 weights and moments)",
               checkpoint_bytes_of(c),
               "bytes",
               decimal(checkpoint_bytes_of(c), "B"),
               fmt::format("{:.4g} B x P", saved),
               fmt::format("{:.4g} x {}", saved, plain_number(c.parameters)),
               {}});
  return s;
}

// An all-reduce as plan prices it: the fastest way of libraries.
CollectiveTime sum_time(double bytes, const Placement& at, const ClusterSpec& site) {
  if (bytes == 0 || at.size() <= 1) return {};
  return collective_time(CollectiveKind::all_reduce, bytes, at, site);
}

// Bytes that each replica sends, and receives, for the gradients of a step: a ring's reduce-scatter and
// all-gather.
void add_traffic(const WallsCase& c, std::vector<Worked>& l) {
  const double buffer = gradient_bytes(c);
  const double bytes = gradient_bytes_sent(c);
  Worked w{.key = "gradients_sent",
           .what = "each sends for gradients in a step (ZeRO 0)",
           .value = bytes,
           .unit = "bytes",
           .text = fmt::format("{}, {:.3f} x the gradients' {}", decimal(bytes, "B"), bytes / buffer,
                               decimal(buffer, "B")),
           .formula = "2 (n - 1) / n M, ring, M in 16 bits",
           .numbers = ""};
  const Held held = held_by_one(c);
  w.numbers = held.experts > 0
                  ? fmt::format("M = {}; {}", plain_number(buffer), held_numbers(c))
                  : fmt::format("2 x {} / {} x {}", held.replicas - 1, held.replicas, plain_number(buffer));
  const bool known = (double(c.gpus) <= c.figures.near ? c.figures.bus : c.figures.nic) > 0;
  if (known && c.site && !c.replicas_at.counts.empty()) {
    CollectiveTime t = sum_time(kHalf * held.dense, c.replicas_at, *c.site);
    t.seconds += sum_time(kHalf * held.experts, c.expert_replicas_at, *c.site).seconds;
    if (t.seconds > 0)
      w.text += fmt::format(": {} at {} ({})", seconds_text(t.seconds), decimal(bytes / t.seconds, "B/s"),
                            name_of(t.way));
    if (t.seconds > 0) w.also = {{"seconds", t.seconds}};
  }
  l.push_back(w);
}

Worked time_line(const char* key, std::string what, double seconds, std::string formula,
                 std::string numbers) {
  return {key, std::move(what), seconds, "s", long_time(seconds), std::move(formula), std::move(numbers), {}};
}

// 6 N D, or the exact number of a run file's run, which `plan` counts too.
double training_flops(const WallsCase& c) {
  return c.of_run ? train_flops_per_token(*c.model, c.seq) * c.tokens : six_n_d(c.active, c.tokens);
}
std::string flops_symbol(const WallsCase& c) {
  return c.of_run ? "FLOPs" : "6 N D";
}

// The FLOPs that --mfu is a share of: 6 N D is without attention.
std::string mfu_flops(const WallsCase& c) {
  return c.of_run ? " of exact FLOPs" : " of 6 N D";
}

void add_flops(const WallsCase& c, std::vector<Worked>& l) {
  const double flops = training_flops(c);
  const std::string numbers = fmt::format("6 x {} x {}", plain_number(c.active), plain_number(c.tokens));
  l.push_back({"tokens",
               "tokens",
               c.tokens,
               "tokens",
               human_count(c.tokens),
               c.tokens_assumed ? "20 N, as Hoffmann et al. 2022 find best (--tokens says otherwise)" : "",
               "",
               {}});
  l.push_back(
      {"tokens_per_parameter",
       "tokens a parameter",
       c.tokens / c.active,
       "1",
       fmt::format("{:.3g} (compute-optimal: about {:.0f})", c.tokens / c.active, kTokensPerParameter),
       "D / N",
       fmt::format("{} / {}", plain_number(c.tokens), plain_number(c.active)),
       {}});
  const double token = c.model && c.seq > 0 ? train_flops_per_token(*c.model, c.seq) : 0;
  const char* exactly = "3 x forward of a token x D: all products, causal attention at half, logits";
  if (c.of_run)
    l.push_back({"flops_exact",
                 "FLOPs, attention and logits included",
                 flops,
                 "FLOPs",
                 fmt::format("{:.3g}, {:.3f} x 6 N D", flops, flops / six_n_d(c.active, c.tokens)),
                 exactly,
                 fmt::format("{} x {}", plain_number(token), plain_number(c.tokens)),
                 {}});
  else
    l.push_back({"flops", "FLOPs", flops, "FLOPs", fmt::format("{:.3g}", flops), "6 N D", numbers, {}});
  if (token > 0 && !c.of_run) {
    const double exact = token * c.tokens;
    l.push_back({"flops_exact",
                 fmt::format("FLOPs, exact, sequences of {}", c.seq),
                 exact,
                 "FLOPs",
                 fmt::format("{:.4g}, {:.3f} x 6 N D", exact, exact / flops),
                 exactly,
                 fmt::format("{} x {}", plain_number(token), plain_number(c.tokens)),
                 {}});
  }
  const double full = recompute_factor(1);
  l.push_back({"recompute_flops",
               "FLOPs, all blocks computed again",
               flops * full,
               "FLOPs",
               fmt::format("{:.3g}, {} more", flops * full, percent_of(full - 1)),
               "(3 + 1) / 3 x " + flops_symbol(c),
               fmt::format("4 / 3 x {:.4g}", flops),
               {}});
}

void add_seconds(const WallsCase& c, std::vector<Worked>& l) {
  const double flops = training_flops(c), peak = c.figures.bf16;
  const std::string symbol = flops_symbol(c);
  const auto numbers = [&](double n, double mfu) {
    return fmt::format("{} / ({} x {} x {})", plain_number(flops), n, plain_number(peak), plain_number(mfu));
  };
  l.push_back(time_line("one_device_at_peak_s", "one device at its peak", training_seconds(flops, 1, peak, 1),
                        symbol + " / peak", fmt::format("{} / {}", plain_number(flops), plain_number(peak))));
  if (c.mfu > 0) {
    l.push_back(time_line("one_device_s", "one device at " + percent_of(c.mfu) + mfu_flops(c),
                          training_seconds(flops, 1, peak, c.mfu), symbol + " / (n peak MFU)",
                          numbers(1, c.mfu)));
    if (c.gpus > 1)
      l.push_back(time_line("seconds", devices_text(c.gpus) + " at " + percent_of(c.mfu) + mfu_flops(c),
                            training_seconds(flops, double(c.gpus), peak, c.mfu), symbol + " / (n peak MFU)",
                            numbers(double(c.gpus), c.mfu)));
  }
}

double run_seconds(const WallsCase& c) {
  if (c.mfu > 0 && c.figures.bf16 > 0 && c.tokens > 0)
    return training_seconds(training_flops(c), double(c.gpus), c.figures.bf16, c.mfu);
  if (c.forecast.step_s > 0 && c.tokens > 0) return c.tokens / c.forecast.tokens * c.forecast.step_s;
  return 0;
}

// Seconds that a checkpoint takes to storage; 0 = not known.
double write_seconds(const WallsCase& c) {
  return c.write_bandwidth > 0 ? checkpoint_bytes_of(c) / c.write_bandwidth : 0;
}

// The interval that loses least to saves and to failures together.
void add_saves(const WallsCase& c, double between_s, std::vector<Worked>& l) {
  if (c.saves) {
    const CheckpointPlan& p = *c.saves;
    l.push_back({"save_every_s",
                 "least is lost with a save every",
                 p.interval_s,
                 "s",
                 fmt::format("{}: {} of the time, for saves of {} and work that is repeated",
                             human_seconds(p.interval_s), percent_of(p.lost), seconds_text(p.stall_s)),
                 "as trireme plan: whole steps, restarts included",
                 fmt::format("C = {:.4g} s, M = {:.4g} s (Daly 2006)", p.stall_s, between_s),
                 {{"stall_s", p.stall_s}, {"lost_share", p.lost}}});
    return;
  }
  const double host = c.host_bandwidth > 0 ? c.host_bandwidth : kHostLink;
  const double copy_s =
      checkpoint_plan(
          {.bytes = checkpoint_bytes_of(c), .devices = double(c.gpus), .host_bandwidth = c.host_bandwidth})
          .stall_s;
  const double stall_s = c.save_s > 0 ? c.save_s : copy_s;
  // A failure goes back to the last save that is written.
  const double write_s = write_seconds(c);
  const double every = std::max(daly_interval(stall_s, between_s), write_s);
  const double lost = checkpoint_waste(every, stall_s, between_s) + write_s / between_s;
  const double young = young_interval(stall_s, between_s);
  const std::string cost = c.save_s > 0
                               ? "--save"
                               : fmt::format("{:.4g} P / n to the host at {}",
                                             checkpoint_bytes_of(c) / c.parameters, decimal(host, "B/s"));
  const std::string numbers = fmt::format("C = {:.4g} s ({}), M = {:.4g} s", stall_s, cost, between_s);
  l.push_back(time_line("young_save_every_s", "a save every, to first order", young, "sqrt(2 C M)",
                        numbers + " (Young 1974)"));
  l.push_back({"save_every_s",
               "least is lost with a save every",
               every,
               "s",
               fmt::format("{}: {} of the time, for saves of {} and work done again", human_seconds(every),
                           percent_of(lost), human_seconds(stall_s)),
               write_s > 0 ? "sqrt(2 C M) (1 + sqrt(C / (2 M)) / 3 + C / (18 M)) - C, at least a write"
                           : "sqrt(2 C M) (1 + sqrt(C / (2 M)) / 3 + C / (18 M)) - C",
               numbers + " (Daly 2006)",
               {{"stall_s", stall_s}, {"lost_share", lost}}});
}

// One collective's bytes of a layer and microbatch, and their time on the links that it uses.
Worked exchange_line(const WallsCase& c, const char* key, const char* what, double bytes, int64_t ranks,
                     const char* formula) {
  Worked w{.key = key, .what = what, .value = bytes, .unit = "bytes", .text = decimal(bytes, "B")};
  w.formula = formula;
  w.numbers = fmt::format("s = {}, b = {}, h = {}, t = {}, e = {}, k = {}", c.seq, c.micro, c.model->hidden,
                          c.tp, c.ep, c.top_k);
  const double bandwidth = double(ranks) <= c.figures.near ? c.figures.bus : c.figures.nic;
  if (bandwidth > 0) {
    w.text += fmt::format(": {} at {}", human_seconds(bytes / bandwidth), decimal(bandwidth, "B/s"));
    w.also = {{"seconds", bytes / bandwidth}};
  }
  return w;
}

// All-to-all against tensor parallel sums. A tensor parallel rank has 1 / t of the rows that it routes.
void add_exchanges(const WallsCase& c, std::vector<Worked>& l) {
  const double rows = double(c.seq) * double(c.micro), hidden = double(c.model->hidden);
  const double sums = tensor_parallel_bytes(rows, hidden, double(c.tp));
  if (c.tp > 1)
    l.push_back(exchange_line(c, "tensor_parallel_sent", "each sends for tensor parallel sums of a layer",
                              sums, c.tp, "4 x 2 (t - 1) / t x 2 s b h"));
  if (c.ep == 1 || c.top_k == 0) return;
  const double moved = all_to_all_bytes(rows / double(c.tp), hidden, c.top_k, double(c.ep));
  l.push_back(exchange_line(c, "all_to_all_sent", "each sends for the all-to-alls of a layer", moved,
                            c.tp * c.ep, "4 k (e - 1) / e x 2 s b h / t"));
  if (c.tp == 1) return;
  l.push_back({"all_to_all_over_sums",
               "all-to-all over tensor parallel sums",
               moved / sums,
               "1",
               fmt::format("{:.3g} x", moved / sums),
               "k (e - 1) / e / (2 (t - 1))",
               fmt::format("{0} x {1} / {2} / (2 x {3})", c.top_k, c.ep - 1, c.ep, c.tp - 1),
               {}});
}

WorkedSection time_wall(const WallsCase& c) {
  WorkedSection s{.name = "time", .lines = {}};
  auto& l = s.lines;
  if (c.active > 0 && c.tokens > 0) {
    add_flops(c, l);
    if (c.figures.bf16 > 0) add_seconds(c, l);
  }
  if (c.mfu == 0 && c.forecast.step_s > 0) {
    const StepForecast& f = c.forecast;
    l.push_back({"mfu",
                 f.bound ? "MFU, at most" : "MFU, forecast",
                 f.mfu,
                 "1",
                 fmt::format("{} of exact FLOPs ({})", percent_of(f.mfu), f.source),
                 "exact FLOPs of a step / (n peak step)",
                 fmt::format("step = {:.4g} s of {} tokens", f.step_s, plain_number(f.tokens)),
                 {}});
    if (c.tokens > 0)
      l.push_back(time_line(
          "seconds", devices_text(c.gpus) + (f.bound ? ", at least" : ", forecast"), run_seconds(c),
          "D / tokens of a step x step",
          fmt::format("{} / {} x {:.4g}", plain_number(c.tokens), plain_number(f.tokens), f.step_s)));
  }
  if (c.parameters > 0 && c.replicas() > 1) add_traffic(c, l);
  if (c.pp > 1 && c.microbatches > 0 && c.plain_bubble) {
    const Ratio b = bubble_share(c.pp, c.microbatches, c.chunks);
    l.push_back({"bubble",
                 "pipeline bubble, of equal stages",
                 b.value(),
                 "1",
                 fmt::format("{}/{} = {}", b.above, b.below, percent_of(b.value())),
                 "(p - 1) / (v m + p - 1)",
                 fmt::format("({0} - 1) / ({1} x {2} + {0} - 1)", c.pp, c.chunks, c.microbatches),
                 {}});
  }
  if (c.model && c.seq > 0) add_exchanges(c, l);
  if (const double write_s = write_seconds(c); write_s > 0)
    l.push_back(time_line(
        "checkpoint_write_s", "a checkpoint is written in", write_s, "a checkpoint / storage",
        fmt::format("{} / {} B/s", plain_number(checkpoint_bytes_of(c)), plain_number(c.write_bandwidth))));
  if (c.mtbf_hours > 0 && (c.gpus > 1 || c.save_s > 0)) {
    const double between = c.mtbf_hours * kHour / double(c.gpus);
    l.push_back({"mtbf_s",
                 "a device fails every",
                 between,
                 "s",
                 human_seconds(between),
                 "device-hours a failure / n",
                 fmt::format("{} h / {}", c.mtbf_hours, c.gpus),
                 {}});
    if (c.parameters > 0 || c.save_s > 0) add_saves(c, between, l);
  }
  return s;
}

// What a better MFU would save of `money`.
void add_waste(const WallsCase& c, double money, std::vector<Worked>& l) {
  const double waste = wasted_share(c.used(), c.reach), more = more_training(c.used(), c.reach);
  l.push_back({"wasted_share",
               fmt::format("wasted against {}", percent_of(c.reach)),
               waste,
               "1",
               percent_of(waste),
               "(reach - MFU) / reach",
               fmt::format("({0} - {1:.4g}) / {0}", c.reach, c.used()),
               {}});
  if (money > 0)
    l.push_back({"wasted",
                 "which costs",
                 waste * money,
                 "money",
                 money_text(amount(waste * money), c.currency),
                 "wasted x cost",
                 fmt::format("{:.4g} x {}", waste, plain_number(money)),
                 {}});
  l.push_back({"more_training",
               "or buys so much more training",
               more,
               "1",
               percent_of(more),
               "reach / MFU - 1",
               fmt::format("{} / {:.4g} - 1", c.reach, c.used()),
               {}});
}

WorkedSection cost_wall(const WallsCase& c) {
  WorkedSection s{.name = "cost", .lines = {}};
  auto& l = s.lines;
  const double hours = run_seconds(c) * double(c.gpus) / kHour;
  double money = c.budget;
  if (hours > 0) {
    l.push_back({"device_hours",
                 "device-hours",
                 hours,
                 "h",
                 at_least(c) + amount(hours),
                 "n x time",
                 fmt::format("{} x {:.4g} h", c.gpus, run_seconds(c) / kHour),
                 {}});
    if (c.price > 0) {
      if (money == 0) money = hours * c.price;
      l.push_back({"cost",
                   "cost",
                   hours * c.price,
                   "money",
                   at_least(c) + money_text(amount(hours * c.price), c.currency),
                   "device-hours x price",
                   fmt::format("{:.6g} x {}", hours, c.price),
                   {}});
    }
  }
  if (hours > 0 && c.watts > 0) {
    constexpr double kKilo = 1000;
    const double energy = c.watts / kKilo * run_seconds(c) / kHour;
    l.push_back({"energy_kwh",
                 "energy",
                 energy,
                 "kWh",
                 fmt::format("{}{} at {}", at_least(c), decimal(kKilo * energy, "Wh"), c.power),
                 "power x time",
                 fmt::format("{} W x {:.4g} h", plain_number(c.watts), run_seconds(c) / kHour),
                 {}});
  }
  if (c.budget > 0 && c.price > 0)
    l.push_back({"budget_hours",
                 "the budget buys device-hours",
                 c.budget / c.price,
                 "h",
                 amount(c.budget / c.price),
                 "budget / price",
                 fmt::format("{} / {}", plain_number(c.budget), c.price),
                 {}});
  if (c.used() > 0)
    l.push_back({"unused_share",
                 "of the peak unused",
                 1 - c.used(),
                 "1",
                 at_least(c) + percent_of(1 - c.used()),
                 "1 - MFU",
                 fmt::format("1 - {:.4g}", c.used()),
                 {}});
  if (c.reach > 0 && c.used() > 0) add_waste(c, money, l);
  return s;
}
}  // namespace

std::string long_time(double s) {
  if (s < 10 * kDay) return human_seconds(s);
  const double days = s / kDay;
  std::string text = days < 99.95 ? fmt::format("{:.1f} days", days) : grouped(days) + " days";
  if (s >= kYear)
    text += s < 1000 * kYear ? fmt::format(" ({:.3g} years)", s / kYear)
                             : fmt::format(" ({} years)", grouped(s / kYear));
  return text;
}

std::vector<WorkedSection> walls_of(const WallsCase& c) {
  std::vector<WorkedSection> all = {memory_wall(c), time_wall(c), cost_wall(c)};
  std::erase_if(all, [](const WorkedSection& s) { return s.lines.empty(); });
  return all;
}

}  // namespace trireme
