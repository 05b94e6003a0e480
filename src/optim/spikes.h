// Steps whose loss or gradient norm is an outlier, or not finite.
//
// The robust z-score of a value x is (x - median) / (1.4826 MAD) over the last `window` updates: median and
// median absolute deviation ignore the outliers that they shall find (Iglewicz and Hoaglin 1993). Only values
// above the median count. Losses and norms are sums over all ranks with the same bits on each, so every rank
// decides alike.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct SpikeOptions {
  bool active = false;
  double z = 8;
  int64_t window = 64;  // updates; half of them come before the first verdict on an outlier
  int64_t limit = 20;   // steps skipped in a row at most
};

// State in the checkpoint.
struct SpikeState {
  std::vector<double> losses, norms;  // recent updates, oldest first
  int64_t in_a_row = 0;               // steps skipped since the last update
  int64_t skipped = 0;                // steps of the run without an update
  bool operator==(const SpikeState&) const = default;
};

struct SpikeVerdict {
  bool skip = false;
  bool finite = true;
  double loss_z = 0, norm_z = 0;
  double loss_median = 0, norm_median = 0;
};

class SpikeDetector {
 public:
  SpikeDetector() = default;  // skips nothing
  explicit SpikeDetector(const SpikeOptions& o) : options_(o) {}

  bool active() const { return options_.active; }
  SpikeVerdict judge(double loss, double norm) const;
  // The step that was judged last: it had its update, or was skipped.
  void updated(double loss, double norm);
  void skipped();
  // Steps without an update, as a rollback to older weights leaves them.
  void set_skipped(int64_t steps) { state_.skipped = steps; }

  const SpikeState& state() const { return state_; }
  // Could a run have come to that state?
  bool plausible(const SpikeState&) const;
  // A longer window than this run's loses its oldest values.
  void restore(SpikeState);

 private:
  SpikeOptions options_;
  SpikeState state_;
};

}  // namespace trireme
