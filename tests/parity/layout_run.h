// Trains a layout on rank threads, one thread each, and brings home all that a comparison wants.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/booking.h"
#include "sanitized.h"

namespace trireme::parity {

using Values = std::vector<float>;
using ByName = std::map<std::string, Values>;  // whole parameters, put together from all ranks

struct RankFacts {
  BucketBytes state{}, peaks{}, at_peak{};  // of the ledger: kept between steps; of the last step
  int64_t peak_total = 0, high_water = 0, left_over = 0;
  CommCounts comm{};               // of the last step
  bool again = false;              // part of it was done twice: the step before was taken back in it
  int64_t moved = 0, counted = 0;  // bytes on the wire from the start: by the backend, by the front
  Cost cost;                       // of the last step, before it is settled
  int64_t launches = 0;
  int64_t saved = 0;  // bytes of activations before the first backward pass
  std::optional<ReplayCounts> replayed;
  int64_t most_live_units = 0;     // gathered at once
  int64_t waiting = 0;             // bytes of the host's memory, of what is offloaded there
  uint64_t state_hash = 0;         // of the own parts of master copies and moments, in the end
  std::vector<std::string> calls;  // collectives of the last step, in program order: "all_gather 12288"
};

struct Ran {
  std::vector<double> losses, norms;
  std::map<std::string, ByName> state;  // "" = master copies, "exp_avg", "exp_avg_sq"
  std::vector<ByName> gradients;        // of the steps asked for, before clipping
  std::vector<ByName> buffers;          // behind each step: routers' biases, which every rank has alike
  std::vector<RankFacts> ranks;
  RecordedRouting routing;           // of all steps
  std::vector<LayerRouting> routed;  // of the last one
  int64_t taken_back = 0;            // steps that post-validation made again
  Booking booking;
};

// Ten times slower there: fewer steps, for what sanitizers see.
inline const int64_t kSteps = test::kSanitized ? 8 : 50;

struct Plan {
  int64_t steps = kSteps;
  int64_t announce_more = 0;  // target tokens than the batch has
  bool gradients = false;     // of every step; the learning rate is 0 then, so weights stay equal
  const RecordedRouting* replay = nullptr;  // choices of experts; null: each its own, recorded
  const Schedule* schedule = nullptr;       // in place of the layout's
  fs::path routing;     // folder for routing.jsonl of the last step, as train.record_routing has it; "": none
  bool graphs = false;  // launches that come again are kept (device/replay.h); else as the test's device says
  bool far = false;     // on far devices (far_device.h), in place of the test's device
  bool gelu_in_products = false;  // of those
  bool fresh_adapters = false;    // B is zero, as in a run; else noise, so that every gradient has a value
};

Ran train_layout(RunSpec, const Plan&);

// Sample `global_row` of a step, the same under every layout; some targets are -1, more of them in the first
// samples, so ranks have uneven numbers of targets. Separate documents are of about 4 tokens.
void fill_row(const RunSpec&, int64_t step, int64_t global_row, std::span<int32_t> tokens,
              std::span<int32_t> targets, std::span<int32_t> positions);

}  // namespace trireme::parity
