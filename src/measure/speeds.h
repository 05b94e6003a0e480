// Seconds of ops and collectives on a machine whose kernels `bench` has measured (spec/calibration.h): the
// expected time of a piece, beside its roof.
//
// Products and attention are priced by rows, columns and FLOPs (measure/product_times.h). All else is seconds
// by bytes moved, a straight line in logarithms between two measured sizes, growing; beyond the largest in
// proportion, below the smallest what that takes. What goes once a step through all of a rank's state has a
// curve of all its launches in a step: whether caches hold the state from one step to the next does not
// follow from one of them.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "measure/product_times.h"
#include "mesh/mesh.h"
#include "spec/calibration.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"
#include "trace/tape.h"

namespace trireme {

// Whose speed follows from FLOPs and shape rather than from bytes.
bool is_product(std::string_view op);
// Whose launches of a step go through all of a rank's gradients or moments, each part once.
bool passes_through_state(std::string_view op);
// As SpeedPoint::work counts it.
double work_of(const Piece&);
// The launch as it is on the fullest rank: products of experts that are divided over ranks have a planned
// room of rows, layout.ep_buffer (at most ep) times what a balanced router sends, and compute those that
// come, layout.ep_load times those, in as many rounds as were booked; where the run's routing is known
// (RunSpec::known_routing), those that came to this rank.
Piece as_filled(const Piece&, const RunSpec&, int rank);
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
  // Of one launch; none where no size of this op was measured in this type. of_step: the work of all launches
  // of the op in the step, where it passes through state.
  std::optional<double> op(const Piece&, std::string_view compute, double of_step = 0) const;
  // Of a call once its ranks have met; as the other kind where only that was measured. Of a group of another
  // size than was measured: between the next smaller and larger ones, a straight line in logarithms; beyond
  // them none.
  std::optional<double> call(std::string_view name, std::string_view algorithm, size_t ranks, bool beside,
                             double bytes) const;
  double between_s() const { return between_s_; }
  size_t ranks() const { return ranks_; }  // that it was measured with

 private:
  std::optional<double> call_of(std::string_view name, std::string_view algorithm, size_t ranks, bool beside,
                                double bytes) const;
  std::map<std::string, SpeedTable, std::less<>> ops_, calls_;
  std::map<std::string, ProductTimes, std::less<>> products_;
  double between_s_ = 0;
  size_t ranks_ = 0;
};

// The measurement that is of the run's ranks on each machine: alone for one rank, else together; null where
// none is, or it is of other threads.
const Calibration* calibration_of(const RunSpec&, const ClusterSpec&);

// The machine as the run's ranks meet it: with the peaks and the bandwidth at their number of threads, where
// they were measured.
ClusterSpec as_met(const RunSpec&, ClusterSpec);

// Peaks no lower than what kernels of the run's ranks were measured to reach: other processes may have had
// the processors while the peaks were measured, and a bound that a measurement passes is none.
ClusterSpec passed_by_kernels(const RunSpec&, ClusterSpec);

// A rank's part of a machine whose `there` processors run so many ranks of so many threads: all of it where
// there are enough, else peaks and bandwidth by that share, and nothing of what kernels reached on processors
// of their own. A rank's own threads beyond the processors were there when its peaks were measured.
ClusterSpec part_of(ClusterSpec, int64_t ranks, int64_t threads, int64_t there);

// Of two measurements of one machine: how machines and their processes are joined, which `bench` under mpirun
// measured or somebody wrote down, is the earlier one's.
void take_links(ClusterSpec& now, const ClusterSpec& before);
// Whether `now`, kept in the place of `before`, would lose what kernels reach with other ranks or threads.
bool displaces(const ClusterSpec& now, const ClusterSpec& before);

// The machine's peaks are at least what products were measured to reach: a peak that was measured while other
// processes had the processors is less.
void raise_peaks(ClusterSpec&, const Calibration&);

// The curve that Speeds uses. Points are in ascending order of work.
double curve_seconds(const SpeedTable&, double work);

}  // namespace trireme
