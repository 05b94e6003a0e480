// `trireme tune` on a run and on a Hugging Face folder, all weights and adapters; its errors; train.tasks.
#include <gtest/gtest.h>

#include "base/json.h"
#include "process.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

using nlohmann::json;

// One run of 300 tokens (bytes, end of text) for all cases, and conversations.
class Tune : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    const fs::path file = tiny_run_file(folder_->path(), 2);
    const Ran r =
        program_run({"train", file.string(), "--set", "model.vocab=300", "--set",
                     "data.tokenizer=" + byte_tokenizer_file(folder_->path()).string(), "--set",
                     "model.init_std=0.2", "--set", "data.seq_len=40", "--set", "model.max_positions=40"});
    ASSERT_EQ(r.code, 0) << r.err;
    std::string lines;
    for (int i = 0; i < 8; i++)
      lines += fmt::format("{{\"prompt\": \"ab{}\", \"completion\": \"{}cd\"}}\n", i, i * 3);
    put_file(*folder_ / "talks.jsonl", lines);
  }
  static void TearDownTestSuite() { delete folder_; }

  static Ran program_run(const std::vector<std::string>& args) { return trireme(folder_->path(), args); }
  static std::string path(const char* name) { return (*folder_ / name).string(); }
  static Ran tune(const std::string& model, const char* out, std::vector<std::string> more) {
    std::vector<std::string> args = {"tune",     model,
                                     "--chat",   path("talks.jsonl"),
                                     "--out",    path(out),
                                     "--batch",  "2",
                                     "--epochs", "1",
                                     "--set",    "train.threads=1",
                                     "--set",    "cluster.file=" + path("cluster.toml")};
    args.insert(args.end(), more.begin(), more.end());
    return program_run(args);
  }
  static void expect_error(const Ran& r, const std::string& words) {
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
  }

  static TempFolder* folder_;
};
TempFolder* Tune::folder_ = nullptr;

