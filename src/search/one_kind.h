// Comparisons of a search's answer in a cluster of several kinds of devices.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "search/confirm.h"

namespace trireme {

// For each kind the best layout on its devices alone, at most as many as the search has. Then, as the last,
// the best on all devices at the slowest's pace and with the least memory. If the search uses one kind: the
// other kinds that have enough devices. Empty: the search has several numbers of devices.
std::vector<KindAlone> kinds_alone(const SearchRequest&, const ConfirmRequest&);
// "32 x H100 alone take 2.58 s (the others add 10.1 % speed); ..."; "" without rows.
// step_s: the step on all devices.
std::string alone_text(const std::vector<KindAlone>&, double step_s);
// "8 x H100", or "8 x H100 + 16 x A100-80GB" of several kinds: the most that are searched.
std::string devices_text(const SearchRequest&);
nlohmann::ordered_json json_of(const std::vector<KindAlone>&);

}  // namespace trireme
