#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/hf.h"
#include "data/loader.h"
#include "runtime/booking.h"
#include "source_dir.h"
#include "spec/hf_config.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "trace/chrome_trace.h"
#include "train/checkpointing.h"
#include "train/launch.h"

namespace trireme::test {
namespace {

std::string refusal(const std::function<void()>& f, Fault fault = Fault::request) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, fault) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

void expect_has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* p : parts) EXPECT_NE(text.find(p), std::string::npos) << p << " not in: " << text;
}

// Asks to leave at the n-th time that a phase is told of.
TrainHooks interrupt_at(std::string phase, int n) {
  TrainHooks hooks;
  hooks.phase = [phase, n, count = 0](std::string_view p) mutable {
    if (p == phase && ++count == n) request_interrupt();
  };
  return hooks;
}

// The tests below may count on it: 8 steps of the shuffled order go over more than one epoch.
void expect_epoch_border(const RunSpec& run, int64_t steps) {
  int64_t windows = (TokenShard::open(run.data.train.first()).tokens() - 1) / run.data.seq_len;
  EXPECT_GT(steps * run.batch.global, windows);
  EXPECT_GT(windows, run.batch.global);
  EXPECT_EQ(run.data.order, "shuffled");
}

struct Variant {
  const char *name, *compute;
  int64_t microbatches;
  const char* order;
  double dropout = 0;
};

// A run that a resume can go wrong in: steps skipped at its begin and later, and scales that grew between.
void expect_skips_and_growth(const fs::path& run_dir) {
  std::vector<bool> skipped;
  std::vector<double> scales;
  for (const std::string& line : lines_of(read_text(run_dir / "metrics.jsonl"))) {
    auto m = nlohmann::json::parse(line);
    skipped.push_back(m["skipped"]);
    scales.push_back(m["loss_scale"]);
    EXPECT_EQ(m["grad_norm"].is_null(), skipped.back()) << line;
  }
  EXPECT_TRUE(skipped.front());
  EXPECT_TRUE(std::count(skipped.begin() + 3, skipped.end(), true) > 0);
  int grew = 0;
  for (size_t i = 1; i < scales.size(); i++) grew += scales[i] > scales[i - 1];
  EXPECT_GT(grew, 0);
}

class Resume : public ::testing::TestWithParam<Variant> {
 protected:
  static constexpr int64_t kSteps = 8;
  static constexpr double kTooLarge = 0x1p21;
  RunSpec spec(const fs::path& folder) const {
    RunSpec r = tiny_run(folder, kSteps);
    r.precision.compute = GetParam().compute;
    r.batch.global = 2 * GetParam().microbatches;
    r.data.order = GetParam().order;
    r.model.embd_pdrop = r.model.attn_pdrop = r.model.resid_pdrop = GetParam().dropout;
    // In f16: above what this model's gradients stand, and back there again and again.
    r.precision.initial_scale = kTooLarge, r.precision.growth_interval = 2;
    return r;
  }
};

// data.prefetch moves when a batch is read, not what is in it: losses, weights and all else are equal to the
// bit.
TEST_P(Resume, ReadingAheadChangesNothing) {
  TempFolder ahead, in_line;
  RunSpec a = spec(ahead.path()), b = spec(in_line.path());
  a.data.prefetch = 3, b.data.prefetch = 0;
  train_here(a), train_here(b);
  expect_same(outcome_of(ahead / "run"), outcome_of(in_line / "run"));
}

