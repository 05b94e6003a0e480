// The price of one searched layout: its step in closed form or as a lower bound (cost/step_time.h,
// forecast/step_bound.h) and the memory of its most loaded rank. docs/search.md.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/device_kinds.h"
#include "cost/checkpoint_plan.h"
#include "cost/goodput.h"
#include "cost/step_memory.h"
#include "forecast/rank_bytes.h"
#include "forecast/search_layout.h"
#include "forecast/step_bound.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

enum class RankBy { step, cost, loss };

// What bookings say of a kind of layouts (search/confirm.h): it holds so many times the closed form's
// activations, and so many bytes, which small layouts have as well as large ones.
struct HeldMore {
  std::string_view schedule;
  int zero = 0;  // what whole weights and gradients take beside is not another degree's
  Again again = Again::none;
  double times = 1, bytes = 0;
  struct Seen {
    double closed = 0, booked = 0;  // bytes of activations
  };
  std::vector<Seen> seen;
};

// A layout that was booked and is too large: it and all of its division, schedule, chunks, microbatch and
// recompute, whatever their order of axes and sharding, hold so many bytes more than in closed form.
struct BookedMore {
  SearchLayout layout;
  double bytes = 0;
};

// What layouts are of, and by what they are priced.
struct LayoutCase {
  ModelSpec model;  // finish()ed
  int64_t seq = 0, window = 0;
  double window_share = 0;
  bool expert_bias = false;  // StepCase's
  std::string device;
  // The run that the layouts are of, for the run file that is printed: all but its layout and batch.
  std::optional<RunSpec> run;
  DeviceFigures figures;
  FitValues fits{};
  SoftwareProfile software = kElsewhere;  // that runs the layouts
  AttentionKind attention = AttentionKind::flash;
  NumberType numbers = NumberType::half;
  double grad_bytes = 2;   // of a gradient on the wire
  double grad_stored = 0;  // and in memory; 0 = 4 where a step has several microbatches, else 2
  double optimizer = 12;   // bytes of a parameter (Keeping::optimizer)
  // Keys that the search does not vary (set_layout_keys()).
  LayoutSpec keys{.sequence = true};
  // Bytes/s of a device to its machine's disk, or to the host's memory, where state may wait; 0 = nowhere.
  double disk = 0;
  bool disk_each_way = false;   // reads and writes have that rate at once: the host's link
  double memory_share = 1;      // of the device's memory that may be planned with
  double price = 0;             // of a device-hour; 0 = cost is in device-hours
  bool price_of_kinds = false;  // it is the kinds' of `site`, the mean over the most devices
  std::string currency;         // the price's; empty = not stated
  Reliability reliability;
  ClusterSpec site;        // for energy and checkpoints; its nodes are not read
  double saved_bytes = 0;  // size of a checkpoint; 0 = of the model with f32 moments
  RankBy by = RankBy::step;
  double loss = 0;  // the target of RankBy::loss, nats a token
  // 10th and 90th percentile of measured over forecast steps, of published runs.
  double low = 1, high = 1;
  // Paths of this model, sequence and cut, which several searches may share; null: the search makes its own.
  std::shared_ptr<StepBound> bound;
  // Likewise, of trireme's own layouts: their memory.
  std::shared_ptr<RankBytes> bytes;
  // A cluster of several kinds of devices, of trireme's own runs: the kinds of pipeline ranks. Then figures,
  // fits and disk are those of the slowest. null: all devices are alike.
  std::shared_ptr<const DeviceKinds> kinds;
  // Changes figures and constants, of all kinds.
  void change(const std::function<void(DeviceFigures&, FitValues&)>&);
  std::vector<HeldMore> held_more;
  std::vector<BookedMore> booked_more;
};

// The run that layouts are of: `given`, or one with defaults and the request's types.
RunSpec run_of(const LayoutCase&, const std::optional<RunSpec>& given);

