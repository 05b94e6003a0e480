// What is wrong with a request is said in one line (one for each key of a run file), with exit code 2, before
// anything is touched.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <limits>

#include "checkpoint/safetensors.h"
#include "process.h"
#include "source_dir.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

// "{}" in args and parts is the folder of the test: data/, cluster.toml, run.toml (tiny_run) and, for
// hf.toml, a model in hf/.
struct Case {
  std::string name;
  std::vector<std::string> args;
  std::vector<std::string> parts;                   // of standard error
  std::function<void(const fs::path&)> spoil = {};  // done to the folder before
  size_t lines = 1;
};

std::string replaced(std::string s, const std::string& what, const std::string& with) {
  size_t at = s.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? s : s.replace(at, what.size(), with);
}

std::string in_folder(std::string s, const fs::path& folder) {
  for (size_t at; (at = s.find("{}")) != std::string::npos;) s.replace(at, 2, folder.string());
  return s;
}

// A change of the run file.
std::function<void(const fs::path&)> edit(std::string what, std::string with) {
  return
      [=](const fs::path& f) { put_file(f / "run.toml", replaced(read_text(f / "run.toml"), what, with)); };
}
std::function<void(const fs::path&)> cut(std::string name, int64_t bytes) {
  return [=](const fs::path& f) {
    fs::resize_file(f / name, uint64_t(int64_t(fs::file_size(f / name)) + bytes));
  };
}
std::function<void(const fs::path&)> put(std::string name, std::string content) {
  return [=](const fs::path& f) { put_file(f / name, content); };
}
std::function<void(const fs::path&)> hf_edit(std::string name, std::string what, std::string with) {
  return
      [=](const fs::path& f) { put_file(f / "hf" / name, replaced(read_text(f / "hf" / name), what, with)); };
}

// hf/ is the golden llama 3; hf.toml trains on from it.
void add_hf(const fs::path& folder) {
  fs::path golden = source_dir() / "tests/golden/llama3";
  for (const char* name : {"config.json", "model.safetensors"})
    put_file(folder / "hf" / name, read_text(golden / name));
  put_file(folder / "hf.toml",
           in_folder("[model]\nfrom = \"{}/hf\"\n"
                     "[data]\ntrain = \"{}/data/train\"\nvalid = \"{}/data/valid\"\nseq_len = 13\n"
                     "[batch]\nglobal = 4\nmicro = 2\n"
                     "[optimizer]\nwarmup = 1\n"
                     "[train]\nsteps = 2\nthreads = 1\ndir = \"{}/run\"\n"
                     "[cluster]\nfile = \"{}/cluster.toml\"\n",
                     folder));
}

