// `trireme generate` and `trireme eval --tasks` themselves: streams, files, stops, signals.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/json.h"
#include "process.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

using nlohmann::json;

// A model of 300 tokens (bytes, end of text, and some that mean nothing), trained for two steps.
class Generate : public testing::Test {
 protected:
  void SetUp() override {
    file_ = tiny_run_file(tmp_.path(), 2);
    sets_ = {"--set", "model.vocab=300",
             "--set", "data.tokenizer=" + byte_tokenizer_file(tmp_.path()).string(),
             "--set", "model.init_std=0.2",
             "--set", "data.seq_len=40",
             "--set", "model.max_positions=40"};
    Ran r = run("train", {});
    ASSERT_EQ(r.code, 0) << r.err;
  }
  std::vector<std::string> args(const std::string& verb, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {verb, file_.string()};
    all.insert(all.end(), sets_.begin(), sets_.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Ran run(const std::string& verb, const std::vector<std::string>& more) const {
    return trireme(tmp_.path(), args(verb, more));
  }
  static std::vector<json> json_lines(const std::string& text) {
    std::vector<json> all;
    for (const std::string& line : lines_of(text)) {
      all.push_back(json::parse(line, nullptr, false));
      EXPECT_TRUE(all.back().is_object()) << line;
    }
    return all;
  }

  TempFolder tmp_;
  fs::path file_;
  std::vector<std::string> sets_;
};

// Samples of a model, samples of a file, and the tasks' own solutions.
TEST_F(Generate, ProgramsAreJudged) {
  put_file(
      tmp_ / "tasks.jsonl",
      R"({"task_id": "a", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x\n", "test": "def check(c):\n    assert c(2) == 2\n"})"
      "\n");
  Ran r = run("eval", {"--code", (tmp_ / "tasks.jsonl").string(), "-n", "2", "-k", "2", "--tokens", "20",
                       "--time-limit", "60", "--json", "--out", (tmp_ / "samples.jsonl").string()});
  ASSERT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["samples"], 2);
  EXPECT_EQ(j["tasks"], 1);
  EXPECT_TRUE(j["pass_at_k"].contains("2")) << r.out;
  EXPECT_EQ(j["results"]["failed"].get<int>() + j["results"]["completed"].get<int>(), 2) << r.out;
  EXPECT_GT(j["generated_per_s"], 0);
  const auto lines = json_lines(read_text(tmp_ / "samples.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["task_id"], "a");
  // The file is what --samples reads, with the same verdicts.
  r = trireme(tmp_.path(), {"eval", "--code", (tmp_ / "tasks.jsonl").string(), "--samples",
                            (tmp_ / "samples.jsonl").string(), "--time-limit", "60", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["results"], j["results"]);
  r = trireme(tmp_.path(),
              {"eval", "--code", (tmp_ / "tasks.jsonl").string(), "--canonical", "--time-limit", "60"});
  EXPECT_NE(r.out.find("pass@1 1.0000"), std::string::npos) << r.out << r.err;
  r = trireme(tmp_.path(), {"eval", "--code", (tmp_ / "tasks.jsonl").string()});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--canonical"), std::string::npos) << r.err;
  r = trireme(tmp_.path(), {"eval"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("RUN"), std::string::npos) << r.err;
}

// Self-distillation of an export of the run, in small.
class Distill : public Generate {
 protected:
  void SetUp() override {
    Generate::SetUp();
    put_file(
        tmp_ / "tasks.jsonl",
        R"({"task_id": "a", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x\n", "test": "def check(c):\n    assert c(2) == 2\n"})"
        "\n");
    put_file(tmp_ / "prompts.txt", "one\ntwo\none\n");
    ASSERT_EQ(run("convert", {"--to", hf()}).code, 0);
  }
  std::string hf() const { return (tmp_ / "hf").string(); }
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"distill",
                                    hf(),
                                    "--tasks",
                                    (tmp_ / "tasks.jsonl").string(),
                                    "--out",
                                    (tmp_ / "ssd").string(),
                                    "--prompts",
                                    (tmp_ / "prompts.txt").string(),
                                    "--tokens",
                                    "24",
                                    "--eval-tokens",
                                    "8",
                                    "-n",
                                    "1",
                                    "--seeds",
                                    "1",
                                    "--batch",
                                    "1",
                                    "--epochs",
                                    "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void expect_refused(const std::vector<std::string>& all, const std::string& why) const {
    const Ran r = trireme(tmp_.path(), all);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_NE(r.err.find(why), std::string::npos) << why << "\n" << r.err;
    EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  }
};

