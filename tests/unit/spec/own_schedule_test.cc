// Schedules that users bring: read, held against the run, refused with the place.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec run_with(const std::string& more) {
  return parse_run("[layout]\npp = 2\n" + more + "[batch]\nglobal = 4\nmicro = 2\n", "run.toml");
}
std::string refusal(RunSpec run, const char* text) {
  try {
    set_own_schedule(run, parse_schedule(text), "own.txt");
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_FALSE(run.own_schedule.actions);
    return e.what();
  }
  return "";
}

TEST(OwnSchedule, FromAFile) {
  const auto folder = std::filesystem::temp_directory_path() / "trireme_own_schedule";
  std::filesystem::create_directories(folder);
  const auto file = folder / "own.txt";
  write_text_atomic(file, "# mine\n0F0 0F1 0I0 0W0 0B1\n\n1F0 1B0 1F1 1B1\n");
  RunSpec run = run_with("schedule = \"file\"\nschedule_file = \"" + file.string() + "\"\n");
  EXPECT_TRUE(has_own_schedule(run.layout));
  read_own_schedule(run);
  EXPECT_EQ(to_text(schedule_of(run)),
            "0F0 0SendF0 0F1 0SendF1 0RecvB0 0I0 0W0 0RecvB1 0B1 0ReduceGrad 0Step\n"
            "1RecvF0 1F0 1B0 1SendB0 1RecvF1 1F1 1B1 1ReduceGrad 1SendB1 1Step\n");
  RunSpec again = run;
  read_own_schedule(again);
  EXPECT_EQ(again, run);
  EXPECT_EQ(save_run(run).find("0F0"), std::string::npos);  // the file is the user's, not the run file's
  const auto expect_refused = [&](std::string_view why) {
    try {
      read_own_schedule(run);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      EXPECT_NE(std::string(e.what()).find("layout.schedule_file = "), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  write_text_atomic(file, "0F0 0F1 0B0\n1F0 1G0\n");
  expect_refused("schedule line 2: \"1G0\" names no kind of action");
  std::filesystem::remove_all(folder);
  expect_refused("No such file");
}

TEST(OwnSchedule, IsHeldAgainstTheRun) {
  const RunSpec run = run_with("");
  EXPECT_EQ(refusal(run, "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), "");
  const std::pair<const char*, const char*> cases[] = {
      {"0F0 0F1 0B0 0B1", "own.txt: 1 ranks (lines), and layout.pp = 2"},
      {"0F0 0B0\n1F0 1B0",
       "own.txt: 1 microbatches, and batch.global / (layout.dp * batch.micro) = 4 / (1 * 2) = 2"},
      {"0F0 0F1 0B0 0B1\n1F0 1F1 2F0 2F1 2B0 2B1 1B0 1B1",
       "own.txt: 3 stages, and layout.pp * layout.chunks = 2 * 1"},
      {"0F0 0F1 0B0 0B1 0Step\n1F0 1B0 1F1 1B1",
       "own.txt: rank 0 has 0Step; right are forwards and backwards alone (F, B, I, W): the run adds what is "
       "computed again, messages, reductions and steps"},
      {"copies 2\n0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1",
       "own.txt: schedule: stage 0 is on rank 0 alone; it has 2 copies"},
      {"copies 2\n0F0 1F0 1B0 0B0\n0F1 1F1 1B1 0B1", ""},
      // Legal, were it not for the messages: rank 0 sends microbatch 0 first, rank 1 begins with 1.
      {"0F0 0F1 0B1 0B0\n1F1 1B1 1F0 1B0",
       "own.txt: schedule: rank 1 receives 1RecvF1 from rank 0 as number 0 of its activations, which sends "
       "0SendF0 then: both sides must have one order"},
  };
  for (const auto& [text, want] : cases) {
    const std::string said = refusal(run, text);
    EXPECT_EQ(said.substr(0, said.find('\n')), want) << text;
  }
  EXPECT_NE(refusal(run, "0F0 0F1 0B0 0B1\n1F0 1B1 1F1 1B0").find("[1B1]  <-- here"), std::string::npos);
  const RunSpec chunks = run_with("schedule = \"interleaved\"\nchunks = 2\n");
  EXPECT_EQ(refusal(chunks, "0F0 0F1 0B0 0B1\n1F0 1F1 2F0 2F1 3F0 3F1 3B0 3B1 2B0 2B1 1B0 1B1"),
            "own.txt: rank 0 has 1 stages, and layout.chunks = 2");
}

TEST(OwnSchedule, CopiesAreOfWholeRanks) {
  RunSpec run =
      parse_run("[layout]\npp = 4\n[model]\nlayers = 4\n[batch]\nglobal = 4\nmicro = 2\n", "run.toml");
  const char* pairs = "copies 2\n0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0\n0F1 2F1 2B1 0B1\n1F1 3F1 3B1 1B1";
  EXPECT_EQ(refusal(run, pairs), "");
  EXPECT_EQ(
      refusal(run, "copies 2\n0F0 1F0 1B0 0B0\n2F0 3F0 3B0 2B0\n0F1 2F1 2B1 0B1\n1F1 3F1 3B1 1B1"),
      "own.txt: rank 0 has stages 0, 1, and as many ranks as there are copies, 2, must have the same ones");
  run.model.tied = true;
  EXPECT_EQ(refusal(run, pairs),
            "own.txt: the first stage is on ranks 0, 2 and the last on 1, 3; with copies and model.tied = "
            "true both "
            "must be on the same");
  run.model.tied = false;
  RunSpec experts = run;
  experts.model.arch = "mixtral", experts.model.experts = 4, experts.model.experts_per_token = 2;
  experts.moe.aux_loss = 0.1, experts.moe.unit = "global";
  EXPECT_EQ(refusal(experts, pairs),
            "own.txt: 2 copies of each stage, each of which knows the choices of its own microbatches, and "
            "moe.unit = \"global\"; right is \"sequence\" or \"microbatch\"");
  run.train.noise_scale = 3;
  EXPECT_EQ(refusal(run, pairs),
            "own.txt: 2 copies of each stage, each with a part of its gradient, and train.noise_scale = 3; "
            "right is 0");
}

// The published balance over the whole batch knows what has run: of which microbatches, is the schedule's
// order.
TEST(OwnSchedule, ForwardsAscendBesideUnitsOverTheBatch) {
  RunSpec run = run_with("");
  run.model.arch = "mixtral", run.model.experts = 4, run.model.experts_per_token = 2;
  run.moe.aux_loss = 0.25, run.moe.unit = "global";
  const char* descending = "0F1 0F0 0B1 0B0\n1F1 1B1 1F0 1B0";
  EXPECT_EQ(refusal(run, "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), "");
  EXPECT_EQ(
      refusal(run, descending),
      "own.txt: rank 0 has 0F0 behind 0F1, and with moe.unit = \"global\" and moe.aux_loss = 0.25 a "
      "microbatch counts the choices of those before it; right are forwards of each stage from the first "
      "microbatch to the last, or moe.unit = \"sequence\" or \"microbatch\"");
  for (const char* unit : {"sequence", "microbatch"}) {
    run.moe.unit = unit;
    EXPECT_EQ(refusal(run, descending), "") << unit;
  }
  run.moe.unit = "global", run.moe.aux_loss = 0, run.moe.capacity = 1;
  EXPECT_EQ(refusal(run, descending), "");  // of capacities a unit is one microbatch of all replicas
}

TEST(OwnSchedule, KeysThatDoNotGoTogether) {
  const std::pair<const char*, const char*> cases[] = {
      {"schedule = \"file\"\n",
       "layout.schedule: \"file\" wants layout.schedule_file, which is empty; give the file's path"},
      {"schedule_file = \"x\"\n",
       "layout.schedule_file: \"x\" has no effect with layout.schedule = \"1f1b\"; give \"file\" there, or "
       "leave it "
       "out"},
      {"in_flight = 3\n",
       "layout.in_flight: 3 has no effect with layout.schedule = \"1f1b\"; give \"auto\" there, or leave "
       "it out"},
      {"schedule = \"auto\"\nchunks = 2\n",
       "layout.chunks: 2: layout.schedule = \"auto\" takes chunks = 1 (one stage a rank)"}};
  for (const auto& [keys, want] : cases) try {
      run_with(keys);
      ADD_FAILURE() << keys;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(want), std::string::npos) << e.what();
    }
}

}  // namespace
}  // namespace trireme
