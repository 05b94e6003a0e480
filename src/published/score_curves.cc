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

constexpr size_t kMostCurveBytes = 1 << 20;

std::string published_text(const CurvePoint& p) {
  if (std::isinf(p.high)) return fmt::format("> {:.4g}", p.low);
  return p.low == p.high ? fmt::format("{:.4g}", p.low) : fmt::format("{:.4g}-{:.4g}", p.low, p.high);
}

}  // namespace

double CurvePoint::error() const {
  const double against = std::clamp(predicted, low, high);
  return (predicted / against - 1) * 100;
}
double Curve::mean_error() const {
  double sum = 0;
  for (const CurvePoint& p : points) sum += std::abs(p.error());
  return points.empty() ? 0 : sum / double(points.size());
}
double Curve::worst_error() const {
  double worst = 0;
  for (const CurvePoint& p : points)
    if (std::abs(p.error()) > std::abs(worst)) worst = p.error();
  return worst;
}

bool is_microbench(std::string_view json) {
  const size_t first = json.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || json[first] != '{') return false;
  constexpr std::string_view kMarks[] = {"\"nccl_", "_latency_64B_us\"", "_tflops\"", "_shares\""};
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [&](std::string_view m) { return json.find(m) != std::string_view::npos; });
}

CurveScore score_curves(std::string_view json, std::string_view file) {
  const CurvesJson all = parse_json(json, file, kMostCurveBytes);
  if (!all.is_object()) bad_request("{}: not an object of measurements (docs/score.md)", file);
  CurveScore score;
  score_ops(all, file, score);
  score_collectives(all, file, score);
  for (const auto& [section, value] : all.items())
    if (!is_collective_section(section) && !is_op_section(section))
      score.left_out.push_back({printable(section), "not known here"});
  return score;
}

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