TEST_P(Resume, AnInterruptedRunEndsAsTheUninterruptedOne) {
  TempFolder whole;
  TrainSummary s = train_here(spec(whole.path()));
  EXPECT_EQ(s.ending, Ending::done);
  EXPECT_EQ(s.first_step, 1);
  EXPECT_EQ(s.last_step, kSteps);
  const Outcome want = outcome_of(whole / "run");
  ASSERT_EQ(want.step, kSteps);
  if (GetParam().compute == std::string("f16")) expect_skips_and_growth(whole / "run");
  const int m = int(GetParam().microbatches);
  // In the middle of step 4, between steps, in an evaluation, in a save: then again and again.
  for (auto [phase, n] : {std::pair("B", 3 * m + 1), std::pair("update", 3), std::pair("eval", 2),
                          std::pair("save:begin", 2), std::pair("F", 1)}) {
    TempFolder tmp;
    TrainSummary first = train_here(spec(tmp.path()), interrupt_at(phase, n));
    EXPECT_EQ(first.ending, Ending::interrupted) << phase;
    clear_interrupt();
    EXPECT_LT(first.last_step, kSteps);
    int64_t start = -1;
    TrainHooks hooks = interrupt_at("norm", 2);
    hooks.start = [&](int64_t done) { start = done; };
    TrainSummary second = train_here(spec(tmp.path()), hooks);
    clear_interrupt();
    EXPECT_EQ(start, first.last_step) << phase;
    EXPECT_EQ(second.first_step, first.last_step + 1);
    EXPECT_EQ(second.last_step, first.last_step + 2);
    EXPECT_EQ(train_here(spec(tmp.path())).ending, Ending::done);
    Outcome got = outcome_of(tmp / "run");
    got.checkpoints = want.checkpoints;  // pauses save at steps of their own
    expect_same(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Train, Resume,
                         ::testing::Values(Variant{"F32", "f32", 3, "shuffled"},
                                           Variant{"Bf16WithF32Gradients", "bf16", 3, "shuffled"},
                                           Variant{"Bf16WithBf16Gradients", "bf16", 1, "shuffled"},
                                           Variant{"Dropout", "bf16", 2, "shuffled", 0.1},
                                           Variant{"Sequential", "f32", 2, "sequential"},
                                           Variant{"F16ThroughSkippedSteps", "f16", 2, "shuffled"}),
                         [](const auto& info) { return info.param.name; });

// What a manifest claims of the loss scale is judged before it is believed.
TEST(Train, ALossScaleThatCannotHaveBeenIsRefused) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 3);
  run.precision.compute = "f16";
  train_here(run);
  Found found = find_newest(checkpoint_root(run.train.dir));
  const Manifest good = found.newest.value().manifest();
  ASSERT_EQ(good.state["loss_scale"]["scale"], 65536);
  const char* broken[] = {"{}",
                          "[]",
                          R"({"loss_scale": 3})",
                          R"({"loss_scale": {"scale": 65536, "good_steps": 3}})",
                          R"({"loss_scale": {"scale": -1, "good_steps": 3, "skipped": 0}})",
                          R"({"loss_scale": {"scale": 65536, "good_steps": 3, "skipped": 4}})",
                          R"({"loss_scale": {"scale": 65536, "good_steps": 1e300, "skipped": 0}})"};
  for (const char* state : broken) {
    Manifest m = good;
    m.state = nlohmann::json::parse(state);
    write_text_atomic(found.newest->folder() / "manifest.json", to_text(m));
    expect_has(refusal([&] { train_here(run); }),
               {"manifest.json", "no loss scale that this run can go on with"});
  }
}

// So that Resume means something: the order matters, and each epoch draws its own.
TEST(Train, GoesOverAnEpochBorderInAnOrderOfItsSeed) {
  TempFolder a, b;
  RunSpec run = tiny_run(a.path(), 8), other = tiny_run(b.path(), 8);
  expect_epoch_border(run, 8);
  other.data.order = "sequential";
  train_here(run);
  train_here(other);
  Outcome shuffled = outcome_of(a / "run"), sequential = outcome_of(b / "run");
  for (size_t i = 0; i < 8; i++) EXPECT_NE(shuffled.metrics.at(i), sequential.metrics.at(i)) << i;
}

TEST(Train, AFinishedRunHasNothingToDo) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 4);
  train_here(run);
  Files before = files_in(tmp.path());
  std::vector<std::string> notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes.push_back(line); };
  hooks.phase = [](std::string_view p) { ADD_FAILURE() << p; };
  TrainSummary s = train_here(run, hooks);
  EXPECT_EQ(s.ending, Ending::done);
  EXPECT_EQ(s.last_step, 4);
  EXPECT_EQ(s.checkpoint.filename(), "step-00000004");
  ASSERT_EQ(notes.size(), 1u);
  expect_has(notes[0], {"resumed from step 4"});
  EXPECT_EQ(damage(before, files_in(tmp.path())), "");
}

