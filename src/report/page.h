// The report of a run, or of a comparison, as one page that a browser shows without a network.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"

namespace trireme {

// Renders a report (docs/report.md has its form) as one HTML file. Any text in it is safe: names and paths
// come from files.
std::string report_page(const nlohmann::json& report);

// The same page without a report: it asks the server that sent it, under `base` ("" or "/TOKEN").
// many: the page begins with a list of runs.
std::string live_page(std::string_view base, bool many);

}  // namespace trireme
