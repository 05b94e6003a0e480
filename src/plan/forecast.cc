#include "plan/forecast.h"

#include <algorithm>

#include "comm/options.h"
#include "cost/flops.h"
#include "plan/speeds.h"
#include "runtime/recompute.h"
#include "spec/run_schedule.h"

namespace trireme {

namespace {

std::vector<OpForecast> price_ops(const Booking& b, const ClusterSpec& cluster, const RunSpec& run) {
  std::vector<OpForecast> ops;
  const std::vector<Price> prices = price(b.tape, cluster, run);
  const Calibration* calibration = calibration_of(run, cluster);
  const std::optional<Speeds> speeds = calibration ? std::optional<Speeds>(*calibration) : std::nullopt;
  for (const OpTotal& t : b.ops) {
    OpForecast o{.total = t};
    double bound_by_compute = 0;
    for (size_t i = 0; i < prices.size(); i++) {
      const Piece& p = b.tape.pieces[i];
      if (!p.launched || p.name != t.op) continue;
      const OpSeconds s = op_seconds(p.name, p.cost, cluster, run.precision.compute);
      o.roof_s += s.seconds, o.seconds += double(prices[i].time) * 1e-9;
      if (speeds && !speeds->op(as_filled(p, run), run.precision.compute)) o.unmeasured_s += s.seconds;
      if (s.compute_bound) bound_by_compute += s.seconds;
    }
    o.compute_bound = 2 * bound_by_compute >= o.roof_s;
    ops.push_back(std::move(o));
  }
  return ops;
}

// Expected where measured kernels take more than half of what rank 0's ops take.
void price_step(Forecast& f, const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster,
                int threads) {
  double all_s = 0;
  for (const OpForecast& o : f.ops) all_s += o.seconds, f.unmeasured_s += o.unmeasured_s;
  f.expected = calibration_of(run, cluster) && 2 * f.unmeasured_s < all_s;
  const StepTime roof = step_time(run, schedule, at_the_roof(cluster), threads, f.booking.tape);
  f.time = f.expected ? step_time(run, schedule, cluster, threads, f.booking.tape) : roof;
  f.step_s = f.time.step_s, f.roof_s = roof.step_s;
  if (f.expected) return;
  f.unmeasured_s = 0;
  for (OpForecast& o : f.ops) o.seconds = o.roof_s, o.unmeasured_s = 0;
}

}  // namespace

Forecast forecast(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads) {
  if (run.world() > 1 && run.train.sum_order == "auto" && !links_known(options_of(run, cluster)))
    bad_request(
        "train.sum_order = \"auto\" chooses by alpha and beta of the links, and they are not known: it takes "
        "{}; "
        "or "
        "give \"ring\", \"halving\" or \"ordered\"",
        links_wanted(run, cluster));
  Forecast f;
  f.booking = book_training(run, schedule, threads, cluster);
  f.tokens = run.tokens_per_step();
  f.model_flops = train_flops_per_token(run.model, run.data.seq_len) * double(f.tokens);
  f.hardware_flops = f.model_flops + recompute_flops_per_token(run) * double(f.tokens);
  f.op_flops = f.booking.total.flops;
  f.memory_bytes = cluster.memory_bytes;
  f.own_device = cluster.devices_per_node > 1;
  f.ranks_on_device = run.train.comm == "thread" && !f.own_device ? run.world() : 1;
  f.fits = f.memory_bytes == 0 || f.device_bytes() <= f.memory_bytes / f.ranks_on_device;
  const double matrix_peak = cluster.peak_flops(run.precision.compute);
  f.ops = price_ops(f.booking, cluster, run);
  const bool priced = matrix_peak > 0 || cluster.memory_bandwidth > 0;
  for (const Piece& p : f.booking.tape.pieces)
    if (of_disk(p)) f.disk_read += p.cost.bytes_read, f.disk_written += p.cost.bytes_written;
  f.disk_priced = f.disk_read + f.disk_written == 0 || cluster.disk_bandwidth > 0;
  f.wire_priced = run.world() == 1 || links_known(options_of(run, cluster));
  if (priced) price_step(f, run, schedule, cluster, threads);
  if (f.step_s > 0 && matrix_peak > 0) {
    f.tokens_per_s = double(f.tokens) / f.step_s;
    f.mfu = f.model_flops / (f.step_s * matrix_peak * double(run.world()));
    f.hfu = f.mfu * f.hardware_flops / f.model_flops;
    f.run_s = f.step_s * double(run.train.steps);
    f.cost = f.run_s / 3600 * double(run.world()) * cluster.price_per_hour;
  }
  f.run_flops = f.model_flops * double(run.train.steps);
  return f;
}

std::string why_not(const RunSpec& run, const Forecast& f) {
  if (f.fits) return {};
  size_t worst = size_t(std::max_element(f.booking.at_peak.begin(), f.booking.at_peak.end()) -
                        f.booking.at_peak.begin());
  const std::string ranks =
      f.ranks_on_device > 1 ? fmt::format("each of {} ranks", f.ranks_on_device) : "rank 0";
  const std::string sharing = replicas_of(run.layout) > 1 && effective_zero(run.layout) < 3
                                  ? fmt::format("layout.zero above {}, ", run.layout.zero)
                                  : "";
  return fmt::format(
      "this run needs {} bytes on {} and the device has {}; most are {} ({} bytes): try {}batch.micro below "
      "{}, "
      "a shorter data.seq_len than {}, or a smaller model",
      f.device_bytes(), ranks, f.memory_bytes, kBucketNames[worst], f.booking.at_peak[worst], sharing,
      run.batch.micro, run.data.seq_len);
}

}  // namespace trireme
