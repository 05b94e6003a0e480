// Tasks of lm-evaluation-harness: what a model is asked, and how answers are scored. Expected contexts were
// made by lm_eval 0.4.13 from the same files.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "tasks/doc_template.h"
#include "tasks/harness_score.h"
#include "tasks/python_literal.h"
#include "tasks/python_random.h"
#include "tasks/python_regex.h"
#include "tasks/yaml_json.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

constexpr const char* kPool = R"json({"q": "1 + 2", "opts": ["3", "4", "2"], "key": "A"}
{"q": "2 + 3", "opts": ["5", "6", "6"], "key": "A"}
{"q": "4 + 4", "opts": ["8", "9", "16"], "key": "A"}
{"q": "5 + 1", "opts": ["6", "7", "5"], "key": "A"}
{"q": "7 + 2", "opts": ["9", "10", "14"], "key": "A"}
{"q": "3 + 3", "opts": ["6", "7", "9"], "key": "A"}
{"q": "6 + 2", "opts": ["8", "9", "12"], "key": "A"}
{"q": "9 + 1", "opts": ["10", "11", "9"], "key": "A"}
)json";
constexpr const char* kDocs = R"json({"q": "4 + 4", "opts": ["8", "9", "16"], "key": "A"}
{"q": "5 + 1", "opts": ["6", "7", "5"], "key": "A"}
{"q": "7 + 2", "opts": ["9", "10", "14"], "key": "A"}
{"q": "it's \"1\" + \u00e9", "opts": ["one's", "two \"\u00e9\"", "x\\y"], "key": "B"}
)json";
constexpr const char* kTaskA = R"yaml(dataset_kwargs:
  data_files:
    test: docs.jsonl
    train: pool.jsonl
dataset_path: json
description: 'Sums.


  '
doc_to_choice: '{{opts}}'
doc_to_target: '{{[''A'',''B'',''C''].index(key)}}'
doc_to_text: 'Q: {{q}}

  A:'
output_type: multiple_choice
task: a
test_split: test
training_split: train
)yaml";
constexpr const char* kTaskB = R"yaml(include: a.yaml
task: b
fewshot_split: test
)yaml";
// Context, continuations, right choice: 3 examples from another split.
constexpr const char* kAsksA =
    R"json(["Q: 9 + 1\nA: 10\n\nQ: 1 + 2\nA: 3\n\nQ: 6 + 2\nA: 8\n\nQ: 4 + 4\nA:", [" 8", " 9", " 16"], 0]
["Q: 2 + 3\nA: 5\n\nQ: 6 + 2\nA: 8\n\nQ: 7 + 2\nA: 9\n\nQ: 5 + 1\nA:", [" 6", " 7", " 5"], 0]
["Q: 1 + 2\nA: 3\n\nQ: 3 + 3\nA: 6\n\nQ: 6 + 2\nA: 8\n\nQ: 7 + 2\nA:", [" 9", " 10", " 14"], 0]
["Q: 2 + 3\nA: 5\n\nQ: 1 + 2\nA: 3\n\nQ: 4 + 4\nA: 8\n\nQ: it's \"1\" + \u00e9\nA:", [" one's", " two \"\u00e9\"", " x\\y"], 1]
)json";
// 2 examples from the questions' own split.
constexpr const char* kAsksB =
    R"json(["Q: it's \"1\" + \u00e9\nA: two \"\u00e9\"\n\nQ: 7 + 2\nA: 9\n\nQ: 4 + 4\nA:", [" 8", " 9", " 16"], 0]
["Q: 4 + 4\nA: 8\n\nQ: 7 + 2\nA: 9\n\nQ: 5 + 1\nA:", [" 6", " 7", " 5"], 0]
["Q: 4 + 4\nA: 8\n\nQ: it's \"1\" + \u00e9\nA: two \"\u00e9\"\n\nQ: 7 + 2\nA:", [" 9", " 10", " 14"], 0]
["Q: 5 + 1\nA: 6\n\nQ: 4 + 4\nA: 8\n\nQ: it's \"1\" + \u00e9\nA:", [" one's", " two \"\u00e9\"", " x\\y"], 1]
)json";