TEST_F(Distill, RefusesBeforeItWrites) {
  for (const auto& [more, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--plain", "--eval-top-p", "7"}, "--eval-top-p = 7: expected a number above 0, at most 1"},
           {{"--plain", "--top-k=-1"}, "--top-k = -1: expected"},
           {{"--plain", "--temperature=-1"}, "--temperature = -1: expected a number from 0 to 1000"},
           {{"--plain", "--seq-len", "5000"}, "--seq-len = 5000: expected 2 to 40"},
           {{"--plain", "--set", "optimizer.nme=3"}, "optimizer.nme"},
           {{"--plain", "--eval-temperatures", "0.2,0.2"},
            "--eval-temperatures = 0.2,0.2: 0.2 is given twice"},
           {{}, "no chat template in its folder; --plain"}}) {
    expect_refused(words(more), why);
    EXPECT_FALSE(fs::exists(tmp_ / "ssd")) << why;
  }
  fs::create_directories(tmp_ / "ssd");
  put_file(tmp_ / "ssd/tune.toml", "");
  expect_refused(words({"--plain"}), "holds other files, such as tune.toml");
  EXPECT_FALSE(fs::exists(tmp_ / "ssd/distill.json"));
}

// A process that runs `trireme tune` and whose parent is `parent`; -1: there is none.
pid_t tune_of(pid_t parent) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::error_code none;
    if (!fs::exists(entry.path() / "exe", none)) continue;  // no process, or a zombie
    std::ifstream in(entry.path() / "stat");
    std::string line;
    std::getline(in, line);
    const size_t name_end = line.rfind(')');
    if (name_end == std::string::npos) continue;
    if (std::atoi(line.c_str() + name_end + 4) != parent) continue;
    std::ifstream words(entry.path() / "cmdline");
    std::string word;
    std::getline(words, word, '\0');
    if (std::getline(words, word, '\0') && word == "tune") return std::atoi(line.c_str());
  }
  return -1;
}

template <class Condition>
bool within_60_s(Condition condition) {
  for (int i = 0; i < 6000; i++) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// A killed command leaves no child. The same command resumes; once done it does nothing. Other options and
// other weights are refused.
TEST_F(Distill, Resumes) {
  std::vector<std::string> all = words({"--plain", "--eval-temperatures", "1", "--seq-len", "32",
                                        "--temperature", "2", "--top-k", "0", "--top-p", "1", "--json"});
  {
    Process first(trireme_args(all), tmp_.path());
    ASSERT_TRUE(first.wait_for_err("fine-tune"));
    pid_t child = -1;
    ASSERT_TRUE(within_60_s([&] { return (child = tune_of(first.pid())) > 0; }));
    ::kill(child, SIGSTOP);
    expect_refused(all, "is in use by another run: wait for it, or choose another --out");
    first.send(SIGKILL);
    EXPECT_EQ(first.wait().signal, SIGKILL);
    EXPECT_TRUE(within_60_s([&] { return !fs::exists(fmt::format("/proc/{}/exe", child)); }));
  }
  const fs::path seed = tmp_ / "ssd/seed-1";
  for (const char* name : {"samples.jsonl", "kept.jsonl"}) fs::remove(seed / name);
  put_file(seed / "samples.jsonl.part", "{\"index\": 0, \"pro");  // half a line
  Ran r = trireme(tmp_.path(), all);
  ASSERT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["pass_at_k"][0]["k"], 1);
  EXPECT_TRUE(j["pass_at_k"][0]["gain"]["low"].is_null());  // one seed has no interval
  const auto samples = json_lines(read_text(seed / "samples.jsonl"));
  const auto kept = json_lines(read_text(seed / "kept.jsonl"));
  ASSERT_EQ(samples.size(), 2u);  // equal prompts once
  ASSERT_FALSE(kept.empty());
  for (const json& k : kept)
    for (const json& one : samples) {
      if (one["prompt"] != k["prompt"]) continue;
      EXPECT_EQ(k.value("cut", false), one["finish"] != "end_of_text") << one;
    }
  const size_t stages = json_lines(read_text(tmp_ / "ssd/stages.jsonl")).size();
  EXPECT_EQ(stages, 7u);  // sample and filter twice, fine-tune, two evaluations
  r = trireme(tmp_.path(), all);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out), j);
  EXPECT_EQ(json_lines(read_text(tmp_ / "ssd/stages.jsonl")).size(), stages);
  std::string weights = read_text(tmp_ / "hf/model.safetensors");
  weights.back() = char(weights.back() ^ 1);
  put_file(tmp_ / "hf/model.safetensors", weights);
  expect_refused(all, "this folder has results with weights = ");
  all.insert(all.end(), {"--lr", "1e-3"});
  weights.back() = char(weights.back() ^ 1);
  put_file(tmp_ / "hf/model.safetensors", weights);
  expect_refused(all, "lr = ");
}

