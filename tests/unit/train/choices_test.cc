// Multiple choice: questions from hostile files, where prompt and choice meet, and scores against logits.
#include "train/choices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../runtime/tiny.h"
#include "train/multiple_choice.h"

namespace trireme {
namespace {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "no error";
}

TEST(Choices, ReadsWhatIsRight) {
  auto q = parse_choices(
      "{\"prompt\": \"2 + 2 =\", \"choices\": [\" 3\", \" 4\"], \"answer\": 1, \"id\": 7}\n"
      "\n  \r\n"
      "{\"choices\": [\"a\", \"b\", \"c\"], \"answer\": \"C\", \"prompt\": \"\"}\r\n"
      "{\"prompt\": \"x\", \"choices\": [\"a\", \"b\"], \"answer\": \"a\"}",
      "q.jsonl");
  ASSERT_EQ(q.size(), 3u);
  EXPECT_EQ(q[0].prompt, "2 + 2 =");
  EXPECT_EQ(q[0].choices, (std::vector<std::string>{" 3", " 4"}));
  EXPECT_EQ(q[0].answer, 1);
  EXPECT_EQ(q[1].answer, 2);
  EXPECT_EQ(q[1].line, 4);
  EXPECT_EQ(q[2].answer, 0);
}

TEST(Choices, NamesFileLineAndKeyOfWhatIsWrong) {
  const std::string good = "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  struct {
    std::string line, says;
  } cases[] = {
      {"[1, 2]", "not a JSON object"},
      {"{\"prompt\": \"p\"", "not a JSON object"},
      {"{\"prompt\": \"\xFF\", \"choices\": [\"a\", \"b\"], \"answer\": 0}", "not a JSON object"},
      {"{\"prompt\": \"p\", \"weight\": NaN, \"choices\": [\"a\", \"b\"], \"answer\": 0}", "NaN, Infinity"},
      {std::string(100000, '['), "not a JSON object"},
      {"{\"prompt\": " + std::string(200000, '[') + std::string(200000, ']') + "}",
       "\"prompt\" is a list of 1"},
      {"{\"prompt\": \"p\", \"choices\": [], \"answer\": 0}", "\"choices\" is a list of 0"},
      {"{\"choices\": [\"a\", \"b\"], \"answer\": 0}", "no key \"prompt\""},
      {"{\"prompt\": 3, \"choices\": [\"a\", \"b\"], \"answer\": 0}", "\"prompt\" is 3"},
      {"{\"prompt\": \"p\", \"answer\": 0}", "no key \"choices\""},
      {"{\"prompt\": \"p\", \"choices\": \"ab\", \"answer\": 0}", "\"choices\" is \"ab\""},
      {"{\"prompt\": \"p\", \"choices\": [\"a\"], \"answer\": 0}", "at least two"},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"\"], \"answer\": 0}", "choice 1 is \"\""},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", 4], \"answer\": 0}", "choice 1 is 4"},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"]}", "no key \"answer\""},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 2}", "0 to 1, or \"A\" to \"B\""},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": -1}", "\"answer\" is -1"},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 18446744073709551615}",
       "\"answer\" is 184"},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 0.5}", "\"answer\" is 0.5"},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": \"C\"}", "\"answer\" is \"C\""},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": \"b)\"}", "\"answer\" is \"b)\""},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": null}", "\"answer\" is null"},
      {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": \"\x7f\\u0001\"}", "\\u007f\\u0001"},
  };
  for (const auto& c : cases) {
    std::string e = error_of([&] { parse_choices(good + c.line + "\n" + good, "q.jsonl"); });
    EXPECT_NE(e.find("q.jsonl, line 2: "), std::string::npos) << e;
    EXPECT_NE(e.find(c.says), std::string::npos) << c.line.substr(0, 80) << " -> " << e;
    EXPECT_LT(e.size(), 300u);
  }
  EXPECT_NE(error_of([] { parse_choices("\n \n", "q.jsonl"); }).find("q.jsonl"), std::string::npos);
}

