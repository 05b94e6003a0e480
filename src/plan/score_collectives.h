// Collectives as cost/collective_time.h prices them, held against published measurements of NCCL
// (data/published_microbench.json), curve by curve.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// One published number, or a range of them.
struct CurvePoint {
  std::string at;   // "1 MiB", "5 GPUs", "2 nodes"
  std::string way;  // the predicted one's: "ring", "in-switch", ...
  double predicted = 0;
  double low = 0, high = 0;  // published; high infinite: at least `low`
  // Percent by which the prediction is above (+) or below what was published; 0 inside a range.
  double error() const;
};
struct Curve {
  std::string name, cluster, unit;  // cluster: of configs/cluster
  std::vector<CurvePoint> points;
  std::string note;            // why it is not reached, where that is known
  double mean_error() const;   // percent, of absolute values
  double worst_error() const;  // signed, the largest absolute value
};
struct LeftOut {
  std::string name, reason;
};
struct CollectiveScore {
  std::vector<Curve> curves;
  std::vector<LeftOut> left_out;  // what in the file is no collective, and why it is not forecast
};

inline constexpr double kCollectiveBar = 10;  // percent: a curve that is reached has a mean error within it

// Whether a file is one of these, rather than one of measured runs.
bool is_microbench(std::string_view json);
// A bad_request that names the file where it is not what it should be.
CollectiveScore score_collectives(std::string_view json, std::string_view file);

std::string to_text(const CollectiveScore&);
std::string to_json(const CollectiveScore&);

}  // namespace trireme
