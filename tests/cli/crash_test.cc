// Killed at any instant, the run goes on from its last checkpoint and ends as if nothing had been: every
// weight and moment to the bit, every line of metrics once, the data order included.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <random>
#include <set>

#include "process.h"
#include "sanitized.h"
#include "tiny_run.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

constexpr int64_t kSteps = 10;
const size_t kKills = test::kSanitized ? 0 : 50;  // 0: one a phase, for processes start slowly there

// "save:tensor:17" -> "save:tensor"
std::string kind_of(const std::string& event) {
  size_t digits = event.find_last_not_of("0123456789");
  return event[digits] == ':' ? event.substr(0, digits) : event;
}

Ran child(const fs::path& folder, size_t event, int signal = SIGKILL, int times = 1) {
  return run({crash_child(), folder.string(), std::to_string(kSteps), std::to_string(event),
              std::to_string(signal), std::to_string(times)},
             folder);
}

// The run that nothing happens to: what it does, and what it leaves.
struct Reference {
  std::vector<std::string> events;
  std::vector<size_t> begin;    // of step s + 1, an index of events
  std::vector<int64_t> newest;  // checkpoint that is there when event i is told
  std::set<std::string> kinds;
  Outcome outcome;

  Reference() {
    TempFolder tmp;
    Ran r = child(tmp.path(), 0);
    EXPECT_EQ(r.code, 0) << r.err;
    events = lines_of(r.out);
    outcome = outcome_of(tmp / "run");
    int64_t step = 0, saved = 0;
    begin.push_back(0);
    for (size_t i = 0; i < events.size(); i++) {
      if (events[i] == "metrics") step++;
      if (events[i] == "F" && int64_t(begin.size()) == step) begin.push_back(i);
      if (events[i] == "save:renamed") saved = step;
      newest.push_back(saved);
      kinds.insert(kind_of(events[i]));
    }
    begin.push_back(events.size());
  }
  static const Reference& get() {
    static const Reference reference;
    return reference;
  }
};

int64_t newest_step(const fs::path& folder) {
  Found found = find_newest(checkpoint_root(folder / "run"));
  EXPECT_TRUE(found.damaged.empty()) << found.damaged.front();
  return found.newest ? found.newest->manifest().step : 0;
}

// A run goes on from its newest checkpoint: it does what the reference did from there on, and nothing else.
void finish(const fs::path& folder) {
  const Reference& ref = Reference::get();
  size_t from = ref.begin.at(size_t(newest_step(folder)));
  Ran r = child(folder, 0);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(lines_of(r.out), std::vector<std::string>(ref.events.begin() + int64_t(from), ref.events.end()));
  expect_same(outcome_of(folder / "run"), ref.outcome);
}

// Every kind of event once, then more, kinds in turn.
std::vector<size_t> draw_events(size_t least, uint64_t seed) {
  const Reference& ref = Reference::get();
  std::mt19937_64 rng(seed);
  std::vector<size_t> drawn;
  while (drawn.size() < std::max(least, ref.kinds.size()))
    for (const std::string& kind : ref.kinds) {
      if (drawn.size() >= std::max(least, ref.kinds.size())) break;
      std::vector<size_t> at;
      for (size_t i = 0; i < ref.events.size(); i++)
        if (kind_of(ref.events[i]) == kind) at.push_back(i);
      drawn.push_back(at[rng() % at.size()]);
    }
  std::shuffle(drawn.begin(), drawn.end(), rng);
  return drawn;
}

TEST(Crash, TheReferenceDoesWhatTheTestCountsOn) {
  const Reference& ref = Reference::get();
  for (const char* kind :
       {"F", "B", "norm", "update", "metrics", "eval", "save:begin", "save:tensor", "save:data_flushed",
        "save:manifest_written", "save:folder_flushed", "save:renamed", "save:verified", "save:pruned"})
    EXPECT_TRUE(ref.kinds.count(kind)) << kind;
  EXPECT_EQ(std::count(ref.events.begin(), ref.events.end(), "F"), 3 * kSteps);
  EXPECT_EQ(std::count(ref.events.begin(), ref.events.end(), "eval"), kSteps / 2);
  EXPECT_EQ(std::count(ref.events.begin(), ref.events.end(), "save:pruned"), 4);
  ASSERT_EQ(ref.begin.size(), size_t(kSteps) + 1);
  EXPECT_EQ(ref.outcome.step, kSteps);
  EXPECT_EQ(ref.outcome.checkpoints, (std::vector<std::string>{"step-00000009", "step-00000010"}));
  EXPECT_EQ(ref.outcome.metrics.size(), size_t(kSteps));
  EXPECT_EQ(ref.outcome.tensors.size() % 3, 0u);  // each parameter's master copy and two moments
  EXPECT_TRUE(ref.outcome.parts.empty());
}