// Bytes, and two merges across the border of a word: " y", "es".
Tokenizer tiny_tokenizer() {
  Tokenizer::Parts parts;
  for (int b = 0; b < 256; b++) parts.tokens.push_back(std::string(1, char(b)));
  parts.tokens.push_back(" y"), parts.tokens.push_back("es");
  parts.merges = {{' ', 'y', 256}, {'e', 's', 257}};
  parts.added.push_back({.content = std::string(kEndOfText), .id = 258});
  return Tokenizer(std::move(parts));
}

TEST(Choices, PromptAndChoiceMeetAsTheyDoInText) {
  Tokenizer t = tiny_tokenizer();
  auto scored = [&](std::string prompt, std::string choice) { return scored_text(t, prompt, choice); };
  EXPECT_EQ(scored("ok?", " yes").tokens, (std::vector<int32_t>{'o', 'k', '?', 256, 257}));
  EXPECT_EQ(scored("ok?", " yes").scored, 2);
  // The blank at the end belongs to the choice, or the model would never have seen such a prompt.
  EXPECT_EQ(scored("ok? ", "yes").tokens, scored("ok?", " yes").tokens);
  EXPECT_EQ(scored("ok? ", "yes").scored, 2);
  EXPECT_EQ(scored("ok?\n\n", "no").scored, 4);
  // Nothing before: the start of a document.
  EXPECT_EQ(scored("", "no").tokens, (std::vector<int32_t>{258, 'n', 'o'}));
  EXPECT_EQ(scored("", "no").scored, 2);
  EXPECT_EQ(scored("  ", "no").tokens, (std::vector<int32_t>{258, ' ', ' ', 'n', 'o'}));
}

RunSpec run_of(const std::string& arch, const std::string& compute) {
  RunSpec run = test::tiny_run(arch, compute, 1);
  run.model.vocab = 261, run.model.init_std = 0.2;
  run.data.seq_len = 64, run.model.max_positions = 0;
  run.model.finish(run.data.seq_len);
  return run;
}

std::vector<ChoiceQuestion> questions(int n) {
  std::vector<ChoiceQuestion> all;
  for (int i = 0; i < n; i++) {
    uint64_t key = rng_key(uint64_t(i), 0, "question"), at = 0;
    auto word = [&](uint64_t most) {
      std::string s;
      for (uint64_t len = 1 + below(key, at++, most); len > 0; len--) s += char('a' + below(key, at++, 26));
      return s;
    };
    ChoiceQuestion q{.prompt = word(30) + " ?", .line = i + 1};
    for (uint64_t c = 2 + below(key, at++, 3); c > 0; c--) q.choices.push_back(" " + word(9));
    q.answer = int64_t(below(key, at++, q.choices.size()));
    all.push_back(q);
  }
  return all;
}

// By hand: logits of the whole text, log-softmax in double, one text at a time.
double log_likelihood(StageRunner& runner, const ScoredText& t) {
  std::vector<float> logits;
  runner.evaluator().logits(std::span(t.tokens).first(t.tokens.size() - 1), logits);
  auto vocab = size_t(runner.run().model.vocab);
  double sum = 0;
  for (size_t i = t.tokens.size() - size_t(t.scored); i < t.tokens.size(); i++) {
    double total = 0;
    const float* row = logits.data() + (i - 1) * vocab;
    for (size_t v = 0; v < vocab; v++) total += std::exp(double(row[v]));
    sum += double(row[size_t(t.tokens[i])]) - std::log(total);
  }
  return sum;
}

