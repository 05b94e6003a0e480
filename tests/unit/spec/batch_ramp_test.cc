// Batches that grow in stages (batch.ramp): sequences of a step, refusals, identity.
#include "spec/batch_ramp.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "spec/identity.h"
#include "spec/notes.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

BatchSpec ramped() {
  return {.global = 32, .micro = 4, .ramp = {{.value = 8, .until = 3}, {.value = 16, .until = 5}}};
}

TEST(BatchRamp, SaysTheSequencesOfEachStep) {
  const BatchSpec b = ramped();
  const int64_t want[] = {8, 8, 8, 16, 16, 32, 32};
  int64_t samples = 0;
  EXPECT_EQ(samples_until(b, 0), 0);
  for (int64_t step = 1; step <= 7; step++) {
    EXPECT_EQ(global_at(b, step), want[step - 1]);
    EXPECT_EQ(samples_until(b, step), samples += want[step - 1]);
  }
  EXPECT_EQ(smallest_batch(b), 8);
  EXPECT_EQ(divisor_of_batches(b), 8);
  EXPECT_EQ(ramp_text(b), "8 sequences to step 3, 16 to step 5, then 32");
  EXPECT_EQ(samples_until({.global = 32}, 4), 128);
  EXPECT_THROW(samples_until(b, int64_t(1) << 60), Error);
}

TEST(BatchRamp, KnowsWhereTwoBatchesPart) {
  const BatchSpec a = ramped();
  BatchSpec b = ramped();
  b.ramp[1].until = 6;
  EXPECT_TRUE(same_batches(a, b, 5));
  EXPECT_FALSE(same_batches(a, b, 6));
  EXPECT_TRUE(same_batches({.global = 8}, a, 3));
  EXPECT_FALSE(same_batches({.global = 8}, a, 4));
  EXPECT_FALSE(same_batches({.global = 16}, a, 4));
  EXPECT_TRUE(same_batches({.global = 16}, a, 0));
}

TEST(BatchRamp, StagesAreThoseThatTheRunReaches) {
  RunSpec run;
  run.batch = ramped();
  run.train.steps = 4;
  EXPECT_EQ(batch_stages(run), (std::vector<BatchStage>{{1, 3, 8}, {4, 4, 16}}));
  run.train.steps = 9;
  EXPECT_EQ(batch_stages(run), (std::vector<BatchStage>{{1, 3, 8}, {4, 5, 16}, {6, 9, 32}}));
  EXPECT_EQ(schedules_of(run).size(), 3u);
  EXPECT_EQ(schedules_of(run)[0].microbatches, 2);
  EXPECT_EQ(schedules_of(run)[2].microbatches, 8);
  run.batch.ramp.clear();
  EXPECT_EQ(batch_stages(run), (std::vector<BatchStage>{{1, 9, 32}}));
}

TEST(BatchRamp, IsReadAndWritten) {
  const std::string text = "[batch]\nglobal = 32\nmicro = 4\nramp = [[8, 3], [16, 5]]\n";
  const RunSpec run = parse_run(text, "run.toml");
  EXPECT_EQ(run.batch, ramped());
  EXPECT_EQ(parse_run(save_run(run), "saved.toml"), run);
  EXPECT_NE(save_run(run).find("ramp = [[8, 3], [16, 5]]\n"), std::string::npos);
  const std::string set[] = {"batch.ramp=[[4, 2]]"}, none[] = {"batch.ramp=[]"};
  EXPECT_EQ(parse_run(text, "run.toml", set).batch.ramp, (Ramp{{.value = 4, .until = 2}}));
  EXPECT_TRUE(parse_run(text, "run.toml", none).batch.ramp.empty());
}

