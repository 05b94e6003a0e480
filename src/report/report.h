// The report of a run: what ran, how fast, what it cost, what to change.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "report/difference.h"
#include "report/goodput_measured.h"
#include "report/machine_facts.h"
#include "report/run_record.h"
#include "report/trace_facts.h"

namespace trireme {

// A run planned with changed keys.
struct PricedRun {
  double step_s = 0;     // 0 = not known
  double exposed_s = 0;  // compute waits for other ranks and the wire
  bool fits = true;
  int64_t device_bytes = 0;
};
// Plans the run with `sets` ("batch.micro=4"); none if it cannot be planned.
using PriceRun = std::function<std::optional<PricedRun>(std::span<const std::string> sets)>;

struct ReportInput {
  RunRecord record;
  TraceFacts trace;
  std::optional<ClusterSpec> cluster;
  PriceRun price;      // empty: nothing is planned
  bool bound = false;  // a plan of a device whose kernels are not measured
};
ReportInput read_report_input(const fs::path& folder);

struct RecordRow {
  std::string key, value, source;  // source: "measured", "run file" or "computed"
};
// The systems record.
std::vector<RecordRow> systems_record(const ReportInput&, const MachineFacts&, const MeasuredGoodput&);
std::string markdown_of(const std::vector<RecordRow>&);

// Version 1 of the report, "kind": "run". docs/report.md lists its keys.
nlohmann::json report_json(const ReportInput&);
// The run as an entry of a list of runs: {"folder", "name", "state", "step", "steps", "loss", "tokens_per_s",
// "updated"}. Reads no trace.
nlohmann::json run_row(const fs::path& folder);
// At most about 40 lines.
std::string report_text(const ReportInput&, const nlohmann::json& report);

}  // namespace trireme