struct Harness : testing::Test {
  fs::path folder = fs::temp_directory_path() / "trireme_harness_test";
  Harness() {
    fs::create_directories(folder);
    put("pool.jsonl", kPool);
    put("docs.jsonl", kDocs);
    put("a.yaml", kTaskA);
  }
  ~Harness() override { fs::remove_all(folder); }
  fs::path put(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return folder / name;
  }
  std::string fault(const std::string& more) const {
    try {
      const HarnessTask t = read_harness_task(put("c.yaml", "include: a.yaml\n" + more), 1);
      harness_requests(t);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  }
  void asks(const fs::path& file, int64_t fewshot, const char* expected) const {
    const HarnessTask task = read_harness_task(file, fewshot);
    const std::vector<HarnessRequest> requests = harness_requests(task);
    std::istringstream lines(expected);
    size_t i = 0;
    for (std::string line; std::getline(lines, line); i++) {
      ASSERT_LT(i, requests.size());
      const ordered_json want = ordered_json::parse(line);
      EXPECT_EQ(requests[i].contexts[0], "Sums.\n\n" + want[0].get<std::string>());
      EXPECT_EQ(requests[i].continuations, want[1].get<std::vector<std::string>>());
      EXPECT_EQ(requests[i].right, std::vector<int64_t>{want[2].get<int64_t>()});
    }
    EXPECT_EQ(i, requests.size());
  }
};

TEST_F(Harness, AsksWhatTheOriginalAsks) {
  asks(folder / "a.yaml", 3, kAsksA);
  asks(put("b.yaml", kTaskB), 2, kAsksB);
}

TEST_F(Harness, NamesWhatIsNotSupported) {
  EXPECT_NE(fault("process_docs: !function utils.f\n").find("process_docs = !function utils.f"),
            std::string::npos)
      << fault("process_docs: !function utils.f\n");
  EXPECT_NE(fault("metric_list: [{metric: bleu}]\n").find("metric = \"bleu\""), std::string::npos);
  EXPECT_NE(fault("dataset_path: allenai/ai2_arc\n").find("dataset_path"), std::string::npos);
  EXPECT_NE(fault("output_type: loglikelihood\n").find("output_type"), std::string::npos);
  EXPECT_NE(fault("doc_to_text: '{{q|nothing}}'\n").find("nothing"), std::string::npos);
  EXPECT_NE(fault("fewshot_config: {sampler: balanced}\n").find("sampler"), std::string::npos);
  EXPECT_NE(fault("a: [\n").find("not YAML"), std::string::npos);
  EXPECT_EQ(fault(""), "none");
}

TEST_F(Harness, NamesWhatIsWrong) {
  const auto expect = [&](const std::string& more, const std::string& words) {
    EXPECT_NE(fault(more).find(words), std::string::npos) << more << fault(more);
  };
  expect("num_fewshots: 5\n",
         "c.yaml: num_fewshots: no key of a task of lm-evaluation-harness, did you mean "
         "num_fewshot?");
  expect("fewshot_config: {sampller: first_n}\n", "did you mean sampler?");
  // As jinja2's StrictUndefined.
  expect("doc_to_text: '{{qestion}}'\n", "doc_to_text, line 1: \"qestion\" is undefined");
  expect("doc_to_text: '{% if a.b == 1 %}x{% endif %}'\n", "\"a\" is undefined");
  expect("doc_to_text: '{% if nil %}x{% endif %}'\n", "\"nil\" is undefined");
  expect("doc_to_text: '{{ nil | upper }}'\n", "\"nil\" is undefined");
  expect("doc_to_text: '{{ nil | default(q) }}{% if nil is defined %}{{ nil }}{% endif %}'\n", "none");
  // Answers that no choice has.
  expect("doc_to_target: 7\n", "doc_to_target = 7");
  expect("fewshot_config: {doc_to_target: 0}\ndoc_to_target: '{{opts | length}}'\n",
         "doc_to_target = 3, document 1: expected one of its 3 choices, or an index from 0 to 2");
  expect("fewshot_config: {doc_to_target: 0}\ndoc_to_target: none of them\n", "document 1");
  // Numbers.
  const std::string answers = "output_type: generate_until\ndoc_to_choice: null\ndoc_to_target: key\n";
  expect(answers + "generation_kwargs: {max_gen_toks: -5}\n", "max_gen_toks = -5: expected an integer >= 1");
  try {
    read_harness_task(put("d.yaml", "include: a.yaml\nnum_fewshot: -2\n"));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("num_fewshot = -2: expected an integer >= 0"), std::string::npos);
  }
  try {
    harness_requests(read_harness_task(put("d.yaml", "include: a.yaml\nfewshot_split: test\n"), 4));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("num_fewshot = 4: only 3 other documents exist"), std::string::npos)
        << e.what();
  }
  // Filters, before a model is asked.
  const auto filter = [&](const std::string& function) {
    return answers + "filter_list: [{name: f, filter: [" + function + "]}]\n";
  };
  expect(filter("{function: regex, regex_pattern: '('}"), "c.yaml: filter_list, f: regex_pattern: regular");
  expect(filter("{function: regex, group_selct: 1}"), "did you mean group_select?");
  expect(filter("{function: regex, group_select: a}"), "group_select = \"a\": expected an integer");
  expect(filter("{function: format_span}"), "c.yaml: filter_list, f: ");
  expect(answers + "metric_list: [{metric: exact_match, regexes_to_ignore: ['(']}]\n",
         "c.yaml: metric_list.regexes_to_ignore");
  expect(answers + "metric_list: [{metric: exact_match}, {metric: exact_match, ignore_case: true}]\n",
         "given twice");
  expect(filter("{function: take_first}") + "\n", "none");
}