std::string refusal(const std::string& batch) {
  try {
    parse_run("[batch]\n" + batch, "run.toml");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(BatchRamp, WhatIsWrongIsOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"ramp = [[6, 3]]\nglobal = 32\nmicro = 8",
       "run.toml:2: batch.ramp: [[6, 3]]: 6 is not a multiple of dp * micro = 1 * 8 = 8; "
       "give multiples of it"},
      {"ramp = [[40, 3]]\nglobal = 32",
       "run.toml:2: batch.ramp: [[40, 3]]: 40 is more than global = 32; give at most that"},
      {"ramp = [[16, 3], [8, 5]]",
       "run.toml:2: batch.ramp: [[16, 3], [8, 5]]: [8, 5] comes after [16, 3]; give pairs of which both "
       "numbers "
       "rise"},
      {"ramp = [[8, 5], [16, 5]]",
       "run.toml:2: batch.ramp: [[8, 5], [16, 5]]: [16, 5] comes after [8, 5]; give pairs of which both "
       "numbers "
       "rise"},
      {"ramp = [[8, 3, 1]]",
       "run.toml:2: batch.ramp: [[8, 3, 1]]: stage 1 is not a pair of whole numbers from 1; "
       "give a list of pairs of whole numbers from 1, as [[8, 100], [16, 200]]"},
      {"ramp = [[8, 0]]",
       "run.toml:2: batch.ramp: [[8, 0]]: stage 1 is not a pair of whole numbers from 1; give a "
       "list of pairs of whole numbers from 1, as [[8, 100], [16, 200]]"},
      {"ramp = [8, 3]",
       "run.toml:2: batch.ramp: [8, 3] is a list; give a list of pairs of whole numbers from 1, "
       "as [[8, 100], [16, 200]]"},
      {"ramp = \"8\"",
       "run.toml:2: batch.ramp: \"8\" is a string; give a list of pairs of whole numbers from 1, "
       "as [[8, 100], [16, 200]]"},
      {"global = [[8, 3]]",
       "run.toml:2: batch.global: [[8, 3]] is a list of lists; give \"auto\", or a whole number from 1 to "
       "2147483647"}};
  for (const auto& [batch, want] : cases) EXPECT_EQ(refusal(batch), want);
  std::string many = "ramp = [";
  for (int i = 1; i <= 65; i++) many += fmt::format("[{}, {}], ", 8 * i, i);
  EXPECT_NE(refusal("global = 1000\n" + many + "]").find("65 stages are too many; give at most 64"),
            std::string::npos);
}

TEST(BatchRamp, ANoteTellsOfABatchThatIsNeverReached) {
  RunSpec run = parse_run(
      "[batch]\nglobal = 32\nramp = [[8, 1000]]\n[train]\nsteps = 1001\n[optimizer]\nwarmup = 9", "run.toml");
  EXPECT_TRUE(notes_of(run).empty());
  run.train.steps = 1000;
  ASSERT_EQ(notes_of(run).size(), 1u);
  EXPECT_EQ(notes_of(run)[0],
            "batch.ramp with train.steps = 1000: the run ends with a batch of 8 and never "
            "reaches batch.global = 32");
}

TEST(BatchRamp, DecidesWhichRunItIs) {
  RunSpec run = resolve(parse_run("[batch]\nramp = [[8, 3]]\n", "run.toml"), {});
  RunSpec other = run, none = run;
  other.batch.ramp[0].until = 4;
  none.batch.ramp.clear();
  EXPECT_NE(hash(run), hash(other));
  EXPECT_NE(hash(run), hash(none));
  EXPECT_EQ(diff_of_identity(run, other), std::vector<std::string>{"batch.ramp: [[8, 3]] -> [[8, 4]]"});
  EXPECT_EQ(diff_of_identity(none, run), std::vector<std::string>{"batch.ramp: [] -> [[8, 3]]"});
}

// A pipeline's schedule may need more microbatches than the first stage has.
TEST(BatchRamp, EachStageHasASchedule) {
  RunSpec run;
  run.layout.pp = 2;
  run.layout.schedule = "dualpipe";
  run.batch = {.global = 32, .micro = 8, .ramp = {{.value = 8, .until = 3}}};
  try {
    schedules_of(run);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("batch.ramp: a stage of 8 sequences: ")) << e.what();
  }
  run.batch.ramp[0].value = 16;
  EXPECT_EQ(schedules_of(run).size(), 2u);
}

}  // namespace
}  // namespace trireme
