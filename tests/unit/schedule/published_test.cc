// The generators against the published sequences: golden files (tests/unit/schedule/golden, whose first line
// says where each comes from) made by PyTorch's classes and by independent programs, not by the code they
// guard.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "complaint.h"
#include "schedule/schedule.h"
#include "source_dir.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::string name;
  int pp, chunks, microbatches;
  std::string text;
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const auto& entry : fs::directory_iterator(test::source_dir() / "tests/unit/schedule/golden")) {
    const std::string file = entry.path().stem().string();  // zb-h1-p3-v1-m7
    const size_t at = file.rfind("-p");
    Golden g{.name = file.substr(0, at)};
    EXPECT_EQ(std::sscanf(file.c_str() + at, "-p%d-v%d-m%d", &g.pp, &g.chunks, &g.microbatches), 3) << file;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    g.text = text.str();
    all.push_back(g);
  }
  return all;
}

TEST(Published, SequencesAreThose) {
  const std::vector<Golden> all = goldens();
  EXPECT_GE(all.size(), 60u);
  for (const Golden& g : all) {
    const Schedule want = parse_schedule(g.text);
    EXPECT_EQ(to_text(make_schedule(g.name, g.pp, g.chunks, g.microbatches)), to_text(want))
        << g.name << " " << g.pp << " " << g.chunks << " " << g.microbatches;
    EXPECT_TRUE(validate(want).empty());
  }
}

// Every named schedule of shapes that it takes.
std::vector<Schedule> of_every_kind(std::initializer_list<int> ranks,
                                    std::initializer_list<int> microbatches) {
  std::vector<Schedule> all;
  for (std::string_view name : schedule_names())
    for (int p : ranks)
      for (int m : microbatches)
        for (int v : {default_chunks(name), 3, 4}) {
          if (name == "dualpipe" && (p % 2 != 0 || m < 2)) continue;
          if (v == default_chunks(name) || name == "interleaved") all.push_back(make_schedule(name, p, v, m));
        }
  return all;
}

TEST(Published, AreValidReadBackAndAscendForAnyShape) {
  for (const Schedule& s : of_every_kind({1, 2, 3, 4, 5, 6, 8}, {1, 2, 3, 4, 5, 7, 8, 12, 17})) {
    ASSERT_EQ(validate(s), std::vector<std::string>{}) << to_text(s);
    ASSERT_EQ(parse_schedule(to_text(s)), s) << to_text(s);
  }
}

TEST(Published, AreValidWithAllPasses) {
  for (const Schedule& s : of_every_kind({1, 2, 3, 4, 6}, {2, 5, 8}))
    for (int zero : {0, 2, 3}) {
      const Schedule full = add_zero(add_step(add_transfers(add_recompute(s))), zero);
      ASSERT_EQ(validate(full), std::vector<std::string>{}) << to_text(full);
      ASSERT_EQ(parse_schedule(to_text(full)), full) << to_text(full);
    }
}

TEST(Published, HoldersAreWhereTheActionsAre) {
  EXPECT_EQ(holders_of(zb_v(3, 5)), (std::vector<std::vector<int>>{{0}, {1}, {2}, {2}, {1}, {0}}));
  EXPECT_EQ(holders_of(interleaved(2, 2, 4)), (std::vector<std::vector<int>>{{0}, {1}, {0}, {1}}));
  EXPECT_EQ(holders_of(dualpipe(4, 8)), (std::vector<std::vector<int>>{{0, 3}, {1, 2}, {1, 2}, {0, 3}}));
}

