// Causes of lost time: measurement, evidence, and the key that changes each.
#pragma once
#include <string>
#include <vector>

#include "report/report.h"

namespace trireme {

struct Diagnosis {
  std::string id, title;  // "input_stall", "The run waits for data"
  bool found = false;
  std::string number;  // "12 % of each step": the measurement that decides
  std::vector<std::string> evidence;
  std::string key, from, to;  // a key of the run file; empty: none
  double gain_share = 0;      // saved share of a step, 0 to 1
  bool measured = true;       // false: the gain is estimated by planning the run with the changed key
};

// Input of the diagnoses, gathered once.
struct Symptoms {
  const ReportInput& in;
  const RunSpec& run;
  std::vector<const StepLine*> steps;  // timed
  double step_s = 0;                   // their median
  PricedRun base;                      // the unchanged run; step_s 0 = not priced

  double median(double StepLine::*number) const { return median_of(steps, number); }
  // Share of a step that the change saves, as planned with and without it; none: not planned, or does not
  // fit.
  std::optional<double> priced_gain(std::vector<std::string> sets) const;
  // Likewise the share of the exposed communication that the change hides; 0 where the change does not fit.
  std::optional<double> priced_hiding(std::vector<std::string> sets) const;
  // Share of the traced steps in a use; 0 without a trace.
  double share(Use) const;
};

// A smaller gain is within the noise of step times and is not reported.
inline constexpr double kLeastGain = 0.03;

// Every diagnosis that was tried, those that were found first, by falling gain. Empty: the folder has no plan
// or no timed step.
std::vector<Diagnosis> diagnose(const ReportInput&);

// One each.
Diagnosis serialised_communication(const Symptoms&);
Diagnosis microbatch_too_small(const Symptoms&);
Diagnosis input_stall(const Symptoms&);
Diagnosis checkpoints_too_frequent(const Symptoms&);
Diagnosis needless_recompute(const Symptoms&);
Diagnosis straggler(const Symptoms&);
Diagnosis wrong_placement(const Symptoms&);
Diagnosis clock_throttling(const Symptoms&);
Diagnosis launch_overhead(const Symptoms&);
Diagnosis slow_storage(const Symptoms&);
Diagnosis busy_machine(const Symptoms&);
Diagnosis pipeline_bubble(const Symptoms&);

}  // namespace trireme
