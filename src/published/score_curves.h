// What operations and collectives are priced by, held against published measurements of them
// (data/published_microbench.json), curve by curve.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// One published number, or a range of them.
struct CurvePoint {
  std::string at;   // "1 MiB", "5 GPUs", "2 nodes", "4096 x 7168 x 2048", "2048 keys"
  std::string way;  // the predicted one's: "ring", "in-switch", "compute", "memory", ...
  double predicted = 0;
  double low = 0, high = 0;  // published; high infinite: at least `low`
  // Percent by which the prediction is above (+) or below what was published; 0 inside a range.
  double error() const;
};
struct Curve {
  std::string name, where, unit;  // where: a file of configs/cluster, or a device of the catalog
  std::vector<CurvePoint> points;
  std::string constants;       // of an operation: what the curve is made of
  std::string note;            // what the measurement is of, where that says why it is not reached
  double mean_error() const;   // percent, of absolute values
  double worst_error() const;  // signed, the largest absolute value
};
struct LeftOut {
  std::string name, reason;
};
struct CurveScore {
  std::vector<Curve> curves;
  std::vector<LeftOut> left_out;  // what in the file is not forecast, and why
};

inline constexpr double kCurveBar = 10;  // percent: a curve that is reached has a mean error within it

// Whether a file is one of these, rather than one of measured runs.
bool is_microbench(std::string_view json);
// A bad_request that names the file where it is not what it should be.
CurveScore score_curves(std::string_view json, std::string_view file);

std::string to_text(const CurveScore&);
std::string to_json(const CurveScore&);

}  // namespace trireme
