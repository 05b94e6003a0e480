// Batches that grow in stages (batch.ramp): each step trains on its own batch, and on the samples that
// follow.
#include <gtest/gtest.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "checkpoint/named.h"
#include "ranks_run.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

constexpr int64_t kSteps = 7;

// 4 sequences to step 2, 8 to step 4, then 12; the rate is that of the step, whatever the number of steps.
RunSpec ramped(const fs::path& folder, const RanksLayout& l = {}) {
  RunSpec r = ranks_run(folder, l, kSteps);
  r.batch = {.global = 12, .micro = l.micro, .ramp = {{.value = 4, .until = 2}, {.value = 8, .until = 4}}};
  r.optimizer.schedule = "constant";
  r.data.seq_len = 12;
  r.model.max_positions = 0;
  r.model.finish(r.data.seq_len);
  r.train.eval_every = 0;
  r.data.valid = "";
  r.train.checkpoint_every.count = 100;
  return r;
}

// The same batches as branches of one batch each; the last one's folder.
fs::path train_chain(const fs::path& folder, const RunSpec& run) {
  RunSpec part = run;
  part.batch.ramp.clear();
  std::string from;
  for (const auto& [global, until] : {std::pair<int64_t, int64_t>{4, 2}, {8, 4}, {12, kSteps}}) {
    part.batch.global = global;
    part.train.steps = until;
    part.train.branch = from;
    part.train.dir = (folder / fmt::format("to-{}", until)).string();
    train_here(part);
    from = part.train.dir;
  }
  return from;
}

Manifest manifest_in(const fs::path& dir) {
  return find_newest(checkpoint_root(dir)).newest->manifest();
}

void expect_chain(const RanksLayout& l, void (*change)(RunSpec&)) {
  TempFolder tmp;
  RunSpec run = ramped(tmp.path(), l);
  change(run);
  train_here(run);
  const fs::path last = train_chain(tmp.path(), run);
  const Outcome got = numbers_of(run.train.dir), want = numbers_of(last);
  ASSERT_EQ(got.step, kSteps);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, bytes] : want.tensors) EXPECT_TRUE(got.tensors.at(name) == bytes) << name;
  std::vector<std::string> lines;
  for (int64_t until : {int64_t(2), int64_t(4), kSteps})
    for (const std::string& line : numbers_of(tmp / fmt::format("to-{}", until)).metrics)
      lines.push_back(line);
  EXPECT_EQ(got.metrics, lines);
  const Manifest m = manifest_in(run.train.dir), chained = manifest_in(last);
  EXPECT_EQ(m.samples, 2 * 4 + 2 * 8 + 3 * 12);
  EXPECT_EQ(m.samples, chained.samples);
  EXPECT_EQ(m.tokens, chained.tokens);
  for (const char* key : {"noise_scale", "spikes"})
    EXPECT_EQ(m.state.contains(key) ? m.state[key].dump() : "",
              chained.state.contains(key) ? chained.state[key].dump() : "")
        << key;
}

TEST(Ramp, IsAChainOfBranchesToTheBit) {
  expect_chain({}, [](RunSpec&) {});
  expect_chain({.micro = 1}, [](RunSpec& r) {
    r.train.spikes = "skip";
    r.train.spike_window = 4;
    r.data.prefetch = 0;
  });
  expect_chain({}, [](RunSpec& r) {
    r.data.train = Texts::of({r.data.train.first(), r.data.train.first()});
    r.data.weights = {2, 1};
  });
}
TEST(Ramp, IsAChainOfBranchesInOtherLayouts) {
  const auto measured = [](RunSpec& r) { r.train.noise_scale = 1; };
  expect_chain({.dp = 2}, measured);
  expect_chain({.dp = 2, .zero = 3, .micro = 1}, measured);
  expect_chain({.zero = 3, .tp = 2, .cp = 2}, [](RunSpec&) {});
  expect_chain({.dp = 2, .micro = 1, .pp = 2}, [](RunSpec&) {});
  expect_chain({.micro = 1, .pp = 2, .schedule = "v-half", .chunks = 2},
               [](RunSpec& r) { r.model.layers = 4; });
}
// Routers' losses are means over the tokens of the step's batch.
TEST(Ramp, IsAChainOfBranchesWithExperts) {
  expect_chain({.dp = 2}, [](RunSpec& r) {
    r.model.experts = 4;
    r.model.experts_per_token = 2;
    r.model.moe_ffn = 12;
    r.moe.aux_loss = 0.1;
    r.moe.z_loss = 0.01;
    r.moe.unit = "global";
  });
}

