// Where the best layout changes: a figure of the machine, or the batch, is turned up and down until a search
// of all layouts has another division first. What --why finds among today's candidates this finds among all.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "search/search.h"

namespace trireme {

// What can be turned: "near", "far" (links inside a node and between nodes), "memory", "peak" and "batch".
std::vector<std::string> flip_knobs();

struct FlipPoint {
  std::string_view knob;
  double now = 0;        // bytes/s, bytes, FLOP/s, or sequences
  double at = 0;         // where it changes, to within kFlipWithin; of the batch: the first of the doublings
  bool any = false;      // it does, within a factor of kMostTurned; else `at` is how far was looked
  bool fits = true;      // false: beyond `at` nothing fits any more
  Priced before, after;  // the best now, and then
  bool rises() const { return at > now; }
};
inline constexpr double kFlipWithin = 0.02, kMostTurned = 8;

// Of each knob, above and below. best: of search(request).
std::vector<FlipPoint> flip_points(const SearchRequest&, const Priced& best,
                                   const std::vector<std::string>& knobs);

// "tp 2 -> 4, dp 4 -> 2 when links inside a node rise above 540 GB/s (now 360): tp 4 pp 4 dp 4, zero 1, ..."
std::string flips_text(const std::vector<FlipPoint>&);
std::string flips_json(const std::vector<FlipPoint>&);

}  // namespace trireme
