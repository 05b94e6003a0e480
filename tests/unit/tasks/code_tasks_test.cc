#include "tasks/code_tasks.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "tasks/code_score.h"

namespace trireme {
namespace {

// Two tasks in HumanEval's format.
constexpr const char* kTwoTasks =
    R"({"task_id": "Mine/0", "prompt": "from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    \"\"\"Adds.\"\"\"\n", "entry_point": "total", "canonical_solution": "    return sum(xs)\n", "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n"}
{"task_id": "Mine/1", "prompt": "def twice(x):\n    \"\"\"Doubles.\"\"\"\n", "entry_point": "twice", "canonical_solution": "    return 2 * x\n", "test": "def check(candidate):\n    assert candidate(4) == 8\n"}
)";

struct CodeTaskFile : testing::Test {
  fs::path folder = fs::temp_directory_path() / "trireme_code_tasks_test";
  CodeTaskFile() { fs::create_directories(folder); }
  ~CodeTaskFile() override { fs::remove_all(folder); }
  fs::path put(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return folder / name;
  }
};

TEST_F(CodeTaskFile, IsReadPlainAndCompressed) {
  const std::vector<CodeTask> plain = read_code_tasks(put("a.jsonl", kTwoTasks));
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[1].id, "Mine/1");
  EXPECT_EQ(plain[1].entry_point, "twice");
  const fs::path packed = folder / "a.jsonl.gz";
  gzFile f = ::gzopen(packed.c_str(), "wb");
  ::gzputs(f, kTwoTasks);
  ::gzclose(f);
  EXPECT_EQ(read_code_tasks(packed)[1].test, plain[1].test);
  // Cut short: not half of the tasks.
  fs::resize_file(packed, fs::file_size(packed) / 2);
  EXPECT_THROW(read_code_tasks(packed), Error);
}

TEST_F(CodeTaskFile, FaultsAreNamed) {
  auto fault = [&](const std::string& text) {
    try {
      read_code_tasks(put("b.jsonl", text));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  const std::string line = std::string(kTwoTasks).substr(0, std::string(kTwoTasks).find('\n') + 1);
  EXPECT_NE(fault("\n" + line + line).find("line 3: task_id"), std::string::npos)
      << fault("\n" + line + line);
  EXPECT_NE(fault("{\"task_id\": \"a\"}").find("no key \"prompt\""), std::string::npos);
  EXPECT_NE(fault("").find("no tasks"), std::string::npos);
  std::string other = line;
  other.replace(other.find("\"entry_point\": \"total\""), 22, "\"entry_point\": \"a;b()\" ");
  EXPECT_NE(fault(other).find("entry_point = \"a;b()\""), std::string::npos) << fault(other);
}

TEST_F(CodeTaskFile, SamplesAreJudged) {
  const std::vector<CodeTask> tasks = read_code_tasks(put("a.jsonl", kTwoTasks));
  put("s.jsonl", R"({"task_id": "Mine/1", "completion": "    return x + x\n"}
{"task_id": "Mine/0", "completion": "    return 3\n"}
{"task_id": "Mine/1", "completion": "    import sys\n    sys.exit(0)\n"}
{"task_id": "Mine/0", "completion": "def total(xs: List[int]) -> int:\n    return sum(xs)\n"}
)");
  std::vector<CodeSample> samples = read_code_samples(folder / "s.jsonl", tasks);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0].task, 1u);
  for (size_t t = 0; t < tasks.size(); t++) samples.push_back({t, tasks[t].solution});
  const Sandbox sandbox(find_interpreter());
  int64_t last = 0;
  const auto results =
      judge_samples(sandbox, {}, tasks, samples, 2, [&](int64_t done) { EXPECT_EQ(done, ++last); });
  std::vector<bool> passed;
  for (const SandboxResult& r : results) passed.push_back(r.end == SandboxEnd::completed);
  EXPECT_EQ(passed, (std::vector<bool>{true, false, false, true, true, true}));
  const CodeScore score = score_samples(tasks, samples, results, {1, 2});
  EXPECT_NEAR(score.pass.at(1).mean, 2.0 / 3, 1e-12);
  EXPECT_NEAR(score.pass.at(2).mean, 1, 1e-12);
  EXPECT_EQ(score.ends[size_t(SandboxEnd::completed)], 4);
  EXPECT_EQ(score.ends[size_t(SandboxEnd::failed)], 2);
  EXPECT_THROW(score_samples(tasks, samples, results, {4}), Error);
}