// Other microbatches, and ranks of each kind, give the losses of one rank within the bound of ranks_test.cc.
// Where the microbatch is the same, the first losses are equal.
TEST(Ramp, IsTheSameInEveryLayout) {
  TempFolder one;
  train_here(ramped(one.path()));
  const std::vector<std::string> want = numbers_of(one / "run").metrics;
  ASSERT_EQ(want.size(), size_t(kSteps));
  for (const RanksLayout& l : {RanksLayout{.micro = 1},
                               {.micro = 4},
                               {.dp = 2},
                               {.dp = 2, .zero = 1},
                               {.dp = 2, .zero = 2, .micro = 1},
                               {.dp = 2, .zero = 3},
                               {.tp = 2},
                               {.zero = 1, .cp = 2},
                               {.micro = 4, .pp = 2},
                               {.dp = 2, .micro = 1, .pp = 2, .schedule = "zb-h1"}}) {
    SCOPED_TRACE(fmt::format("dp {} zero {} micro {} tp {} pp {}", l.dp, l.zero, l.micro, l.tp, l.pp));
    TempFolder tmp;
    train_here(ramped(tmp.path(), l));
    const std::vector<std::string> got = numbers_of(tmp / "run").metrics;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); i++) {
      const auto a = nlohmann::json::parse(got[i]), b = nlohmann::json::parse(want[i]);
      EXPECT_EQ(a["tokens"], b["tokens"]) << i;
      EXPECT_NEAR(a["loss"].get<double>() / b["loss"].get<double>(), 1, 1e-5) << i;
      EXPECT_NEAR(a["grad_norm"].get<double>() / b["grad_norm"].get<double>(), 1, 1e-4) << i;
      if (i == 0 && l.micro == 2 && l.tp * l.cp * l.pp == 1) {
        EXPECT_EQ(a["loss"], b["loss"]);
      }
    }
  }
}

// Left after every step, within a stage and at its end: the bits of the uninterrupted run.
TEST(Ramp, ResumesAtAnyStep) {
  TempFolder whole, tmp;
  train_here(ramped(whole.path()));
  const Outcome want = numbers_of(whole / "run");
  for (int64_t step = 1; step < kSteps; step++) {
    TrainHooks hooks;
    hooks.step = [](const StepMetrics&) { request_interrupt(); };
    EXPECT_EQ(train_here(ramped(tmp.path()), hooks).last_step, step);
    clear_interrupt();
  }
  EXPECT_EQ(train_here(ramped(tmp.path())).ending, Ending::done);
  Outcome got = numbers_of(tmp / "run");
  got.checkpoints = want.checkpoints;  // pauses add checkpoints
  expect_same(got, want);
}

std::string refusal(const RunSpec& run) {
  try {
    train_here(run);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request) << e.what();
    return e.what();
  }
  return "accepted";
}

// A resume may change the batches to come, and none that was.
TEST(Ramp, OnlyLaterBatchesMayChange) {
  TempFolder tmp;
  TrainHooks stop;
  stop.step = [](const StepMetrics& m) {
    if (m.step == 3) request_interrupt();
  };
  train_here(ramped(tmp.path()), stop);
  clear_interrupt();
  RunSpec run = ramped(tmp.path());
  run.batch.ramp[0].until = 1;
  EXPECT_NE(refusal(run).find("batch.ramp: [[4, 2], [8, 4]] -> [[4, 1], [8, 4]]"), std::string::npos);
  run.batch.ramp.clear();
  EXPECT_NE(refusal(run).find("batch.ramp: [[4, 2], [8, 4]] -> []"), std::string::npos);

  run = ramped(tmp.path());
  run.batch.ramp[1].until = 5;
  run.batch.global = 16;
  std::string notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  EXPECT_EQ(train_here(run, hooks).ending, Ending::done);
  EXPECT_NE(
      notes.find("4 sequences to step 2, 8 to step 5, then 16 instead of 4 sequences to step 2, 8 to step "
                 "4, then 12"),
      std::string::npos)
      << notes;
  TempFolder planned;
  RunSpec same = ramped(planned.path());
  same.batch = run.batch;
  train_here(same);
  EXPECT_TRUE(numbers_of(run.train.dir).tensors == numbers_of(same.train.dir).tensors);
  EXPECT_EQ(manifest_in(run.train.dir).samples, 2 * 4 + 3 * 8 + 2 * 16);
}

// From within a ramp to one batch and to another ramp: the samples that follow.
TEST(Ramp, BranchesContinueTheSamples) {
  TempFolder tmp;
  RunSpec run = ramped(tmp.path());
  run.train.checkpoint_every.count = 3;
  run.train.keep = 100;
  train_here(run);
  RunSpec branch = run;
  branch.train.branch = run.train.dir + "@3";
  branch.train.dir = (tmp / "same").string();
  train_here(branch);
  EXPECT_TRUE(numbers_of(tmp / "same").tensors == numbers_of(tmp / "run").tensors);
  EXPECT_FALSE(manifest_in(tmp / "same").state.contains("data_place"));

  branch.train.dir = (tmp / "flat").string();
  branch.batch = {.global = 6, .micro = 2};
  train_here(branch);
  EXPECT_EQ(manifest_in(tmp / "flat").state.at("data_place").at("samples"), 2 * 4 + 8);
  EXPECT_EQ(manifest_in(tmp / "flat").samples, 2 * 4 + 8 + 4 * 6);
  branch.train.branch = branch.train.dir + "@6";
  branch.train.dir = (tmp / "again").string();
  branch.train.steps = 9;
  branch.batch = {.global = 6, .micro = 2, .ramp = {{.value = 2, .until = 8}}};
  train_here(branch);
  EXPECT_EQ(manifest_in(tmp / "again").state.at("data_place").at("samples"), 2 * 4 + 8 + 3 * 6);
  EXPECT_EQ(manifest_in(tmp / "again").samples, 2 * 4 + 8 + 3 * 6 + 2 * 2 + 6);
}

}  // namespace
}  // namespace trireme::test
