// Whole runs whose launches are kept: interrupted, evaluated, saved and gone on with, with graphs and without
// by turns, their checkpoints are those of a CPU to the bit.
#include <gtest/gtest.h>

#include "far_device.h"
#include "spec/supported.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

TEST(GraphsInTraining, LeaveTheSameRun) {
  for (const auto& [compute, dp, zero, dropout] :
       {std::tuple("f32", 1, 0, 0.0), {"bf16", 2, 1, 0.1}, {"f16", 1, 0, 0.0}}) {
    SCOPED_TRACE(fmt::format("{} dp {} zero {} dropout {}", compute, dp, zero, dropout));
    const auto spec = [compute = compute, dp = dp, zero = zero, dropout = dropout](const fs::path& folder) {
      RunSpec r = tiny_run(folder, 16);
      r.precision.compute = compute;
      r.model.embd_pdrop = r.model.attn_pdrop = r.model.resid_pdrop = dropout;
      r.layout.dp = dp, r.layout.zero = zero;
      r.batch.micro = 2, r.batch.global = 4 * dp;
      r.train.eval_every = 3, r.train.check_every = 4;
      return r;
    };
    TempFolder near, far;
    train_here(spec(near.path()));
    const Outcome want = outcome_of(near / "run");
    bool graphs = true;
    for (int64_t stop : {7, 9, 16}) {
      TrainOptions options;
      options.device = [graphs] { return make_far_device({.threads = 1, .graphs = graphs}); };
      TrainHooks hooks;
      std::string told;
      hooks.note = [&](const std::string& line) {
        if (line.starts_with("graphs: ")) told = line;
      };
      hooks.step = [&](const StepMetrics& m) {
        if (m.step == stop && stop < 16) request_interrupt();
      };
      train_here(spec(far.path()), hooks, options);
      clear_interrupt();
      EXPECT_EQ(told.empty(), !graphs) << told;
      EXPECT_EQ(told.find("graphs: 0 of"), told.npos) << told;
      graphs = !graphs;
    }
    const Outcome got = outcome_of(far / "run");
    EXPECT_EQ(got.step, 16);
    EXPECT_FALSE(got.tensors.empty());
    EXPECT_TRUE(got.tensors == want.tensors);
  }
}

// "on" is no wish: a device that keeps no launches after all ends the run, and says why. What is not asked
// for goes on, one by one.
TEST(GraphsInTraining, OnARefusalEndTheRun) {
  for (const bool asked : {true, false}) {
    TempFolder folder;
    RunSpec r = tiny_run(folder.path(), 8);
    r.train.graphs = asked ? "on" : "auto";
    TrainOptions options;
    options.device = [] { return make_far_device({.threads = 1, .graphs = true}, no_room_for_a_graph); };
    std::string told, error;
    TrainHooks hooks;
    hooks.note = [&](const std::string& line) {
      if (line.starts_with("graphs: ")) told = line;
    };
    try {
      train_here(r, hooks, options);
    } catch (const Error& e) {
      error = e.what();
    }
    if (asked)
      EXPECT_NE(error.find(
                    "train.graphs = \"on\": the device keeps no launches: no room for a graph; give \"off\""),
                error.npos)
          << error;
    else
      EXPECT_EQ(error, "");
    EXPECT_EQ(told, asked ? "" : "graphs: none, launches go one by one: no room for a graph");
  }
}

// A device that chooses algorithms: what it chose is kept with the run, and given to it again.
class Choosing final : public Device {
 public:
  Choosing(std::vector<std::string>& taken, std::string choice, int grows)
      : inner_(make_device("cpu", {.threads = 1})),
        taken_(taken),
        choice_(std::move(choice)),
        grows_(grows) {}
  std::string choices() const override {
    return !kernels_used() ? "" : ++asked_ == grows_ ? choice_ += ", more" : choice_;
  }
  std::string take_choices(std::string_view text) override {
    taken_.emplace_back(text);
    for (const char* strange : {"foreign", "torn", "library B"})
      if (text.starts_with(strange)) return "they are another library's";
    choice_ = text;
    return "";
  }
  std::string_view name() const override { return inner_->name(); }
  bool has_data() const override { return true; }
  bool native(DType t) const override { return inner_->native(t); }
  std::byte* reserve(int64_t n) override { return inner_->reserve(n); }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  void copy(const Tensor& d, const Tensor& s, Stream t) override { inner_->copy(d, s, t); }
  void upload(const Tensor& d, const void* s) override { inner_->upload(d, s); }
  void download(void* d, const Tensor& s) override { inner_->download(d, s); }
  Stream stream(std::string_view n) override { return inner_->stream(n); }
  Event record(Stream s) override { return inner_->record(s); }
  void wait(Stream s, Event e) override { inner_->wait(s, e); }
  void sync(Stream s) override { inner_->sync(s); }
  void enqueue(Stream s, HostTask t) override { inner_->enqueue(s, t); }
  Kernels& kernels() override { return inner_->kernels(); }

