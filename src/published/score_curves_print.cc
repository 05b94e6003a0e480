// Scores of curves in words and as JSON.
#include "published/score_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/json.h"
#include "published/score_collectives.h"
#include "published/score_ops.h"

namespace trireme {
namespace {

using CurvesJson = nlohmann::ordered_json;

std::string published_text(const CurvePoint& p) {
  if (std::isinf(p.high)) return fmt::format("> {:.4g}", p.low);
  return p.low == p.high ? fmt::format("{:.4g}", p.low) : fmt::format("{:.4g}-{:.4g}", p.low, p.high);
}
}  // namespace

std::string to_text(const CurveScore& s) {
  std::string text = fmt::format("{:<46} {:>10} {:>10} {:>10} {:>8}  {}\n", "curve", "predicted", "published",
                                 "unit", "error", "way");
  size_t reached = 0;
  for (const Curve& c : s.curves) {
    const bool within = c.mean_error() <= kCurveBar;
    reached += within;
    text += fmt::format("{} ({}): mean {:.1f} %, worst {:+.1f} %{}{}\n", c.name, c.where, c.mean_error(),
                        c.worst_error(), within ? "" : ", not reached",
                        c.note.empty() ? "" : " (" + c.note + ")");
    if (!c.constants.empty()) text += fmt::format("  {}\n", c.constants);
    for (const CurvePoint& p : c.points)
      text += fmt::format("  {:<44} {:>10.4g} {:>10} {:>10} {:>+7.1f}%  {}\n", p.at, p.predicted,
                          published_text(p), c.unit, p.error(), p.way);
  }
  text += fmt::format("{} of {} curves within {:.0f} % (mean)\n", reached, s.curves.size(), kCurveBar);
  for (const LeftOut& l : s.left_out) text += fmt::format("left out: {}: {}\n", l.name, l.reason);
  return text;
}

std::string to_json(const CurveScore& s) {
  CurvesJson j = {{"curves", CurvesJson::array()}, {"left_out", CurvesJson::array()}};
  for (const Curve& c : s.curves) {
    CurvesJson points = CurvesJson::array();
    for (const CurvePoint& p : c.points)
      points.push_back({{"at", p.at},
                        {"way", p.way},
                        {"predicted", p.predicted},
                        {"low", p.low},
                        {"high", std::isinf(p.high) ? CurvesJson(nullptr) : CurvesJson(p.high)},
                        {"error_percent", p.error()}});
    j["curves"].push_back({{"name", c.name},
                           {"where", c.where},
                           {"unit", c.unit},
                           {"mean_error_percent", c.mean_error()},
                           {"worst_error_percent", c.worst_error()},
                           {"reached", c.mean_error() <= kCurveBar},
                           {"constants", c.constants},
                           {"note", c.note},
                           {"points", points}});
  }
  for (const LeftOut& l : s.left_out) j["left_out"].push_back({{"name", l.name}, {"reason", l.reason}});
  return j.dump(2, ' ', false, CurvesJson::error_handler_t::replace) + "\n";
}

}  // namespace trireme
