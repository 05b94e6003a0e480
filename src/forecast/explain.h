// A layout in four answers, from the real step on meta: where parameters live, where activations live, when
// ranks synchronise, how much of the time is computing.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "forecast/forecast.h"

namespace trireme {

// Calls of one collective of one group in one kind of action, as the rank of the booking issues them in a
// step; messages between stages are "send" and "recv" of the group "pp".
struct Meeting {
  std::string group, collective, action;
  int64_t ranks = 0;    // of the group
  int64_t calls = 0;    // in a step
  int64_t wire = 0;     // bytes, to and from others
  bool beside = false;  // on a stream of its own, while compute goes on; else compute stands still for it
};
std::vector<Meeting> meetings_of(const Tape&);

// Microbatches whose activations a pipeline rank holds at most: forward done, weight gradient not; in parts
// of the model that are stages, of which the rank has several where chunks are interleaved.
int most_in_flight(const Schedule&, int pp_rank);

struct Explanation {
  int rank = 0, stage = 0;  // whose these are: the one whose peak is the largest
  int64_t world = 1, stages = 1;
  // Meetings of the first rank of each stage, where they are others than this rank's: calls and bytes of all.
  struct OfStage {
    int rank = 0, stage = 0;
    int64_t calls = 0, wire = 0;
  };
  std::vector<OfStage> of_stages;
  BucketBytes state{};  // of the rank, between steps
  int64_t parameters = 0;
  std::string parameters_are, activations_are;  // how they are divided, in words
  int64_t activations = 0, at_peak = 0;         // bytes: of the bucket's peak; of the total's
  std::vector<int> in_flight;                   // by pipeline rank
  std::vector<Meeting> meetings;
  double step_s = 0, compute_s = 0, comm_s = 0, exposed_s = 0;  // 0 = not known
  bool replayed = true;                                         // Forecast's
  bool expected = true;                                         // false: seconds are at the roof
  bool wire_priced = true;  // false: the links are not known, and comm_s and exposed_s say nothing
  double computing() const { return step_s > 0 ? compute_s / step_s : 0; }
};
// threads, cluster: as the forecast was made, for the ranks of other stages are booked.
Explanation explain(const RunSpec&, const Schedule&, const Forecast&, int threads, const ClusterSpec&);
std::string explain_text(const Explanation&);
std::string explain_json(const Explanation&);

}  // namespace trireme