TEST_F(Harness, ScoresChoicesRawAndByLength) {
  HarnessTask t;
  t.metrics = {{.name = "acc"}, {.name = "acc_norm"}, {.name = "acc_bytes"}};
  const std::vector<HarnessRequest> requests = {{.choices = {"ab", "abcd"}, .right = {1}},
                                                {.choices = {"ab", "abcd"}, .right = {0}},
                                                {.choices = {"abc", "\u00e9\u00e9"}, .right = {0}}};
  const std::vector<std::vector<double>> ll = {{-2, -3}, {-2, -3}, {-2.5, -2.6}};
  const auto scores = score_choices(t, requests, ll);
  EXPECT_NEAR(scores[0].value, 2.0 / 3, 1e-12);
  EXPECT_NEAR(scores[0].standard_error, std::sqrt(2.0 / 3 * (1.0 / 3) / 2), 1e-12);
  // By character: -1, -0.75; -1, -0.75; -0.83, -1.3. By byte the last is -0.83, -0.65.
  EXPECT_NEAR(scores[1].value, 2.0 / 3, 1e-12);
  EXPECT_NEAR(scores[2].value, 1.0 / 3, 1e-12);
}

TEST_F(Harness, FiltersAndMatchesAnswers) {
  HarnessTask t;
  t.metrics = {
      {.name = "exact_match", .regexes_to_ignore = {",", "\\$", "(?s).*#### ", "\\.$"}, .ignore_case = true}};
  const ordered_json strict = {{"function", "regex"}, {"regex_pattern", "#### (\\-?[0-9\\.\\,]+)"}};
  const ordered_json flexible = {
      {"function", "regex"}, {"group_select", -1}, {"regex_pattern", "(-?[$0-9.,]{2,})|(-?[0-9]+)"}};
  t.filters = {{"strict", {strict}}, {"flexible", {flexible, {{"function", "take_first"}}}}};
  const std::vector<HarnessRequest> requests(4, {.answers = {"2 and 3 make 5.\n#### 1,005"}});
  const auto scores = score_texts(
      t, requests, {"so\n#### 1005.", "it is 12 or $1,005 in all 1005", "#### 7, not 1005", "none"});
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].name(), "exact_match,strict");
  EXPECT_NEAR(scores[0].value, 0.25, 1e-12);
  EXPECT_NEAR(scores[1].value, 0.75, 1e-12);
  EXPECT_EQ(filtered_answer(t.filters[0], "none"), "[invalid]");
  EXPECT_EQ(
      filtered_answer({"x", {{{"function", "remove_whitespace"}}, {{"function", "lowercase"}}}}, " A b\n"),
      "a b");
  EXPECT_THROW(check_filter({"x", {{{"function", "format_span"}}}}), Error);
}

