// Runs of adapters: checkpoints hold only adapters, resumes are bit-identical, exports are merged. Tasks that
// a run scores while it trains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/hf.h"
#include "checkpoint/peft.h"
#include "runtime/booking.h"
#include "source_dir.h"
#include "spec/hf_config.h"
#include "tiny_run.h"
#include "train/adapter_files.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

fs::path lora_goldens() {
  return source_dir() / "tests/golden";
}

// Adapters of a base that the seed makes.
RunSpec lora_run(const fs::path& folder, int64_t steps) {
  RunSpec r = tiny_run(folder, steps);
  r.lora.rank = 2;
  r.lora.targets = Texts::of({"*", "!*.attn.k"});
  return r;
}

// Adapters of the golden Llama, from the adapter that PEFT wrote.
RunSpec golden_run(const fs::path& folder, int64_t steps) {
  RunSpec r = tiny_run(folder, steps);
  r.model = model_from_hf(lora_goldens() / "llama2/config.json");
  r.model.from = (lora_goldens() / "llama2").string();
  r.model.finish(r.data.seq_len);
  r.lora = {.rank = 3,
            .alpha = 7.5,
            .targets = Texts::of({"*", "!*.attn.k", "!*.mlp.up"}),
            .adapter = (lora_goldens() / "lora").string()};
  r.precision.compute = r.precision.grads = "f32";
  return r;
}

struct AdapterModel {
  std::unique_ptr<Device> device = make_device("cpu", {.threads = 1});
  std::unique_ptr<StageRunner> runner;

  explicit AdapterModel(const RunSpec& run) {
    runner = std::make_unique<StageRunner>(run, RunMode::infer, *device, book_inference(run, 1));
  }
  std::vector<float> logits() {
    const std::vector<int32_t> tokens = {5, 3, 60, 0, 17, 2, 2, 40};
    std::vector<float> out;
    runner->evaluator().logits(tokens, out);
    return out;
  }
};

double furthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(double(a[i]) - b[i]));
  return most;
}