TEST(Train, ADeadlineInThePastDoesNoStep) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 4);
  run.precision.compute = run.precision.grads = "f32";
  Schedule schedule = schedule_of(run);
  TrainOptions options;
  options.arena_bytes = book_training(run, schedule, 1).arena_bytes;
  options.deadline = Deadline::after(0);
  TrainSummary s = train_on_threads(run, schedule, {.threads = 1}, options, {});
  EXPECT_EQ(s.ending, Ending::interrupted);
  EXPECT_EQ(s.last_step, 0);
  EXPECT_FALSE(fs::exists(tmp / "run" / "checkpoints"));
}

TEST(Train, AnotherRunsCheckpointIsRefusedByItsKeysAndLeftAlone) {
  TempFolder tmp;
  train_here(tiny_run(tmp.path(), 4));
  Files before = files_in(tmp.path());
  RunSpec other = tiny_run(tmp.path(), 5);
  other.optimizer.betas = {0.8, 0.95};
  expect_has(refusal([&] { train_here(other); }),
             {"step-00000004", "train.steps: 4 -> 5", "optimizer.betas: [0.9, 0.95] -> [0.8, 0.95]"});
  EXPECT_EQ(damage(before, files_in(tmp.path())), "");
}

// What a run does not read may change, and what an older version hashed otherwise is no other run.
TEST(Train, ARunGoesOnWhateverItDoesNotRead) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 4);
  run.precision.compute = run.precision.grads = "f32";
  train_here(run);
  RunSpec other = run;
  other.precision.initial_scale = 8, other.precision.growth_interval = 7;  // f16's
  EXPECT_EQ(train_here(other).last_step, 4);
  Found found = find_newest(checkpoint_root(run.train.dir));
  Manifest older = found.newest->manifest();
  older.spec_hash ^= 12345;
  write_text_atomic(found.newest->folder() / "manifest.json", to_text(older));
  EXPECT_EQ(train_here(other).last_step, 4);
  other.optimizer.lr *= 2;
  expect_has(refusal([&] { train_here(other); }), {"step-00000004", "optimizer.lr"});
}

// A resumed run keeps the trace of the start before beside its own; a start from the beginning replaces it.
TEST(Train, EveryPartOfARunHasItsTrace) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 6);
  run.train.trace_steps = "2-5";
  auto steps_in = [&](const char* name) {
    std::set<int64_t> steps;
    for (const Span& s : read_chrome_trace(tmp / "run" / name).spans) steps.insert(s.step);
    return steps;
  };
  using Steps = std::set<int64_t>;
  TrainHooks hooks = interrupt_at("update", 3);
  EXPECT_EQ(train_here(run, hooks).last_step, 3);
  clear_interrupt();
  EXPECT_EQ(steps_in("trace.json"), (Steps{2, 3}));
  std::string notes;
  hooks = {};
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  EXPECT_EQ(train_here(run, hooks).ending, Ending::done);
  expect_has(notes, {"traced 2 steps into", "trace-from-4.json"});
  EXPECT_EQ(steps_in("trace.json"), (Steps{2, 3}));
  EXPECT_EQ(steps_in("trace-from-4.json"), (Steps{4, 5}));
  fs::remove_all(checkpoint_root(run.train.dir));
  EXPECT_EQ(train_here(run).ending, Ending::done);
  EXPECT_EQ(steps_in("trace.json"), (Steps{2, 3, 4, 5}));
}

TEST(Train, OneTrainerToAFolder) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 4);
  TrainHooks hooks;
  int refused = 0;
  hooks.start = [&](int64_t) {
    expect_has(refusal([&] { train_here(run); }), {run.train.dir.c_str(), "in use"});
    refused++;
  };
  EXPECT_EQ(train_here(run, hooks).ending, Ending::done);
  EXPECT_EQ(refused, 1);
}

