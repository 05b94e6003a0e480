// Checkpoints written beside training: the same files, failures that end nothing, one at a time; and when.
#include "train/saves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/json.h"
#include "base/progress.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "train/checkpointing.h"
#include "train/launch.h"

namespace trireme::test {
namespace {

RunSpec beside(const fs::path& folder, int64_t steps) {
  RunSpec r = tiny_run(folder, steps);
  r.train.async_save = true;
  return r;
}

std::vector<std::string> checkpoints_of(const RunSpec& run) {
  std::vector<std::string> out;
  for (const std::string& name : names_in(checkpoint_root(run.train.dir)))
    if (step_of_folder_name(name)) out.push_back(name);
  return out;
}

struct Notes {
  std::vector<std::string> lines;
  TrainHooks hooks() {
    TrainHooks h;
    h.note = [this](const std::string& line) { lines.push_back(line); };
    return h;
  }
  int count(const std::string& part) const {
    return int(std::count_if(lines.begin(), lines.end(),
                             [&](const std::string& l) { return l.find(part) != std::string::npos; }));
  }
};

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "it did not fail";
  return "";
}

// What is on disk at the end does not know how it came there, on one rank or several, whatever they share.
TEST(SavesBesideTraining, LeaveWhatSavesInItsWayLeave) {
  for (auto [dp, zero] : {std::pair(1, 0), {2, 0}, {3, 1}, {2, 3}}) {
    TempFolder a, b;
    RunSpec in_the_way = tiny_run(a.path(), 7), other = beside(b.path(), 7);
    for (RunSpec* r : {&in_the_way, &other}) {
      r->layout.dp = dp, r->layout.zero = zero, r->batch.global = 12;
      r->train.keep = 5;
    }
    Notes notes;
    TrainSummary s = train_here(in_the_way), t = train_here(other, notes.hooks());
    EXPECT_EQ(t.checkpoint.filename(), s.checkpoint.filename());
    expect_same(outcome_of(b / "run"), outcome_of(a / "run"));
    EXPECT_EQ(checkpoints_of(other).size(), 3u);
    EXPECT_EQ(notes.count("saved "), 3);
    EXPECT_EQ(notes.count("host memory"), 1);
    Checkpoint c = Checkpoint::open(t.checkpoint);
    EXPECT_LE(c.manifest().files.size(), size_t(dp));
  }
}

// A save that is held up in the middle of its file, until a later step has moved every weight, holds the
// state of its own step.
TEST(SavesBesideTraining, HoldTheStepTheyWereAskedFor) {
  for (int dp : {1, 2}) {
    TempFolder a, b;
    RunSpec in_the_way = tiny_run(a.path(), 7), other = beside(b.path(), 7);
    for (RunSpec* r : {&in_the_way, &other}) r->layout.dp = dp, r->batch.global = 8, r->train.keep = 5;
    train_here(in_the_way);
    std::mutex mutex;
    std::condition_variable moved;
    const int every = int(other.train.checkpoint_every.count);
    int steps = 0, saves = 0;
    TrainHooks hooks;
    hooks.phase = [&](std::string_view p) {
      std::unique_lock lock(mutex);
      if (p == "metrics") steps++, moved.notify_all();
      if (p != "save:tensor:0") return;
      const int later = std::min(7, ++saves * every + 1);  // the last save is of the last step
      moved.wait(lock, [&] { return steps >= later; });
    };
    train_here(other, hooks);
    EXPECT_EQ(saves, 3);
    for (const std::string& name : checkpoints_of(other)) {
      const Checkpoint got = Checkpoint::open(checkpoint_root(other.train.dir) / name),
                       want = Checkpoint::open(checkpoint_root(in_the_way.train.dir) / name);
      for (const std::string& tensor : want.names()) {
        const Shape shape = want.find(tensor)->global;
        std::vector<float> x(size_t(shape.numel())), y(x.size());
        got.read(tensor, whole(shape).box, {0, shape.numel()}, Tensor(x.data(), {shape.numel()}, DType::f32));
        want.read(tensor, whole(shape).box, {0, shape.numel()},
                  Tensor(y.data(), {shape.numel()}, DType::f32));
        EXPECT_EQ(x, y) << name << " " << tensor;
      }
    }
  }
}

// Steps go on while a file is written, and the next save waits for the last: begin and end never nest.
TEST(SavesBesideTraining, OneAtATime) {
  TempFolder tmp;
  RunSpec run = beside(tmp.path(), 9);
  run.train.checkpoint_every.count = 1, run.train.keep = 100;
  std::mutex mutex;
  int open = 0, most = 0, begun = 0;
  TrainHooks hooks;
  hooks.phase = [&](std::string_view p) {
    std::lock_guard lock(mutex);
    if (p == "save:begin") most = std::max(most, ++open), begun++;
    if (p == "save:pruned") open--;
  };
  const TrainSummary ended = train_here(run, hooks);
  EXPECT_EQ(most, 1);
  EXPECT_EQ(open, 0);
  EXPECT_EQ(begun, 9);
  EXPECT_EQ(checkpoints_of(run).size(), 9u);
  // Of every save but the last a later line of metrics tells; of the last the summary and the last line.
  EXPECT_GT(ended.last_stall_s.value_or(0), 0);
  EXPECT_GT(ended.last_write_s.value_or(0), 0);
  int stalls = 0, writes = 0, last = 0;
  for (const std::string& line : lines_of(read_text(tmp / "run/metrics.jsonl"))) {
    auto m = nlohmann::json::parse(line);
    stalls += m.contains("checkpoint_stall_s"), writes += m.contains("checkpoint_write_s");
    EXPECT_GT(m.value("checkpoint_stall_s", 1.0), 0);
    if (!m.contains("last_checkpoint_stall_s")) continue;
    last++;
    EXPECT_EQ(m["step"], 9);
    EXPECT_EQ(m["last_checkpoint_stall_s"], ended.last_stall_s.value());
    EXPECT_EQ(m["last_checkpoint_write_s"], ended.last_write_s.value());
  }
  EXPECT_EQ(last, 1);
  EXPECT_EQ(stalls, 8);
  EXPECT_GE(writes, 7);
}

// A file stands where the folder of checkpoints would be, until the run says that a save failed.
TEST(SavesBesideTraining, AFailureIsToldAndNotCounted) {
  for (int dp : {1, 2}) {
    TempFolder tmp;
    RunSpec run = beside(tmp.path(), 9);
    run.layout.dp = dp, run.batch.global = 8;
    const fs::path root = checkpoint_root(run.train.dir);
    Notes notes;
    TrainHooks hooks;
    hooks.step = [&](const StepMetrics& m) {
      if (m.step == 2) put_file(root, "mine");
    };
    hooks.note = [&](const std::string& line) {
      notes.lines.push_back(line);
      if (line.find("was not saved") != std::string::npos) fs::remove(root);
    };
    TrainSummary s = train_here(run, hooks);
    EXPECT_EQ(s.ending, Ending::done);
    EXPECT_EQ(notes.count("step 3 was not saved"), 1);
    EXPECT_EQ(notes.count("nothing had been saved before"), 1);
    EXPECT_EQ(checkpoints_of(run), (std::vector<std::string>{"step-00000006", "step-00000009"}));
    EXPECT_EQ(s.checkpoint.filename(), "step-00000009");
  }
}

// Where the file of a rank above 0 should go stands a folder: that rank is named, nothing is published, and
// the next save is whole.
TEST(SavesBesideTraining, AFailureOfAnyRankIsToldAndNotCounted) {
  for (int dp : {2, 3}) {
    TempFolder tmp;
    RunSpec run = beside(tmp.path(), 6);
    run.layout.dp = dp, run.layout.zero = 1, run.batch.global = 12;
    const std::string last = fmt::format("rank-{:05}.safetensors", dp - 1);
    Notes notes;
    TrainHooks hooks = notes.hooks();
    int saves = 0;
    hooks.phase = [&](std::string_view p) {
      if (p == "save:begin" && saves++ == 0)
        fs::create_directories(checkpoint_root(run.train.dir) / "step-00000003.part" / last / "mine");
    };
    const TrainSummary s = train_here(run, hooks);
    EXPECT_EQ(s.ending, Ending::done);
    EXPECT_EQ(notes.count(fmt::format("step 3 was not saved: rank {}: ", dp - 1)), 1);
    EXPECT_EQ(notes.count(last), 1);
    EXPECT_EQ(checkpoints_of(run), std::vector<std::string>{"step-00000006"});
    EXPECT_EQ(names_in(checkpoint_root(run.train.dir)), std::vector<std::string>{"step-00000006"});
  }
}

// The same where training waits for it: the run ends, and says whose file it was.
TEST(Saves, AFailureOfAnyRankEndsTheRun) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 6);
  run.train.async_save = false;
  run.layout.dp = 3, run.layout.zero = 1, run.batch.global = 12;
  TrainHooks hooks;
  hooks.phase = [&](std::string_view p) {
    if (p == "save:begin")
      fs::create_directories(checkpoint_root(run.train.dir) /
                             "step-00000003.part/rank-00002.safetensors/mine");
  };
  try {
    train_here(run, hooks);
    ADD_FAILURE();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("rank 2: step 3: "), std::string::npos) << text;
    EXPECT_NE(text.find("rank-00002.safetensors"), std::string::npos) << text;
    EXPECT_EQ(e.fault, Fault::run) << "a supervisor relaunches it";
  }
  EXPECT_TRUE(checkpoints_of(run).empty());
}

