// Several runs next to each other: which toll fell, what the difference of two machines costs, how speed
// scales.
#pragma once
#include <span>

#include "report/report.h"

namespace trireme {

// "kind": "comparison". A run without steps is a plan: its forecast stands in for what was measured.
// Requires: two or more.
nlohmann::json comparison_json(std::span<const ReportInput>);
std::string compared_text(const nlohmann::json& comparison);

}  // namespace trireme
