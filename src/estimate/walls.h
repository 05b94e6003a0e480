// The three walls of a run (memory, time, money) from model, tokens, devices and price, each number with its
// arithmetic. Closed forms: cost/walls.h.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost/checkpoint_plan.h"
#include "cost/collective_time.h"
#include "cost/memory.h"
#include "cost/step_time.h"

namespace trireme {

// A number, how people read it, and where it comes from.
struct Worked {
  std::string key, what;                             // of --json; in words
  double value = 0;                                  // in `unit`
  std::string unit, text;                            // "bytes", "FLOPs", "s", "1", ...; "1.12 TB"
  std::string formula, numbers;                      // "16 P"; "16 x 70e9"
  std::vector<std::pair<std::string, double>> also;  // further numbers of --json: key and value
};
struct WorkedSection {
  std::string name;
  std::vector<Worked> lines;
};

struct StepForecast {
  double step_s = 0, mfu = 0, tokens = 0;  // of a step; MFU counts exact FLOPs
  std::string source;                      // what forecast it
  bool bound = false;                      // step_s is at least that, mfu at most
};

// Bytes of a run on one device, as plan or search counts them.
struct RunBytes {
  double bytes = 0;
  bool fits = true;
  std::string source;   // "as in plan"
  int64_t sharing = 1;  // ranks that share the device's memory
};

// Zero and empty where not known: what would need it is left out.
struct WallsCase {
  std::string name;                // of the model
  std::optional<ModelSpec> model;  // finish()ed
  double parameters = 0, active = 0;
  BucketBytes per = state_bytes_per_parameter("bf16", "bf16");
  double tokens = 0;
  bool tokens_assumed = false;  // 20 a parameter that a token visits
  int64_t seq = 0, micro = 1;
  std::string device, device_source;
  std::string compute = "bf16";  // the type of products
  DeviceFigures figures;
  double mtbf_hours = 0;  // device-hours between failures
  double save_s = 0;      // that training waits for a save; 0 = its copy to the host
  int64_t gpus = 1, tp = 1, pp = 1, microbatches = 0, chunks = 1;
  int zero = 0;
  bool recompute = false;  // all blocks, from their inputs
  int64_t ep = 1;
  // Where the ranks are that add up gradients, of experts and of all else; without machines no time is known.
  std::optional<ClusterSpec> site;
  Placement replicas_at, expert_replicas_at;
  double top_k = 0;           // experts per token; 0 = no experts
  bool plain_bubble = true;   // of GPipe, 1F1B or interleaved chunks; else it is left out
  double mfu = 0, reach = 0;  // what is had; what could be
  StepForecast forecast;      // instead of mfu
  double price = 0, budget = 0;
  std::string currency;        // the price's; empty = not stated
  double watts = 0;            // power of devices and machines; 0 = not stated
  std::string power;           // the same in words
  double write_bandwidth = 0;  // bytes/s of all machines to storage; 0 = not stated
  double host_bandwidth = 0;   // bytes/s of one device to its host; 0 = kHostLink
  // A run file is given: its bytes on a device and its checkpoints are those of `trireme plan`, FLOPs are
  // exact instead of 6 N D.
  bool of_run = false;
  std::optional<RunBytes> total;
  double saved_bytes = 0;
  std::optional<CheckpointPlan> saves;
  double replicas() const { return double(gpus) / double(tp * pp); }
  double used() const { return mfu > 0 ? mfu : forecast.mfu; }
};

std::vector<WorkedSection> walls_of(const WallsCase&);
// The lines that decide, as many as fit a screen. all: all lines. arithmetic: all lines, with formulas.
std::string walls_text(const WallsCase&, bool arithmetic, bool all);
std::string walls_json(const WallsCase&);

// "1,966 days (5.38 years)".
std::string long_time(double seconds);

}  // namespace trireme