TEST(MultipleChoice, ScoresAreThoseOfTheLogits) {
  Tokenizer tokenizer = tiny_tokenizer();
  for (const char* arch : {"gpt2", "llama"}) {
    RunSpec run = run_of(arch, "f32");
    auto device = make_device("cpu", {.threads = 1});
    auto all = questions(25);
    ChoiceBatches batches(tokenizer, all, run, run.data.seq_len);
    std::vector<BatchShape> shapes = batches.shapes();
    StageRunner runner(run, RunMode::infer, *device, book_evaluation(run, 1, shapes));
    StageRunner plain(run, RunMode::infer, *device, book_inference(run, 1));
    runner.init_weights(), plain.init_weights();
    int64_t calls = 0, last = 0;
    ChoiceResult r = batches.run(runner, [&](int64_t done) { calls++, last = done; });
    EXPECT_EQ(runner.arena().high_water(), book_evaluation(run, 1, shapes));
    EXPECT_EQ(last, batches.count());
    EXPECT_GT(calls, 2);
    double right = 0, right_per_byte = 0, chance = 0;
    for (size_t q = 0; q < all.size(); q++) {
      int64_t best = 0, best_per_byte = 0;
      std::vector<double> ll, per_byte;
      for (size_t c = 0; c < all[q].choices.size(); c++) {
        ll.push_back(log_likelihood(plain, scored_text(tokenizer, all[q].prompt, all[q].choices[c])));
        per_byte.push_back(ll[c] / double(all[q].choices[c].size()));
        EXPECT_NEAR(r.scores[q].log_likelihood[c], ll[c], 2e-4) << "question " << q << " choice " << c;
        if (ll[c] > ll[size_t(best)]) best = int64_t(c);
        if (per_byte[c] > per_byte[size_t(best_per_byte)]) best_per_byte = int64_t(c);
      }
      EXPECT_EQ(r.scores[q].raw, best);
      EXPECT_EQ(r.scores[q].per_byte, best_per_byte);
      right += best == all[q].answer, right_per_byte += best_per_byte == all[q].answer;
      chance += 1 / double(all[q].choices.size());
    }
    double p = right / 25;
    EXPECT_DOUBLE_EQ(r.raw.mean, p);
    EXPECT_DOUBLE_EQ(r.per_byte.mean, right_per_byte / 25);
    EXPECT_DOUBLE_EQ(r.raw.standard_error, std::sqrt(p * (1 - p) / 24));
    EXPECT_NEAR(r.chance, chance / 25, 1e-12);
    EXPECT_NE(r.raw.mean, r.per_byte.mean) << "the two accuracies agree by chance: other questions";
  }
}

// The context holds the last tokens of a prompt; a choice must fit whole.
TEST(MultipleChoice, LongPromptsLoseTheirBeginning) {
  Tokenizer tokenizer = tiny_tokenizer();
  RunSpec run = run_of("llama", "f32");
  ChoiceQuestion q{.prompt = std::string(50, 'p') + "abc", .choices = {" yes", " no"}, .line = 3};
  ChoiceBatches batches(tokenizer, {q}, run, 6);
  auto device = make_device("cpu", {.threads = 1});
  StageRunner runner(run, RunMode::infer, *device, book_inference(run, 1));
  runner.init_weights();
  ChoiceResult r = batches.run(runner);
  EXPECT_EQ(r.truncated, 2);
  EXPECT_TRUE(std::isnan(r.raw.standard_error));
  // Seven tokens of which the last two, and the last three, are scored.
  EXPECT_NEAR(r.scores[0].log_likelihood[0],
              log_likelihood(runner, {.tokens = {'p', 'p', 'a', 'b', 'c', 256, 257}, .scored = 2}), 1e-4);
  EXPECT_NEAR(r.scores[0].log_likelihood[1],
              log_likelihood(runner, {.tokens = {'p', 'a', 'b', 'c', ' ', 'n', 'o'}, .scored = 3}), 1e-4);
  q.choices[1] = "1234567";
  std::string e = error_of([&] { ChoiceBatches(tokenizer, {q}, run, 6); });
  EXPECT_NE(e.find("line 3"), std::string::npos) << e;
  EXPECT_NE(e.find("7 tokens"), std::string::npos) << e;
}

// NaN compares as no larger than anything, so the first choice would win; -inf would be a score like others.
TEST(MultipleChoice, ScoresThatAreNotFiniteAreAnError) {
  const Tokenizer tokenizer = tiny_tokenizer();
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    const RunSpec run = run_of("llama", "f32");
    const ChoiceBatches batches(tokenizer, questions(3), run, run.data.seq_len);
    auto device = make_device("cpu", {.threads = 1});
    StageRunner runner(run, RunMode::infer, *device, book_evaluation(run, 1, batches.shapes()));
    runner.init_weights();
    const Param* p = runner.params().find("blocks.0.mlp.down.weight");
    std::vector<float> host(size_t(p->numel()));
    runner.memory().read_param(*p, "", host);
    host[7] = value;
    runner.memory().write_param(*p, "", host);
    try {
      batches.run(runner);
      ADD_FAILURE() << value;
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::run);
      EXPECT_NE(std::string(e.what()).find("blocks.0.mlp.down.weight"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace trireme