// A task of lm-evaluation-harness: choices, answers and whole texts.
TEST_F(Generate, HarnessTasksAreScored) {
  put_file(tmp_ / "docs.jsonl",
           "{\"q\": \"ab\", \"o\": [\"x\", \"yz\"], \"k\": 1}\n"
           "{\"q\": \"cd\", \"o\": [\"x\", \"y\"], \"k\": 0}\n");
  const std::string head =
      "dataset_path: json\ndataset_kwargs: {data_files: {test: docs.jsonl}}\ntest_split: test\n";
  put_file(tmp_ / "a.yaml", head +
                                "output_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_target: k\n"
                                "doc_to_choice: o\n");
  put_file(tmp_ / "b.yaml", head +
                                "doc_to_text: q\ndoc_to_target: q\ngeneration_kwargs: {max_gen_toks: 4}\n"
                                "metric_list: [{metric: exact_match}]\n");
  put_file(tmp_ / "c.yaml", head +
                                "output_type: loglikelihood_rolling\ndoc_to_target: '{{q}}: longer than the "
                                "context of forty tokens, so that its windows roll'\n");
  for (const auto& [file, metric] : {std::pair("a.yaml", "acc_norm,none"),
                                     {"b.yaml", "exact_match,none"},
                                     {"c.yaml", "bits_per_byte,none"}}) {
    Ran r =
        run("eval", {"--tasks", (tmp_ / file).string(), "--json", "--out", (tmp_ / "out.jsonl").string()});
    ASSERT_EQ(r.code, 0) << r.err;
    const json j = json::parse(r.out);
    EXPECT_GE(j["results"][metric].get<double>(), 0) << r.out;
    EXPECT_EQ(j["documents"], 2);
    EXPECT_EQ(json_lines(read_text(tmp_ / "out.jsonl")).size(), 2u);
  }
  // All tokens are about equally likely to a model of two steps: about log2(300) bits of each byte.
  Ran r = run("eval", {"--tasks", (tmp_ / "c.yaml").string(), "--json", "--limit", "1"});
  EXPECT_NEAR(json::parse(r.out)["results"]["bits_per_byte,none"], 8.2, 2.5) << r.out;
}

TEST_F(Generate, ChatsWithAPipe) {
  std::string command = program() + " chat --tokens 6 --temperature 0";
  for (const std::string& a : args("", {})) command += a.empty() ? "" : " '" + a + "'";
  Ran r = trireme::test::run(
      {"/bin/sh", "-c", "printf 'ab\\n\\n/reset\\nab\\n%s\\ncd' " + std::string(90, 'x') + " | " + command},
      tmp_.path());
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("plain turns"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("does not fit"), std::string::npos) << r.err;
  // Three answers of six bytes; the first two begin a conversation alike, greedily.
  ASSERT_EQ(r.out.size(), 21u) << r.out;
  EXPECT_EQ(r.out.substr(0, 7), r.out.substr(7, 7));
}