 private:
  bool kernels_used() const { return inner_->kernels().launches() > 0; }
  std::unique_ptr<Device> inner_;
  std::vector<std::string>& taken_;
  mutable std::string choice_;
  mutable int asked_ = 0;
  int grows_;  // asked so often it has chosen again
};

struct ChoosingRun {
  int64_t steps = 9;
  bool deterministic = false;
  std::string choice;
  int grows = 0;
  fs::path cache;
};
void train_choosing(const fs::path& folder, const ChoosingRun& how, std::vector<std::string>& taken,
                    std::vector<std::string>& notes) {
  RunSpec r = tiny_run(folder, 9);
  r.train.deterministic = how.deterministic;
  TrainOptions options;
  options.device = [&] { return std::make_unique<Choosing>(taken, how.choice, how.grows); };
  options.algorithms_cache = how.cache;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) {
    if (line.find("algorithms") != std::string::npos) notes.push_back(line);
  };
  hooks.step = [&](const StepMetrics& m) {
    if (m.step == how.steps && how.steps < 9) request_interrupt();
  };
  train_here(r, hooks, options);
  clear_interrupt();
}

TEST(ChosenAlgorithms, GoOnWithTheRun) {
  TempFolder folder;
  std::vector<std::string> taken, notes;
  auto go = [&](int64_t steps, bool deterministic, const char* choice, int grows = 0) {
    train_choosing(folder.path(),
                   {.steps = steps, .deterministic = deterministic, .choice = choice, .grows = grows}, taken,
                   notes);
  };
  const fs::path file = folder / "run/algorithms.txt";
  go(3, true, "second");  // of a deterministic run too
  EXPECT_EQ(read_text(file), "second");
  EXPECT_TRUE(taken.empty());
  go(9, false, "third", 3);  // what comes later than the first step is kept too
  EXPECT_EQ(taken, std::vector<std::string>{"second"});
  EXPECT_EQ(read_text(file), "second, more");
  EXPECT_TRUE(notes.empty());
}

TEST(ChosenAlgorithms, OfAnotherLibraryAreNotedAndReplaced) {
  TempFolder folder;
  std::vector<std::string> taken, notes;
  train_choosing(folder.path(), {.steps = 2, .deterministic = true, .choice = "foreign"}, taken, notes);
  EXPECT_TRUE(notes.empty());
  train_choosing(folder.path(), {.steps = 4, .deterministic = true, .choice = "own"}, taken, notes);
  EXPECT_EQ(taken, std::vector<std::string>{"foreign"});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("algorithms.txt are not taken again"), std::string::npos) << notes[0];
  EXPECT_NE(notes[0].find("they are another library's"), std::string::npos) << notes[0];
  EXPECT_EQ(read_text(folder / "run/algorithms.txt"), "own");
}

// What was timed is found by other runs, beside what was there of other devices; a deterministic run neither
// reads nor writes it.
TEST(ChosenAlgorithms, AreSharedByRunsThatTimeThem) {
  const std::string one = "library A\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0 1\n",
                    other = "library B\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0 2\n";
  TempFolder folder, second, third, fourth, fifth;
  const fs::path cache = folder / "cache/algorithms.txt";
  std::vector<std::string> taken, notes;
  train_choosing(folder.path(), {.steps = 2, .choice = one, .cache = cache}, taken, notes);
  EXPECT_EQ(read_text(cache), one);
  train_choosing(second.path(), {.steps = 2, .choice = "timed anew", .cache = cache}, taken, notes);
  EXPECT_EQ(taken, std::vector<std::string>{one});
  EXPECT_EQ(read_text(second / "run/algorithms.txt"), one);
  write_text_atomic(cache, other);
  train_choosing(fifth.path(), {.steps = 2, .choice = one, .cache = cache}, taken, notes);
  EXPECT_EQ(read_text(cache), one + other);
  train_choosing(third.path(), {.steps = 2, .deterministic = true, .choice = "det", .cache = cache}, taken,
                 notes);
  EXPECT_EQ(taken.size(), 2u);
  EXPECT_EQ(read_text(cache), one + other);
  write_text_atomic(cache, "torn\n1 2");  // is nobody's loss
  train_choosing(fourth.path(), {.steps = 2, .choice = one, .cache = cache}, taken, notes);
  EXPECT_EQ(read_text(cache), one);
  EXPECT_TRUE(notes.empty());
}

TEST(ChosenAlgorithms, AreOfOneRank) {
  TempFolder folder;
  RunSpec r = tiny_run(folder.path(), 2);
  r.layout.dp = 2, r.batch.micro = 2, r.batch.global = 4;
  r.train.deterministic = false;
  const std::vector<Problem> problems = unsupported_of(r);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].text, "lets ranks that compute the same choose differently; give true, or one rank");
}

}  // namespace
}  // namespace trireme::test
