// Measures what kernels and collectives reach on this machine where it counts: inside training steps, with
// caches and neighbours as steps leave them, by real runs of small models (spec/calibration.h).
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "runtime/rank_threads.h"
#include "spec/calibration.h"
#include "spec/run_spec.h"
#include "trace/tape.h"

namespace trireme {

struct CalibrationRequest {
  int ranks = 1, threads = 1;  // rank threads at once, and OpenMP threads of each
  bool bf16 = true;            // multiplied in hardware; else, as kernels emulate it, by fewer of the runs
  bool quick = false;          // a reduced table in a few seconds
  // "cuda": models of the sizes that GPUs train, in bf16; each op is waited for, and what waiting takes is
  // taken off. One rank.
  std::string device = "cpu";
  MakeDevice make = {};  // null: that of the name
  // Asked before every step: true ends the measurement, and what is returned is not known().
  std::function<bool()> stop = {};
};

// Clocks move from one second to the next: before and behind each run every rank times a burst of arithmetic,
// and the run's seconds become those at the median's clock.
//
// progress: steps of all that are done. Peaks and bandwidth are left to the caller.
using CalibrationProgress = std::function<void(int64_t done, int64_t all)>;
Calibration calibrate(const CalibrationRequest&, const CalibrationProgress& progress = {});

// The runs that it takes: random tokens, one microbatch a step.
std::vector<RunSpec> drills(const CalibrationRequest&);

// Sizes of groups whose collectives are timed beside those of all ranks: 2, 4, 8, ... that divide them.
std::vector<int> smaller_groups(int ranks);

// Seconds of launches on recorded tapes, by op, compute type and size; what several launches of a size took
// is their median.
class SpeedSamples {
 public:
  // factor: on every time; of a clock that was slower than usual meanwhile it is below 1. waited_s: of each
  // op, what waiting for it took.
  void add(const Tape&, std::string_view compute, double factor = 1, double waited_s = 0);
  std::vector<SpeedTable> tables() const;
  double between_s() const;  // median

 private:
  struct Size {
    int64_t rows, cols;
    double work;
    auto operator<=>(const Size&) const = default;
  };
  std::map<std::string, std::map<Size, std::vector<double>>> seconds_;
  std::vector<double> between_;
};

// What a run of ranks took a step, and what its pieces foretell; its calls beside compute and their bytes.
struct WholeStep {
  Axis axis = Axis::dp;  // that they divide
  double step_s = 0, pieces_s = 0, calls = 0, bytes = 0;
};
// step_s = ratio x pieces_s + call_s x calls + byte_s x bytes.
struct WholeStepFit {
  double call_s = 0, byte_s = 0;
  double usual = 1;               // ratio of all
  std::map<Axis, double> ratios;  // pooled_ratio() of each axis' own
};
// The call_s and byte_s of a robust fit of relative errors: a few steps that the system held up move neither,
// and none decides alone. The ratio is then the median. At least one step, of times above 0.
WholeStepFit fit_whole_steps(std::span<const WholeStep>);

// The median of a few ratios that scatter, drawn towards what is usual of all of them as four more that were
// so would draw it (in logarithms); usual where there are none. Ratios above 0.
double pooled_ratio(std::vector<double> own, double usual);

}  // namespace trireme
