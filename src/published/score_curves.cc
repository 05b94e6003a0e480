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

}  // namespace trireme
