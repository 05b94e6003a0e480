// What optimizer post-validation takes out of a step, in virtual time: tapes of two steps, replayed.
#include <gtest/gtest.h>

#include "measure/price.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"
#include "tiny_llama.h"

namespace trireme {
namespace {

constexpr int64_t kPass = 100, kUpdate = 70;

RunSpec pipeline(const char* schedule, const char* how, int64_t microbatches) {
  RunSpec r = test::tiny_llama(4, microbatches);
  r.layout.pp = 4, r.layout.schedule = schedule;
  r.optimizer.post_validation = how;
  return r;
}

// F, I and W take kPass each, the update kUpdate, all else nothing.
std::vector<Price> price_actions(const Tape& t) {
  std::vector<Price> prices;
  std::string_view action;
  int32_t mb = -1;
  for (const Piece& p : t.pieces) {
    Price price;
    if (p.launched) {
      const bool next = p.action != action || p.microbatch != mb;
      if (next && (p.action == "F" || p.action == "I" || p.action == "W")) price.time = kPass;
      if (next && p.action == "B") price.time = 2 * kPass;
      if (next && p.action == "update") price.time = kUpdate;
      action = p.action, mb = p.microbatch;
    }
    prices.push_back(price);
  }
  return prices;
}

struct Steps {
  std::vector<Tape> tapes;
  Replay all;

  // When the n-th op of the action on the rank that takes time begins, or the last one ends.
  std::vector<PieceTime> times(size_t rank, std::string_view action) const {
    std::vector<PieceTime> out;
    for (size_t i = 0; i < tapes[rank].pieces.size(); i++) {
      const PieceTime& t = all.ranks[rank].pieces[i];
      if (tapes[rank].pieces[i].action == action && t.end > t.begin && tapes[rank].pieces[i].launched)
        out.push_back(t);
    }
    return out;
  }
};

Steps replay_of(const RunSpec& run, int steps) {
  Steps s;
  std::vector<std::vector<Price>> prices;
  for (int r = 0; r < run.layout.pp; r++) {
    s.tapes.push_back(record_training(run, schedule_of(run), 1, r, {}, steps));
    prices.push_back(price_actions(s.tapes.back()));
  }
  std::vector<RankTape> tapes;
  for (size_t r = 0; r < prices.size(); r++) tapes.push_back({int(r), &s.tapes[r], prices[r]});
  s.all = replay(tapes);
  return s;
}

int64_t period(const RunSpec& run) {
  return replay_of(run, 3).all.makespan - replay_of(run, 2).all.makespan;
}

// A step of zb-h2 is a parallelogram. Ranks that meet at its end wait for the last one: p - 1 forwards. Those
// that do not have no bubble at all.
TEST(PostValidationInTime, TakesTheBubbleFromZbH2) {
  for (int64_t m : {12, 17}) {
    EXPECT_EQ(period(pipeline("zb-h2", "off", m)), 3 * kPass * m + 3 * kPass + kUpdate);
    EXPECT_EQ(period(pipeline("zb-h2", "always", m)), 3 * kPass * m + kUpdate);
  }
}

// The next step's first forward begins before the last stage has ended the step, update and all.
TEST(PostValidationInTime, TheNextStepBeginsBeforeTheSlowestStageEnds) {
  const int64_t m = 12;
  for (const char* how : {"off", "always"}) {
    const Steps s = replay_of(pipeline("zb-h2", how, m), 2);
    const PieceTime next_forward = s.times(0, "F").at(size_t(m)), own_update = s.times(0, "update").at(0),
                    last_update = s.times(3, "update").at(0);
    if (how == std::string("always")) {
      EXPECT_EQ(next_forward.begin, own_update.end);
      EXPECT_EQ(last_update.end - next_forward.begin, 3 * kPass);
    } else {
      EXPECT_EQ(next_forward.begin, last_update.end);
    }
  }
}

// Where the first rank both begins and ends a step there is nothing to gain, and nothing is lost.
TEST(PostValidationInTime, IsNeverLonger) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    const int64_t with = period(pipeline(schedule, "always", 12)),
                  without = period(pipeline(schedule, "off", 12));
    EXPECT_LE(with, without) << schedule;
    fmt::print("{}: {} a step, {} with post-validation\n", schedule, without, with);
  }
}

}  // namespace
}  // namespace trireme