TEST(Crash, KilledAtEveryPhaseItEndsTheSame) {
  const Reference& ref = Reference::get();
  std::vector<size_t> left = draw_events(kKills, 20);
  std::map<std::string, int> kills;
  int folders = 0, resumed = 0;
  while (!left.empty()) {
    // In one folder up to ten, in the order of the run; what a kill has put out of reach waits for another.
    TempFolder tmp;
    folders++;
    std::vector<size_t> now(left.begin(), left.begin() + int64_t(std::min<size_t>(10, left.size())));
    left.erase(left.begin(), left.begin() + int64_t(now.size()));
    std::sort(now.begin(), now.end());
    int64_t saved = 0;
    for (size_t event : now) {
      size_t from = ref.begin[size_t(saved)];
      if (event < from) {
        left.push_back(event);
        continue;
      }
      Ran r = child(tmp.path(), event - from + 1);
      ASSERT_EQ(r.signal, SIGKILL) << ref.events[event] << " exit " << r.code << " " << r.err;
      kills[kind_of(ref.events[event])]++;
      resumed += saved > 0;
      saved = ref.newest[event];
      ASSERT_EQ(newest_step(tmp.path()), saved) << "killed at " << ref.events[event];
    }
    finish(tmp.path());
    if (HasFailure()) return;
  }
  int total = 0;
  fmt::print("{:<24} kills\n", "killed in");
  for (const auto& [kind, n] : kills) fmt::print("{:<24} {:>5}\n", kind, n), total += n;
  fmt::print("{:<24} {:>5}, {} of them in a resumed run, in {} runs of {} steps; all ended the same\n", "all",
             total, resumed, folders, kSteps);
  EXPECT_EQ(kills.size(), ref.kinds.size());
  EXPECT_GE(size_t(total), kKills);
}

TEST(Crash, ASignalInAnyPhaseSavesAndLeavesWithThree) {
  const Reference& ref = Reference::get();
  const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
  std::vector<size_t> backward;
  for (size_t i = 0; i < ref.events.size(); i++)
    if (ref.events[i] == "B") backward.push_back(i);
  const size_t last_stop = backward.at(backward.size() - 2);
  int n = 0;
  for (size_t event : draw_events(0, 21)) {
    TempFolder tmp;
    Ran r = child(tmp.path(), event + 1, signals[n++ % 3]);
    // After the last step's last microbatch but one the run is as good as done.
    EXPECT_EQ(r.code, event <= last_stop ? 3 : 0) << ref.events[event] << " " << r.err;
    // Nothing that was done is lost: the last finished step is saved.
    int64_t finished = std::count(ref.events.begin(), ref.events.begin() + int64_t(event) + 1, "metrics");
    EXPECT_GE(newest_step(tmp.path()), finished) << ref.events[event];
    Ran again = child(tmp.path(), 0);
    EXPECT_EQ(again.code, 0) << again.err;
    expect_same(outcome_of(tmp / "run"), ref.outcome);
    if (HasFailure()) return;
  }
}

// Loss scale, good steps in a row and AdamW's own count of steps come back: in f16, at norms of good and of
// skipped steps, and between a save and the next step.
TEST(Crash, KilledAroundSkippedStepsItEndsTheSame) {
  auto half = [](const fs::path& folder, size_t event) {
    return run({crash_child(), folder.string(), std::to_string(kSteps), std::to_string(event),
                std::to_string(SIGKILL), "1", "2097152"},
               folder);
  };
  TempFolder whole;
  Ran r = half(whole.path(), 0);
  ASSERT_EQ(r.code, 0) << r.err;
  const std::vector<std::string> events = lines_of(r.out);
  const Outcome want = outcome_of(whole / "run");
  auto skipped = std::count_if(want.metrics.begin(), want.metrics.end(), [](const std::string& line) {
    return line.find("\"skipped\":true") != std::string::npos;
  });
  EXPECT_GE(skipped, 2);
  EXPECT_LE(skipped, kSteps - 4);
  for (auto [kind, nth] : {std::pair("norm", 2), std::pair("norm", 5), std::pair("norm", 8),
                           std::pair("update", 3), std::pair("save:renamed", 1)}) {
    size_t event = 0;
    for (int seen = 0; event < events.size() && seen < nth; event++) seen += events[event] == kind;
    TempFolder tmp;
    ASSERT_EQ(half(tmp.path(), event).signal, SIGKILL) << kind << " " << nth;
    ASSERT_EQ(half(tmp.path(), 0).code, 0);
    expect_same(outcome_of(tmp / "run"), want);
  }
}

