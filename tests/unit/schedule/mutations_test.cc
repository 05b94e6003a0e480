// What replicas say to each other and what is computed again, in schedules that passes completed: any one of
// those actions left out, doubled or moved is found, unless what remains is right as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "complaint.h"
#include "sanitized.h"
#include "schedule/schedule.h"

namespace trireme {
namespace {

const size_t kEvery = test::kSanitized ? 16 : 4;  // one action in so many is mutated

TEST(ValidateReplicas, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"0F0 0B0 0ReduceGrad 0ReduceGrad 0Step",
       "schedule: rank 0: 0ReduceGrad is there twice, at steps 2 and 3, without a weight gradient in "
       "between"},
      {"0ReduceGrad 0F0 0B0 0ReduceGrad 0Step",
       "schedule: rank 0: 0ReduceGrad comes before 0B0, the last weight gradient of stage 0"},
      {"0F0 0B0 0ReduceGrad", "schedule: rank 0 has a ReduceGrad and no Step"},
      {"0F0 0F1 0F2 0B0 0ReduceGrad 0B1 0B2 0ReduceGrad 0Step\n1F0 1F1 1F2 1B0 1B1 1B2 1ReduceGrad 1Step",
       "schedule: rank 0: 0ReduceGrad comes before 0B2, the last weight gradient of stage 0"},
      {"0F0 0F1 0F2 0B0 0ReduceGrad 0B1 0B2 0ReduceGrad 0Step\n"
       "1F0 1F1 1F2 1B0 1ReduceGrad 1B1 1ReduceGrad 1B2 1ReduceGrad 1Step",
       "schedule: rank 0: 0ReduceGrad is missing behind 0B1; other weight gradients have theirs"},
      {"0Unshard 0Unshard 0F0 0B0 0Reshard 0ReduceGrad 0Step",
       "schedule: rank 0: 0Unshard is there twice, at steps 0 and 1, without a use of weights in between"},
      {"0Unshard 0F0 0B0 0Reshard 0Unshard 0Reshard 0ReduceGrad 0Step",
       "schedule: rank 0: 0Unshard gathers what nothing uses before 0Reshard"},
      {"0Unshard 0F0 0B0 0ReduceGrad 0Unshard 0F1 0B1 0ReduceGrad 0Reshard 0Step",
       "schedule: rank 0: 0Reshard is missing behind 0B0"},
      {"0Unshard 0F0 0Unshard 0F1 0Reshard 0Unshard 0B0 0ReduceGrad 0Reshard 0Unshard 0B1 0ReduceGrad "
       "0Reshard "
       "0Step",
       "schedule: rank 0: 0Reshard is missing behind 0F0; other forward passes have theirs"},
      {"0F0 0F1 0B0 0R1 0B1", "schedule: rank 0: 0R0 is missing; other microbatches of stage 0 have theirs"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(test::headline(text), want) << text;
}

// The same without what says no more than together or apart, and without the gathers that find weights there;
// sums over replicas by where they are among their stage's weight gradients.
std::string meaning(const Schedule& s) {
  Schedule out = s;
  std::string sums;
  for (auto& list : out.ranks) {
    std::map<int, bool> gathered;
    std::map<int, std::string> grads;
    std::erase_if(list, [&](Action& a) {
      a.overlap = 0;
      const bool again = a.kind == Act::Unshard && gathered[a.stage];
      if (a.kind == Act::Unshard) gathered[a.stage] = true;
      if (a.kind == Act::Reshard) gathered[a.stage] = false;
      if (a.kind == Act::B || a.kind == Act::W || a.kind == Act::ReduceGrad)
        grads[a.stage] += to_text(a) + ' ';
      return again || a.kind == Act::ReduceGrad;
    });
    for (const auto& [stage, text] : grads) sums += text + '\n';
  }
  return to_text(out) + sums;
}

struct Passed {
  Schedule compute;
  bool together, weights_in_w;
  Schedule with(int zero, bool reshard, bool again) const {
    Schedule s = again ? add_recompute(compute, {}, together) : compute;
    return add_zero(add_step(add_transfers(std::move(s))), zero, reshard, weights_in_w);
  }
  // What every choice of passes makes of it.
  std::set<std::string> meanings() const {
    std::set<std::string> all;
    for (int zero : {1, 2, 3})
      for (bool reshard : {false, true})
        for (bool again : {false, true}) all.insert(meaning(with(zero, reshard, again)));
    return all;
  }
};

bool of_a_pass(const Action& a) {
  return a.kind == Act::R || a.kind >= Act::Unshard;
}

struct Tally {
  int left_out = 0, doubled = 0, moved = 0, legal = 0;
};

void mutate(const std::set<std::string>& right, const Schedule& good, uint64_t seed, Tally& tally) {
  const uint64_t key = rng_key(seed, 0, "passes");
  uint64_t drawn = 0;
  const auto pick = [&](size_t n) { return size_t(below(key, drawn++, n)); };
  const auto found = [&](const Schedule& bad, int& count) {
    const std::string said = test::complaint(bad);
    if (said == "no error" && right.contains(meaning(bad))) return void(tally.legal++);
    ASSERT_NE(said, "no error") << to_text(bad) << "\nof\n" << to_text(good);
    ASSERT_NE(said.find("  <-- here"), std::string::npos) << said;
    ASSERT_NE(said.find('['), std::string::npos) << said;
    count++;
  };
  for (size_t r = 0; r < good.ranks.size(); r++)
    for (size_t t = (seed + r) % kEvery; t < good.ranks[r].size(); t += kEvery) {
      const Action a = good.ranks[r][t];
      if (!of_a_pass(a)) continue;
      Schedule out = good;
      out.ranks[r].erase(out.ranks[r].begin() + std::ptrdiff_t(t));
      Schedule twice = good;
      twice.ranks[r].insert(twice.ranks[r].begin() + std::ptrdiff_t(pick(good.ranks[r].size() + 1)), a);
      Schedule moved = out;
      auto& other = moved.ranks[(r + 1) % moved.ranks.size()];
      other.insert(other.begin() + std::ptrdiff_t(pick(other.size() + 1)), a);
      found(out, tally.left_out), found(twice, tally.doubled);
      if (moved.ranks.size() > 1) found(moved, tally.moved);
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(Mutations, OfPassesAreFound) {
  Tally tally;
  uint64_t seed = 0;
  for (std::string_view name : schedule_names())
    for (int pp : {1, 2, 3})
      for (int m : {2, 3}) {
        if (name == "dualpipe" && pp % 2 != 0) continue;
        const Passed p{make_schedule(name, pp, default_chunks(name), m), seed % 2 == 0, seed % 3 == 0};
        const std::set<std::string> right = p.meanings();
        for (int zero : {1, 2, 3}) {
          const Schedule good = p.with(zero, seed % 4 < 2, seed % 5 < 3);
          ASSERT_EQ(test::complaint(good), "no error") << to_text(good);
          mutate(right, good, seed++, tally);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
  EXPECT_GT(tally.left_out, 50);
  EXPECT_GT(tally.doubled, 50);
  EXPECT_GT(tally.moved, 50);
  EXPECT_LT(tally.legal, (tally.left_out + tally.doubled) / 4);
}

// Found by fuzzing: a file may take the last overlap id.
TEST(Recompute, TakesOverlapIdsInTheGapsOfAFiles) {
  const Schedule s = add_recompute(parse_schedule("0F0@65535 0B0@65535"), {}, true);
  ASSERT_EQ(s.ranks.at(0).size(), 3u);
  const Schedule apart = add_recompute(parse_schedule("0F0@65535 0B0"), {}, true);
  EXPECT_EQ(to_text(apart), to_text(parse_schedule("0F0@65535 0R0@1 0B0@1")));
}

}  // namespace
}  // namespace trireme
