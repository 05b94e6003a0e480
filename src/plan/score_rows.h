// Measured runs of a file, as cases that step_time() can price; what a row
// lacks or contradicts is said, never guessed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cost/step_time.h"
#include "plan/score_catalog.h"

namespace trireme {

enum class MemoryKind { none, allocator, driver };

struct MeasuredRow {
  std::string id, source, family, software, site, device, configuration;
  std::string metric;  // where the measured seconds are from: "step_time_s",
                       // "tokens_per_s", ...
  double step_s = 0;   // measured; 0 = none
  double memory = 0;   // measured, bytes of a device; 0 = none
  MemoryKind memory_kind = MemoryKind::none;
  bool out_of_memory = false;   // the run was tried, and did not fit
  std::vector<StepCase> cases;  // several where settings are missing: each is possible
  DeviceFigures figures;
  std::string skipped;               // why it cannot be forecast or cannot be true; empty =
                                     // it is forecast
  std::vector<std::string> missing;  // settings that the cases range over
  std::vector<std::string> notes;    // contradictions that another number of the row resolves
  double peak = 0;                   // FLOP/s of a device in the row's precision
};

// Errors (request): one line for a text that is no such file.
std::vector<MeasuredRow> read_rows(std::string_view json, std::string_view file, const Catalog&);

}  // namespace trireme
