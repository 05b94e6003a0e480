// Branches of a run (train.branch), the checkpoints that they name, and the best one.
#include <gtest/gtest.h>

#include <functional>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/rng.h"
#include "checkpoint/named.h"
#include "data/shard_writer.h"
#include "tiny_run.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

std::string branch_refusal(const RunSpec& run) {
  try {
    train_here(run);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

void expect_in(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& p : parts) EXPECT_NE(text.find(p), std::string::npos) << p << " not in: " << text;
}

// tiny_run without evaluations, in folder/name.
RunSpec run_in(const fs::path& folder, const char* name, int64_t steps) {
  RunSpec r = tiny_run(folder, steps);
  r.train.dir = (folder / name).string();
  r.train.eval_every = 0;
  r.data.valid = "";
  return r;
}
RunSpec branch_of(RunSpec run, const std::string& from, const fs::path& dir) {
  run.train.branch = from;
  run.train.dir = dir.string();
  return run;
}

Manifest newest_manifest(const RunSpec& run) {
  return find_newest(checkpoint_root(run.train.dir)).newest->manifest();
}

TEST(Branch, KeepsWeightsAndMomentsAndLeavesItsParent) {
  TempFolder tmp;
  const RunSpec run = run_in(tmp.path(), "run", 4);
  train_here(run);
  const Files before = files_in(run.train.dir);
  RunSpec branch = branch_of(run_in(tmp.path(), "", 6), run.train.dir, tmp / "branch");
  branch.optimizer.schedule = "linear";
  branch.optimizer.lr = 0.02;
  branch.data.train = (tmp / "data/valid").string();
  std::vector<int64_t> steps;
  std::string notes;
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) { steps.push_back(m.step); };
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  EXPECT_EQ(train_here(branch, hooks).ending, Ending::done);
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 6}));
  expect_in(notes, {"branched from step 4", "settings that differ", "optimizer.lr: ", "-> 0.02"});
  EXPECT_EQ(damage(before, files_in(run.train.dir)), "");
  notes.clear();
  train_here(branch, hooks);  // the same command resumes without a note on the key
  EXPECT_EQ(notes.find("not used"), std::string::npos) << notes;
  branch.train.branch += "@3";
  train_here(branch, hooks);
  expect_in(notes, {"train.branch", "is not used"});

  branch.train.dir = (tmp / "third").string();
  branch.optimizer.name = "muon";
  expect_in(branch_refusal(branch), {"optimizer.name", "adamw"});
  branch.optimizer.name = "adamw";
  branch.train.steps = 3;
  expect_in(branch_refusal(branch), {"train.steps = 3", "give more"});
  branch.model.norm_eps = 1e-3;
  expect_in(branch_refusal(branch), {"model.norm_eps"});
  for (const char* wrong : {"/nowhere", "/run@7", "/run@soon", "/run@best"}) {
    branch.train.branch = tmp.path().string() + wrong;
    expect_in(branch_refusal(branch), {"train.branch", wrong});
  }
  expect_in(branch_refusal(branch), {"no checkpoint has a held-out loss", "steps 3, 4"});
}

// A branch with the settings of its run ends as the run does: nothing of its state was lost.
TEST(Branch, UnchangedIsItsParent) {
  TempFolder tmp;
  const RunSpec run = tiny_run(tmp.path(), 5);
  train_here(run);
  std::string notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  train_here(branch_of(run, run.train.dir + "@3", tmp / "same"), hooks);
  EXPECT_EQ(notes.find("settings that differ"), std::string::npos) << notes;
  Outcome got = outcome_of(tmp / "same");
  const Outcome want = outcome_of(tmp / "run");
  EXPECT_TRUE(got.tensors == want.tensors);
  ASSERT_EQ(got.metrics.size(), 2u);
  EXPECT_EQ(got.metrics[0], want.metrics[3]);
  EXPECT_EQ(got.metrics[1], want.metrics[4]);
  const Manifest m = newest_manifest(branch_of(run, "", tmp / "same"));
  EXPECT_EQ(m.samples, 30);
  EXPECT_EQ(m.state.at("branched").at("step"), 3);
  EXPECT_FALSE(m.state.contains("data_place"));
}

// A branch with other rate, batch, sequence length and data, whose only step is an outlier and has no update:
// it saves the state that it took.
TEST(Branch, TakesMomentsToTheBitWhateverTheSettings) {
  TempFolder tmp;
  RunSpec run = run_in(tmp.path(), "run", 30);
  run.train.spikes = "skip";
  run.train.spike_window = 24;
  const TrainSummary parent = train_here(run);
  RunSpec branch = branch_of(run, run.train.dir, tmp / "branch");
  branch.train.steps = 31;
  branch.optimizer.lr = 0.3;
  branch.batch = {.global = 12, .micro = 3};
  branch.data.seq_len = 9;
  branch.train.spike_z = 1e-3;
  branch.data.train = (tmp / "noise").string();
  ShardWriter noise(branch.data.train.first(), 61);
  std::vector<int32_t> ids(400);
  for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(below(rng_key(9, 0, "noise"), i, 61));
  noise.add_document(ids);
  noise.commit();
  const TrainSummary summary = train_here(branch);
  ASSERT_EQ(summary.skipped, parent.skipped + 1) << "the branch's step is of no use for this test";
  const Outcome got = outcome_of(branch.train.dir), want = outcome_of(run.train.dir);
  EXPECT_EQ(got.step, 31);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, bytes] : want.tensors) EXPECT_TRUE(got.tensors.at(name) == bytes) << name;
}