void expect_lora_refused(const std::function<void()>& work, const std::string& words) {
  try {
    work();
    ADD_FAILURE() << "accepted, expected: " << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

// Across layouts, too; and nothing of the base is in a checkpoint.
TEST(LoraRuns, ResumeToTheBit) {
  TempFolder whole, broken;
  const auto spec = [](const fs::path& folder, int64_t dp, int64_t zero) {
    RunSpec r = lora_run(folder, 9);
    r.precision.compute = "bf16";
    r.layout.dp = dp;
    r.layout.zero = zero;
    r.batch = {.global = 2, .micro = 1};  // several microbatches would be rounded by ZeRO 2 and 3 one by one
    return r;
  };
  train_here(spec(whole.path(), 2, 0));
  for (const auto& [zero, stop] : {std::pair<int64_t, int64_t>{1, 3}, {3, 6}, {2, 9}}) {
    TrainHooks hooks;
    hooks.step = [stop = stop](const StepMetrics& m) {
      if (m.step == stop && stop < 9) request_interrupt();
    };
    train_here(spec(broken.path(), 2, zero), hooks);
    clear_interrupt();
  }
  const Outcome got = outcome_of(broken / "run"), want = outcome_of(whole / "run");
  EXPECT_EQ(got.step, 9);
  EXPECT_TRUE(got.tensors == want.tensors);
  EXPECT_EQ(want.tensors.size(), size_t(2 * 6 * 2 * 3));  // blocks, matrices, factors, master and moments
  for (const auto& [name, bytes] : want.tensors) EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
  RunSpec other = spec(broken.path(), 2, 0);
  other.lora.rank = 3;
  expect_lora_refused([&] { train_here(other); }, "lora.rank: 2 -> 3");
  other = spec(broken.path(), 2, 0);
  other.lora = {};
  expect_lora_refused([&] { train_here(other); }, "lora.rank: 2 -> 0");
}

// A checkpoint, its merged export, and its adapter in PEFT's format compute the same.
TEST(LoraRuns, FilesComputeWhatTheRunDoes) {
  TempFolder tmp;
  RunSpec run = golden_run(tmp.path(), 3);
  train_here(run);
  AdapterModel trained(run);
  EXPECT_EQ(load_newest(*trained.runner, run.train.dir), 3);
  const std::vector<float> want = trained.logits();

  write_adapter(*trained.runner, tmp / "adapter");
  RunSpec again = run;
  again.lora.adapter = (tmp / "adapter").string();
  AdapterModel reread(again);
  initial_weights(*reread.runner, again);
  EXPECT_EQ(reread.logits(), want);
  AdapterModel first(run);
  initial_weights(*first.runner, run);
  EXPECT_GT(furthest(first.logits(), want), 1e-3);  // three steps moved it

  export_hf(tmp / "hf", run.model, [&](std::string_view name, const Tensor& dst) {
    const Param& p = *trained.runner->params().find(name);
    std::span<float> values(dst.as<float>(), size_t(dst.numel()));
    trained.runner->memory().read_param(p, "", values);
    merge_adapter(*trained.runner, p, values);
  });
  RunSpec merged = run;
  merged.lora = {};
  merged.model.from = (tmp / "hf").string();
  AdapterModel exported(merged);
  initial_weights(*exported.runner, merged);
  EXPECT_LE(furthest(exported.logits(), want), 2e-5);
}

// One weight of the base changes after a save: a resume and a reader refuse, and name the folder.
TEST(LoraRuns, AChangedBaseIsRefused) {
  TempFolder tmp;
  RunSpec run = golden_run(tmp.path(), 2);
  fs::copy(run.model.from, tmp / "base", fs::copy_options::recursive);
  run.model.from = (tmp / "base").string();
  train_here(run);
  AdapterModel reader(run);
  EXPECT_EQ(load_newest(*reader.runner, run.train.dir), 2);
  const fs::path weights = tmp / "base" / "model-00002-of-00003.safetensors";
  std::string bytes = read_text(weights);
  bytes[bytes.size() - 5] ^= 1;
  write_text_atomic(weights, bytes);
  AdapterModel other(run);
  const std::string words = "base\": other weights than those that the adapters of ";
  expect_lora_refused([&] { load_newest(*other.runner, run.train.dir); }, words);
  run.train.steps = 3;
  expect_lora_refused([&] { train_here(run); }, words);
}

TEST(LoraRuns, AnotherAdapterIsRefused) {
  TempFolder tmp;
  RunSpec run = golden_run(tmp.path(), 3);
  const auto start = [&] {
    AdapterModel m(run);
    initial_weights(*m.runner, run);
  };
  run.lora.alpha = 8;
  expect_lora_refused(start, "has r = 3 and lora_alpha = 7.5");
  run.lora.alpha = 7.5;
  run.lora.targets = "*";
  expect_lora_refused(start, "lora.targets: chooses other matrices");
  EXPECT_EQ(target_patterns({"blocks.0.attn.q", "blocks.1.attn.q", "blocks.1.attn.k"},
                            {"blocks.0.attn.q", "blocks.0.attn.k", "blocks.1.attn.q", "blocks.1.attn.k"}),
            (std::vector<std::string>{"*.attn.q", "blocks.1.attn.k"}));
}

// ---- train.tasks ----

// Texts of several lengths, one longer than a sequence.
TrainTask some_task() {
  LikelihoodTask t;
  for (int64_t n : {3, 9, 14, 2, 30, 7}) {
    ScoredText text{.tokens = {}, .scored = std::min<int64_t>(n - 1, 4)};
    for (int64_t i = 0; i < n; i++) text.tokens.push_back(int32_t((i * 7 + n) % 61));
    t.texts.push_back(std::move(text));
  }
  t.score = [](const std::vector<double>& all) {
    TaskScores scores;
    for (size_t i = 0; i < all.size(); i++) scores.emplace_back(std::to_string(i), all[i]);
    return scores;
  };
  return {"some", t};
}

// Prompts of several lengths; answers of 7 tokens at most, which an id below 12 ends. The scores are their
// tokens.
AnswerTask some_answers() {
  AnswerTask t{.prompts = {}, .most_tokens = 7, .vocab = 61, .end_of_text = -1, .ended = {}, .score = {}};
  for (int32_t n : {3, 5, 1, 4, 2}) {
    t.prompts.emplace_back();
    for (int32_t i = 0; i < n; i++) t.prompts.back().push_back((i * 11 + n) % 61);
  }
  t.ended = [](const AnswerTask::Tokens& answer) { return answer.back() < 12; };
  t.score = [](const std::vector<AnswerTask::Tokens>& answers) {
    TaskScores scores;
    for (const AnswerTask::Tokens& a : answers)
      for (int32_t id : a) scores.emplace_back("id", id);
    return scores;
  };
  return t;
}

// Scores of every evaluation, and what the run leaves.
std::pair<std::vector<double>, Outcome> with_tasks(const fs::path& folder, RunSpec run,
                                                   std::vector<TrainTask> tasks) {
  run.train.dir = (folder / "run").string();
  run.precision.compute = run.precision.grads = "f32";
  if (!tasks.empty()) run.train.tasks = "task.yaml";
  std::vector<double> scores;
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) {
    EXPECT_EQ(m.tasks.empty(), tasks.empty() || !m.eval_loss);
    for (const auto& [name, score] : m.tasks) scores.push_back(score);
  };
  TrainOptions options;
  options.tasks = tasks;
  train_here(run, hooks, options);
  return {scores, outcome_of(run.train.dir)};
}

// The scores are those of the weights in another runner; training ends as without them.
TEST(TrainTasks, ChangeNoBitAndAreTheModels) {
  TempFolder tmp, plain;
  RunSpec run = tiny_run(tmp.path(), 4);
  const auto [scores, outcome] = with_tasks(tmp.path(), run, {some_task()});
  expect_same(with_tasks(plain.path(), tiny_run(plain.path(), 4), {}).second, outcome);
  ASSERT_EQ(scores.size(), 12u);  // behind steps 2 and 4
  run.precision.compute = run.precision.grads = "f32";
  const std::vector<ScoredText> texts = std::get<LikelihoodTask>(some_task().task).texts;
  const ScoredBatches batches(texts, run, run.data.seq_len);
  auto device = make_device("cpu", {.threads = 1});
  StageRunner r(run, RunMode::infer, *device, book_evaluation(run, 1, batches.shapes()));
  load_newest(r, run.train.dir);
  const std::vector<double> want = batches.run(r);
  for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(scores[6 + i], want[i], 1e-4 * std::abs(want[i])) << i;
}

TEST(TrainTasks, ScoreAlikeInEveryLayout) {
  TempFolder one;
  const auto spec = [](const fs::path& folder) {
    RunSpec run = tiny_run(folder, 2);
    run.model.ffn = 54;  // tp divides it
    run.data.seq_len = 12;
    run.model.finish(run.data.seq_len);
    return run;
  };
  const std::vector<double> want =
      with_tasks(one.path(), spec(one.path()), {some_task(), {"answers", some_answers()}}).first;
  const auto layout = [](int64_t LayoutSpec::*axis, int64_t ranks, int64_t zero) {
    LayoutSpec l;
    l.*axis = ranks;
    l.zero = zero;
    return l;
  };
  for (const LayoutSpec& l : {layout(&LayoutSpec::dp, 3, 3), layout(&LayoutSpec::pp, 2, 0),
                              layout(&LayoutSpec::tp, 3, 0), layout(&LayoutSpec::cp, 2, 0)}) {
    TempFolder tmp;
    RunSpec run = spec(tmp.path());
    run.layout = l;
    run.batch.micro = l.dp == 1 ? 2 : 1;
    const std::vector<double> got =
        with_tasks(tmp.path(), run, {some_task(), {"answers", some_answers()}}).first;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(got[i], want[i], 1e-4 * std::abs(want[i])) << i;
  }
}

// The answers are the most likely tokens of the saved weights; training ends as without them.
TEST(TrainTasks, AnswersAreTheMostLikelyTokens) {
  TempFolder tmp, plain;
  const AnswerTask task = some_answers();
  RunSpec run = tiny_run(tmp.path(), 2);
  const auto [scores, outcome] = with_tasks(tmp.path(), run, {{"answers", task}});
  expect_same(with_tasks(plain.path(), tiny_run(plain.path(), 2), {}).second, outcome);
  run.precision.compute = run.precision.grads = "f32";
  run.train.tasks = "task.yaml";
  auto device = make_device("cpu", {.threads = 1});
  StageRunner r(run, RunMode::infer, *device, book_inference(run, 1));
  load_newest(r, run.train.dir);
  int asked = 0;
  EXPECT_FALSE(answer_prompts(r, run, task, [&] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
  std::vector<double> want;
  std::vector<float> logits;
  for (const AnswerTask::Tokens& prompt : task.prompts) {
    AnswerTask::Tokens text = prompt;
    do {
      r.evaluator().logits(text, logits);
      const auto row = logits.end() - run.model.vocab;
      text.push_back(int32_t(std::max_element(row, row + task.vocab) - row));
      want.push_back(text.back());
    } while (int64_t(text.size() - prompt.size()) < task.most_tokens && text.back() >= 12);
  }
  EXPECT_GT(want.size(), task.prompts.size());
  EXPECT_EQ(std::vector<double>(scores.end() - std::ptrdiff_t(want.size()), scores.end()), want);
}

}  // namespace
}  // namespace trireme::test
