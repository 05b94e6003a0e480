#include "forecast/forecast.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/progress.h"
#include "catalog/call_price.h"
#include "comm/options.h"
#include "cost/flops.h"
#include "forecast/remedies.h"
#include "forecast/run_costs.h"
#include "forecast/searched_step.h"
#include "measure/speeds.h"
#include "mesh/mesh.h"
#include "runtime/recompute.h"
#include "spec/known_routing.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"

namespace trireme {

namespace {

std::vector<OpForecast> price_ops(const Booking& b, const ClusterSpec& cluster, const RunSpec& run) {
  std::vector<OpForecast> ops;
  const std::vector<Price> prices = price(b.tape, cluster, run);
  const Calibration* calibration = calibration_of(run, cluster);
  const std::optional<Speeds> speeds = calibration ? std::optional<Speeds>(*calibration) : std::nullopt;
  std::map<std::string_view, size_t> place;  // by op, in ops
  for (const OpTotal& t : b.ops) {
    place.emplace(t.op, ops.size());
    ops.push_back({.total = t});
  }
  std::vector<double> bound_by_compute(ops.size());
  for (size_t i = 0; i < prices.size(); i++) {
    const Piece& p = b.tape.pieces[i];
    const auto at = p.launched ? place.find(p.name) : place.end();
    if (at == place.end()) continue;
    OpForecast& o = ops[at->second];
    const OpSeconds s = op_seconds(p.name, p.cost, cluster, run.precision.compute);
    o.roof_s += s.seconds;
    o.seconds += double(prices[i].time) * 1e-9;
    if (speeds && !speeds->op(as_filled(p, run, b.tape.rank), run.precision.compute))
      o.unmeasured_s += s.seconds;
    if (s.compute_bound) bound_by_compute[at->second] += s.seconds;
  }
  for (size_t i = 0; i < ops.size(); i++) ops[i].compute_bound = 2 * bound_by_compute[i] >= ops[i].roof_s;
  return ops;
}

// Expected where measured kernels take more than half of what rank 0's ops take.
void price_step(Forecast& f, const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster,
                int threads, const std::vector<Tape>& others, const RecordedRanks& recorded) {
  double all_s = 0;
  for (const OpForecast& o : f.ops) all_s += o.seconds, f.unmeasured_s += o.unmeasured_s;
  f.expected = calibration_of(run, cluster) && 2 * f.unmeasured_s < all_s;
  KnownTapes known = {&f.booking.tape};
  for (const Tape& t : others) known.push_back(&t);
  const StepTime roof = step_time(run, schedule, at_the_roof(cluster), threads, known, recorded);
  f.time = f.expected ? step_time(run, schedule, cluster, threads, known) : roof;
  f.step_s = f.time.step_s, f.roof_s = std::min(roof.step_s, f.step_s);
  // What lies in caches moves faster than memory's bandwidth would let it.
  if (f.expected)
    for (OpForecast& o : f.ops) o.roof_s = std::min(o.roof_s, o.seconds);
  if (f.expected) return;
  f.unmeasured_s = 0;
  for (OpForecast& o : f.ops) o.seconds = o.roof_s, o.unmeasured_s = 0;
}

// The step of GPUs without measured kernels is the search's.
bool is_priced_by_search(const RunSpec& run, const ClusterSpec& cluster) {
  return run.train.device == "cuda" && has_own_devices(cluster);
}

// Whether the step needs no replay of the tapes of all ranks, and these are too large for a host's memory, or
// ranks have devices of several kinds.
bool skips_replay(const Forecast& f, const RunSpec& run, const ClusterSpec& cluster, const PricedBy& by) {
  constexpr size_t kMostPieces = 32'000'000;  // of 248 bytes: 8 GB
  const bool large = distinct_ranks(run).size() * f.booking.tape.pieces.size() > kMostPieces;
  if (!large && cluster.kinds.size() < 2) return false;  // tapes are priced at the slowest kind's rates
  if (!is_priced_by_search(run, cluster) || calibration_of(run, cluster)) return false;
  const std::optional<NearestStep> n = nearest_step(run, cluster, by);
  return n && n->without.empty();
}

// If the bandwidth to offloaded state is not known, the bound is the search's of the run without offload.
void raise_bound(Forecast& f, const RunSpec& run, const ClusterSpec& cluster, const PricedBy& by) {
  if (!run.layout.offloads_state() || f.offload_priced()) return;
  RunSpec without = run;
  without.layout.offload = "none";
  const std::optional<NearestStep> n = nearest_step(without, cluster, by);
  if (!n || !n->without.empty()) return;
  f.roof_s = std::max(f.roof_s, n->step.roof_s);
  f.step_s = std::max(f.step_s, f.roof_s);
}

// GPUs without measured kernels take the search's forecast, so that one layout has one step time.
void expect_as_searched(Forecast& f, const RunSpec& run, const ClusterSpec& cluster, int threads,
                        const PricedBy& by) {
  if (f.expected || !is_priced_by_search(run, cluster)) return;
  const std::optional<NearestStep> n = nearest_step(run, cluster, by);
  if (!n) {
    f.why_unexpected = why_no_nearest_step(run, cluster);
    raise_bound(f, run, cluster, by);
    return;
  }
  f.by = by;
  const SearchedStep& s = n->step;
  f.without = n->without;
  if (f.without.empty()) {
    f.step_s = s.step_s;
    f.low_s = s.interval.low;
    f.high_s = s.interval.high;
    f.roof_s = s.roof_s;
    f.tolls = s.tolls;
  } else {
    f.step_s = f.roof_s * over_op_by_op(*n, cluster, threads);
    const double scale = f.step_s / s.step_s;
    f.low_s = scale * s.interval.low;
    f.high_s = scale * s.interval.high;
    f.roof_s = scale * s.roof_s;
  }
  f.prices = prices_text(n->run, cluster, by, s.step_s);
  f.expected = f.closed_form = true;
}

// Beside the first of each stage: owners of matrices send what others do not, and of a sum that its group
// cuts into longer and shorter pieces the last rank, which has a shorter one, sends the most.
std::vector<int> other_senders(const RunSpec& run, const MostWire& booked) {
  std::set<int> ranks;
  if (run.optimizer.name == "muon" || run.known_routing.rows) {
    const std::vector<int> owners = distinct_ranks(run);
    ranks.insert(owners.begin(), owners.end());
  }
  const Mesh mesh = mesh_of(run.layout);
  std::set<int> first, last;  // of each stage
  for (int stage = 0; stage < int(run.layout.pp); stage++) {
    int rank = 0, end = int(run.world()) - 1;
    while (mesh.coord(rank, Axis::pp) != stage) rank++;
    while (mesh.coord(end, Axis::pp) != stage) end--;
    first.insert(rank), last.insert(end);
  }
  if (booked.uneven) ranks.insert(last.begin(), last.end());
  for (int r : first) ranks.erase(r);
  return {ranks.begin(), ranks.end()};
}

// "weights 1.20 MB, grads 600 kB, ..."
std::string buckets_text(const Forecast& f) {
  const Booking& b = f.booking;
  std::string s;
  const auto part = [&](std::string_view name, int64_t bytes) {
    if (bytes > 0) s += fmt::format("{}{} {}", s.empty() ? "" : ", ", name, human_bytes(bytes));
  };
  for (size_t i = 0; i < kBuckets; i++) part(kBucketNames[i], b.at_peak[i]);
  part("alignment, holes and evaluation", b.arena_bytes - b.peak_total);
  if (!f.own_device) part("snapshot", b.snapshot_bytes);
  return s;
}

std::string remedies_text(const RunSpec& run, const Forecast& f) {
  const std::string others = fmt::format("data.seq_len below {}, or a smaller model", run.data.seq_len);
  if (!f.remedies) return "try a smaller batch.micro, " + others;
  const Remedies& r = *f.remedies;
  if (r.found.empty() && !r.leanest)
    return "of recompute, zero, batch.micro, offload, tp and pp nothing is left to change alone: try " +
           others;
  if (r.found.empty())
    return fmt::format(
        "none of {} single changes (of recompute, zero, batch.micro, offload, tp or pp) makes it fit: {}, "
        "and {} are missing; try several, {}",
        r.tried, to_text(*r.leanest), human_bytes(f.device_bytes() - f.allowed_bytes()), others);
  constexpr size_t kSaid = 2;
  std::string s = r.found.size() == 1 ? "the one remedy of a single change: " : "the cheapest remedies: ";
  for (size_t i = 0; i < std::min(kSaid, r.found.size()); i++)
    s += (i > 0 ? "; or " : "") + to_text(r.found[i]);
  return s;
}

// Time and tokens add up over the stages; memory is that of the largest (book_training).
void add_stages(Forecast& f, const RunSpec& run, const ClusterSpec& given, int threads, const PricedBy& by) {
  for (const BatchStage& stage : batch_stages(run)) {
    double step_s = f.mfu > 0 ? f.step_s : 0;
    if (stage.global != run.batch.global) {
      const RunSpec small = with_batch(run, stage.global);
      const Forecast s = forecast(small, schedule_of(small), given, threads, by);
      step_s = s.mfu > 0 ? s.step_s : 0;
    }
    f.stages.push_back({stage, step_s});
  }
  f.run_tokens = samples_until(run.batch, run.train.steps) * run.data.seq_len;
  f.run_flops = f.model_flops * (double(f.run_tokens) / double(f.tokens));
  f.run_s = f.seconds_after(0);
}

}  // namespace

double over_op_by_op(const NearestStep& n, const ClusterSpec& cluster, int threads) {
  const StepTime replayed = step_time(n.run, schedule_of(n.run), at_the_roof(cluster), threads, KnownTapes());
  return n.step.step_s / replayed.step_s;
}

int64_t ranks_on_device(const RunSpec& run, const ClusterSpec& cluster) {
  return run.train.comm == "thread" && !has_own_devices(cluster) ? run.world() : 1;
}

int64_t memory_of_rank(const ClusterSpec& cluster, const RunSpec& run, const Booking& b) {
  const NumberList by_rank = memory_of_ranks(cluster, run.layout);
  if (by_rank.empty()) return cluster.memory_bytes;
  return by_rank[size_t(mesh_of(run.layout).coord(b.tape.rank, Axis::pp))];
}

Forecast forecast(const RunSpec& run, const Schedule& schedule, const ClusterSpec& given, int threads,
                  const PricedBy& by, const RecordedRanks& recorded) {
  if (run.layout.ep_load.untrained) {
    const UntrainedLoad load = untrained_load(run, token_repeat(run));
    RunSpec now = run;
    now.layout.ep_load = load.mean;
    Forecast f = forecast(now, schedule, given, threads, by);
    f.untrained = load;
    return f;
  }
  const ClusterSpec cluster = passed_by_kernels(run, given);
  if (run.world() > 1 && run.train.sum_order == "auto" && run.train.comm != "nccl" &&
      !links_known(options_of(run, cluster)))
    bad_request(
        "train.sum_order = \"auto\" chooses by alpha and beta of the links, and they are not known: it takes "
        "{}; "
        "or "
        "give \"ring\", \"halving\" or \"ordered\"",
        links_wanted(run, cluster));
  Forecast f;
  std::vector<Tape> others;
  f.booking = book_training(run, schedule, threads, cluster, &others);
  f.tokens = run.tokens_per_step();
  f.model_flops = step_flops_per_token(run) * double(f.tokens);
  f.hardware_flops = f.model_flops + recompute_flops_per_token(run) * double(f.tokens);
  f.op_flops = f.booking.total.flops;
  f.memory_bytes = memory_of_rank(cluster, run, f.booking);
  f.own_device = has_own_devices(cluster);
  f.ranks_on_device = ranks_on_device(run, cluster);
  f.fits = f.memory_bytes == 0 || f.device_bytes() <= f.allowed_bytes();
  const double matrix_peak = cluster.peak_flops(run.precision.compute);
  f.ops = price_ops(f.booking, cluster, run);
  // Without the peak of its products a step of GPUs has no bound, unless kernels were measured.
  const bool may_lack_peak = run.train.device != "cuda" || calibration_of(run, cluster);
  const bool priced = matrix_peak > 0 || (may_lack_peak && cluster.memory_bandwidth > 0);
  for (const Piece& p : f.booking.tape.pieces)
    if (of_disk(p))
      f.disk_read += p.cost.bytes_read, f.disk_written += p.cost.bytes_written;
    else if (of_host(p))
      f.host_read += p.cost.bytes_read, f.host_written += p.cost.bytes_written;
  f.disk_priced = f.disk_read + f.disk_written == 0 || cluster.disk_bandwidth > 0;
  f.host_priced = f.host_read + f.host_written == 0 || cluster.host_bandwidth > 0;
  f.wire_priced = run.world() == 1 || links_known(forecast_links(run, cluster)) || wires_stated(cluster);
  f.wire = f.booking.wire;
  for (int rank : other_senders(run, f.wire)) {
    if (rank == f.booking.tape.rank) continue;
    others.push_back(record_training(run, schedule, threads, rank, cluster));
    f.wire.take(others.back());
  }
  if (run.known_routing.rows)
    f.known_load = known_load(run);
  else
    f.routed = routed_bytes(run, schedule, f.wire), f.routed_flops = routed_flops(run, schedule, f.booking);
  if (priced) {
    f.replayed = !skips_replay(f, run, given, by);
    if (f.replayed) price_step(f, run, schedule, cluster, threads, others, recorded);
    expect_as_searched(f, run, given, threads, by);
  }
  if (f.step_s > 0 && matrix_peak > 0) {
    f.tokens_per_s = double(f.tokens) / f.step_s;
    f.mfu = f.model_flops / (f.step_s * peak_of_ranks(cluster, run.world(), run.precision.compute));
    f.hfu = f.mfu * f.hardware_flops / f.model_flops;
  }
  add_stages(f, run, given, threads, by);
  f.cost = f.run_s / 3600 * double(run.world()) * cluster.price_per_hour;
  f.watts = run_watts(cluster, run.world());
  const int64_t saved = checkpoint_bytes(run, run.lora.active() ? f.booking.trained : 0);
  CheckpointCase saves = checkpoint_case(cluster, double(saved), run.world(), f.step_s);
  saves.stated = run.train.checkpoint_every;
  f.checkpoint = checkpoint_plan(saves);
  return f;
}

double Forecast::seconds_after(int64_t done) const {
  double s = 0;
  for (const StageForecast& f : stages)
    s += f.step_s * double(f.stage.last - std::clamp(done, f.stage.first - 1, f.stage.last));
  return s;
}

std::string why_not(const RunSpec& run, const Forecast& f) {
  if (f.fits) return {};
  const std::string shared = f.ranks_on_device > 1
                                 ? fmt::format(" that {} ranks share, {} for each", f.ranks_on_device,
                                               exact_bytes(f.allowed_bytes()))
                                 : "";
  return fmt::format("this run needs {} on rank {}, and the device has {}{}: {}; {}",
                     exact_bytes(f.device_bytes()), f.booking.tape.rank, exact_bytes(f.memory_bytes), shared,
                     buckets_text(f), remedies_text(run, f));
}

}  // namespace trireme