TEST(Published, ShapesThatTheyDoNotTakeAreRefused) {
  const auto no = [](std::string_view name, int p, int v, int m) -> std::string {
    try {
      make_schedule(name, p, v, m);
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(
      no("zb-v", 2, 1, 4),
      "layout.chunks = 1: layout.schedule = \"zb-v\" takes chunks = 2 (a V has two model chunks a rank)");
  EXPECT_EQ(
      no("interleaved", 2, 1, 4),
      "layout.chunks = 1: layout.schedule = \"interleaved\" takes chunks >= 2 (with one it would be 1f1b)");
  EXPECT_EQ(
      no("dualpipe", 3, 1, 6),
      "layout.pp = 3: layout.schedule = \"dualpipe\" takes an even number of pipeline ranks (microbatches "
      "enter at both ends and meet in the middle); dualpipe-v takes any");
  EXPECT_EQ(
      no("dualpipe", 2, 1, 1),
      "batch: 1 microbatch a step; layout.schedule = \"dualpipe\" takes at least 2, one for either end");
  EXPECT_EQ(no("interleaved", 20000, 2, 1), "layout.pp * layout.chunks = 20000 * 2 stages; at most 32767");
}

TEST(Mutations, CopiesAreWhereTheyShouldBe) {
  EXPECT_EQ(test::complaint("copies 2\n0F0 0B0\n0F1 0B1\n"), "no error");
  EXPECT_EQ(test::headline("copies 2\n0F0 0B0 0F1 0B1\n"),
            "schedule: stage 0 is on rank 0 alone; it has 2 copies");
  EXPECT_EQ(test::headline("copies 2\n0F0 0B0\n0F1 0B1\n0F2 0B2\n"),
            "schedule: stage 0 is on ranks 0, 1 and on rank 2; it has 2 copies");
  EXPECT_EQ(test::headline("copies 2\n0F0 0F1 0B1\n0B0\n"),
            "schedule: microbatch 0 is in stage 0 on rank 0 and on rank 1");
  EXPECT_EQ(test::headline("0F0 0B0\n0F1 0B1\n"), "schedule: stage 0 is on rank 0 and on rank 1");
  EXPECT_THROW(parse_schedule("copies\n0F0"), Error);
  EXPECT_THROW(parse_schedule("copies 0\n0F0"), Error);
  EXPECT_THROW(parse_schedule("copies 2 0F0"), Error);
  EXPECT_THROW(parse_schedule("copies 2"), Error);
}

// Issued together, each of the two needs the other rank's: apart they would run.
TEST(Mutations, ActionsIssuedTogetherCanDeadlock) {
  EXPECT_EQ(test::complaint("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n"), "no error");
  EXPECT_NE(test::complaint("0F0 0F1@1 0B0@1 0B1\n1F0 1F1@1 1B0@1 1B1\n").find("deadlock"),
            std::string::npos);
}

// How a schedule went wrong, on purpose: one action left out, doubled, moved to another rank, or two swapped.
// Leaving out, doubling and moving are always wrong. Swapping is wrong when one of the two needs the other,
// and may be harmless else: what validate then lets pass must really run.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : key_(rng_key(seed, 0, "mutations")) {}
  size_t pick(size_t n) { return size_t(below(key_, draw_++, n)); }

  Schedule left_out(Schedule s) {
    auto& actions = some_rank(s);
    actions.erase(actions.begin() + std::ptrdiff_t(pick(actions.size())));
    return s;
  }
  Schedule doubled(Schedule s) {
    auto& actions = some_rank(s);
    const Action a = actions[pick(actions.size())];
    actions.insert(actions.begin() + std::ptrdiff_t(pick(actions.size() + 1)), a);
    return s;
  }
  Schedule moved(Schedule s) {
    auto& from = some_rank(s);
    const size_t at = pick(from.size());
    const Action a = from[at];
    from.erase(from.begin() + std::ptrdiff_t(at));
    auto* to = &some_rank(s);
    while (to == &from) to = &some_rank(s);
    to->insert(to->begin() + std::ptrdiff_t(pick(to->size() + 1)), a);
    return s;
  }
  Schedule swapped(Schedule s) {
    auto& actions = some_rank(s);
    std::swap(actions[pick(actions.size())], actions[pick(actions.size())]);
    return s;
  }

 private:
  std::vector<Action>& some_rank(Schedule& s) { return s.ranks[pick(s.ranks.size())]; }
  uint64_t key_, draw_ = 0;
};

// Does a compute-only schedule run to its end? Written apart from validate: rounds over all ranks, a set of
// what is done.
bool runs_to_its_end(const Schedule& s) {
  std::vector<std::tuple<Act, int, int>> done;
  const auto is = [&](Act k, int stage, int mb) {
    return std::find(done.begin(), done.end(), std::tuple(k, stage, mb)) != done.end();
  };
  std::vector<size_t> next(s.ranks.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < s.ranks.size(); r++)
      for (; next[r] < s.ranks[r].size(); next[r]++, moved = true) {
        const Action& a = s.ranks[r][next[r]];
        const bool back = a.kind == Act::B || a.kind == Act::I;
        if (a.kind == Act::F && a.stage > 0 && !is(Act::F, a.stage - 1, a.mb)) break;
        if (back && !is(Act::F, a.stage, a.mb)) break;
        if (back && a.stage + 1 < s.stages && !is(Act::I, a.stage + 1, a.mb)) break;
        if (a.kind == Act::W && !is(Act::I, a.stage, a.mb)) break;
        done.emplace_back(back ? Act::I : a.kind, a.stage, a.mb);
      }
  }
  for (size_t r = 0; r < s.ranks.size(); r++)
    if (next[r] < s.ranks[r].size()) return false;
  return true;
}