TEST(SavesBesideTraining, TwoFailuresInARowOrTheLastOneEndTheRun) {
  for (auto [steps, every, what] : {std::tuple(9, 3, "two saves in a row have failed"), {4, 0, "step 4"}}) {
    for (int dp : {1, 2}) {
      TempFolder tmp;
      RunSpec run = beside(tmp.path(), steps);
      run.layout.dp = dp, run.batch.global = 8;
      run.train.checkpoint_every.count = every;
      TrainHooks hooks;
      int64_t last = 0;
      hooks.step = [&](const StepMetrics& m) {
        if (m.step == 1) put_file(checkpoint_root(run.train.dir), "mine");
        last = m.step;
      };
      const std::string text = failure([&] { train_here(run, hooks); });
      EXPECT_NE(text.find(what), std::string::npos) << text;
      EXPECT_NE(text.find("nothing had been saved before"), std::string::npos) << text;
      if (every > 0) {
        EXPECT_GE(last, 5) << text;
        EXPECT_LE(last, 9) << text;
      }
    }
  }
}

// checkpoint_every = "auto": a first save measures; then failures that come often bring saves often.
TEST(SavesBesideTraining, DalysCadence) {
  for (auto [mtbf_s, least, most] : {std::tuple(0.0, 2, 2), {1e-9, 3, 11}}) {
    TempFolder tmp;
    RunSpec run = beside(tmp.path(), 12);
    run.train.checkpoint_every = {.automatic = true}, run.train.keep = 100;
    run.precision.compute = run.precision.grads = run.precision.reduce = "f32";
    Schedule schedule = schedule_of(run);
    TrainOptions options{.arena_bytes = book_training(run, schedule, 1).arena_bytes, .mtbf_s = mtbf_s};
    Notes notes;
    train_on_threads(run, schedule, {.threads = 1}, options, notes.hooks());
    const std::vector<std::string> saved = checkpoints_of(run);
    EXPECT_EQ(saved.front(), "step-00000003");
    EXPECT_EQ(saved.back(), "step-00000012");
    EXPECT_GE(int(saved.size()), least);
    EXPECT_LE(int(saved.size()), most);
    EXPECT_GE(notes.count("checkpoint_every auto: a save costs"), 1);
  }
}

// The rate of failures is the cluster file's, over all ranks.
TEST(SavesBesideTraining, ExpectFailuresAsTheClusterSays) {
  ClusterSpec cluster;
  cluster.mtbf_hours = 0.25;
  EXPECT_EQ(cluster.mtbf_s(1), 900);
  EXPECT_EQ(cluster.mtbf_s(3), 300);
  TempFolder tmp;
  RunSpec run = beside(tmp.path(), 6);
  run.train.checkpoint_every = {.automatic = true};
  run.precision.compute = run.precision.grads = run.precision.reduce = "f32";
  Schedule schedule = schedule_of(run);
  TrainOptions options{.arena_bytes = book_training(run, schedule, 1).arena_bytes,
                       .mtbf_s = cluster.mtbf_s(3)};
  Notes notes;
  train_on_threads(run, schedule, {.threads = 1}, options, notes.hooks());
  EXPECT_GE(notes.count("a failure is expected every " + human_seconds(300)), 1);
}

}  // namespace
}  // namespace trireme::test