// Written beside training: a kill in any phase of a save, whatever training does meanwhile, leaves the newest
// complete checkpoint, and the run ends as if nothing had been.
TEST(Crash, KilledInASaveBesideTrainingItEndsTheSame) {
  auto beside = [](const fs::path& folder, size_t event) {
    return run({crash_child(), folder.string(), std::to_string(kSteps), std::to_string(event),
                std::to_string(SIGKILL), "1", "0", "beside"},
               folder);
  };
  const Reference& ref = Reference::get();
  std::vector<std::string> want;
  for (const std::string& e : ref.events)
    if (e.starts_with("save:")) want.push_back(e);
  {
    TempFolder tmp;
    Ran r = beside(tmp.path(), 0);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(lines_of(r.out), want);  // one save at a time, each as it always was
    expect_same(outcome_of(tmp / "run"), ref.outcome);
  }
  const std::vector<int64_t> steps = {3, 6, 9, 10};
  std::set<std::string> seen;
  std::mt19937_64 rng(22);
  for (size_t i = 0; i < want.size(); i++) {
    // Each kind in the first save and in one other, of tensors a few.
    const bool again = i > want.size() / 4 && rng() % (kKills > 0 ? 12 : 60) == 0;
    if (!seen.insert(kind_of(want[i])).second && !again) continue;
    const auto renamed = std::count(want.begin(), want.begin() + std::ptrdiff_t(i) + 1, "save:renamed");
    TempFolder tmp;
    ASSERT_EQ(beside(tmp.path(), i + 1).signal, SIGKILL) << want[i];
    EXPECT_EQ(newest_step(tmp.path()), renamed == 0 ? 0 : steps[size_t(renamed) - 1]) << want[i];
    finish(tmp.path());
    if (HasFailure()) return;
  }
}

// Three ranks that write a file each: killed in every phase of a save, and in a step, they go on to the same
// end.
TEST(Crash, ManyRanksKilledInASaveEndTheSame) {
  auto ranks = [](const fs::path& folder, size_t event) {
    return run({crash_child(), folder.string(), std::to_string(kSteps), std::to_string(event),
                std::to_string(SIGKILL), "1", "0", "in line", "3", "2"},
               folder);
  };
  TempFolder whole;
  Ran r = ranks(whole.path(), 0);
  ASSERT_EQ(r.code, 0) << r.err;
  const std::vector<std::string> events = lines_of(r.out);
  const Outcome want = outcome_of(whole / "run");
  ASSERT_EQ(want.step, kSteps);
  for (const char* kind : {"B", "norm", "update", "save:begin", "save:tensor", "save:data_flushed",
                           "save:manifest_written", "save:folder_flushed", "save:renamed", "save:verified"}) {
    size_t event = 0;
    for (int seen = 0; event < events.size() && seen < 2; event++) seen += kind_of(events[event]) == kind;
    TempFolder tmp;
    ASSERT_EQ(ranks(tmp.path(), event).signal, SIGKILL) << kind;
    Ran again = ranks(tmp.path(), 0);
    ASSERT_EQ(again.code, 0) << again.err;
    expect_same(outcome_of(tmp / "run"), want);
  }
}

TEST(Crash, ASecondSignalLeavesAtOnce) {
  const Reference& ref = Reference::get();
  for (const char* kind : {"F", "B", "save:tensor"}) {
    TempFolder tmp;
    // The second of its kind from step 5 on: something is saved (step 3), something is not.
    size_t event = ref.begin[4];
    for (int seen = 0; seen < 2; event++) seen += kind_of(ref.events[event]) == kind;
    Ran r = child(tmp.path(), event, SIGTERM, 2);
    EXPECT_EQ(r.code, 3) << r.err;
    EXPECT_EQ(newest_step(tmp.path()), 3) << kind;
    finish(tmp.path());
  }
}

}  // namespace
}  // namespace trireme::test