TEST(Mutations, AreFoundInEverySchedule) {
  Mutator mutate(3);
  for (Schedule s : of_every_kind({2, 3, 4}, {3, 6})) {
    for (auto& actions : s.ranks)
      for (Action& a : actions) a.overlap = 0;
    ASSERT_TRUE(runs_to_its_end(s));
    for (int trial = 0; trial < 10; trial++) {
      const Schedule out = mutate.left_out(s), twice = mutate.doubled(s), moved = mutate.moved(s);
      ASSERT_NE(test::complaint(out), "no error") << to_text(out);
      ASSERT_NE(test::complaint(twice), "no error") << to_text(twice);
      ASSERT_NE(test::complaint(moved), "no error") << to_text(moved);
      const Schedule swapped = mutate.swapped(s);
      ASSERT_EQ(test::complaint(swapped) == "no error", runs_to_its_end(swapped)) << to_text(swapped);
    }
  }
}

TEST(Mutations, AreFoundAmongTransfers) {
  Mutator mutate(4);
  for (const Schedule& s : of_every_kind({2, 3}, {3, 4})) {
    const Schedule full = add_transfers(s);
    for (int trial = 0; trial < 10; trial++) {
      const Schedule out = mutate.left_out(full), twice = mutate.doubled(full);
      ASSERT_NE(test::complaint(out), "no error") << to_text(out);
      ASSERT_NE(test::complaint(twice), "no error") << to_text(twice);
    }
  }
}

TEST(AddTransfers, BetweenRanksAlone) {
  EXPECT_EQ(to_text(add_transfers(one_f_one_b(2, 2))),
            "0F0 0SendF0 0F1 0SendF1 0RecvB0 0B0 0RecvB1 0B1\n"
            "1RecvF0 1F0 1B0 1SendB0 1RecvF1 1F1 1B1 1SendB1\n");
  // A V turns on its last rank, where stages 1 and 2 are neighbours.
  EXPECT_EQ(to_text(add_transfers(parse_schedule("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0\n"))),
            "0F0 0SendF0 3RecvF0 3F0 3B0 3SendB0 0RecvB0 0B0\n"
            "1RecvF0 1F0 2F0 2SendF0 2RecvB0 2B0 1B0 1SendB0\n");
  EXPECT_EQ(to_text(add_transfers(gpipe(1, 2))), "0F0 0F1 0B0 0B1\n");
  // Of copies, each microbatch goes where it is in the next stage; what is issued together stays together.
  EXPECT_EQ(to_text(add_transfers(parse_schedule("copies 2\n0F0 1F1@1 0B0@1 1B1\n1F0 0F1 1B0 0B1\n"))),
            "copies 2\n"
            "0F0 0SendF0 1RecvF1 0RecvB0 1F1@1 0B0@1 1B1 1SendB1\n"
            "1RecvF0 1F0 0F1 0SendF1 1B0 1SendB0 0RecvB1 0B1\n");
  EXPECT_THROW(add_transfers(add_transfers(one_f_one_b(2, 2))), Error);
}