// One candidate's price. Times are of wall clock: the share that failures take is in it (goodput).
struct Priced {
  SearchLayout layout;
  StepSeconds time;
  StepMemory memory;
  double token_s = 0;   // seconds a token of the whole cluster, failures included
  double cost = 0;      // of a token: device-hours paid, times their price where that is known
  double headroom = 0;  // bytes of the device's memory that are left
  double score = 0;     // what is ranked: the lowest is best
  uint8_t alike = 0;    // further orders of the axes that take as long: bits of Nearest
};
// Them, in the order of Nearest.
std::vector<Nearest> orders_alike(const Priced&);
// text_of(layout), and behind it the orders alike: ` (or order "dp pp cp tp")`.
std::string text_of(const Priced&);

// Seconds and cost of what is worked for: of a token; by RankBy::loss, of all until the loss, for larger
// batches take more tokens.
double seconds_of(const LayoutCase&, const Priced&);
double cost_of(const LayoutCase&, const Priced&);

// A schedule as the closed forms see it.
struct KnownSchedule {
  std::string_view name;
  PipelineOrder order;
  bool as_1f1b;  // idles as 1F1B does
};
// The schedules that are searched.
std::span<const KnownSchedule> known_schedules();
// The closed forms divide the bubble by chunks; of a V it is said outright.
void set_schedule(const LayoutCase&, StepCase&, const KnownSchedule&, int64_t chunks);
void set_again(StepCase&, Again);
// Bytes of a gradient in memory: f32 sums of several microbatches; one stays in the compute type.
double stored_grads(const LayoutCase&, int64_t microbatches);
// Adds what bookings said.
void hold_more(const LayoutCase&, const SearchLayout&, StepMemory&);
// What a second of so many devices is worth.
struct ClusterPrice {
  double goodput = 1, cost_s = 0;
};
// Price per device-hour, the mean over n devices; 0 = not known.
double price_of(const LayoutCase&, int64_t gpus);
ClusterPrice cluster_price(const LayoutCase&, int64_t gpus);
// Sets all but time and memory from them.
void set_price(const LayoutCase&, const ClusterPrice&, Priced&);

StepCase step_case(const LayoutCase&, const SearchLayout&);
// Returns the devices of the layout's pipeline ranks; nothing for a cluster of one kind.
RankRoom room_of(const LayoutCase&, const SearchLayout&);
// Dense 16-bit peak of all devices together.
double peak_of(const LayoutCase&, const SearchLayout&);
// The request's, or new ones.
std::shared_ptr<StepBound> bound_of(const LayoutCase&);
std::shared_ptr<RankBytes> bytes_of(const LayoutCase&);
// Memory of the most loaded rank, without what bookings say: in trireme's own runs (forecast/rank_bytes.h),
// or in runs elsewhere (cost/step_memory.h).
StepMemory closed_memory(const LayoutCase&, const SearchLayout&);
// The step that search() ranks by. For trireme's own layouts it is a lower bound of the replayed step, for
// other software its closed form.
// exact: as StepBound::of().
StepSeconds step_of(const LayoutCase&, const SearchLayout&, bool exact);
// By itself; search() gives the same but for which paths a bound knows.
Priced price_layout(const LayoutCase&, const SearchLayout&);
// The least time of the step: at the devices' peak rates, and no more than the forecast `step_s`.
double bound_s(const LayoutCase&, const SearchLayout&, double step_s);
// The interval of a layout's step, in seconds.
// It goes from LayoutCase::low times the lesser forecast, but no less than the bound, to high times the
// larger.
// Forecasts are the closed form and, if above 0, the simulated step.
struct StepInterval {
  double low = 0, high = 0;
};
StepInterval interval_of(const LayoutCase&, const Priced&, double simulated_s);
Goodput goodput_of(const LayoutCase&, int64_t gpus);
CheckpointCase checkpoint_case_of(const LayoutCase&, int64_t gpus, double step_s);
// Model FLOPs utilisation of the step itself.
double mfu_of(const LayoutCase&, const Priced&);
double step_tokens(const LayoutCase&, const SearchLayout&);

// Tolls of a step, largest first: name and seconds.
std::vector<std::pair<std::string, double>> tolls_of(const StepSeconds&);
// What binds a layout: the largest beside products.
std::pair<std::string, double> binding_toll(const StepSeconds&);

}  // namespace trireme