TEST(Train, AFailedSaveSaysWhatStays) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 9);
  // Before the save of step `at` a file takes the place of the folder of checkpoints.
  auto blocked = [&](int64_t at) {
    TrainHooks hooks;
    hooks.step = [&, at](const StepMetrics& m) {
      if (m.step != at - 1) return;
      fs::path root = checkpoint_root(run.train.dir);
      if (fs::exists(root)) fs::rename(root, tmp / "aside");
      put_file(root, "mine");
    };
    return hooks;
  };
  expect_has(refusal([&] { train_here(run, blocked(3)); }, Fault::run),
             {"step 3", "checkpoints", "nothing had been saved before"});
  fs::remove(checkpoint_root(run.train.dir));
  expect_has(refusal([&] { train_here(run, blocked(6)); }, Fault::run),
             {"step 6", "checkpoints", "the checkpoint of step 3 stays"});
  fs::remove(checkpoint_root(run.train.dir));
  fs::rename(tmp / "aside", checkpoint_root(run.train.dir));
  int64_t start = 0;
  TrainHooks hooks;
  hooks.start = [&](int64_t done) { start = done; };
  EXPECT_EQ(train_here(run, hooks).ending, Ending::done);
  EXPECT_EQ(start, 3);
}

TEST(Train, MemoryIsWhatWasBooked) {
  for (const char* compute : {"f32", "bf16"}) {
    TempFolder tmp;
    RunSpec run = tiny_run(tmp.path(), 3);
    run.precision.compute = compute, run.precision.grads = "f32";
    Booking b = book_training(run, schedule_of(run), 1);
    TrainHooks hooks;
    int steps = 0;
    hooks.step = [&](const StepMetrics& m) {
      steps++;
      EXPECT_EQ(m.peak, b.peak);
      EXPECT_EQ(m.at_peak, b.at_peak);
      EXPECT_EQ(m.peak_total, b.peak_total);
    };
    EXPECT_EQ(train_here(run, hooks).peak_bytes, b.peak_total);
    EXPECT_EQ(steps, 3);
    int64_t n = b.parameters;
    EXPECT_EQ(b.peak[size_t(Bucket::weights)], n * (compute == std::string("f32") ? 4 : 2));
    EXPECT_EQ(b.peak[size_t(Bucket::grads)], n * 4);
    EXPECT_EQ(b.peak[size_t(Bucket::optimizer)], n * (compute == std::string("f32") ? 8 : 12));
  }
}

TEST(Train, ACheckpointHoldsMasterCopiesAndMoments) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 3);
  TrainSummary s = train_here(run);
  Checkpoint c = Checkpoint::open(s.checkpoint);
  EXPECT_EQ(c.manifest().step, 3);
  EXPECT_EQ(c.manifest().samples, 18);
  EXPECT_EQ(c.manifest().tokens, 18 * 13);
  EXPECT_EQ(c.manifest().seed, 7u);
  std::set<std::string> names;
  for (const std::string& name : c.names()) {
    names.insert(name);
    EXPECT_EQ(c.find(name)->dtype, DType::f32);
  }
  for (const char* parameter :
       {"embed.tokens.weight", "blocks.1.attn.k.weight", "norm.weight", "head.weight"})
    for (const char* what : {"/master", "/exp_avg", "/exp_avg_sq"})
      EXPECT_TRUE(names.count(std::string(parameter) + what)) << parameter << what;
  EXPECT_EQ(names.size(), 3u * (3 + 2 * 9));
  EXPECT_EQ(c.find("blocks.0.attn.k.weight/exp_avg")->global, (Shape{12, 36}));
}

TEST(LoadNewest, TakesTheWeightsAndRefusesAnotherModel) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 3);
  run.precision.compute = run.precision.grads = "f32";
  TrainSummary s = train_here(run);
  auto device = make_device("cpu", {.threads = 1});
  StageRunner r(run, RunMode::infer, *device, book_inference(run, 1));
  EXPECT_EQ(load_newest(r, run.train.dir), 3);
  Checkpoint c = Checkpoint::open(s.checkpoint);
  for (const Param& p : r.params().params) {
    std::vector<float> got(size_t(p.numel())), want(got.size());
    r.memory().read_param(p, "", got);
    c.read(p.decl.name + "/master", p.box, {0, p.numel()}, Tensor(want.data(), {p.numel()}, DType::f32));
    EXPECT_EQ(got, want) << p.decl.name;
  }
  expect_has(refusal([&] { load_newest(r, tmp / "nowhere"); }), {"nowhere", "no complete checkpoint"});

  refuse_other_model(run, c);
  RunSpec other = run;
  other.train.steps = 100, other.batch.micro = 1, other.model.init_std = 0.5;  // not of the model's maths
  other.model.attn_pdrop = 0.5;
  refuse_other_model(other, c);
  other.model.norm_eps = 1e-6;
  expect_has(refusal([&] { refuse_other_model(other, c); }), {"model.norm_eps: 1e-05 -> 1e-06"});
}