TEST(AddRecompute, ComesBeforeTheBackward) {
  EXPECT_EQ(to_text(add_recompute(parse_schedule("0F0 0I0 0W0"))), "0F0 0R0 0I0 0W0\n");
  const int second[] = {1};
  EXPECT_EQ(to_text(add_transfers(add_recompute(one_f_one_b(2, 1), second))),
            "0F0 0SendF0 0RecvB0 0B0\n1RecvF0 1F0 1R0 1B0 1SendB0\n");
  // Before the message that the backward waits for, and before what is issued together with it.
  EXPECT_EQ(to_text(add_transfers(add_recompute(one_f_one_b(2, 1)))),
            "0F0 0SendF0 0R0 0RecvB0 0B0\n1RecvF0 1F0 1R0 1B0 1SendB0\n");
  EXPECT_EQ(to_text(add_recompute(parse_schedule("0F0 0F1@1 0B0@1 0B1"))), "0F0 0R0 0F1@1 0B0@1 0R1 0B1\n");
  EXPECT_THROW(add_recompute(add_recompute(gpipe(1, 1))), Error);
}

TEST(AddRecompute, IsIssuedWithTheBackward) {
  EXPECT_EQ(to_text(add_recompute(parse_schedule("0F0 0F1 0B0 0B1"), {}, true)),
            "0F0 0F1 0R0@1 0B0@1 0R1@2 0B1@2\n");
  EXPECT_EQ(to_text(add_recompute(parse_schedule("0F0 0F1@5 0I0@5 0W0 0B1"), {}, true)),
            "0F0 0R0@5 0F1@5 0I0@5 0W0 0R1@6 0B1@6\n");
  // Behind the message, and with one gathering of the stage's weights.
  const Schedule s = add_zero(add_step(add_transfers(add_recompute(one_f_one_b(2, 1), {}, true))), 3);
  EXPECT_EQ(
      to_text(s),
      "0Unshard@1 0F0@1 0Reshard@1 0SendF0 0RecvB0 0Unshard@2 0R0@2 0B0@2 0ReduceGrad@2 0Reshard@2 0Step\n"
      "1RecvF0 1Unshard@1 1F0@1 1Reshard@1 1Unshard@2 1R0@2 1B0@2 1ReduceGrad@2 1Reshard@2 1SendB0 1Step\n");
  for (std::string_view name : schedule_names())
    EXPECT_NO_THROW(validate(add_zero(
        add_step(add_transfers(add_recompute(make_schedule(name, 4, default_chunks(name), 8), {}, true))),
        3)))
        << name;
}

// Replicas talk beside pairs as beside single actions.
TEST(AddZero, TakesWhatIsIssuedTogether) {
  const Schedule s = add_step(parse_schedule("0F0 1F0 1F1@3 0B0@3 1B0 1B1 0F1 0B1"));
  EXPECT_NO_THROW(add_zero(s, 0));
  EXPECT_EQ(to_text(add_zero(add_step(parse_schedule("0F0 1F0 0F1@9 1B0@9 0B0 1F1 1B1 0B1")), 2)),
            "0F0 1F0 0F1@1 1B0@1 1ReduceGrad@1 0B0@2 0ReduceGrad@2 1F1 1B1@3 1ReduceGrad@3 0B1@4 "
            "0ReduceGrad@4 0Step\n");
}

}  // namespace
}  // namespace trireme
