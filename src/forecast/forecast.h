// What a run will cost before it starts: the real step booked on meta, priced by a roofline.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "catalog/cluster_device.h"
#include "cost/checkpoint_plan.h"
#include "forecast/routed_rows.h"
#include "forecast/scaled_run.h"
#include "forecast/untrained_router.h"
#include "measure/price.h"
#include "runtime/booking.h"
#include "spec/batch_ramp.h"
#include "spec/cluster_spec.h"

namespace trireme {

struct NearestStep;  // forecast/searched_step.h

struct OpForecast {
  OpTotal total;
  double roof_s = 0;           // of each max(FLOPs / peak, bytes / bandwidth), added up
  double seconds = 0;          // expected; the roof's where the machine's kernels were not measured
  double unmeasured_s = 0;     // of seconds, at the roof although others were measured
  bool compute_bound = false;  // which of the two most of it was
};

// A change of one key (of an axis, with dp in step) under which a run fits that does not;
// forecast/remedies.h.
struct Remedy {
  std::string change;  // "layout.zero = 2"
  int64_t saves = 0;   // bytes of a rank's memory
  double step_s = 0;   // 0 = the machine's peaks are not known
  double costs = 0;    // of the step's time, as a share of it as it was; below 0: it is faster
  bool priced = true;  // false: what it moves over the disk or the wire takes time that is not known
  bool about = false;  // step_s is estimated, not replayed (forecast/quick_forecast.h)
};
struct Remedies {
  std::vector<Remedy> found;      // by time, what is not priced last
  int tried = 0;                  // changes that were booked
  int64_t booked = 0;             // ranks of them, where their steps are not replayed
  std::optional<Remedy> leanest;  // none is found: the one that saves most
};

// The run with one key changed, by the search's closed form; forecast/alternatives.h.
struct Alternative {
  std::string change;  // "layout.recompute = \"none\""
  double step_s = 0;
  double bytes = 0;  // the most loaded rank's
};

// A factor on the whole step that its parts do not foretell; forecast/slowed.h.
struct Slowed {
  std::string by;    // "site mine of mine.json"
  double times = 1;  // as long
};

// Steps of one batch, where it grows (batch.ramp).
struct StageForecast {
  BatchStage stage;
  double step_s = 0;  // 0 = the machine's peaks are not known
};

// Ranks that share a device's memory: all where they are threads of one machine's CPU.
int64_t ranks_on_device(const RunSpec&, const ClusterSpec&);
// Bytes of the device of a booked rank.
int64_t memory_of_rank(const ClusterSpec&, const RunSpec&, const Booking&);
// The searched step divided by a replay of the same run, op by op at the cluster's peak rates. This factor
// makes a forecast of such a replay.
double over_op_by_op(const NearestStep&, const ClusterSpec&, int threads);

struct Forecast {
  Booking booking;                         // of the rank whose peak is the largest
  MostWire wire;                           // over all ranks
  std::optional<RoutedBytes> routed;       // all_to_all, where experts are divided and no routing is known
  std::optional<UntrainedLoad> untrained;  // where layout.ep_load asks for it
  double known_load = 0;                   // of a known routing: rows on the fullest rank, over the mean
  int64_t tokens = 0;                      // target tokens of a step
  double model_flops = 0;                  // of a step: 3 x forward, as MFU counts
  double hardware_flops = 0;               // of a step: those, and what is computed again, as HFU counts
  double op_flops = 0;                     // of a step, as that rank's kernels count
  // What routers can make of that; as `routed`.
  std::optional<RoutedFlops> routed_flops;
  // 0 when the machine's peaks are not known. step_s: expected where kernels that take most of the step were
  // measured with as many ranks and threads, else at the roof; roof_s: at the roof.
  double step_s = 0, roof_s = 0, tokens_per_s = 0;
  bool expected = false;
  std::string
      why_unexpected;  // the setting or figure for want of which it is not; "" = kernels, not measured
  // step_s is priced and replayed as the search does it (forecast/searched_step.h). `time` is the bound's.
  bool closed_form = false;
  // Then: settings that the search does not know. step_s is that of the step without them, times what they
  // change op by op.
  std::vector<std::string> without;
  double low_s = 0, high_s = 0;  // then: the interval that 80 of 100 published runs are in
  std::vector<std::pair<std::string, double>> tolls;  // then: shares of the step, largest first
  PricedBy by;                                        // then: whose constants price the step
  std::string prices;                                 // then: in words; "" = the shipped constants of all
  double unmeasured_s = 0;     // rank 0's ops in step_s that no measurement covers, at peak rates
  std::vector<Slowed> slowed;  // waits in step_s, in addition to its parts
  double mfu = 0, hfu = 0;
  StepTime time;         // one step's
  bool replayed = true;  // false: `time` is not known, for the tapes of all ranks are too large
  int64_t disk_read = 0, disk_written = 0;  // bytes of a step, each rank's: what is offloaded into files
  bool disk_priced = true;                  // false: something is, and the disk's bandwidth is not known
  int64_t host_read = 0,
          host_written = 0;  // likewise: offloaded into the host's memory (Booking::waiting_bytes)
  bool host_priced = true;   // false: something is, and the link's bandwidth is not known
  bool offload_priced() const { return disk_priced && host_priced; }
  bool wire_priced = true;  // false: several ranks, and no alpha and beta of their links are known
  std::vector<OpForecast> ops;
  // The whole run without evaluations and checkpoints; 0 where the step's time is not known. Everything above
  // describes a step of batch.global.
  double run_s = 0, run_flops = 0;
  int64_t run_tokens = 0;
  double cost = 0;   // run_s x devices x their price; 0 = no price is known
  double watts = 0;  // power of all devices and machines; 0 = the cluster states none
  CheckpointPlan checkpoint;
  int64_t memory_bytes = 0;     // of the device; 0 = not known
  int64_t ranks_on_device = 1;  // that share that memory: all of them where ranks are threads of a CPU
  bool own_device = false;      // machines of several devices: each rank has one, with memory of its own
  bool fits = true;
  std::optional<Remedies> remedies;       // if it does not fit and they were requested
  std::vector<Alternative> alternatives;  // if it fits and they were requested, fastest first
  // batch_stages() with their times; and seconds that the run still takes once `done` steps are done.
  std::vector<StageForecast> stages;
  double seconds_after(int64_t done) const;
  // A CPU's device memory is its host memory: the copy that checkpoints are written from is there too.
  int64_t host_bytes() const { return booking.arena_bytes + booking.snapshot_bytes; }
  int64_t device_bytes() const { return own_device ? booking.arena_bytes : host_bytes(); }
  int64_t allowed_bytes() const { return memory_bytes / ranks_on_device; }  // of a rank
};

// The spec is resolved. threads: of each rank. A step's time is that of its pieces replayed with their prices
// (measure/price.h), or the search's, by the constants of `by` (Forecast::closed_form).
Forecast forecast(const RunSpec&, const Schedule&, const ClusterSpec&, int threads, const PricedBy& by = {},
                  const RecordedRanks& recorded = {});

// The one line that says why a run cannot start: the worst rank, its buckets, the two cheapest remedies; or
// "" when it fits.
std::string why_not(const RunSpec&, const Forecast&);

// The line that says what is computed again and what that costs; empty where nothing is.
std::string recompute_text(const RunSpec&, const Forecast&);

// "161.2 ms a step expected (37.4 ms at the roof), 300 steps in 48.4 s"; empty where no peaks are known, or
// all steps are done.
std::string time_line(const RunSpec&, const Forecast&, int64_t done = 0);

// The answer on one screen, at most 25 lines (forecast/forecast_answer.cc).
std::string answer_text(const RunSpec&, const Forecast&, const ClusterSpec&);
// Why a step has no time: the device, or this machine, has no peak of the run's type.
std::string no_peak_text(const RunSpec&, const ClusterSpec&);
// Every table.
std::string to_text(const RunSpec&, const Forecast&, const ClusterSpec&);
// DESIGN.md section 5: {"best": ..., "candidates": [...]}.
std::string to_json(const RunSpec&, const Forecast&);

}  // namespace trireme