TEST(InitialWeights, AreThoseOfTheFolder) {
  for (const char* name : {"gpt2", "llama2"}) {
    TempFolder tmp;
    fs::path folder = test::source_dir() / "tests/golden" / name;
    RunSpec run = tiny_run(tmp.path(), 1);
    run.model = model_from_hf(folder / "config.json");
    run.model.from = folder.string();
    run.precision.compute = run.precision.grads = "f32";
    auto device = make_device("cpu", {.threads = 1});
    StageRunner r(run, RunMode::infer, *device, book_inference(run, 1));
    initial_weights(r, run);
    HfFolder hf(folder, run.model);
    for (const Param& p : r.params().params) {
      std::vector<float> got(size_t(p.numel())), want(got.size());
      r.memory().read_param(p, "", got);
      hf.read(p.decl.name, Tensor(want.data(), p.decl.global, DType::f32));
      EXPECT_EQ(got, want) << p.decl.name;
    }
  }
}

// Two shards, three to one: metrics say what was drawn of each; a run that is interrupted ends as the other;
// data.valid of two shards gives the loss of each and the mean over all tokens.
TEST(Trainer, AMixture) {
  TempFolder whole, broken;
  auto spec = [](const fs::path& folder, int64_t steps) {
    RunSpec r = tiny_run(folder, steps);
    const std::string train = r.data.train.first(), valid = r.data.valid.first();
    r.data.train.list = {train, valid};
    r.data.weights = {3, 1};
    r.data.valid.list = {valid, train};
    return r;
  };
  std::vector<std::string> notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes.push_back(line); };
  train_here(spec(whole.path(), 6), hooks);
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(), [](auto& l) { return l.starts_with("mixture: "); }), 2);
  TrainHooks interrupt = interrupt_at("update", 4);
  EXPECT_EQ(train_here(spec(broken.path(), 6), interrupt).ending, Ending::interrupted);
  clear_interrupt();
  train_here(spec(broken.path(), 6));
  Outcome got = outcome_of(broken / "run"), want = outcome_of(whole / "run");
  got.checkpoints = want.checkpoints;  // the pause saved at a step of its own
  expect_same(got, want);
  std::vector<nlohmann::json> lines;
  for (const std::string& line : lines_of(read_text(whole / "run/metrics.jsonl")))
    lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 6u);
  for (int64_t step = 1; step <= 6; step++) {
    const auto& drawn = lines[size_t(step - 1)]["sequences"];
    ASSERT_EQ(drawn.size(), 2u);
    EXPECT_NEAR(drawn[0]["drawn"].get<double>(), 4.5 * double(step), 0.5);
    EXPECT_EQ(drawn[0]["drawn"].get<int64_t>() + drawn[1]["drawn"].get<int64_t>(), 6 * step);
  }
  const auto& last = lines.back();
  ASSERT_EQ(last["eval_losses"].size(), 2u);
  const double a = last["eval_losses"][0]["loss"], b = last["eval_losses"][1]["loss"];
  EXPECT_NE(a, b);
  EXPECT_GT(last["eval_loss"].get<double>(), std::min(a, b));
  EXPECT_LT(last["eval_loss"].get<double>(), std::max(a, b));
  RunSpec missing = spec(whole.path(), 6);
  missing.data.train.list[1] += "x";
  expect_has(refusal([&] { train_here(missing); }), {"there is no token shard", "validx"});
}

}  // namespace
}  // namespace trireme::test