TEST_F(Harness, PerplexityOfWholeTexts) {
  HarnessTask t;
  t.metrics = {{.name = "word_perplexity"}, {.name = "byte_perplexity"}, {.name = "bits_per_byte"}};
  const auto scores =
      score_rolling(t, {{.continuations = {"one two\n three"}}, {.continuations = {"four"}}}, {-8, -4});
  EXPECT_NEAR(scores[0].value, std::exp(12.0 / 4), 1e-9);
  EXPECT_NEAR(scores[1].value, std::exp(12.0 / 18), 1e-9);
  EXPECT_NEAR(scores[2].value, 12.0 / 18 / std::log(2), 1e-9);
}

// As jinja2 with keep_trailing_newline, without trim_blocks and lstrip_blocks.
TEST(DocTemplate, KeepsWhiteSpace) {
  EXPECT_EQ(render_doc("{% if a %}\nx\n  {% endif %}\n", {{"a", 1}}, "t"), "\nx\n  \n");
  EXPECT_EQ(render_doc("{% if a -%}\n x {{ b.c[1] }}{% endif %}", {{"a", 1}, {"b", {{"c", {1, "é"}}}}}, "t"),
            "x é");
}

// Numbers of CPython 3.11: random.Random(1234).
TEST(PythonRandom, DrawsAsPython) {
  PythonRandom r(1234);
  std::vector<uint64_t> drawn;
  for (uint64_t n : {1, 2, 3, 10, 1000, 1000000}) drawn.push_back(r.below(n));
  EXPECT_EQ(drawn, (std::vector<uint64_t>{0, 0, 0, 1, 932, 988319}));
  EXPECT_EQ(r.sample(10, 4), (std::vector<size_t>{9, 0, 1, 8}));
  EXPECT_EQ(r.sample(1000, 5), (std::vector<size_t>{784, 363, 242, 17, 31}));
  EXPECT_EQ(r.sample(70, 6), (std::vector<size_t>{2, 44, 61, 59, 19, 11}));
  EXPECT_EQ(r.sample(90, 6), (std::vector<size_t>{23, 14, 1, 64, 62, 31}));
}

TEST(PythonLiteral, IsReadAsPythonPrintsIt) {
  EXPECT_EQ(*parse_python_literal(R"(['a', "it's", 'x\\y\n', 3, -2.5, None, True, ('b',)])"),
            ordered_json({"a", "it's", "x\\y\n", 3, -2.5, nullptr, true, {"b"}}));
  EXPECT_EQ(*parse_python_literal("'\\xe9\\u20ac\\U0001f600'"), ordered_json("\u00e9\u20ac\U0001f600"));
  for (const char* bad : {"", "[", "['a'", "[a]", "'a", "1 2", "{'a': 1}", "['a' 'b']", "'\\xzz'"})
    EXPECT_FALSE(parse_python_literal(bad)) << bad;
  EXPECT_FALSE(parse_python_literal(std::string(10000, '[')));
}

TEST(PythonRegex, FindsAndRemovesAsPython) {
  const auto found = PythonRegex("(a)|(b+)", "x").find_all("abba");
  EXPECT_EQ(found, (std::vector<std::vector<std::string>>{{"a", ""}, {"", "bb"}, {"a", ""}}));
  EXPECT_EQ(PythonRegex("x*", "x").find_all("axb").size(), 4u);  // '', 'x', '', ''
  EXPECT_EQ(PythonRegex("x*", "x").remove_all("axxb"), "ab");
  EXPECT_EQ(PythonRegex("b$", "x").remove_all("abb"), "ab");
  EXPECT_THROW(PythonRegex("(", "x"), Error);
}

// Plain scalars as PyYAML resolves them.
TEST(YamlJson, HasPythonsTypes) {
  EXPECT_EQ(
      parse_yaml("[1, '1', 1.5, yes, no, ~, text, \"a\\n\", 1e3, !function f.g]", "x"),
      ordered_json({1, "1", 1.5, true, false, nullptr, "text", "a\n", "1e3", {{"!tag", "!function f.g"}}}));
  EXPECT_EQ(parse_yaml("a: &b {c: 1}\nd: *b\ne: |\n  x\n  y\n", "x"),
            (ordered_json{{"a", {{"c", 1}}}, {"d", {{"c", 1}}}, {"e", "x\ny\n"}}));
  EXPECT_THROW(parse_yaml("a: [", "x"), Error);
}

}  // namespace
}  // namespace trireme