// Divided over ranks: the same texts and the same loss; a layout that the model cannot have is an error.
TEST_F(Generate, RanksHoldTheModelBetweenThem) {
  put_file(tmp_ / "p.txt", "def main(\nxyz\nthe quick brown fox\n");
  const std::vector<std::string> texts = {
      "--prompts", (tmp_ / "p.txt").string(), "--json", "--tokens", "12", "--temperature", "0",
      "--set",     "precision.compute=f32"};
  const std::vector<std::string> loss = {"--json", "--set", "precision.compute=f32"};
  const auto with = [&](const std::string& verb, std::vector<std::string> more, const std::string& layout) {
    if (!layout.empty()) more.insert(more.end(), {"--layout", layout});
    return run(verb, more);
  };
  const Ran text = with("generate", texts, ""), one = with("eval", loss, "");
  ASSERT_EQ(text.code, 0) << text.err;
  ASSERT_EQ(one.code, 0) << one.err;
  const json want = json::parse(one.out);
  for (const char* layout : {"pp=2", "cp=2", "pp=2,cp=2"}) {
    SCOPED_TRACE(layout);
    const Ran divided = with("generate", texts, layout), other = with("eval", loss, layout);
    EXPECT_EQ(divided.code, 0) << divided.err;
    EXPECT_EQ(divided.out, text.out) << divided.err;
    EXPECT_NE(divided.err.find(" ranks, at most "), std::string::npos) << divided.err;
    EXPECT_EQ(other.code, 0) << other.err;
    const json got = json::parse(other.out);
    EXPECT_NEAR(got["loss"].get<double>(), want["loss"].get<double>(), 1e-5 * want["loss"].get<double>());
    EXPECT_EQ(got["tokens"], want["tokens"]);
  }
  const Ran wrong = with("generate", texts, "tp=2");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("model.heads = 3"), std::string::npos) << wrong.err;
  const Ran set = run("generate", {"--set", "layout.tp=3"});
  EXPECT_EQ(set.code, 2);
  EXPECT_NE(set.err.find("--layout"), std::string::npos) << set.err;
}

