// Collectives as cost/collective_time.h prices them, held against published measurements of NCCL.
#pragma once
#include <string_view>

#include "checkpoint/json.h"
#include "published/score_curves.h"

namespace trireme {

// Whether a section of such a file is of collectives, also of ones that are left out.
bool is_collective_section(std::string_view);
// Its curves, and what of it is left out. A bad_request that names the file where it is not what it should
// be.
void score_collectives(const nlohmann::ordered_json& all, std::string_view file, CurveScore&);

}  // namespace trireme