// A run folder as MODEL: its export is the base. The adapter, the merged folder and the run say the same.
TEST_F(Tune, AdaptersOfARun) {
  Ran r = tune(path("run"), "lora", {"--lora-rank", "2", "--hold-out", "0.3", "--lr", "1e-2"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(fs::exists(*folder_ / "lora/base/config.json"));
  const std::string file = read_text(*folder_ / "lora/tune.toml");
  EXPECT_NE(file.find("rank = 2\nalpha = 4.0\n"), std::string::npos) << file;
  const json config = json::parse(read_text(*folder_ / "lora/adapter/adapter_config.json"));
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["target_modules"].size(), 7u);

  // Done before.
  r = tune(path("run"), "lora", {"--lora-rank", "2", "--hold-out", "0.3", "--lr", "1e-2"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("tune.toml exists"), std::string::npos) << r.err;

  // The plan's bytes are the run's.
  r = program_run({"plan", path("lora/tune.toml"), "--json", "--set", "train.threads=1", "--set",
                   "cluster.file=" + path("cluster.toml")});
  ASSERT_EQ(r.code, 0) << r.err;
  const json plan = json::parse(r.out)["best"];
  const json step = json::parse(lines_of(read_text(*folder_ / "lora/metrics.jsonl"))[0]);
  for (const char* bucket : {"total", "weights", "grads", "optimizer", "activations"})
    EXPECT_EQ(plan["memory"][bucket], step["peak_bytes"][bucket]) << bucket;
  EXPECT_EQ(plan["trained_parameters"], 2 * 2 * (2 * (36 + 36) + 2 * (36 + 12) + 3 * (36 + 52)));

  ASSERT_EQ(program_run({"convert", path("lora"), "--to", path("merged")}).code, 0);
  ASSERT_EQ(program_run({"convert", path("lora"), "--adapter", "--to", path("alone")}).code, 0);
  EXPECT_EQ(read_text(*folder_ / "alone/adapter_model.safetensors"),
            read_text(*folder_ / "lora/adapter/adapter_model.safetensors"));
  put_file(*folder_ / "merged.toml",
           fmt::format("[model]\nfrom = \"{}\"\n[data]\nseq_len = 40\n[train]\ndir = \"{}\"\n",
                       path("merged"), path("none")));
  const auto text_of = [](const std::string& run) {
    return program_run({"generate", run, "--prompt", "ab", "--tokens", "12", "--temperature", "0"});
  };
  const Ran adapted = text_of(path("lora")), merged = text_of(path("merged.toml"));
  ASSERT_EQ(adapted.code, 0) << adapted.err;
  EXPECT_EQ(adapted.out, merged.out) << merged.err;
}

TEST_F(Tune, AllWeightsOfAFolderThenItsAdapter) {
  ASSERT_EQ(program_run({"convert", path("run"), "--to", path("hf")}).code, 0);
  Ran r = tune(path("hf"), "full", {"--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out.substr(r.out.find('{')))["steps"], 1);  // 8 conversations are two samples
  expect_error(program_run({"convert", path("full"), "--adapter", "--to", path("x")}), "lora.rank = 0");

  r = tune(path("hf"), "first",
           {"--lora-rank", "2", "--lora-targets", "*.attn.q", "--lora-targets", "*.mlp.*"});
  ASSERT_EQ(r.code, 0) << r.err;
  r = tune(path("hf"), "second", {"--adapter", path("first/adapter")});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::string file = read_text(*folder_ / "second/tune.toml");
  EXPECT_NE(file.find("targets = [\"*.attn.q\", \"*.mlp.down\", \"*.mlp.gate\", \"*.mlp.up\"]"),
            std::string::npos)
      << file;
}

TEST_F(Tune, ErrorsNameTheOption) {
  expect_error(tune(path("nowhere"), "e", {}), "there is no such model");
  expect_error(tune(path("run"), "e", {"--lora-alpha", "3"}), "--lora-rank");
  expect_error(tune(path("run"), "e", {"--adapter", path("a"), "--lora-rank", "3"}), "--adapter");
  expect_error(program_run({"tune", path("run"), "--out", path("e")}), "--chat");
  expect_error(tune(path("run"), "e", {"--lora-rank", "2", "--set", "optimizer.name=muon"}), "lora.rank");
  EXPECT_EQ(tune(path("run"), "e", {"--lora-rank", "2"}).code, 0);
  expect_error(
      program_run({"estimate", path("e/tune.toml"), "--set", "cluster.file=" + path("cluster.toml")}),
      "estimate is for runs");
}

// A wrong option is an error before a file is kept: the corrected command begins afresh. A folder with a run
// takes no other options, and a folder of something else is left alone.
TEST_F(Tune, AFolderHasOneRequest) {
  expect_error(tune(path("run"), "kept", {"--seq-len", "5000"}), "data.seq_len");
  expect_error(tune(path("run"), "kept", {"--lora-rank", "1", "--lora-targets", "*.zz"}), "lora.targets");
  Ran r = tune(path("run"), "kept", {"--lora-rank", "1", "--set", "optimizer.weight_decay=0.125"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(read_text(*folder_ / "kept/tune.toml").find("weight_decay = 0.125"), std::string::npos);
  EXPECT_EQ(tune(path("run"), "kept", {"--lora-rank", "1", "--set", "optimizer.weight_decay=0.125"}).code, 0);
  expect_error(tune(path("run"), "kept", {"--lora-rank", "2"}), "lora_rank = 1, not 2");
  expect_error(tune(path("none"), "kept", {"--lora-rank", "1"}), "model = ");
  put_file(*folder_ / "talks2.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  expect_error(tune(path("run"), "kept", {"--lora-rank", "1", "--chat", path("talks2.jsonl")}), "chat = ");
  const std::string before = read_text(*folder_ / "run/plan.toml");
  expect_error(tune(path("run"), "run", {}), "which no `trireme tune` has begun");
  EXPECT_EQ(read_text(*folder_ / "run/plan.toml"), before);
  EXPECT_FALSE(fs::exists(*folder_ / "run/tune.toml"));
}

TEST_F(Tune, JsonAloneOnStdout) {
  const Ran r = tune(path("run"), "json", {"--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(json::accept(r.out)) << r.out;
}

TEST_F(Tune, NoTargetInASampleIsAnError) {
  put_file(*folder_ / "long.jsonl",
           "{\"prompt\": \"" + std::string(60, 'a') + "\", \"completion\": \"b\"}\n");
  expect_error(program_run({"tune", path("run"), "--chat", path("long.jsonl"), "--out", path("long"), "--set",
                            "train.threads=1", "--set", "cluster.file=" + path("cluster.toml")}),
               "is a target of the loss");
}

// An export has the template that the run was tuned with, and never replaces the model that the run begins
// with.
TEST_F(Tune, AnExportKeepsTheTemplate) {
  ASSERT_EQ(program_run({"convert", path("run"), "--to", path("hf")}).code, 0);
  put_file(*folder_ / "hf/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  put_file(*folder_ / "own.jinja", "{% for m in messages %}<{{ m.content }}>{% endfor %}");
  ASSERT_EQ(tune(path("hf"), "with_own", {"--chat-template", path("own.jinja")}).code, 0);
  Ran r = program_run({"convert", path("with_own"), "--to", path("hf2")});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(read_text(*folder_ / "hf2/chat_template.jinja"), read_text(*folder_ / "own.jinja"));
  ASSERT_EQ(tune(path("hf"), "with_models", {"--lora-rank", "1"}).code, 0);
  ASSERT_EQ(program_run({"convert", path("with_models"), "--to", path("hf3")}).code, 0);
  EXPECT_EQ(read_text(*folder_ / "hf3/chat_template.jinja"), read_text(*folder_ / "hf/chat_template.jinja"));
  expect_error(program_run({"convert", path("with_models"), "--to", path("hf")}), "is model.from");
}

// A file with model.from alone means that model, whatever the default run folder holds.
TEST_F(Tune, AModelIsNotTheDefaultFoldersRun) {
  TempFolder here;
  ASSERT_EQ(program_run({"convert", path("run"), "--to", path("other")}).code, 0);
  fs::create_directories(here / "runs");
  fs::copy(*folder_ / "run", here / "runs/demo", fs::copy_options::recursive);
  put_file(here / "m.toml", "[model]\nfrom = " + json(path("other")).dump() + "\n");
  const std::string command = "cd " + here.path().string() + " && exec " + program() +
                              " generate m.toml --prompt a --tokens 2 --set data.seq_len=40";
  const Ran r = run({"/bin/sh", "-c", command}, here.path());
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("runs/demo has checkpoints of another run"), std::string::npos) << r.err;
}

// Scores of each evaluation are in metrics.jsonl, of choices and of answers; those of the last are `eval`'s.
TEST_F(Tune, TasksAreScoredWhileItTrains) {
  put_file(*folder_ / "docs.jsonl", "{\"q\": \"ab\", \"o\": [\"x\", \"yz\"], \"k\": 1}\n");
  const std::string head =
      "dataset_path: json\ndataset_kwargs: {data_files: {test: docs.jsonl}}\ntest_split: test\n";
  put_file(*folder_ / "a.yaml", head +
                                    "task: mine\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\n"
                                    "doc_to_target: k\ndoc_to_choice: o\n");
  put_file(*folder_ / "b.yaml",
           head +
               "task: answers\ndoc_to_text: q\ndoc_to_target: q\nmetric_list: [{metric: exact_match}]\n"
               "filter_list: [{name: strict, filter: [{function: regex}]},\n"
               "              {name: none, filter: [{function: take_first}]}]\n"
               "generation_kwargs: {max_gen_toks: 5}\n");
  Ran r = tune(path("run"), "tasks",
               {"--lora-rank", "1", "--hold-out", "0.3", "--set",
                "train.tasks=[\"" + path("a.yaml") + "\", \"" + path("b.yaml") + "\"]", "--set",
                "train.eval_every=1"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const std::string& line : lines_of(read_text(*folder_ / "tasks/metrics.jsonl"))) {
    const json tasks = json::parse(line)["tasks"];
    EXPECT_GE(tasks["mine/acc"].get<double>(), 0) << line;
    EXPECT_TRUE(tasks.contains("mine/acc_norm")) << line;
    EXPECT_EQ(tasks["answers/exact_match"].get<double>(), 0) << line;
    EXPECT_EQ(tasks["answers/exact_match,strict"].get<double>(), 0) << line;
  }
  r = program_run({"report", path("tasks")});
  EXPECT_NE(r.out.find("mine/acc"), std::string::npos) << r.out << r.err;
  put_file(*folder_ / "c.yaml", head +
                                    "doc_to_text: q\ndoc_to_target: q\nmetric_list: [{metric: exact_match}]\n"
                                    "generation_kwargs: {max_gen_toks: 4000}\n");
  expect_error(tune(path("run"), "tasks2", {"--set", "train.tasks=" + path("c.yaml")}), "train.tasks");
  expect_error(tune(path("run"), "tasks2",
                    {"--set", "train.tasks=[\"" + path("a.yaml") + "\", \"" + path("a.yaml") + "\"]"}),
               "task = \"mine\" is also the name in");
}

}  // namespace
}  // namespace trireme::test