TEST_F(Generate, ManyPromptsAreAnsweredAsEachAlone) {
  put_file(tmp_ / "p.txt",
           "def main(\r\n\n  \nxyz\nthe quick brown fox jumps over the lazy dog and on\nab\n");
  put_file(tmp_ / "p.jsonl",
           "{\"prompt\": \"def main(\"}\n{\"prompt\": \"xyz\", \"id\": 3}\n"
           "{\"prompt\": \"the quick brown fox jumps over the lazy dog and on\"}\n{\"prompt\": \"ab\"}\n");
  const std::vector<std::string> options = {"--json", "--tokens", "30", "--seed", "4"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return run("generate", more);
  };
  Ran alone = with({"--prompts", (tmp_ / "p.txt").string(), "--parallel", "1"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  auto lines = json_lines(alone.out);
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < 4; i++) {
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_LE(lines[i]["tokens"], 30);
    EXPECT_EQ(lines[i]["finish"] == "length", lines[i]["tokens"] == 30);
  }
  EXPECT_EQ(lines[0]["prompt"], "def main(");
  EXPECT_EQ(with({"--prompts", (tmp_ / "p.txt").string(), "--parallel", "3"}).out, alone.out);
  EXPECT_EQ(with({"--prompts", (tmp_ / "p.jsonl").string()}).out, alone.out);
  EXPECT_NE(alone.err.find("tokens/s"), std::string::npos) << alone.err;
  EXPECT_NE(alone.err.find("cache for 1 x"), std::string::npos) << alone.err;
  // Three samples of each prompt: the cache of a prompt is shared, and its text is as if it were alone.
  put_file(tmp_ / "one.txt", "def main(\n");
  put_file(tmp_ / "three.txt", "def main(\ndef main(\ndef main(\n");
  Ran three = with({"--prompts", (tmp_ / "three.txt").string(), "--parallel", "1"});
  EXPECT_EQ(with({"--prompts", (tmp_ / "one.txt").string(), "--samples", "3"}).out, three.out);
  EXPECT_NE(three.out.find("\"index\":2"), std::string::npos) << three.out;
  // Into a file: the same lines, and nothing on the screen.
  Ran r = with({"--prompts", (tmp_ / "p.txt").string(), "--out", (tmp_ / "out.jsonl").string()});
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(read_text(tmp_ / "out.jsonl"), alone.out);
  // One prompt, as text: what was asked, then the text of the first line.
  r = run("generate", {"--prompt", "def main(", "--tokens", "30", "--seed", "4"});
  auto clean = [](const std::string& s) {
    return json::parse(json(s).dump(-1, ' ', false, json::error_handler_t::replace));
  };
  EXPECT_EQ(clean(r.out), "def main(" + lines[0]["text"].get<std::string>() + "\n");
  // Many as text.
  r = run("generate", {"--prompts", (tmp_ / "p.txt").string(), "--tokens", "3"});
  EXPECT_EQ(r.out.find("--- 1 of 4\ndef main("), 0u) << r.out;
  EXPECT_NE(r.out.find("--- 4 of 4\nab"), std::string::npos) << r.out;
}

// As generate finds it: beside the shards where nobody names it; and where there is none that is told.
TEST_F(Generate, AnExportTakesTheTokenizerThatGenerateFinds) {
  auto exported = [&](const std::string& to) {
    return run("convert", {"--set", "data.tokenizer=\"\"", "--to", (tmp_ / to).string()});
  };
  const fs::path beside = fs::path(load_run(file_).data.train.first()).parent_path() / "tokenizer.json";
  Ran r = exported("without");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_FALSE(fs::exists(tmp_ / "without/tokenizer.json"));
  EXPECT_NE(r.err.find("no tokenizer is written"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(beside.parent_path().string()), std::string::npos) << r.err;
  fs::rename(byte_tokenizer_file(tmp_.path()), beside);
  r = exported("with");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(fs::exists(tmp_ / "with/tokenizer.json")) << r.err;
  EXPECT_EQ(r.err.find("no tokenizer"), std::string::npos) << r.err;
}

// The folder of a run stands for its plan, wherever it lies now, and a checkpoint for itself.
TEST_F(Generate, TakesTheFolderOfARunAndACheckpoint) {
  const std::vector<std::string> how = {"--prompt", "ab", "--tokens", "12", "--temperature", "0", "--json"};
  auto of = [&](const fs::path& what) {
    std::vector<std::string> all = {"generate", what.string()};
    all.insert(all.end(), how.begin(), how.end());
    return trireme(tmp_.path(), all);
  };
  const Ran want = run("generate", how);
  ASSERT_EQ(want.code, 0) << want.err;
  const fs::path folder = load_run(file_).train.dir;
  Ran got = of(folder);
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  fs::rename(folder, tmp_ / "moved");
  got = of(tmp_ / "moved/");
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  // Its tokenizer went with it.
  fs::rename(byte_tokenizer_file(tmp_.path()), tmp_ / "moved" / byte_tokenizer_file(tmp_.path()).filename());
  got = of(tmp_ / "moved");
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  byte_tokenizer_file(tmp_.path());  // put back
  // Of several checkpoints the one that is named, by every verb that reads one.
  const Ran longer = run("train", {"--set", "train.steps=8", "--set", "train.checkpoint_every=4", "--set",
                                   "train.dir=" + (tmp_ / "longer").string()});
  ASSERT_EQ(longer.code, 0) << longer.err;
  std::vector<fs::path> checkpoints;
  for (const auto& e : fs::directory_iterator(tmp_ / "longer/checkpoints")) checkpoints.push_back(e.path());
  ASSERT_EQ(checkpoints.size(), 2u);
  std::sort(checkpoints.begin(), checkpoints.end());
  auto evaluated = [&](const fs::path& what) {
    Ran r = trireme(tmp_.path(), {"eval", what.string(), "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return json::parse(r.out, nullptr, false);
  };
  const json whole = evaluated(tmp_ / "longer"), older = evaluated(checkpoints[0]);
  EXPECT_EQ(whole["step"], 8);
  EXPECT_EQ(older["step"], 4);
  EXPECT_NE(whole["loss"], older["loss"]);
  EXPECT_EQ(evaluated(checkpoints[1])["loss"], whole["loss"]);
  auto exported = [&](const fs::path& what, const std::string& name) {
    Ran r = trireme(tmp_.path(), {"convert", what.string(), "--to", (tmp_ / name).string()});
    EXPECT_EQ(r.code, 0) << r.err;
    return read_text(tmp_ / name / "model.safetensors");
  };
  const std::string weights = exported(tmp_ / "longer", "newest");
  EXPECT_NE(exported(checkpoints[0], "older"), weights);
  EXPECT_EQ(exported(checkpoints[1], "newer"), weights);
  // A tokenizer without a tokenizer_config.json, as `tokenize` writes it, has one in the export: without,
  // transformers knows no end of a text.
  EXPECT_FALSE(fs::exists(tmp_ / "tokenizer_config.json"));
  const json config = json::parse(read_text(tmp_ / "newest/tokenizer_config.json"), nullptr, false);
  EXPECT_EQ(config["eos_token"], "<|endoftext|>") << config;
  EXPECT_EQ(config["model_max_length"], 40) << config;
  for (const fs::path& name : {checkpoints[0], checkpoints[0] / "."}) {
    const Ran one = of(name);
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_NE(one.out.find("\"prompt\":\"ab\""), std::string::npos) << one.out;
  }
  Ran none = of(tmp_.path());
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("plan.toml"), std::string::npos) << none.err;
}

TEST_F(Generate, AStopStringEndsTheTextBeforeIt) {
  std::string seed, whole, stop;
  auto with = [&](std::vector<std::string> more) {
    for (const char* o : {"--prompt", "abc", "--tokens", "60", "--seed", seed.c_str()}) more.push_back(o);
    return run("generate", more);
  };
  // Two printable bytes from the middle, which are two tokens here; the first place where they occur.
  for (int s = 1; stop.empty() && s < 20; s++) {
    seed = std::to_string(s);
    whole = with({}).out;
    for (size_t at = 8; at + 2 < whole.size() && stop.empty(); at++)
      if (isalnum(uint8_t(whole[at])) && isalnum(uint8_t(whole[at + 1]))) stop = whole.substr(at, 2);
  }
  ASSERT_EQ(stop.size(), 2u) << "no two letters side by side";
  EXPECT_EQ(with({"--stop", "never to be seen", "--stop", stop}).out,
            whole.substr(0, whole.find(stop, 3)) + "\n");
  json line = json_lines(with({"--stop", stop, "--json"}).out).at(0);
  EXPECT_EQ(line["finish"], "stop");
}

TEST_F(Generate, ASignalLeavesTheCompleteTexts) {
  std::string prompts;  // so many that they cannot all have drawn their end of text before the signal
  for (int i = 0; i < 20000; i++) prompts += "a\n";
  put_file(tmp_ / "p.txt", prompts);
  Process p(trireme_args(args("generate", {"--prompts", (tmp_ / "p.txt").string(), "--tokens", "1000000",
                                           "--out", (tmp_ / "out.jsonl").string()})),
            tmp_.path());
  ASSERT_TRUE(p.wait_for_err("of memory"));
  p.send(SIGINT);
  Ran r = p.wait();
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_NE(r.err.find("interrupted by signal 2"), std::string::npos) << r.err;
  json_lines(read_text(tmp_ / "out.jsonl"));  // as far as they are, whole
}

TEST_F(Generate, ATokenizerOfAnotherVocabularyThanItsShardsIsRefused) {
  for (const char* name : {"one", "two"}) {
    put_file(tmp_ / (std::string(name) + ".txt"), std::string("to be ") + name + " or not to be " + name);
    Ran r = trireme(tmp_.path(), {"tokenize", (tmp_ / (std::string(name) + ".txt")).string(), "--out",
                                  (tmp_ / name).string(), "--vocab", "262", "--hold-out", "0"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.out.find("tokenizer.json, 262 tokens\n"), std::string::npos) << r.out;
  }
  const auto with = [&](const char* tokenizer) {
    return run("generate", {"--set", "data.train=" + (tmp_ / "one/train").string(), "--set",
                            "data.tokenizer=" + (tmp_ / tokenizer / "tokenizer.json").string(), "--prompt",
                            "to be", "--tokens", "3"});
  };
  EXPECT_EQ(with("one").code, 0);
  const Ran r = with("two");
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("is of another vocabulary"), std::string::npos) << r.err;
}

TEST_F(Generate, QuestionsAreScored) {
  put_file(
      tmp_ / "q.jsonl",
      "{\"prompt\": \"2 + 2 =\", \"choices\": [\" 3\", \" 4\", \" seven\"], \"answer\": 1}\n"
      "{\"prompt\": \"the sky is \", \"choices\": [\"blue\", \"a rather long answer\"], \"answer\": \"A\"}\n"
      "{\"prompt\": \"x\", \"choices\": [\"y\", \"z\"], \"answer\": \"B\"}\n");
  Ran r =
      run("eval", {"--tasks", (tmp_ / "q.jsonl").string(), "--json", "--out", (tmp_ / "o.jsonl").string()});
  ASSERT_EQ(r.code, 0) << r.err;
  json got = json::parse(r.out);
  auto lines = json_lines(read_text(tmp_ / "o.jsonl"));
  ASSERT_EQ(lines.size(), 3u);
  const std::vector<std::vector<double>> bytes = {{2, 2, 6}, {4, 20}, {1, 1}};
  double raw = 0, per_byte = 0;
  for (size_t q = 0; q < 3; q++) {
    EXPECT_EQ(lines[q]["line"], q + 1);
    auto ll = lines[q]["log_likelihood"].get<std::vector<double>>();
    ASSERT_EQ(ll.size(), bytes[q].size());
    raw += std::max_element(ll.begin(), ll.end()) - ll.begin() == lines[q]["answer"];
    for (size_t c = 0; c < ll.size(); c++) {
      EXPECT_LT(ll[c], 0);
      ll[c] /= bytes[q][c];
    }
    per_byte += std::max_element(ll.begin(), ll.end()) - ll.begin() == lines[q]["answer"];
  }
  EXPECT_DOUBLE_EQ(got["accuracy"], raw / 3);
  EXPECT_DOUBLE_EQ(got["accuracy_per_byte"], per_byte / 3);
  EXPECT_NEAR(got["chance"], (1.0 / 3 + 0.5 + 0.5) / 3, 1e-12);
  EXPECT_EQ(got["questions"], 3);
  EXPECT_EQ(got["step"], 2);
  r = run("eval", {"--tasks", (tmp_ / "q.jsonl").string()});
  EXPECT_NE(r.out.find("over 3 questions"), std::string::npos) << r.out;
}

// A degree of the layout is an error, any other key that is not read a note; a run file may have both.
TEST_F(Generate, KeysThatASubcommandDoesNotUseAreNamed) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> verbs = {
      {"generate", {"--prompt", "ab", "--tokens", "2"}},
      {"eval", {}},
      {"convert", {"--to", (tmp_ / "hf").string()}}};
  for (const auto& [verb, options] : verbs) {
    auto with = [&, &verb = verb, &options = options](std::vector<std::string> more) {
      more.insert(more.end(), options.begin(), options.end());
      return run(verb, more);
    };
    for (const char* key : {"layout.tp", "layout.pp", "layout.dp", "layout.ep"}) {
      const Ran r = with({"--set", std::string(key) + "=2"});
      EXPECT_EQ(r.code, 2) << verb << key;
      EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
      EXPECT_NE(r.err.find(std::string("--set: ") + key + ": 2 is not used by " + verb), r.err.npos) << r.err;
    }
    const Ran r = with({"--set", "layout.tp=1", "--set", "optimizer.lr=0.5", "--set", "train.keep=3", "--set",
                        "train.deterministic=true", "--set", "precision.fp8=block"});
    EXPECT_EQ(r.code, 0) << r.err;
    const bool forward = verb != "convert";
    EXPECT_NE(
        r.err.find(fmt::format("note: --set optimizer.lr, train.keep, train.deterministic{}: {} does not "
                               "use these keys\n",
                               forward ? "" : ", precision.fp8", verb)),
        r.err.npos)
        << r.err;
    EXPECT_EQ(
        r.err.find("precision.fp8 = \"block\": 8-bit products belong to training; " + verb) != r.err.npos,
        forward)
        << r.err;
    EXPECT_EQ(r.err.find("layout"), r.err.npos) << r.err;
    EXPECT_EQ(with({}).err.find("does not use"), std::string::npos);
  }
  const Ran greedy =
      run("generate", {"--prompt", "ab", "--tokens", "2", "--temperature", "0", "--top-k", "3"});
  EXPECT_NE(greedy.err.find("note: --top-k: not used with --temperature 0"), greedy.err.npos) << greedy.err;
}

// Whatever prints a result: exit code 1, one line, and the weight. Types of a folder as well.
TEST_F(Generate, NoResultComesOfAWeightThatIsNotFinite) {
  const Ran converted = run("convert", {"--to", (tmp_ / "hf").string(), "--dtype", "bf16"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  std::string file = read_text(tmp_ / "hf/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const json tensors = json::parse(file.substr(8, header));
  const auto put_nan = [&](size_t number) {  // bf16, of the whole file's numbers
    std::string damaged = file;
    damaged[8 + header + 2 * number] = '\xc0';
    damaged[8 + header + 2 * number + 1] = '\x7f';
    put_file(tmp_ / "hf/model.safetensors", damaged);
  };
  size_t in_block = 0, in_embedding = 0;
  for (const auto& [key, value] : tensors.items()) {
    if (key.find("mlp") != key.npos && key.ends_with("weight"))
      in_block = value["data_offsets"][0].get<size_t>() / 2;
    // The row of the last token, which no text here has.
    if (key.find("wte") != key.npos || key.find("embed_tokens") != key.npos)
      in_embedding = value["data_offsets"][1].get<size_t>() / 2 - 1;
  }
  ASSERT_GT(in_block, 0u);
  ASSERT_GT(in_embedding, 0u);
  put_file(tmp_ / "q.jsonl", "{\"prompt\": \"ab\", \"choices\": [\"c\", \"d\"], \"answer\": 0}\n");
  for (const auto& [verb, options] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"eval", {}},
           {"eval", {"--json"}},
           {"eval", {"--tasks", (tmp_ / "q.jsonl").string()}},
           {"generate", {"--prompt", "ab"}}})
    for (const size_t number : {in_block, in_embedding}) {
      put_nan(number);
      std::vector<std::string> more = {"--set", "model.from=" + (tmp_ / "hf").string(), "--set",
                                       "train.dir=none"};
      more.insert(more.end(), options.begin(), options.end());
      const Ran r = run(verb, more);
      EXPECT_EQ(r.code, 1) << r.err;
      const char* weight = number == in_block ? "of the weight blocks." : "of the weight embed.";
      EXPECT_NE(r.err.find(weight), r.err.npos) << r.err;
      EXPECT_EQ(r.out.find("loss"), r.out.npos) << r.out;
      EXPECT_EQ(r.out.find("accuracy"), r.out.npos) << r.out;
    }
}

// A text that cannot be written is an error of the environment, not a text that was printed.
TEST_F(Generate, ALostTextIsAnError) {
  const Ran said = run("generate", {"--prompt", "ab", "--tokens", "2"});
  ASSERT_EQ(said.code, 0) << said.err;
  for (const char* more : {"", " --json"}) {
    std::string command = program();
    for (const std::string& word : args("generate", {"--prompt", "ab", "--tokens", "2"}))
      command += " '" + word + "'";
    const Ran r = test::run({"/bin/sh", "-c", command + more + " >/dev/full"}, tmp_.path());
    EXPECT_EQ(r.code, 4) << command << r.err;
    EXPECT_NE(r.err.find("cannot write to standard output"), r.err.npos) << r.err;
  }
}

}  // namespace
}  // namespace trireme::test
