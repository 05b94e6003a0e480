// Measured runs of a file, as cases that step_time() can price; what a row
// lacks or contradicts is said, never guessed.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "catalog/constants.h"
#include "cost/step_time.h"

namespace trireme {

enum class MemoryKind { none, allocator, driver };

struct MeasuredRow : Whose {
  std::string id, source, publication, family, configuration;
  std::string sheet;   // rows of one differ in their layout alone: same model, batch, devices and types
  std::string metric;  // where the measured seconds are from: "step_time_s",
                       // "tokens_per_s", ...
  double step_s = 0;   // measured; 0 = none
  double memory = 0;   // measured, bytes of a device; 0 = none
  MemoryKind memory_kind = MemoryKind::none;
  bool out_of_memory = false;  // the run was tried, and did not fit
  bool cannot_fit = false;     // it ran, and is not forecast: its states alone are more than the device holds
  std::vector<StepCase> cases;   // several where settings are missing: each is possible
  bool states_software = false;  // else it is the source's
  size_t likely = 0;             // the first `likely` cases make the forecast, all its interval; 0 = all
  std::span<const StepCase> likely_cases() const {
    return std::span(cases).first(likely > 0 ? std::min(likely, cases.size()) : cases.size());
  }
  DeviceFigures figures;
  std::string skipped;               // why it cannot be forecast or cannot be true; empty =
                                     // it is forecast
  std::vector<std::string> missing;  // settings that the cases range over
  std::vector<std::string> notes;    // contradictions that another number of the row resolves
  double peak = 0;                   // FLOP/s of a device in the row's precision
};

// Bytes/s of a node's ports to other nodes, by the text of cluster.interconnect: "8x200 Gb/s",
// "400 Gb/s per node", or "400Gb/s per GPU" times the devices of a node. 0 for any other text.
double node_bandwidth(std::string_view interconnect, double devices);

// Errors (request): one line for a text that is no such file.
std::vector<MeasuredRow> read_rows(std::string_view json, std::string_view file, const Catalog&);
// data/published_runs.json and published_runs_2.json.
const std::vector<MeasuredRow>& published_rows();

}  // namespace trireme
