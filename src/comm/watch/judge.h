// Who is dead, who is late, and who merely waits: from beats and a clock that the caller gives.
//
// A rank that waits in a collective waits for those of the group that have not come to it. Of these, who
// waits for somebody himself is a victim too; the others are late. A rank that waits reports it several times
// per second (comm/waiting.h). A rank inside a collective that neither reports nor advances has stalled: the
// others wait for it, also if all have joined. A rank whose beats stay out is dead or
// frozen. Once a rank has failed, everybody's next collective tells him so: who does not leave soon hangs
// elsewhere. Nothing else is judged: where nobody waits, everybody may take his time.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/watch/beat.h"

namespace trireme {

struct WatchLimits {
  double beat_s = 1;       // between beats, and between looks at them
  double dead_s = 5;       // without a beat: dead or frozen
  double slow_s = 10;      // others wait so long: a warning
  double again_s = 60;     // between warnings of one rank
  double timeout_s = 600;  // others wait so long: the run ends (train.timeout)
  double leave_s = 10;     // after a rank's failure all others have left, or the run ends without them
};

enum class Fate : uint8_t {
  slow,   // others wait for it: said once, the run goes on
  late,   // others have waited for the whole timeout
  dead,   // no beats
  stuck,  // ranks have waited for the whole timeout, and nobody is late
  stays,  // a rank has failed, and this one does not leave
};
inline bool ends_run(Fate f) {
  return f != Fate::slow;
}
struct Verdict {
  Fate fate = Fate::slow;
  int rank = -1;     // stuck: the one that waits longest; stays: the lowest of them
  std::string text;  // one line: who, since when, where, what follows
};

// A pure function of the beats and times given so far.
class Judge {
 public:
  Judge(int world, const WatchLimits&);
  // The latest beat of every rank, by rank, as of now_s (any steady clock). Verdicts are new since the last
  // look; after one that ends the run only further dead are named. Allocates only for a verdict.
  std::vector<Verdict> look(std::span<const Beat>, double now_s);

 private:
  struct Wait {
    int64_t done = -1;   // the group's collectives that were done when it began
    double since_s = 0;  // first seen so; of time_s_
    bool open = false;
  };
  struct Member {
    uint64_t key;
    int32_t rank, slot;
  };
  // The longest wait for a rank, or in all.
  struct Charge {
    double waited_s = -1;
    int waiter = -1, slot = -1;
  };
  void advance(double now_s);
  void note_waits(std::span<const Beat>);
  void note_motion(std::span<const Beat>);
  void accuse(std::span<const Beat>);
  void accuse_the_stalled(std::span<const Beat>);
  // Neither advances nor reports a wait. False if no rank reports waits.
  bool stalled(int rank) const { return reports_ && time_s_ - moved_s_[size_t(rank)] > stall_s_; }
  void hold(std::span<const Beat>, std::span<const Member> group);
  void see_off(std::span<const Beat>, std::vector<Verdict>&);
  double waited(const Member& m) const { return time_s_ - waits_[index(m)].since_s; }
  size_t index(const Member& m) const { return size_t(m.rank) * kMostWatchedGroups + size_t(m.slot); }
  std::string why(std::span<const Beat>, int rank, const Charge&) const;
  std::string waiters(std::span<const Beat>, const Charge&, int except = -1) const;

  WatchLimits limits_;
  double time_s_ = 0, last_look_s_ = -1;
  double failed_s_ = -1;  // when a rank was first seen to have failed
  bool over_ = false;
  bool reports_ = false;          // a rank has reported a wait
  double stall_s_;                // without motion for longer: stalled
  std::vector<uint64_t> motion_;  // by rank: a hash of all that changes while a rank works or waits
  std::vector<double> moved_s_;   // by rank: when it changed
  std::vector<int64_t> beats_;    // by rank: the last one's number
  std::vector<double> heard_s_;   // by rank: when it came
  std::vector<double> named_s_;   // by rank: when it was last called slow
  std::vector<Wait> waits_;       // [rank][slot]
  std::vector<Wait> messages_;    // by rank: p2p
  std::vector<char> dead_;        // by rank: said
  std::vector<char> blocked_;     // by rank: it waits for somebody
  std::vector<Charge> charges_;   // by rank
  std::vector<Member> members_;   // of all groups, group by group
  Charge longest_;
};

// "in B of microbatch 3, layer blocks.4, of step 87": what a rank does, for people.
std::string place_of(const Beat&);

}  // namespace trireme
