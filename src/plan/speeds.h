// Seconds of ops and collectives on a machine whose kernels `bench` has measured (spec/calibration.h): the
// expected time of a piece, beside its roof.
//
// Products and attention are rates (FLOP/s) at sizes (rows, columns, FLOPs an element of the output); between
// measured sizes the rate is their mean, weighted by 1 / distance^6 of the sizes' logarithms, and of
// matrices' sides also of how far they are multiples of powers of two (Shepard 1968): exact at a measured
// size, and never beyond the slowest and the fastest. All else is seconds by bytes moved, a straight line in
// logarithms between two measured sizes, growing; beyond the largest in proportion, below the smallest what
// that takes.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "spec/calibration.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"
#include "trace/tape.h"

namespace trireme {

// Whose speed follows from FLOPs and shape rather than from bytes.
bool is_product(std::string_view op);
// As SpeedPoint::work counts it.
double work_of(const Piece&);
// The launch as it is on the fullest rank: products of experts that are divided over ranks have a planned
// room of rows, layout.ep_buffer (at most ep) times what a balanced router sends, and compute those that
// come, layout.ep_load times those.
Piece as_filled(const Piece&, const RunSpec&);
// "all_reduce ordered 2": a call's table. beside: on a stream of its own, "all_reduce ordered 2 beside",
// whose thread has to be given a core that computes.
inline constexpr std::string_view kBeside = " beside";
std::string call_table(std::string_view name, std::string_view algorithm, size_t ranks, bool beside = false);

// What the ranks of a layout divide beside the batch: the first of pp, ep, cp and tp that is above 1, else
// dp.
Axis divided_axis(const LayoutSpec&);
// Collectives on streams of their own, and the bytes of their buffers.
struct Beside {
  int64_t calls = 0, bytes = 0;
};
Beside calls_beside(const Tape&);
// Where a calibration says what whole steps of ranks that divide this took of what their pieces foretell.
// Ranks wait for one another wherever chance holds one of them up, and one that waits leaves what cores share
// to the others: no op's time says so.
double Calibration::*whole_step(Axis);

class Speeds {
 public:
  explicit Speeds(const Calibration&);
  // Of one launch; none where no size of this op was measured in this type.
  std::optional<double> op(const Piece&, std::string_view compute) const;
  // Of a call once its ranks have met; as the other kind where only that was measured.
  std::optional<double> call(std::string_view name, std::string_view algorithm, size_t ranks, bool beside,
                             double bytes) const;
  double between_s() const { return between_s_; }
  size_t ranks() const { return ranks_; }  // that it was measured with

 private:
  std::map<std::string, SpeedTable, std::less<>> ops_, calls_;
  double between_s_ = 0;
  size_t ranks_ = 0;
};

// The measurement that is of the run's ranks on each machine: alone for one rank, else together; null where
// none is, or it is of other threads.
const Calibration* calibration_of(const RunSpec&, const ClusterSpec&);

// The machine as the run's ranks meet it: with the peaks and the bandwidth at their number of threads, where
// they were measured.
ClusterSpec as_met(const RunSpec&, ClusterSpec);

// A rank's part of a machine whose `there` processors run so many ranks of so many threads: all of it where
// there are enough, else peaks and bandwidth by that share, and nothing of what kernels reached on processors
// of their own. A rank's own threads beyond the processors were there when its peaks were measured.
ClusterSpec part_of(ClusterSpec, int64_t ranks, int64_t threads, int64_t there);

// Of two measurements of one machine: how machines and their processes are joined, which `bench` under mpirun
// measured or somebody wrote down, is the earlier one's.
void take_links(ClusterSpec& now, const ClusterSpec& before);
// Whether `now`, kept in the place of `before`, would lose what kernels reach with other ranks or threads.
bool displaces(const ClusterSpec& now, const ClusterSpec& before);

// The curve and the rate that Speeds uses. Points of a curve are in ascending order of work.
double curve_seconds(const SpeedTable&, double work);
double product_seconds(const SpeedTable&, double rows, double cols, double work);

}  // namespace trireme