const std::vector<Case> kCases =
    {
        // ---- the command line ----
        {"NoVerb", {}, {"no verb", "trireme demo"}},
        {"UnknownVerb", {"trian", "{}/run.toml"}, {"trian"}},
        {"NoTasks", {"distill", "{}", "--out", "{}/ssd"}, {"distill: --tasks is required"}},
        {"NoRunFile", {"train"}, {"train: RUN is required: run file", "example: trireme train"}},
        {"UnknownOption", {"train", "{}/run.toml", "--fast"}, {"--fast"}},
        {"MisspeltOption",
         {"train", "{}/run.toml", "--stop-afer=3m"},
         {"train:", "did you mean --stop-after?"}},
        {"MisspeltFlag", {"train", "--jsn", "{}/run.toml"}, {"train:", "--jsn, did you mean --json?"}},
        {"OptionBeforeTheVerb", {"--json", "train", "{}/run.toml"}, {"--json comes after the verb"}},
        {"ASettingWithoutItsOption",
         {"train", "{}/run.toml", "--set", "layout.dp=2", "batch.micro=1"},
         {"'batch.micro=1' is one argument too many; a key is overridden by --set batch.micro=1"}},
        {"OneTooMany", {"train", "{}/run.toml", "more"}, {"'more' is one argument too many", "help train"}},
        {"HelpOfNoVerb", {"help", "trian"}, {"trian", "did you mean train?"}},
        {"ANumberBeyondAllNumbers",
         {"train", "{}/run.toml", "--set", "batch.global=99999999999999999999"},
         {"batch.global: \"99999999999999999999\" is out of range"}},
        {"TooFewTimesOfOneStage",
         {"simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2", "--times", "1,2"},
         {"--times: \"1,2\" has 2 times"}},
        {"OptionWithoutItsValue",
         {"convert", "{}/run.toml", "--to"},
         {"convert: --to takes a value: folder"}},
        {"AnOptionGivenTwice",
         {"search", "--model", "llama3-8B", "--seq", "8192", "--seq", "4096"},
         {"search: --seq is given 2 times; expected one value"}},
        {"AKeyOfALayoutGivenTwice",
         {"simulate", "--model", "llama3-8B", "--cluster", "H100", "--layout", "tp=2 tp=4 dp=2"},
         {"--layout: tp is given twice: 2 and 4; expected one value"}},
        {"AFileWithoutAName",
         {"search", "--model", "llama3-8B", "--out", ""},
         {"--out: the name is empty; expected a file"}},
        {"OptionOutOfRange", {"bench", "--threads", "0"}, {"--threads", "0"}},
        {"OptionsThatContradict",
         {"tokenize", "{}/run.toml", "--out", "{}/o", "--tokenizer", "{}/t.json", "--vocab", "300"},
         {"tokenize: --tokenizer excludes --vocab"}},
        {"OptionOfNoNumber", {"generate", "{}/run.toml", "--tokens", "many"}, {"--tokens", "many"}},
        // ---- run files ----
        {"NoSuchRunFile", {"train", "{}/none.toml"}, {"{}/none.toml", "No such file"}},
        {"RunFileIsAFolder", {"plan", "{}/data"}, {"{}/data is a folder; right is a run file"}},
        {"RunFileIsInAFolder", {"train", "{}"}, {"{} is a folder; right is a run file, such as {}/run.toml"}},
        {"RunFileIsAClusters",
         {"plan", "{}/cluster.toml"},
         {"{}/cluster.toml is a cluster file", "right is a run file",
          "[cluster] file = \"{}/cluster.toml\""}},
        {"ClusterFileIsARuns",
         {"plan", "{}/run.toml", "--set", "cluster.file={}/run.toml"},
         {"{}/run.toml is a run file; right is a cluster file"}},
        {"EmptyRunFile",
         {"plan", "{}/empty.toml"},
         {"{}/empty.toml: the file has no keys"},
         put("empty.toml", "# none\n")},
        {"EmptyClusterFile",
         {"estimate", "--model", "llama3-8B", "--cluster", "{}/empty.toml"},
         {"{}/empty.toml: the file has no keys; expected a cluster file"},
         put("empty.toml", "# none\n")},
        {"UnknownModelBeforeWhatIsMissing",
         {"search", "--model", "llama3-70", "--gpus", "8"},
         {"--model: no \"llama3-70\", did you mean llama3-70B?"}},
        {"EmptyPriceFile",
         {"estimate", "--model", "llama3-8B", "--cluster", "H100", "--prices", "{}/empty.toml"},
         {"--prices {}/empty.toml: no [[price]] in it"},
         put("empty.toml", "")},
        {"LayoutOfSearch",
         {"search", "{}/run.toml", "--layout", "tp=8"},
         {"there is no option --layout; a layout's keys are conditions: --require tp=8"}},
        {"LayoutOfSimulate",
         {"simulate", "--model", "llama3-8B", "--cluster", "H100", "--layout", "tp=3 global=8"},
         {"--layout: layout.tp: 3 does not divide model.heads = 32"}},
        {"ExpertsOfADenseModel",
         {"estimate", "--model", "llama3-8B", "--ep", "8"},
         {"--ep = 8: llama3-8B has no experts; leave it out"}},
        {"MoreExpertsPerTokenThanExperts",
         {"estimate", "--model", "mixtral-8x7B", "--top-k", "99"},
         {"--top-k = 99: Mixtral-8x7B has 8 experts; expected 1 to 8"}},
        {"ExpertRanksThatDoNotDivideAStage",
         {"estimate", "--model", "mixtral-8x7B", "--gpus", "24", "--tp", "4", "--pp", "2", "--ep", "8"},
         {"--ep = 8: must divide the 12 ranks of a stage"}},
        {"ChunksWithoutAPipeline",
         {"estimate", "--model", "llama3-8B", "--chunks", "4"},
         {"--chunks = 4: ", "--pp 2"}},
        {"ParametersOfANamedModel",
         {"estimate", "--model", "llama3-8B", "--parameters", "9e9"},
         {"--parameters: the model's shape says it already"}},
        {"ArchitectureOfANamedModel",
         {"search", "--model", "llama3-8B", "--arch", "gpt2", "--cluster", "H100", "--gpus", "8", "--seq",
          "4096", "--global-batch", "64"},
         {"--arch: --model llama3-8B has its own; give one of the two"}},
        {"NoToml", {"train", "{}/run.toml"}, {"{}/run.toml:"}, edit("[batch]", "[batch")},
        {"UnknownKey",
         {"train", "{}/run.toml"},
         {"{}/run.toml:", "optimizer.warmpu", "did you mean optimizer.warmup?"},
         edit("warmup =", "warmpu =")},
        {"UnknownKeyOfSet",
         {"plan", "{}/run.toml", "--set", "train.stepz=3"},
         {"--set", "train.stepz", "did you mean train.steps?"}},
        {"SetOfNothing", {"plan", "{}/run.toml", "--set", "train.steps"}, {"train.steps", "="}},
        {"WrongType",
         {"train", "{}/run.toml"},
         {"{}/run.toml:", "train.steps", "\"many\""},
         edit("steps = 10", "steps = \"many\"")},
        {"OutOfRange", {"train", "{}/run.toml", "--set", "data.seq_len=0"}, {"data.seq_len", "0"}},
        {"Contradiction",
         {"train", "{}/run.toml", "--set", "model.kv_heads=2"},
         {"model.kv_heads", "2 does not divide heads = 3"}},
        {"MemoryOfOtherMachines",
         {"train", "{}/run.toml", "--set", "model.layers=30", "--set", "model.hidden=49152", "--set",
          "model.heads=384", "--set", "model.kv_heads=384", "--set", "model.head_dim=128", "--set",
          "model.ffn=196608"},
         {"this machine has ", "each of the 1 ranks", "cluster.toml, describes other machines",
          "trireme plan"},
         [](const fs::path& f) {
           put_file(f / "cluster.toml", replaced(read_text(f / "cluster.toml"), "memory_bytes = 17179869184",
                                                 "memory_bytes = 1000000000000000"));
         }},
        {"UnevenBatch",
         {"train", "{}/run.toml", "--set", "batch.micro=4"},
         {"batch.", "6 is not a multiple"}},
        {"AllAtOnce",
         {"train", "{}/run.toml", "--set", "model.kv_heads=2"},
         {"optimizer.warmpu", "did you mean optimizer.warmup?", "train.steps", "optimizer.schedule",
          "did you mean \"cosine\"", "model.kv_heads"},
         [](const fs::path& f) {
           edit("warmup =", "warmpu =")(f);
           edit("steps = 10", "steps = -1")(f);
           edit("\"cosine\"", "\"cosin\"")(f);
         },
         4},
        {"NotInThisVersion",
         {"train", "{}/run.toml", "--set", "layout.ep=1", "--set", "train.comm=nccl", "--set",
          "precision.compute=fp8"},
         {"train.comm", "precision.compute", "not supported by this version"},
         {},
         2},
        {"TraceOfNoSteps",
         {"train", "{}/run.toml", "--trace-steps", "5-3"},
         {"train.trace_steps", "give \"3-5\""}},
        {"RoutingOfNoSteps",
         {"train", "{}/run.toml", "--set", "train.record_routing=5-3"},
         {"train.record_routing", "give \"3-5\""}},
        {"RoutingWithoutRouters",
         {"train", "{}/run.toml", "--set", "train.record_routing=1"},
         {"train.record_routing", "model.experts"}},
        {"RoutingThatIsNotThere", {"plan", "{}/run.toml", "--routing", "{}/none.jsonl"}, {"{}/none.jsonl"}},
        {"TraceBeyondTheRun",
         {"train", "{}/run.toml", "--trace-steps", "11-12"},
         {"train.trace_steps", "train.steps = 10"}},
        {"ParametersWithAUnit",
         {"estimate", "--parameters", "1.5B"},
         {"--parameters", "1.5B", "1.5B is written 1.5e9"}},
        {"NoSuchClusterFile",
         {"plan", "{}/run.toml", "--set", "cluster.file={}/none.toml"},
         {"cluster.file: cannot open {}/none.toml"}},
        {"NoSuchClusterOption",
         {"estimate", "--model", "llama3-8B", "--cluster", "{}/none.toml"},
         {"--cluster: cannot open {}/none.toml"}},
        {"LineEndInAPath", {"plan", "{}/a\nb.toml"}, {"cannot open {}/a\\nb.toml"}},
        {"LineEndInAListOfProblems",
         {"plan", "{}/a\nb.toml"},
         {"{}/a\\nb.toml:1: modle", "{}/a\\nb.toml:2: dada"},
         put("a\nb.toml", "modle = 1\ndada = 2\n"),
         2},
        {"DoesNotFit",
         {"train", "{}/run.toml"},
         {"this run needs", "on rank 0", "has 4096 bytes (4.10 kB)", "none of", "single changes"},
         [](const fs::path& f) {
           std::string s = read_text(f / "cluster.toml");
           put_file(f / "cluster.toml", replaced(s, "17179869184", "4096"));
         }},
        {"RopeOfLearnedPositions",
         {"plan", "{}/run.toml", "--set", "model.positions=learned", "--set", "model.rope_theta=5e5"},
         {"model.rope_theta", "no effect on learned positions"}},
        // ---- shards ----
        {"NoSuchShard",
         {"train", "{}/run.toml", "--set", "data.train={}/data/none"},
         {"{}/data/none", "trireme tokenize"}},
        {"IdOutsideTheVocabulary",
         {"train", "{}/run.toml", "--set", "model.vocab=50"},
         {"{}/data/train.bin", "outside the vocabulary of 50", "model.vocab"}},
        {"IdOutsideInValid",
         {"train", "{}/run.toml"},
         {"{}/data/valid.bin", "differs from the content that tokenize recorded"},
         [](const fs::path& f) {
           std::string s = read_text(f / "data/valid.bin");
           s[20] = 61, s[21] = 0;
           put_file(f / "data/valid.bin", s);
         }},
        {"CutIndex", {"train", "{}/run.toml"}, {"{}/data/train.idx", "bytes"}, cut("data/train.idx", -5)},
        {"CutShard", {"train", "{}/run.toml"}, {"{}/data/train.idx", ".bin"}, cut("data/train.bin", -2)},
        {"NoIndex",
         {"train", "{}/run.toml"},
         {"{}/data/train.idx", "not a Megatron index"},
         put("data/train.idx", "")},
        {"ShardWithoutIndex",
         {"train", "{}/run.toml"},
         {"{}/data/train.idx is missing"},
         [](const fs::path& f) { fs::remove(f / "data/train.idx"); }},
        {"SampleLongerThanTheShard",
         {"train", "{}/run.toml", "--set", "data.seq_len=5000", "--set", "model.max_positions=5000"},
         {"{}/data/train.bin", "data.seq_len = 5000 needs 5001"}},
        {"SampleLongerThanValid",
         {"train", "{}/run.toml", "--set", "data.seq_len=250", "--set", "model.max_positions=250"},
         {"{}/data/valid.bin", "data.seq_len = 250 needs 251"}},
        {"SampleLongerThanTheContext",
         {"train", "{}/run.toml", "--set", "data.seq_len=14"},
         {"data.seq_len", "model.max_positions = 13"}},
        // ---- folders ----
        {"RunFolderIsAFile", {"train", "{}/run.toml"}, {"{}/run"}, put("run", "mine")},
        {"ItsParentIsAFile",
         {"train", "{}/run.toml", "--set", "train.dir={}/cluster.toml/run"},
         {"{}/cluster.toml/run"}},
        {"RunFolderCannotBe",
         {"train", "{}/run.toml", "--set", "train.dir=/proc/trireme/run"},
         {"/proc/trireme/run"}},
        {"CheckpointsIsAFile",
         {"train", "{}/run.toml"},
         {"{}/run/checkpoints"},
         put("run/checkpoints", "mine")},
        {"PromptsOfNoFile",
         {"generate", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--prompts", "{}/none"},
         {"{}/none", "No such file"},
         byte_tokenizer_file},
        {"PromptsOfBlanks",
         {"generate", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--prompts", "{}/p.txt"},
         {"{}/p.txt", "no prompt"},
         [](const fs::path& f) { byte_tokenizer_file(f), put_file(f / "p.txt", "\n \n"); }},
        {"PromptsOfOtherKeys",
         {"generate", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--prompts", "{}/p.jsonl"},
         {"{}/p.jsonl, line 2", "\"prompt\""},
         [](const fs::path& f) {
           byte_tokenizer_file(f), put_file(f / "p.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"a\"}\n");
         }},
        {"PromptAndPrompts",
         {"generate", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--prompts", "{}/p.txt", "--prompt", "a"},
         {"--prompt", "excludes"}},
        {"EmptyStop",
         {"generate", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--prompt", "a", "--stop", ""},
         {"stop string is empty"},
         byte_tokenizer_file},
        {"ContextBeyondTheModel",
         {"generate", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--prompt", "a", "--context", "99999"},
         {"--context 99999", "positions"},
         byte_tokenizer_file},
        {"QuestionsOfNoChoices",
         {"eval", "{}/run.toml", "--set", "model.vocab=300", "--set", "data.tokenizer={}/tokenizer.json",
          "--tasks", "{}/q.jsonl"},
         {"{}/q.jsonl, line 1", "choices"},
         [](const fs::path& f) {
           byte_tokenizer_file(f), put_file(f / "q.jsonl", "{\"prompt\": \"a\", \"choices\": []}");
         }},
        {"OutWithoutTasks", {"eval", "{}/run.toml", "--out", "{}/o.jsonl"}, {"--out", "--tasks"}},
        {"NothingToEvaluate", {"eval", "{}/run.toml"}, {"{}/run", "no complete checkpoint", "train first"}},
        {"NothingToEvaluateOn", {"eval", "{}/hf.toml", "--data", "{}/none"}, {"{}/none"}, add_hf},
        {"NoTokenizer", {"generate", "{}/run.toml"}, {"data.tokenizer", "{}/run"}},
        {"DamagedTokenizer",
         {"generate", "{}/run.toml"},
         {"{}/run/tokenizer.json"},
         put("run/tokenizer.json", "{\"model\": 3}")},
        {"ExportOverOtherFiles",
         {"convert", "{}/hf.toml", "--to", "{}/data"},
         {"{}/data", "train.bin"},
         add_hf},
        {"NothingToInspect", {"inspect", "{}/none"}, {"{}/none"}},
        {"DemoOfNoText",
         {"demo", "--text", "{}/none", "--dir", "{}/demo"},
         {"{}/none", "not a folder of texts"}},
        {"DemoOfEmptyFolder",
         {"demo", "--text", "{}/texts", "--dir", "{}/demo"},
         {"{}/texts", "no text file"},
         [](const fs::path& f) { make_folders(f / "texts"); }},
        {"NoFolderOfText", {"tokenize", "{}/none", "--out", "{}/out"}, {"{}/none"}},
        {"NoRowCanBeScored",
         {"score", "{}/rows.json"},
         {"{}/rows.json", "none of 1 rows", "r1", "nothing was measured"},
         put("rows.json", "[{\"id\": \"r1\", \"kind\": \"analytic\"}]")},
        {"NoRowsToScore",
         {"score", "{}/rows.json", "--json"},
         {"{}/rows.json", "no rows"},
         put("rows.json", "[]")},
        {"NoTextUnderTheKey",
         {"tokenize", "{}/t.jsonl", "--out", "{}/out"},
         {"{}/t.jsonl, line 2", "no key \"text\""},
         put("t.jsonl", "{\"text\": \"a b\"}\n{\"body\": \"c\"}\n"),
         2},  // after how much there is to read
        {"EmptyText", {"tokenize", "{}/t.txt", "--out", "{}/out"}, {"{}/t.txt", "no text"}, put("t.txt", "")},
        {"TextTooShortToHoldOut",
         {"tokenize", "{}/t.txt", "--out", "{}/out"},
         {"{}/t.txt", "--hold-out 0"},
         put("t.txt", "a")},
        {"NoSuchEndOfText",
         {"tokenize", "{}/t.txt", "--hold-out", "0", "--tokenizer", "{}/t.json", "--end-of-text", "<end>",
          "--out", "{}/out"},
         {"--end-of-text", "<end>"},
         [](const fs::path& f) {
           put("t.txt", "some text\n")(f);
           fs::copy_file(source_dir() / "tests/unit/text/golden/tokenizer.json", f / "t.json");
         }},
        // ---- Hugging Face folders ----
        {"NoSuchModel",
         {"train", "{}/hf.toml"},
         {"{}/hf.toml:", "model.from", "{}/hf/config.json"},
         [](const fs::path& f) {
           add_hf(f);
           fs::remove_all(f / "hf");
         }},
        {"UnsupportedKeyOfConfig",
         {"train", "{}/hf.toml"},
         {"{}/hf/config.json", "hidden_act", "relu"},
         [](const fs::path& f) {
           add_hf(f);
           hf_edit("config.json", "\"silu\"", "\"relu\"")(f);
         }},
        {"UnknownKeyOfConfig",
         {"train", "{}/hf.toml"},
         {"{}/hf/config.json", "sliding_window"},
         [](const fs::path& f) {
           add_hf(f);
           hf_edit("config.json", "\"mlp_bias\": false", "\"mlp_bias\": false, \"sliding_window\": 64")(f);
         }},
        {"KeyThatContradictsConfig",
         {"plan", "{}/hf.toml", "--set", "model.layers=3"},
         {"model.layers", "contradicts 2"},
         add_hf},
        {"CutWeights",
         {"train", "{}/hf.toml"},
         {"{}/hf/model.safetensors"},
         [](const fs::path& f) {
           add_hf(f);
           cut("hf/model.safetensors", -1000)(f);
         }},
        {"HeaderLongerThanTheFile",
         {"train", "{}/hf.toml"},
         {"{}/hf/model.safetensors", "header"},
         [](const fs::path& f) {
           add_hf(f);
           std::string s = read_text(f / "hf/model.safetensors");
           s[4] = 1;  // 2^32 more
           put_file(f / "hf/model.safetensors", s);
         }},
        {"AutoLayoutOverMpi",
         {"train", "{}/run.toml", "--set", "layout=auto", "--set", "train.comm=mpi"},
         {"layout = \"auto\" chooses for rank threads", "give the layout"}},
        {"AutoMicroOverMpi",
         {"train", "{}/run.toml", "--set", "batch.micro=auto", "--set", "train.comm=mpi"},
         {"batch.micro = \"auto\" chooses for rank threads", "give the layout"}},
        {"AutoLayoutOfTooManyRanks",
         {"train", "{}/run.toml", "--set", "layout=auto", "--set", "layout.dp=100", "--set", "layout.tp=100"},
         {"layout = \"auto\"", "1 to 4096"}},
        {"AutoLayoutOfNoRanks",
         {"train", "{}/run.toml", "--set", "layout=auto", "--set", "layout.dp=0"},
         {"layout = \"auto\"", "1 to 4096"}},
        {"HeaderThatLies",
         {"eval", "{}/hf.toml"},
         {"{}/hf/model.safetensors", "model.norm.weight"},
         [](const fs::path& f) {
           add_hf(f);
           std::string s = read_text(f / "hf/model.safetensors");
           size_t at = s.find("[48]", s.find("\"model.norm.weight\""));
           put_file(f / "hf/model.safetensors", s.replace(at, 4, "[84]"));
         }},
        {"TensorOfAnotherName",
         {"train", "{}/hf.toml"},
         {"{}/hf", "model.norm.weight"},
         [](const fs::path& f) {
           add_hf(f);
           hf_edit("model.safetensors", "\"model.norm.weight\"", "\"model.nrom.weight\"")(f);
         }},
};

class BadInput : public ::testing::TestWithParam<Case> {};

TEST_P(BadInput, IsOneClearLineAndExitCodeTwo) {
  const Case& c = GetParam();
  TempFolder tmp;
  tiny_run_file(tmp.path(), 10);
  if (c.spoil) c.spoil(tmp.path());
  Files before = files_in(tmp.path());
  std::vector<std::string> args;
  for (const std::string& a : c.args) args.push_back(in_folder(a, tmp.path()));
  Ran r = trireme(tmp.path(), args);
  EXPECT_EQ(r.code, 2) << r.signal << " " << r.err;
  EXPECT_EQ(lines_of(r.err).size(), c.lines) << r.err;
  EXPECT_EQ(r.out, "");
  for (const std::string& p : c.parts)
    EXPECT_NE(r.err.find(in_folder(p, tmp.path())), std::string::npos) << p << "\nnot in: " << r.err;
  for (const std::string& line : lines_of(r.err)) EXPECT_LT(line.size(), 600u) << line;
  EXPECT_EQ(damage(before, files_in(tmp.path())), "");
}

INSTANTIATE_TEST_SUITE_P(Cli, BadInput, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// A folder that may not be written to, where permissions hold for this user.
TEST(BadInputOnce, AFolderWithoutPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  TempFolder tmp;
  tiny_run_file(tmp.path(), 10);
  make_folders(tmp / "run");
  fs::permissions(tmp / "run", fs::perms::owner_read | fs::perms::owner_exec);
  Ran r = trireme(tmp.path(), {"train", (tmp / "run.toml").string()});
  fs::permissions(tmp / "run", fs::perms::owner_all);
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  EXPECT_NE(r.err.find((tmp / "run").string()), std::string::npos) << r.err;
}

// Not a bad request but a run that fails: exit code 1, with the step, the layer and the op.
// Not planned as if this processor were what the run asks for.
TEST(BadInputOnce, GpusThatAreNotHereWithoutTheirFile) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "they are here";
  TempFolder tmp;
  tiny_run_file(tmp.path(), 10);
  for (const char* verb : {"plan", "simulate"}) {
    const Ran r = trireme(tmp.path(), {verb, (tmp.path() / "run.toml").string(), "--set", "train.device=cuda",
                                       "--set", "cluster.file=\"\""});
    EXPECT_EQ(r.code, 2) << verb;
    EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
    for (const char* part : {"cluster.file is not given", "train.device", "h100-sxm-8.toml"})
      EXPECT_NE(r.err.find(part), std::string::npos) << verb << ": " << r.err;
    EXPECT_EQ(r.out, "");
  }
}

TEST(BadInputOnce, ANonFiniteWeightEndsTheRunWithOne) {
  TempFolder tmp;
  tiny_run_file(tmp.path(), 10);
  add_hf(tmp.path());
  fs::path file = tmp / "hf" / "model.safetensors";
  std::string s = read_text(file);
  {
    SafetensorsFile f(file);
    const SafetensorsEntry* e = f.find("model.layers.1.mlp.up_proj.weight");
    ASSERT_TRUE(e && e->dtype == DType::f32);
    float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(s.data() + f.header().data_begin + e->begin + 40, &nan, sizeof nan);
  }
  put_file(file, s);
  Ran r = trireme(tmp.path(), {"train", (tmp / "hf.toml").string(), "--json"});
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  for (const char* part : {"step 1", "not finite", "matmul", "layer blocks.1.mlp"})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << " not in: " << r.err;
}

// What this version has not is refused by train and plan before anything starts, with a layout that it has.
TEST(BadInput, ALayoutThatIsNotSupportedComesWithTheNearestThatIs) {
  TempFolder tmp;
  const std::string run = tiny_run_file(tmp.path(), 2).string();
  for (const char* verb : {"train", "plan"}) {
    const Ran r = trireme(
        tmp.path(), {verb, run, "--set", "layout.dp=2", "--set", "layout.ep=2", "--set", "batch.global=8"});
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find("layout.ep: 2 divides experts, and the model has none; give 1"), r.err.npos)
        << r.err;
    EXPECT_NE(r.err.find("; the nearest layout of 2 ranks that works: layout.ep = 1"), r.err.npos) << r.err;
    EXPECT_FALSE(fs::exists(tmp / "run"));
  }
}

}  // namespace
}  // namespace trireme::test
