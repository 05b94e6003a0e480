// Texts of data/score_catalog.json and data/score_constants.json, compiled in.
#pragma once
#include <string_view>

namespace trireme {
extern const std::string_view kScoreCatalog, kScoreConstants;
}  // namespace trireme
