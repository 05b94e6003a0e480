// Texts of data/score_catalog.json, score_constants.json, published_runs.json, published_runs_2.json and
// prices.toml, compiled in.
#pragma once
#include <string_view>

namespace trireme {
extern const std::string_view kScoreCatalog, kScoreConstants, kPublishedRuns[2], kPrices;
}  // namespace trireme
