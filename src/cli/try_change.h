// A change of a run's keys, tried: the run trains some steps with it and without, by turns.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "report/diagnose.h"

namespace trireme::cli {

struct TriedChange {
  std::vector<std::string> sets;                     // "batch.micro=16"
  double before_s = 0, after_s = 0;                  // seconds per step, medians
  double planned_before_s = 0, planned_after_s = 0;  // forecasts; 0: not known
  int64_t steps = 0;                                 // that each side trained
  double others_cpu = 0;                             // share of the processors that other programs used
  // Shares of a step that the change saves; below 0: it is slower.
  double gain() const { return 1 - after_s / before_s; }
  double planned_gain() const { return planned_before_s > 0 ? 1 - planned_after_s / planned_before_s : 0; }
};

// Trains the run of `folder`/plan.toml and the changed run from new weights, by turns. Together they take
// about `seconds`. They write into a subfolder, which is removed afterwards; the run's own files stay.
// Requires: ranks that are threads of this process.
// Throws Error (request) if the changed run cannot train, Error (interrupted) after a signal.
TriedChange try_change(const fs::path& folder, const std::vector<std::string>& sets, double seconds);

// "layout.recompute=none"; none if the diagnosis names no key whose effect is seen in single steps.
std::optional<std::string> set_of(const Diagnosis&);

// One sentence: what was promised and what was measured. promised: share of a step.
std::string tried_text(const TriedChange&, double promised);

// Notes the result in the run's events.jsonl, for its report. text: tried_text().
void keep_tried(const fs::path& folder, const TriedChange&, const std::string& text);

}  // namespace trireme::cli