// One stable run, three decayed models: each is the run that was planned so from the start.
TEST(Branch, DecayedModelsAreThoseOfPlannedRuns) {
  TempFolder tmp;
  auto wsd = [&](const std::string& name, int64_t steps) {
    RunSpec r = run_in(tmp.path(), name.c_str(), steps);
    r.optimizer.schedule = "wsd";
    r.train.checkpoint_every.count = 8;
    r.train.keep = 100;
    return r;
  };
  const RunSpec stable = wsd("stable", 40);
  train_here(stable);
  for (auto [steps, from] : {std::pair(10, 8), {20, 16}, {30, 24}}) {
    SCOPED_TRACE(steps);
    const std::string name = fmt::format("planned-{}", steps);
    train_here(wsd(name, steps));
    const fs::path decayed = tmp / fmt::format("decayed-{}", steps);
    train_here(branch_of(wsd(name, steps), fmt::format("{}@{}", stable.train.dir, from), decayed));
    EXPECT_TRUE(outcome_of(decayed).tensors == outcome_of(tmp / name).tensors);
  }
  EXPECT_FALSE(outcome_of(tmp / "planned-10").tensors == outcome_of(tmp / "stable").tensors);
}

// Another batch: the samples that follow, none skipped and none repeated; and so after a resume.
TEST(Branch, WithAnotherBatchTakesTheSamplesThatFollow) {
  TempFolder tmp;
  const RunSpec run = run_in(tmp.path(), "run", 4);
  train_here(run);
  RunSpec wide = branch_of(run_in(tmp.path(), "", 7), run.train.dir, tmp / "wide");
  wide.batch.global = 12;
  train_here(wide);
  const Manifest m = newest_manifest(wide);
  EXPECT_EQ(m.samples, 4 * 6 + 3 * 12);
  EXPECT_EQ(m.tokens, m.samples * 13);
  EXPECT_EQ(m.state.at("data_place").at("samples"), 24);
  EXPECT_EQ(m.state.at("drawn"), (std::vector<int64_t>{60}));  // by the loader
  const Outcome whole = outcome_of(wide.train.dir);
  fs::remove_all(checkpoint_root(wide.train.dir) / "step-00000007");
  train_here(wide);  // from step 6
  EXPECT_TRUE(outcome_of(wide.train.dir).tensors == whole.tensors);
  EXPECT_EQ(newest_manifest(wide).state, m.state);

  // From the branch back to the first batch.
  RunSpec third = branch_of(run_in(tmp.path(), "", 9), wide.train.dir, tmp / "third");
  train_here(third);
  EXPECT_EQ(newest_manifest(third).state.at("data_place").at("samples"), 60);
  EXPECT_EQ(newest_manifest(third).samples, 60 + 2 * 6);
}

// Another mixture: each shard continues where the other run left it, and a new one begins.
TEST(Branch, WithAnotherMixtureContinuesEachShard) {
  TempFolder tmp;
  const RunSpec run = run_in(tmp.path(), "run", 4);
  train_here(run);
  RunSpec mixed = branch_of(run_in(tmp.path(), "", 6), run.train.dir, tmp / "mixed");
  mixed.data.train = Texts::of({(tmp / "data/valid").string(), (tmp / "data/train").string()});
  mixed.data.weights = {1, 2};
  train_here(mixed);
  Manifest m = newest_manifest(mixed);
  EXPECT_EQ(m.state.at("data_place").at("drawn"), (std::vector<int64_t>{0, 24}));
  EXPECT_EQ(m.state.at("drawn"), (std::vector<int64_t>{4, 24 + 8}));
  EXPECT_EQ(m.samples, 36);

  // Half the sequence length: twice as many samples are behind.
  RunSpec shorter = branch_of(run_in(tmp.path(), "", 6), run.train.dir, tmp / "shorter");
  shorter.data.seq_len = 7;
  train_here(shorter);
  EXPECT_EQ(newest_manifest(shorter).state.at("data_place").at("drawn"),
            (std::vector<int64_t>{(24 * 13 + 6) / 7}));
}

