#include "trace/step_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace trireme {
namespace {

// A whole number from 1; -1 for any other text.
int64_t step_of(std::string_view text) {
  int64_t n = -1;
  auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
  return wrong == std::errc() && end == text.data() + text.size() && n >= 1 ? n : -1;
}

}  // namespace

std::string StepSet::parse(std::string_view text, StepSet& out) {
  StepSet set;
  for (bool more = !text.empty(); more;) {
    size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    size_t dash = part.find('-');
    int64_t first = step_of(part.substr(0, dash));
    int64_t last = dash == std::string_view::npos ? first : step_of(part.substr(dash + 1));
    if (first < 1 || last < 1)
      return fmt::format("\"{}\" is no step from 1 and no range of them; give \"3-5\" or \"7,20-22\"",
                         part.substr(0, 40));
    if (last < first) return fmt::format("\"{}\" ends before it begins; give \"{}-{}\"", part, last, first);
    set.ranges_.emplace_back(first, last);
  }
  out = std::move(set);
  return "";
}

bool StepSet::contains(int64_t step) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const auto& r) { return r.first <= step && step <= r.second; });
}

int64_t StepSet::first() const {
  int64_t first = ranges_.front().first;
  for (const auto& r : ranges_) first = std::min(first, r.first);
  return first;
}

}  // namespace trireme
