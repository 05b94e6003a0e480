// The parts of a report that charts show.
#pragma once
#include "report/report.h"

namespace trireme {

// A number that is not known or not finite is null.
nlohmann::json number_or_null(double);
// "1.20 GB", "34.1 ms"; unit: "bytes" or "s".
std::string amount_text(double v, const std::string& unit);

// The name of a use of time; input gradients of runs that do not split their backward passes are "backward".
std::string shown_name(Use, const UseTimes& totals);

nlohmann::json comb_json(const TraceFacts&);
nlohmann::json memory_json(const ReportInput&, const MachineFacts&);
nlohmann::json curves_json(const RunRecord&);
nlohmann::json roofline_json(const ReportInput&, const MachineFacts&);

}  // namespace trireme