struct EvalLosses {
  std::map<int64_t, double> by_step;
  int64_t best() const {
    return std::min_element(by_step.begin(), by_step.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }
};

// The rate grows until the loss rises: the best checkpoint is an old one, and stays through pruning.
TEST(Branch, TheBestCheckpointStays) {
  for (const char* keep_best : {"saved", "always", "off"}) {
    SCOPED_TRACE(keep_best);
    TempFolder tmp;
    RunSpec run = tiny_run(tmp.path(), 24);
    run.optimizer.schedule = "constant";
    run.optimizer.lr = 0.6;
    run.optimizer.warmup = 24;
    run.train.eval_every = 2;
    run.train.checkpoint_every.count = std::string(keep_best) == "always" ? 1000 : 2;
    run.train.keep = 1;
    run.train.keep_best = keep_best;
    EvalLosses losses;
    TrainHooks hooks;
    hooks.step = [&](const StepMetrics& m) {
      if (m.eval_loss) losses.by_step[m.step] = *m.eval_loss;
    };
    train_here(run, hooks);
    ASSERT_LT(losses.best(), 24) << "the run is of no use for this test";
    const fs::path root = checkpoint_root(run.train.dir);
    const std::vector<std::string> newest = {step_folder_name(24)};
    const std::vector<std::string> both = {step_folder_name(losses.best()), step_folder_name(24)};
    EXPECT_EQ(outcome_of(run.train.dir).checkpoints, std::string(keep_best) == "off" ? newest : both);
    if (std::string(keep_best) == "off") continue;
    const std::optional<NamedCheckpoint> best = checkpoint_named(run.train.dir + "@best");
    ASSERT_TRUE(best);
    EXPECT_EQ(best->folder, root / step_folder_name(losses.best()));
    EXPECT_EQ(eval_loss_of(Checkpoint::open(best->folder).manifest()), losses.by_step[losses.best()]);
  }
}

// Stops at `step`, if that is not 0. The checkpoints right after the start, and the lines on saves.
struct Part {
  std::vector<std::string> at_start, saves;
};
Part run_part(const RunSpec& run, int64_t step, EvalLosses* losses = nullptr) {
  Part part;
  TrainHooks hooks;
  hooks.start = [&](int64_t) {
    for (const std::string& name : names_in(checkpoint_root(run.train.dir))) part.at_start.push_back(name);
  };
  hooks.step = [&](const StepMetrics& m) {
    if (m.eval_loss && losses) losses->by_step[m.step] = *m.eval_loss;
    if (m.step == step) request_interrupt();
  };
  hooks.note = [&](const std::string& line) {
    if (line.starts_with("saved ")) part.saves.push_back(line);
  };
  train_here(run, hooks);
  clear_interrupt();
  return part;
}

// Worse at the peak of the rate, better after it. Stopped at the first worse loss and at the second one: the
// best checkpoint stays through both resumes, until a better one comes.
TEST(Branch, TheBestCheckpointStaysThroughResumes) {
  for (const char* keep_best : {"saved", "always"}) {
    SCOPED_TRACE(keep_best);
    const bool always = std::string(keep_best) == "always";
    TempFolder tmp;
    RunSpec run = tiny_run(tmp.path(), 48);
    run.optimizer.schedule = "linear";
    run.optimizer.lr = 0.3;
    run.optimizer.warmup = 16;
    run.train.eval_every = 2;
    run.train.checkpoint_every.count = always ? 1000 : 2;
    run.train.keep = 1;
    run.train.keep_best = keep_best;
    EvalLosses losses;
    RunSpec whole = run;
    whole.train.dir = (tmp / "whole").string();
    run_part(whole, 0, &losses);
    int64_t best = 2;  // the first that two worse ones follow
    while (best + 4 < 48 &&
           std::min(losses.by_step[best + 2], losses.by_step[best + 4]) <= losses.by_step[best])
      best += 2;
    ASSERT_LT(losses.by_step[losses.best()], losses.by_step[best]) << "the run is of no use for this test";
    const auto names = [](std::initializer_list<int64_t> steps) {
      std::vector<std::string> out;
      for (const int64_t s : steps) out.push_back(step_folder_name(s));
      return out;
    };
    run_part(run, best + 2);
    EXPECT_EQ(outcome_of(run.train.dir).checkpoints, names({best, best + 2}));
    const Part second = run_part(run, best + 4);
    EXPECT_EQ(second.at_start, names({best, best + 2}));
    EXPECT_EQ(second.saves.size(), 1u);  // no save for the sake of a worse loss
    EXPECT_EQ(outcome_of(run.train.dir).checkpoints, names({best, best + 4}));
    EXPECT_EQ(run_part(run, 0).at_start, names({best, best + 4}));
    expect_same(outcome_of(run.train.dir), outcome_of(whole.train.dir));
    ASSERT_TRUE(checkpoint_named(run.train.dir + "@best"));
    EXPECT_EQ(checkpoint_named(run.train.dir + "@best")->folder.filename(), step_folder_name(losses.best()));
  }
}

}  // namespace
}  // namespace trireme::test
