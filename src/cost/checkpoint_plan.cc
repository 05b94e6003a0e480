#include "cost/checkpoint_plan.h"

#include <algorithm>
#include <cmath>

#include "cost/checkpoint_interval.h"
#include "cost/flops.h"
#include "cost/goodput.h"

namespace trireme {

namespace {

int64_t moment_bytes(const PrecisionSpec& p) {
  return p.moments == "f32" ? 4 : 2;
}

}  // namespace

int64_t checkpoint_bytes_per_parameter(const PrecisionSpec& p) {
  return 4 + 2 * moment_bytes(p);
}

int64_t checkpoint_bytes(const RunSpec& run, int64_t trained) {
  const int64_t each = checkpoint_bytes_per_parameter(run.precision);
  if (trained > 0) return each * trained;
  const int64_t all = parameters(run.model);
  // Muon keeps one moment of the blocks' matrices, AdamW two.
  const int64_t hidden = all - embedding_parameters(run.model) - head_parameters(run.model);
  return each * all - (run.optimizer.name == "muon" ? moment_bytes(run.precision) * hidden : 0);
}

CheckpointPlan checkpoint_plan(const CheckpointCase& c) {
  CheckpointPlan p{.bytes = c.bytes};
  p.stall_s = c.bytes / c.devices / (c.host_bandwidth > 0 ? c.host_bandwidth : kHostLink);
  if (c.write_bandwidth > 0) p.write_s = c.bytes / c.write_bandwidth;
  p.storage = c.storage_bytes;
  if (c.storage_bytes > 0) p.kept = std::floor(c.storage_bytes / c.bytes);
  if (c.mtbf_s <= 0) return p;
  p.young_s = young_interval(p.stall_s, c.mtbf_s);
  p.interval_s = std::max(daly_interval(p.stall_s, c.mtbf_s), p.write_s);
  p.steps = checkpoint_steps(p.interval_s, p.write_s, c.step_s);
  if (c.step_s > 0) p.interval_s = double(p.steps) * c.step_s;
  const auto lost = [&](double interval_s) {
    return std::min(1.0, checkpoint_waste(interval_s, p.stall_s, c.mtbf_s, c.restart_s + p.write_s));
  };
  p.lost = lost(p.interval_s);
  if (c.stated.automatic || c.step_s <= 0 || c.stated.count == p.steps) return p;
  p.stated_steps = c.stated.count;
  if (c.stated.count > 0) p.stated_lost = lost(double(c.stated.count) * c.step_s);
  return p;
}

CheckpointCase checkpoint_case(const ClusterSpec& cluster, double bytes, int64_t devices, double step_s) {
  return {.bytes = bytes,
          .devices = double(devices),
          .host_bandwidth = cluster.host_bandwidth,
          .write_bandwidth = cluster.checkpoint_bandwidth(),
          .storage_bytes = cluster.storage.bytes,
          .step_s = step_s,
          .mtbf_s = cluster.mtbf_s(devices),
          .restart_s = Reliability().restart_s};
}

}  // namespace trireme
