// The clocks of all pipeline ranks of an undisturbed step: the times of replay_world(), without its timeline.
// Ranks of one place in the pipeline do the same, so one stands for all, and a collective begins when its
// stream comes to it.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "schedule/steady.h"
#include "sim/world.h"

namespace trireme {

class StepClock {
 public:
  // Runs the step. Requires: nothing disturbs the world, links are not shared; the world outlives the clock.
  // Errors (request): as replay_world(); (run) ranks that wait for one another for ever.
  explicit StepClock(const World&);
  ~StepClock();

  int64_t makespan() const { return makespan_; }
  double bubble() const;   // bubble_of() of its rows
  int64_t pieces() const;  // as of the tapes

  // Steps of a part that may look ahead at what ends it: weights of the layers that come next.
  static constexpr size_t kAhead = 2;
  // A part of the step, as it repeats: `microbatches` later all begins and ends `later` nanoseconds later.
  struct Repeat {
    int microbatches = 0;
    int64_t later = 0;
    std::vector<int64_t> idle;  // by rank: of it, idle for the pipeline
  };
  // part: the schedule's; life: steps of the part that the longest life of a microbatch takes. Nothing: the
  // step does not repeat, or too few microbatches were run to know.
  std::optional<Repeat> repeat(const SteadyPart& part, size_t life) const;
  // bubble() if the part came `times` times more.
  double bubble_with(const Repeat&, int64_t times) const;

 private:
  struct Rank;
  std::vector<std::unique_ptr<Rank>> ranks_;
  // By number: when the message has arrived, and the sender's event; -1: not sent.
  struct Message {
    int64_t there = -1;
    int32_t rank = 0, event = 0;
  };
  std::vector<Message> messages_;
  int64_t makespan_ = 0;
};

}  // namespace trireme
