// A run folder as its files describe it. Reads only; a file that is missing, cut off or damaged costs its own
// facts and leaves a note.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "spec/run_spec.h"
#include "trace/ledger.h"

namespace trireme {

// A number that a line of metrics lacks.
inline constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
inline bool known(double v) {
  return v == v;
}

// A line of metrics.jsonl; seconds, bytes. kNoNumber: the line has no such number.
struct StepLine {
  int64_t step = 0, tokens = 0;
  double loss = kNoNumber, grad_norm = kNoNumber, lr = kNoNumber;
  double step_s = kNoNumber, tokens_per_s = kNoNumber, mfu = kNoNumber, hfu = kNoNumber;
  double data_s = kNoNumber, comm_s = kNoNumber;
  double forward_s = kNoNumber, backward_s = kNoNumber, update_s = kNoNumber, norm_s = kNoNumber;
  double other_s = kNoNumber;
  double eval_loss = kNoNumber, stall_s = kNoNumber, write_s = kNoNumber;
  // The save after the last step.
  double last_stall_s = kNoNumber, last_write_s = kNoNumber;
  BucketBytes peak{};
  int64_t peak_total = 0;
  bool skipped = false;
  std::vector<std::pair<std::string, int64_t>> comm_bytes;  // by collective
  std::vector<std::pair<std::string, double>> tasks;        // scores of train.tasks, by "task/metric"
};

// A line of events.jsonl (train/event_file.h): its kind, its time and all that it holds.
struct RunEvent {
  std::string kind;
  double time = 0;  // seconds since 1970
  int64_t step = -1;
  nlohmann::json all;
};

// A launch of the run, and how one ended; what a supervisor says between launches is neither.
inline bool starts(const RunEvent& e) {
  return e.kind == "start" || e.kind == "resume";
}
inline bool ends(const RunEvent& e) {
  return e.kind == "end" || e.kind == "interrupt" || e.kind == "failure";
}

struct RunRecord {
  fs::path folder;
  std::optional<RunSpec> run;    // plan.toml
  nlohmann::json forecast;       // "best" of forecast.json; null = none
  std::vector<StepLine> steps;   // ascending; a step that was repeated has its last line
  int64_t repeated = 0;          // lines that a later one of the same step replaced
  std::vector<RunEvent> events;  // ascending time
  std::vector<nlohmann::json> spikes;
  std::vector<fs::path> traces;      // trace.json, then those of resumed runs
  std::vector<int64_t> checkpoints;  // steps that are complete on disk
  int64_t checkpoint_bytes = 0;      // size of the newest one
  bool locked = false;               // a trainer holds the folder
  double changed = 0;                // seconds since 1970: when metrics.jsonl was written last
  std::vector<std::string> notes;    // missing and damaged files

  // Steps that timings are taken from: all but the first two of each launch, which touch memory for the first
  // time. All of them if there are fewer than four. With batch.ramp those of the last stage, which the
  // forecast is of.
  std::vector<const StepLine*> timed() const;
  const RunEvent* last_event(std::string_view kind) const;  // null: none
  const RunEvent* last_start() const;                       // start or resume
  double forecast_number(std::string_view key) const;       // a number of `forecast`, or kNoNumber
};

// Throws Error (request) if `folder` is not a folder, or no run has written into it.
RunRecord read_run_folder(const fs::path& folder);

// The middle of some numbers of steps; kNoNumber: no step has it.
double median_of(const std::vector<const StepLine*>&, double StepLine::*);

// Saves of a run, the one after the last step included: what they cost, and seconds of the steps between
// them.
struct SaveCosts {
  int64_t saves = 0, written = 0;  // stalls and writes that were measured
  double stall_s = 0, write_s = 0, stall_median = 0, steps_s = 0;
  // Share of stalls in the time of steps and stalls.
  double share() const { return stall_s + steps_s > 0 ? stall_s / (stall_s + steps_s) : 0; }
  // Speed of writing checkpoints of `each` bytes; 0 if none was written.
  double bytes_per_s(int64_t each) const {
    return write_s > 0 ? double(each) * double(written) / write_s : 0;
  }
};
SaveCosts save_costs(const RunRecord&);

// "2026-11-27 09:40:12" in UTC.
std::string time_text(double since_1970);

}  // namespace trireme
