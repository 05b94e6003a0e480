// Texts through the cache, against the plainest way to the same: the training forward over the whole window
// for each token.
#include "generate/generate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../runtime/tiny.h"

namespace trireme {
namespace {

using test::tiny_run;
using Ids = std::vector<int32_t>;

RunSpec run_of(const std::string& arch) {
  RunSpec run = tiny_run(arch, "f32", 1);
  run.model.init_std = 0.2;
  return run;
}

struct Texts {
  std::vector<Generated> all;
  std::vector<Ids> streamed;
  GenerateStats stats;
};

Texts generate_all(const RunSpec& run, const Prompts& prompts, const GenerateOptions& o,
                   std::function<bool(size_t, int32_t)> stop = {}, int leave_after = -1) {
  auto device = make_device("cpu", {.threads = 1});
  StageRunner runner(run, RunMode::infer, *device, book_generation(run, 1, generation_shape(prompts, o)));
  runner.init_weights();
  Texts t;
  t.all.resize(prompts.size()), t.streamed.resize(prompts.size());
  std::vector<int> done(prompts.size());
  GenerateHooks hooks;
  hooks.token = [&](size_t p, int32_t id) {
    t.streamed[p].push_back(id);
    return stop && stop(p, id);
  };
  hooks.done = [&](size_t p, const Generated& g) { t.all[p] = g, done[p]++; };
  hooks.leave = [&] { return leave_after >= 0 && leave_after-- == 0; };
  t.stats = generate(runner, prompts, o, hooks);
  for (size_t p = 0; p < prompts.size(); p++) {
    EXPECT_LE(done[p], 1);
    EXPECT_EQ(t.streamed[p], t.all[p].tokens);
  }
  return t;
}

Ids plain(const RunSpec& run, Ids seen, const GenerateOptions& o, size_t text) {
  auto device = make_device("cpu", {.threads = 1});
  StageRunner runner(run, RunMode::infer, *device, book_inference(run, 1));
  runner.init_weights();
  Sampler sampler(o.sample);
  auto last = [&](size_t n) { return Ids(seen.end() - int64_t(std::min(n, seen.size())), seen.end()); };
  Ids window = last(size_t(o.context)), out;
  std::vector<float> logits;
  for (int64_t i = 0; i < o.tokens; i++) {
    runner.evaluator().logits(window, logits);
    auto row = std::span<const float>(logits).last(size_t(run.model.vocab));
    int32_t id = sampler.next(row.first(o.vocab ? size_t(o.vocab) : row.size()), text, uint64_t(i));
    if (id == o.end_of_text) break;
    out.push_back(id), seen.push_back(id), window.push_back(id);
    if (int64_t(window.size()) > o.context) window = last(size_t(o.context / 2));
  }
  return out;
}

Prompts some_prompts(const RunSpec& run, std::initializer_list<int> lengths) {
  Prompts prompts;
  for (int n : lengths) {
    prompts.emplace_back();
    for (int i = 0; i < n; i++)
      prompts.back().push_back(
          int32_t(below(rng_key(prompts.size(), 0, "prompt"), uint64_t(i), uint64_t(run.model.vocab))));
  }
  return prompts;
}

// Past the end of the context several times, from a prompt that is longer than it, and greedily.
TEST(Generate, AsTheTrainingForwardOverEachWindow) {
  for (const char* arch : {"gpt2", "llama"})
    for (double temperature : {0.0, 0.9}) {
      RunSpec run = run_of(arch);
      Prompts prompts = some_prompts(run, {1, 6, 13, 22, 40});
      GenerateOptions o{.sample = {.temperature = temperature, .top_k = 20, .top_p = 0.95, .seed = 3},
                        .tokens = 45,
                        .context = 13,
                        .vocab = 50,
                        .parallel = 2};
      Texts t = generate_all(run, prompts, o);
      for (size_t p = 0; p < prompts.size(); p++) {
        EXPECT_EQ(t.all[p].tokens, plain(run, prompts[p], o, p)) << arch << " prompt " << p;
        EXPECT_EQ(t.all[p].finish, Finish::length);
      }
      EXPECT_EQ(t.stats.new_tokens, 45 * 5);
      EXPECT_GT(t.stats.reread, 15);
    }
}

// Few tokens each, so that a slot passes from one full text to the next.
TEST(Generate, PromptsThatFillTheContextFollowOneAnother) {
  const RunSpec run = run_of("llama");
  const Prompts prompts = some_prompts(run, {22, 40, 13, 30});
  for (int64_t parallel : {1, 2})
    for (int64_t tokens = 1; tokens <= 4; tokens++) {
      const GenerateOptions o{
          .sample = {.temperature = 0}, .tokens = tokens, .context = 13, .parallel = parallel};
      const Texts t = generate_all(run, prompts, o);
      for (size_t p = 0; p < prompts.size(); p++)
        EXPECT_EQ(t.all[p].tokens, plain(run, prompts[p], o, p)) << tokens << " tokens, prompt " << p;
    }
}

// Several samples of a prompt: read once, and the bits of samples that were each read.
TEST(Generate, SamplesOfOnePromptShareItsCache) {
  for (const char* arch : {"gpt2", "llama"}) {
    RunSpec run = run_of(arch);
    run.precision.compute = "bf16";
    const Prompts two = some_prompts(run, {9, 6});
    const Prompts prompts = {two[0], two[0], two[0], two[0], two[0], two[1], two[1], two[1], two[1], two[0]};
    GenerateOptions o{.sample = {.temperature = 1.2, .seed = 5},
                      .tokens = 12,
                      .context = 30,
                      .end_of_text = 7,
                      .share_prompts = false};
    const Texts each = generate_all(run, prompts, o);
    EXPECT_EQ(each.stats.read_tokens, 6 * 9 + 4 * 6);
    EXPECT_NE(each.all[0].tokens, each.all[1].tokens);
    o.share_prompts = true;
    for (int64_t parallel : {1, 2, 3, 4, 8}) {
      o.parallel = parallel;
      const Texts t = generate_all(run, prompts, o);
      for (size_t p = 0; p < prompts.size(); p++)
        EXPECT_EQ(t.all[p].tokens, each.all[p].tokens)
            << arch << " prompt " << p << ", " << parallel << " at once";
      EXPECT_EQ(t.stats.read_tokens, 9 + 6 + 9) << parallel;
      EXPECT_EQ(t.stats.shared_tokens, 4 * 9 + 3 * 6) << parallel;
    }
    // Texts that outgrow the context, so that slots lose the prompt.
    o.context = 13;
    o.parallel = 1;
    o.share_prompts = false;
    const Texts outgrown = generate_all(run, prompts, o);
    o.share_prompts = true;
    for (int64_t parallel : {1, 3}) {
      o.parallel = parallel;
      const Texts t = generate_all(run, prompts, o);
      for (size_t p = 0; p < prompts.size(); p++)
        EXPECT_EQ(t.all[p].tokens, outgrown.all[p].tokens) << arch << " prompt " << p << ", " << parallel;
      EXPECT_GT(t.stats.reread, 0);
    }
  }
}

TEST(Generate, TheSameAloneAndAmongOthers) {
  RunSpec run = run_of("llama");
  run.precision.compute = "bf16";
  Prompts prompts = some_prompts(run, {4, 1, 9, 17, 2, 5, 3});
  GenerateOptions o{.sample = {.seed = 9}, .tokens = 30, .context = 23, .end_of_text = 7, .parallel = 1};
  Texts alone = generate_all(run, prompts, o);
  std::map<Finish, int> finishes;
  for (const Generated& g : alone.all) finishes[g.finish]++;
  for (int64_t parallel : {2, 3, 7, 16}) {
    o.parallel = parallel;
    Texts t = generate_all(run, prompts, o);
    for (size_t p = 0; p < prompts.size(); p++) {
      EXPECT_EQ(t.all[p].tokens, alone.all[p].tokens) << "prompt " << p << ", " << parallel << " at once";
      EXPECT_EQ(t.all[p].finish, alone.all[p].finish);
    }
    EXPECT_EQ(t.stats.new_tokens, alone.stats.new_tokens);
  }
  EXPECT_GT(finishes[Finish::end_of_text], 0) << "no text ended early: another seed";
  EXPECT_GT(finishes[Finish::length], 0);
}

TEST(Generate, ACallerEndsTexts) {
  RunSpec run = run_of("gpt2");
  Prompts prompts = some_prompts(run, {4, 4, 4});
  GenerateOptions o{.sample = {.temperature = 1.0}, .tokens = 8, .context = 23, .parallel = 2};
  Texts all = generate_all(run, prompts, o);
  int count = 0;
  Texts t = generate_all(run, prompts, o, [&](size_t p, int32_t) { return p == 1 && ++count == 3; });
  EXPECT_EQ(t.all[0].tokens, all.all[0].tokens);
  EXPECT_EQ(t.all[1].tokens, Ids(all.all[1].tokens.begin(), all.all[1].tokens.begin() + 3));
  EXPECT_EQ(t.all[1].finish, Finish::stopped);
  EXPECT_EQ(t.all[2].tokens, all.all[2].tokens);
}

TEST(Generate, LeavesWhenAsked) {
  RunSpec run = run_of("gpt2");
  Prompts prompts = some_prompts(run, {4, 4, 4});
  GenerateOptions o{.tokens = 8, .context = 23, .parallel = 2};
  Texts t = generate_all(run, prompts, o, {}, 5);
  EXPECT_EQ(t.all[0].finish, Finish::interrupted);
  EXPECT_EQ(t.all[1].finish, Finish::interrupted);
  EXPECT_GT(t.all[0].tokens.size(), 1u);
  EXPECT_LT(t.all[0].tokens.size(), 8u);
  EXPECT_TRUE(t.all[2].tokens.empty());
}

TEST(Generate, OneTokenAndTheSmallestContext) {
  RunSpec run = run_of("llama");
  Prompts prompts = some_prompts(run, {1, 5});
  for (int64_t tokens : {1, 6}) {
    GenerateOptions o{.tokens = tokens, .context = 2, .parallel = 2};
    Texts t = generate_all(run, prompts, o);
    for (size_t p = 0; p < 2; p++) EXPECT_EQ(t.all[p].tokens, plain(run, prompts[p], o, p));
  }
  EXPECT_THROW(generation_shape({{1}, {}}, {}), Error);
}

// Two tokens with the same row of the head have the same logit wherever one of them is the largest.
TEST(Generate, NearTiesAreReported) {
  const RunSpec run = run_of("llama");
  const Prompts prompts = some_prompts(run, {4, 6});
  GenerateOptions o{.sample = {.temperature = 0}, .tokens = 5, .context = 23, .parallel = 2};
  auto device = make_device("cpu", {.threads = 1});
  StageRunner runner(run, RunMode::infer, *device, book_generation(run, 1, generation_shape(prompts, o)));
  runner.init_weights();
  std::vector<std::pair<size_t, size_t>> ties;
  std::vector<Ids> texts(prompts.size());
  GenerateHooks hooks;
  hooks.near_tie = [&](size_t prompt, size_t token, float gap) {
    ties.emplace_back(prompt, token);
    EXPECT_EQ(gap, 0);
  };
  hooks.done = [&](size_t p, const Generated& g) { texts[p] = g.tokens; };
  generate(runner, prompts, o, hooks);
  EXPECT_TRUE(ties.empty());

  const int64_t chosen = texts[1][0], width = run.model.hidden;
  const Param* head = runner.params().find("head.weight");
  ASSERT_NE(head, nullptr);
  std::vector<float> rows(size_t(head->numel()));
  runner.memory().read_param(*head, "", rows);
  const auto row = rows.begin() + chosen * width;
  std::copy(row, row + width, rows.begin() + (chosen + 1) % run.model.vocab * width);
  runner.memory().write_param(*head, "", rows);
  runner.weights_from_master();
  generate(runner, prompts, o, hooks);
  EXPECT_EQ(std::count(ties.begin(), ties.end(), std::pair<size_t, size_t>(1, 0)), 1);
  ties.clear();
  o.sample.temperature = 1;
  generate(runner, prompts, o, hooks);
  EXPECT_TRUE(ties.empty());
}

// Whether the prompt or a later token shows it: no text, and the weight is named.
TEST(Generate, AWeightThatIsNotFiniteIsNamed) {
  for (const char* compute : {"f32", "bf16", "f16"})
    for (const char* weight : {"blocks.1.attn.v.weight", "head.weight"})
      for (const float value : {NAN, INFINITY, -INFINITY}) {
        RunSpec run = run_of("llama");
        run.precision.compute = compute;
        const Prompts prompts = some_prompts(run, {3, 5});
        const GenerateOptions o{
            .sample = {.temperature = 0}, .tokens = 4, .context = 23, .vocab = 20, .parallel = 2};
        auto device = make_device("cpu", {.threads = 1});
        StageRunner runner(run, RunMode::infer, *device,
                           book_generation(run, 1, generation_shape(prompts, o)));
        runner.init_weights();
        const Param* p = runner.params().find(weight);
        ASSERT_NE(p, nullptr);
        std::vector<float> host(size_t(p->numel()));
        runner.memory().read_param(*p, "", host);
        host.back() = value;  // in the head: the row of a token that the tokenizer does not have
        runner.memory().write_param(*p, "", host);
        try {
          generate(runner, prompts, o, {});
          ADD_FAILURE() << compute << " " << weight << " " << value;
        } catch (const Error& e) {
          EXPECT_EQ(e.fault, Fault::run);
          EXPECT_EQ(std::string(e.what()).find("generation: 1 of "), 0u) << e.what();
          EXPECT_NE(std::string(e.what()).find(weight), std::string::npos) << e.what();
        }
      }
}

}  // namespace
}  // namespace trireme