TEST(CodeTask, ACompletionMayRepeatTheHead) {
  const CodeTask t{
      .id = "a", .prompt = "import re\n\ndef f(x):\n    \"\"\"Doc\"\"\"\n", .entry_point = "f", .test = "T"};
  EXPECT_EQ(judged_program(t, "    return 1\n"),
            "import re\n\ndef f(x):\n    \"\"\"Doc\"\"\"\n    return 1\n\nT\ncheck(f)\n");
  EXPECT_EQ(judged_program(t, "def f(x):\n    return 1\n"),
            "import re\n\ndef f(x):\n    return 1\n\nT\ncheck(f)\n");
  EXPECT_EQ(judged_program(t, "    return f2(x)\ndef f2(x): pass"),
            "import re\n\ndef f(x):\n    \"\"\"Doc\"\"\"\n    return f2(x)\ndef f2(x): pass\nT\ncheck(f)\n");
}

TEST(CodeTask, CodeOfAChatModelsAnswer) {
  const CodeTask t{.entry_point = "f"};
  EXPECT_EQ(code_of_answer("Sure:\n```python\ndef f(x):\n    return 1\n```\nCall it:\n```\nf(2)\n```\n", t),
            "def f(x):\n    return 1\n");
  EXPECT_EQ(code_of_answer("```\na = 1\n```", t), "a = 1\n");
  EXPECT_EQ(code_of_answer("def f(x): return 1", t), "def f(x): return 1");
  EXPECT_EQ(code_of_answer("```python\ndef f(x", t), "```python\ndef f(x");
}

// By its definition 1 - C(n - c, k) / C(n, k), and by counting all sets of k samples.
TEST(PassAtK, IsTheShareOfSetsThatHoldAPass) {
  for (int64_t n = 1; n <= 9; n++)
    for (int64_t c = 0; c <= n; c++)
      for (int64_t k = 1; k <= n; k++) {
        int64_t sets = 0;
        int64_t hits = 0;
        for (unsigned s = 0; s < 1u << n; s++) {
          if (__builtin_popcount(s) != k) continue;
          sets++;
          hits += (s & ((1u << c) - 1)) != 0;  // the first c passed
        }
        EXPECT_NEAR(pass_at_k(n, c, k), double(hits) / double(sets), 1e-14) << n << " " << c << " " << k;
      }
  // Where binomials overflow: n = 10,000, c = 1: k / n.
  EXPECT_NEAR(pass_at_k(10000, 1, 5000), 0.5, 1e-12);
  EXPECT_NEAR(pass_at_k(10000, 10, 5000), 1 - std::pow(0.5, 10), 1e-3);
}

TEST(PassAtK, IntervalsOverTasks) {
  const std::vector<double> values = {0, 0, 1, 1, 0.5, 0.5, 0.25, 0.75};
  const MeanOfTasks m = mean_of_tasks(values);
  EXPECT_DOUBLE_EQ(m.mean, 0.5);
  EXPECT_NEAR(m.standard_error, 0.1417, 1e-4);    // sqrt(1.125 / 7 / 8)
  EXPECT_NEAR(m.low, 0.5 - 1.96 * 0.1326, 0.04);  // the bootstrap's deviation lacks n / (n - 1)
  EXPECT_NEAR(m.high, 0.5 + 1.96 * 0.1326, 0.04);
  EXPECT_TRUE(std::isnan(mean_of_tasks(std::vector<double>{1}).standard_error));
}

}  // namespace
}  // namespace trireme
