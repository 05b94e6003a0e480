// Verbs that speak of the same thing say the same: plan and train, train and eval, a folder in and the folder
// out.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/json.h"
#include "base/rng.h"
#include "checkpoint/convert.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "data/token_shard.h"
#include "process.h"
#include "sanitized.h"
#include "source_dir.h"
#include "spec/hf_config.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

using nlohmann::json;

// One of each architecture, tied and not.
constexpr const char* kGoldens[] = {"gpt2",         "gpt2_untied", "llama2",     "llama3",
                                    "llama_linear", "llama_bias",  "qwen2",      "qwen2_tied",
                                    "qwen3",        "qwen3_tied",  "mixtral",    "qwen2_moe",
                                    "deepseek_v2",  "deepseek_v3", "llama_yarn", "deepseek_yarn"};

fs::path golden(const std::string& name) {
  return source_dir() / "tests/golden" / name;
}

json json_of(const Ran& r) {
  EXPECT_EQ(r.code, 0) << r.err;
  json j = json::parse(r.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << r.out;
  return j;
}

std::vector<json> metrics_of(const fs::path& run_dir) {
  std::vector<json> lines;
  for (const std::string& line : lines_of(read_text(run_dir / "metrics.jsonl")))
    lines.push_back(json::parse(line));
  return lines;
}

// A run file for a model of tests/golden; f32, data in order.
fs::path golden_run(const fs::path& folder, const std::string& name, const std::string& more = "") {
  tiny_run(folder, 1);
  put_file(folder / "golden.toml",
           fmt::format("[model]\nfrom = \"{0}\"\n"
                       "[data]\ntrain = \"{1}/data/train\"\nvalid = \"{1}/data/train\"\nseq_len = 13\n"
                       "order = \"sequential\"\n"
                       "[precision]\ncompute = \"f32\"\n"
                       "[cluster]\nfile = \"{1}/cluster.toml\"\n"
                       "[train]\nthreads = 1\nsteps = 1\ndir = \"{1}/run\"\n{2}",
                       golden(name).string(), folder.string(), more));
  return folder / "golden.toml";
}

std::map<std::string, std::pair<std::string, std::string>> tensors_of(const fs::path& folder) {
  std::map<std::string, std::pair<std::string, std::string>> all;  // name -> type and shape, bytes
  for (const auto& e : fs::directory_iterator(folder)) {
    if (e.path().extension() != ".safetensors" || !e.path().stem().string().starts_with("model")) continue;
    SafetensorsFile f(e.path());
    for (const SafetensorsEntry& t : f.header().entries) {
      auto bytes = f.bytes(t);
      all[t.name] = {t.stored_type + to_string(t.shape),
                     std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
    }
  }
  return all;
}

// The tensors of a golden in one file, in a low type but for the norms.
void write_low(const fs::path& golden, const fs::path& folder, DType low) {
  std::vector<SafetensorsItem> items;
  std::map<std::string, std::string> bytes;
  for (const auto& e : fs::directory_iterator(golden)) {
    if (e.path().extension() != ".safetensors" || !e.path().stem().string().starts_with("model")) continue;
    SafetensorsFile f(e.path());
    for (const SafetensorsEntry& t : f.header().entries) {
      bool norm = t.name.find("norm") != std::string::npos || t.name.find("ln_") != std::string::npos;
      DType type = norm ? DType::f32 : low;
      std::string out(size_t(t.shape.numel() * size_of(type)), '\0');
      convert_elements(t.name, type, out.data(), *t.dtype, f.bytes(t).data(), t.shape.numel());
      items.push_back({t.name, type, t.shape});
      bytes[t.name] = out;
    }
  }
  SafetensorsWriter w(folder / "model.safetensors", items, {{"format", "pt"}});
  for (const SafetensorsItem& i : w.items()) w.write(bytes.at(i.name).data(), bytes.at(i.name).size());
  w.commit();
}

TEST(Agree, PlanAndTrainOnEveryByteAndEveryFlop) {
  for (const char* batch : {"batch.global=6", "batch.global=2"})  // with bf16: f32 gradients, bf16 gradients
    for (const char* compute : {"auto", "f32", "f16"}) {
      TempFolder tmp;
      fs::path file = tiny_run_file(tmp.path(), 2);
      std::vector<std::string> sets = {"--set", batch, "--set", fmt::format("precision.compute={}", compute)};
      auto with_sets = [&](std::vector<std::string> args) {
        args.insert(args.end(), sets.begin(), sets.end());
        return args;
      };
      json plan = json_of(trireme(tmp.path(), with_sets({"plan", file.string(), "--json"})))["best"];
      json end = json_of(trireme(tmp.path(), with_sets({"train", file.string(), "--json"})));
      std::vector<json> lines = metrics_of(tmp / "run");
      ASSERT_EQ(lines.size(), 2u);
      for (json& line : lines) {
        for (const char* bucket : {"weights", "grads", "optimizer", "activations", "scratch", "total"})
          EXPECT_EQ(line["peak_bytes"].at(bucket), plan["memory"].at(bucket)) << bucket;
        EXPECT_EQ(line["at_peak_bytes"], plan["at_peak"]);
        EXPECT_EQ(line["tokens"], plan["tokens"]);
        // mfu = model FLOPs / (seconds * peak); the peaks are cluster.toml's.
        // A CPU computes f16 in f32.
        bool f32 = std::string(compute) != "auto" || !make_device("cpu")->native(DType::bf16);
        double flops = line["mfu"].get<double>() * line["step_s"].get<double>() * (f32 ? 1e9 : 2e9);
        EXPECT_NEAR(flops / plan["model_flops"].get<double>(), 1, 1e-9);
      }
      EXPECT_EQ(end["peak_bytes"], plan["memory"]["total"]);
      EXPECT_EQ(end["steps"], 2);
      json forecast = json::parse(read_text(tmp / "run" / "forecast.json"));
      json best = plan;
      best.erase("alternatives");  // the plan has them alone
      EXPECT_EQ(forecast["best"], best);
    }
}

// A drawn run of GPUs and one key of it.
class DrawnKey {
 public:
  explicit DrawnKey(uint64_t draw) : key_(rng_key(43, draw, "keys")) {
    const std::string arch = one_of({"llama", "gpt2", "mixtral"});
    const int64_t pp = one_of_numbers({1, 1, 2, 4}), tp = one_of_numbers({1, 2}),
                  cp = one_of_numbers({1, 1, 2});
    const int64_t dp = one_of_numbers({2, 4}), micro = one_of_numbers({1, 2});
    const int64_t ep = arch == "mixtral" ? one_of_numbers({1, 2}) : 1;
    text_ = fmt::format(
        "[model]\narch = \"{}\"\nlayers = 8\nhidden = 512\nheads = 8\nkv_heads = {}\nffn = 1536\nvocab = "
        "4096\n{}"
        "[data]\nseq_len = 512\n[precision]\ncompute = \"bf16\"\n"
        "[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\"\ndir = \"x\"\n"
        "[cluster]\nfile = \"{}\"\n[batch]\nglobal = {}\nmicro = {}\n"
        "[layout]\ntp = {}\npp = {}\ncp = {}\ndp = {}\nep = {}\nsequence = {}\nzero = {}\nrecompute = "
        "\"{}\"\n",
        arch, arch == "gpt2" ? 8 : 4,
        arch == "mixtral" ? "experts = 4\nexperts_per_token = 2\nmoe_ffn = 512\n" : "",
        one_of({"h100-p5", "h100-sxm-8", "gb200-nvl72", "mi300x-8"}), dp * micro * pp * 2, micro, tp, pp, cp,
        dp, ep, tp > 1, one_of_numbers({0, 1, 2, 3}), one_of({"none", "selective", "full"}));
    text_ +=
        fmt::format("schedule = \"{}\"\n", pp == 1 ? "1f1b" : one_of({"1f1b", "gpipe", "zb-h1", "zb-h2"}));
    change_ = one_of({"layout.zero=2",
                      "layout.zero=3",
                      "layout.prefetch=3",
                      "layout.reshard_after_forward=false",
                      "layout.reshard_last=false",
                      "layout.bucket_mb=1",
                      "layout.recompute=full",
                      "layout.recompute=selective",
                      "layout.offload=state",
                      "layout.cut=even",
                      "precision.reduce=f32",
                      "precision.grads=f32",
                      "precision.moments=bf16",
                      "batch.micro=1",
                      "layout.order=pp tp cp dp",
                      "layout.cp_overlap=false",
                      "layout.ep_buffer=4",
                      "layout.ep_load=2",
                      "optimizer.name=muon",
                      "layout.schedule=zb-h1"});
  }
  const std::string& text() const { return text_; }
  const std::string& change() const { return change_; }

 private:
  std::string one_of(std::vector<std::string> all) { return all[below(key_, at_++, all.size())]; }
  int64_t one_of_numbers(std::vector<int64_t> all) { return all[below(key_, at_++, all.size())]; }
  uint64_t key_, at_ = 0;
  std::string text_, change_;
};

struct Said {
  double step_s = 0;
  int64_t bytes = 0;  // the arena's
};
void expect_alike(const Said& a, const Said& b) {
  EXPECT_NEAR(a.step_s / b.step_s, 1, 0.01);
  EXPECT_EQ(a.bytes, b.bytes);
}
std::vector<std::string> with(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}
// Nothing: the run is refused.
std::optional<Said> planned_and_simulated(const fs::path& home, const fs::path& file,
                                          const std::vector<std::string>& sets) {
  const Ran planned = trireme(home, with({"plan", file.string(), "--json"}, sets));
  if (planned.code == 2) return std::nullopt;
  const json plan = json_of(planned)["best"];
  const json simulated = json_of(trireme(home, with({"simulate", file.string(), "--json"}, sets)));
  int64_t most = 0;
  for (const json& g : simulated["groups"]) most = std::max(most, g["peak_bytes"].get<int64_t>());
  const Said s{plan["step_s"].get<double>(), plan["memory"]["arena"].get<int64_t>()};
  EXPECT_TRUE(plan["expected"].get<bool>()) << plan;
  expect_alike({simulated["step_s"].get<double>(), most - plan["beside_bytes"].get<int64_t>()}, s);
  EXPECT_NEAR(simulated["mfu"].get<double>() / plan["mfu"].get<double>(), 1, 0.01);
  return s;
}
// Searches the layouts of this division, schedule and recomputation, and writes the best one's run file.
// Nothing: there are none.
std::optional<Said> searched(const fs::path& home, const fs::path& file, const std::vector<std::string>& sets,
                             const fs::path& out) {
  RunSpec run = load_run(file.string(), {});
  std::vector<std::string> args = {
      "search", file.string(), "--json", "--out", out.string(), "--gpus", std::to_string(run.world())};
  for (const std::string& set : sets)
    if (set != "--set") run = parse_run(save_run(run), "test", std::vector<std::string>{set});
  const LayoutSpec& l = run.layout;
  for (const std::string& key :
       {fmt::format("tp={}", l.tp), fmt::format("pp={}", l.pp), fmt::format("cp={}", l.cp),
        fmt::format("ep={}", l.ep), fmt::format("zero={}", l.zero), fmt::format("micro={}", run.batch.micro),
        fmt::format("schedule={}", l.pp > 1 ? l.schedule : "1f1b"), fmt::format("recompute={}", l.recompute)})
    args = with(args, {"--require", key});
  const Ran ran = trireme(home, with(args, sets));
  if (ran.code == 2) return std::nullopt;
  const json found = json_of(ran);
  EXPECT_TRUE(found["best"]["replayed"].get<bool>()) << ran.out;
  Said s{found["best"]["step_s"].get<double>(), 0};
  for (const json& c : found["confirmed"]["layouts"])
    if (c["layout"] == found["best"]["layout"]) s.bytes = c["booked_bytes"].get<int64_t>();
  return s;
}

// One layout has one step time and one size, whatever key is changed: in plan and simulate, and in the search
// and its run file. The search keeps the keys that it does not vary.
TEST(Agree, ADrawnKeyMovesSearchPlanAndSimulateAlike) {
  int compared = 0;
  const int draws = 16 / test::one_of(1, 16);
  for (int i = 0; i < draws; i++) {
    TempFolder tmp;
    const DrawnKey drawn{uint64_t(i)};
    put_file(tmp / "run.toml", drawn.text());
    for (const std::vector<std::string>& sets :
         {std::vector<std::string>{}, std::vector<std::string>{"--set", drawn.change()}}) {
      SCOPED_TRACE(drawn.text() + (sets.empty() ? "" : drawn.change()));
      if (!planned_and_simulated(tmp.path(), tmp / "run.toml", sets)) continue;
      compared++;
      if (!sets.empty() && drawn.change() == "optimizer.name=muon") continue;  // the search prices AdamW's
      const fs::path file = tmp / "found.toml";
      const std::optional<Said> found = searched(tmp.path(), tmp / "run.toml", sets, file);
      if (!found) continue;
      const std::optional<Said> again = planned_and_simulated(tmp.path(), file, {});
      ASSERT_TRUE(again);
      expect_alike(*again, *found);
      const LayoutSpec kept = load_run(file.string(), {}).layout;
      RunSpec run = load_run((tmp / "run.toml").string(), {});
      if (!sets.empty()) run = parse_run(save_run(run), "test", std::vector<std::string>{drawn.change()});
      EXPECT_EQ(kept.prefetch, run.layout.prefetch);
      EXPECT_EQ(kept.bucket_mb, run.layout.bucket_mb);
      EXPECT_EQ(kept.cut, run.layout.cut);
      EXPECT_EQ(kept.cp_overlap, run.layout.cp_overlap);
      EXPECT_EQ(kept.reshard_last, run.layout.reshard_last);
      EXPECT_EQ(kept.reshard_after_forward, run.layout.reshard_after_forward);
    }
  }
  EXPECT_GE(compared, draws);
}

// A setting that the search lacks moves the step as much as it moves the bound that is priced op by op. So
// partial recompute is between none and full, and another optimizer or exchange changes little.
TEST(Agree, AKeyThatTheSearchLacksMovesTheStepByItsOperations) {
  TempFolder tmp;
  put_file(tmp / "run.toml",
           "[model]\narch = \"llama\"\nlayers = 8\nhidden = 2048\nheads = 16\nvocab = 32000\n"
           "[data]\nseq_len = 16384\n[batch]\nglobal = 16\nmicro = 1\n[layout]\ndp = 4\ncp = 2\nzero = 2\n"
           "[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\"\n"
           "[cluster]\nfile = \"h100-sxm-8\"\n");
  const auto step = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> args;
    for (const std::string& set : sets) args = with(args, {"--set", set});
    const std::optional<Said> s = planned_and_simulated(tmp.path(), tmp / "run.toml", args);
    EXPECT_TRUE(s);
    return s ? s->step_s : NAN;
  };
  const double none = step({}), full = step({"layout.recompute=full"});
  EXPECT_GT(full, 1.1 * none);
  const double some = step({"layout.recompute=full", "layout.recompute_blocks=4"});
  EXPECT_GT(some, 1.03 * none);
  EXPECT_LT(some, 0.97 * full);
  const double products = step({"layout.recompute=selective", "layout.recompute_tensors=[\"u\", \"a\"]"});
  EXPECT_GT(products, step({"layout.recompute=selective"}));
  EXPECT_LT(products, full);
  EXPECT_NEAR(step({"optimizer.name=muon"}) / none, 1, 0.15);
  EXPECT_NEAR(step({"lora.rank=8"}) / none, 1, 0.15);  // fewer products, more small ones
  EXPECT_NEAR(step({"layout.cp_method=ulysses"}) / none, 1, 0.15);
}

// On up to 8 thread ranks, the bytes that `plan` prints are those of the real run's ledger, before and after
// a key is changed.
TEST(Agree, ADrawnKeyMovesPlanAndTheLedgerAlike) {
  const int draws = 12 / test::one_of(1, 6);
  int compared = 0;
  for (int i = 0; i < draws; i++) {
    TempFolder tmp;
    const fs::path file = tiny_run_file(tmp.path(), 1);
    uint64_t at = 0;
    const auto one_of = [&](const std::vector<std::string>& all) {
      return all[below(rng_key(44, uint64_t(i), "ledger"), at++, all.size())];
    };
    std::vector<std::string> sets = {"--set", "model.hidden=32",  "--set", "model.heads=4",
                                     "--set", "model.kv_heads=2", "--set", "model.layers=4",
                                     "--set", "data.seq_len=12",  "--set", "batch.global=16",
                                     "--set", "batch.micro=2",    "--set", "train.eval_every=0"};
    const auto set = [&](const std::string& text) { sets.insert(sets.end(), {"--set", text}); };
    for (const char* axis : {"tp", "pp", "dp"}) set(fmt::format("layout.{}={}", axis, one_of({"1", "2"})));
    set("layout.zero=" + one_of({"0", "1", "2", "3"}));
    set("layout.recompute=" + one_of({"none", "selective", "full"}));
    const std::string change =
        one_of({"layout.zero=3", "layout.prefetch=2", "layout.reshard_after_forward=false",
                "layout.recompute=full", "layout.bucket_mb=0.01", "layout.cut=even", "precision.compute=bf16",
                "precision.moments=bf16", "batch.micro=1", "layout.sequence=true", "optimizer.name=muon",
                "layout.schedule=gpipe", "layout.offload=inputs", "layout.reshard_last=false"});
    for (int changed = 0; changed < 2; changed++) {
      if (changed == 1) set(change);
      SCOPED_TRACE(fmt::format("{}", fmt::join(sets, " ")));
      const Ran planned = trireme(tmp.path(), with({"plan", file.string(), "--json"}, sets));
      if (planned.code == 2) continue;  // not a layout that runs
      fs::remove_all(tmp / "run");
      const json plan = json_of(planned)["best"];
      const json end = json_of(trireme(tmp.path(), with({"train", file.string(), "--json"}, sets)));
      EXPECT_EQ(end["peak_bytes"], plan["memory"]["total"]);
      for (const json& line : metrics_of(tmp / "run")) EXPECT_EQ(line["at_peak_bytes"], plan["at_peak"]);
      compared++;
    }
  }
  EXPECT_GE(compared, draws);
}

// The busiest rank's pairs of attention over the mean, as docs/context_parallel.md has them.
// plan describes the largest batch and adds up all stages; inspect and simulate take the last stage.
TEST(Agree, OnABatchThatGrows) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 6).string(), ramp = "batch.ramp=[[2, 1], [4, 3]]";
  const json plan = json_of(trireme(tmp.path(), {"plan", file, "--json", "--set", ramp}))["best"];
  const Ran train = trireme(tmp.path(), {"train", file, "--set", ramp});
  EXPECT_EQ(train.code, 0) << train.err;
  const std::vector<json> lines = metrics_of(tmp / "run");
  ASSERT_EQ(lines.size(), 6u);
  int64_t tokens = 0, most = 0;
  for (const json& line : lines) {
    const int64_t step = line["step"], sequences = step <= 1 ? 2 : step <= 3 ? 4 : 6;
    EXPECT_EQ(line["tokens"], sequences * 13) << step;
    EXPECT_NEAR(line["tokens_per_s"].get<double>() * line["step_s"].get<double>(), double(sequences * 13),
                1e-6);
    tokens += sequences * 13;
    most = std::max(most, line["peak_bytes"]["total"].get<int64_t>());
  }
  EXPECT_EQ(plan["run"]["tokens"], tokens);
  EXPECT_EQ(plan["tokens"], 6 * 13);
  EXPECT_EQ(plan["memory"]["total"], most);
  const json inspected = json_of(trireme(tmp.path(), {"inspect", (tmp / "run").string(), "--json"}));
  EXPECT_NE(inspected.dump().find("median of 1 step"), std::string::npos) << "steps 4 to 6, without two";
  const Ran simulated = trireme(tmp.path(), {"simulate", file, "--set", ramp});
  EXPECT_NE(simulated.err.find("note: batch.ramp: 2 sequences to step 1, 4 to step 3, then 6; a step of 6 "
                               "sequences is simulated"),
            std::string::npos)
      << simulated.err;
}

// With more steps the rules would give another batch and warmup; a run keeps those that its folder began
// with.
TEST(Agree, ALongerRunKeepsWhatRulesGave) {
  TempFolder tmp;
  std::string text = read_text(tiny_run_file(tmp.path(), 40));
  for (const char* key : {"global = ", "micro = ", "warmup = ", "init_std = ", "lr = "})
    if (const size_t at = text.find(std::string("\n") + key); at != text.npos)
      text.erase(at, text.find('\n', at + 1) - at);
  const fs::path file = tmp / "auto.toml";
  write_text_atomic(file, text);
  const auto train = [&](std::vector<std::string> sets) {
    std::vector<std::string> words = {"train", file.string(),       "--set", "optimizer.schedule=constant",
                                      "--set", "train.eval_every=0"};
    for (const std::string& s : sets) words.insert(words.end(), {"--set", s});
    return trireme(tmp.path(), words);
  };
  EXPECT_EQ(train({"train.steps=40", "train.checkpoint_every=0"}).code, 0);
  const RunSpec before = load_run(tmp / "run" / "plan.toml", {}, {});
  const Ran longer = train({"train.steps=400", "train.checkpoint_every=0"});
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_NE(
      longer.err.find(fmt::format("kept from {}: batch.global = ", (tmp / "run" / "plan.toml").string())),
      std::string::npos)
      << longer.err;
  const RunSpec after = load_run(tmp / "run" / "plan.toml", {}, {});
  EXPECT_EQ(after.batch.global, before.batch.global);
  EXPECT_EQ(after.optimizer.warmup, 4);
  EXPECT_EQ(after.train.steps, 400);
  // Another layout takes another microbatch; a branch keeps them too.
  const Ran divided = train({"train.steps=410", "layout.dp=2"});
  EXPECT_EQ(divided.code, 0) << divided.err;
  const RunSpec halves = load_run(tmp / "run" / "plan.toml", {}, {});
  EXPECT_EQ(halves.batch.global, before.batch.global);
  EXPECT_EQ(halves.batch.micro, before.batch.micro / 2);
  const std::string branched = (tmp / "branch").string(), parent = (tmp / "run").string();
  EXPECT_EQ(train({"train.steps=430", "train.dir=" + branched, "train.branch=" + parent}).code, 0);
  const RunSpec branch = load_run(tmp / "branch" / "plan.toml", {}, {});
  EXPECT_EQ(branch.batch.global, before.batch.global);
  EXPECT_EQ(branch.optimizer.warmup, 4);
  // A given batch counts.
  const Ran other = train({"train.steps=500", "batch.global=64"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find(fmt::format("batch.global: {} -> 64", before.batch.global)), std::string::npos)
      << other.err;
}

TEST(Agree, PlanTellsTheImbalanceOfEachPlacement) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 2);
  const double ranks = 3, seq = 24, n = seq / ranks;
  for (const auto& [set, want] :
       {std::pair{"layout.cp_placement=contiguous", ((2 * ranks - 1) * n + 1) / (ranks * n + 1)},
        {"layout.cp_placement=zigzag", 1.0},
        {"layout.cp_placement=striped", 1 + (ranks - 1) / (seq + 1)},
        {"layout.cp_method=ulysses", 1.0}}) {
    json plan = json_of(trireme(
        tmp.path(), {"plan", file.string(), "--json", "--set", "layout.cp=3", "--set", "data.seq_len=24",
                     "--set", "model.max_positions=0", "--set", "model.kv_heads=3", "--set", set}))["best"];
    EXPECT_NEAR(plan["cp_imbalance"].get<double>(), want, 1e-12) << set;
  }
}

TEST(Agree, PlanAndTrainOnWhatIsComputedAgain) {
  for (const char* recompute : {"selective", "full"}) {
    TempFolder tmp;
    fs::path file = tiny_run_file(tmp.path(), 2);
    const std::vector<std::string> sets = {"--set", fmt::format("layout.recompute={}", recompute), "--set",
                                           "precision.compute=f32", "--json"};
    auto with_sets = [&](const char* verb) {
      std::vector<std::string> args = {verb, file.string()};
      args.insert(args.end(), sets.begin(), sets.end());
      return args;
    };
    json plan = json_of(trireme(tmp.path(), with_sets("plan")))["best"];
    json_of(trireme(tmp.path(), with_sets("train")));
    EXPECT_EQ(plan["hardware_flops"] > plan["model_flops"], recompute == std::string("full"));
    for (json& line : metrics_of(tmp / "run")) {
      EXPECT_EQ(line["peak_bytes"].at("total"), plan["memory"]["total"]);
      const double peak_s = line["step_s"].get<double>() * 1e9;
      EXPECT_NEAR(line["mfu"].get<double>() * peak_s / plan["model_flops"].get<double>(), 1, 1e-9);
      EXPECT_NEAR(line["hfu"].get<double>() * peak_s / plan["hardware_flops"].get<double>(), 1, 1e-9);
    }
  }
}

// The kernels count themselves: what plan says a step launches, computes and moves is what a step does.
TEST(Agree, PlanAndTheKernelsCounters) {
  TempFolder tmp;
  json plan = json_of(trireme(tmp.path(), {"plan", tiny_run_file(tmp.path(), 3).string(), "--json"}))["best"];
  RunSpec run = tiny_run(tmp.path(), 3);
  auto device = make_device("cpu", {.threads = 1});
  run = resolve(run, {.native_bf16 = device->native(DType::bf16)});
  run.data.valid = "";
  Schedule schedule = schedule_of(run);
  TrainOptions options;
  options.arena_bytes = plan["memory"]["arena"];
  int steps = 0;
  Kernels& k = device->kernels();
  TrainHooks hooks;
  hooks.start = [&](int64_t) { k.restart_counts(); };
  hooks.step = [&](const StepMetrics&) {
    if (++steps == run.train.steps) return;  // its save evaluates a microbatch with the new weights first
    EXPECT_EQ(k.total().flops, plan["flops"].get<double>());
    EXPECT_EQ(k.total().bytes_read, plan["bytes_read"].get<int64_t>());
    EXPECT_EQ(k.total().bytes_written, plan["bytes_written"].get<int64_t>());
    EXPECT_EQ(k.launches(), plan["launches"].get<int64_t>());
    k.restart_counts();
  };
  auto alone = make_single(device.get());
  train(run, schedule, *device, *alone, options, hooks);
  EXPECT_EQ(steps, 3);
}

TEST(Agree, EvalAndTheLastEvaluationOfTraining) {
  for (const char* compute : {"auto", "f32", "f16"}) {
    TempFolder tmp;
    fs::path file = tiny_run_file(tmp.path(), 5);
    // Windows of this length are odd in number, microbatches of two: the last one is short.
    int64_t seq = 13, tokens = TokenShard::open(tmp / "data/valid").tokens();
    while ((tokens - 1) / seq % 2 == 0) seq--;
    std::vector<std::string> set = {"--set", fmt::format("precision.compute={}", compute), "--set",
                                    fmt::format("data.seq_len={}", seq)};
    json end =
        json_of(trireme(tmp.path(), {"train", file.string(), "--json", set[0], set[1], set[2], set[3]}));
    json eval =
        json_of(trireme(tmp.path(), {"eval", file.string(), "--json", set[0], set[1], set[2], set[3]}));
    EXPECT_EQ(eval["loss"], end["eval_loss"]);
    EXPECT_EQ(eval["loss"], metrics_of(tmp / "run").back()["eval_loss"]);
    EXPECT_EQ(eval["step"], 5);
    EXPECT_NEAR(eval["perplexity"], std::exp(eval["loss"].get<double>()), 1e-9);
    EXPECT_EQ(eval["tokens"], (tokens - 1) / seq * seq);
    EXPECT_LT(eval["loss"], std::log(61.0));
    // And of a shard by name.
    json other = json_of(trireme(tmp.path(), {"eval", file.string(), "--json", "--data",
                                              (tmp / "data/train").string(), set[2], set[3]}));
    EXPECT_NE(other["tokens"], eval["tokens"]);
  }
}

// One step over every window of a shard, in order: its loss is taken before the weights move.
TEST(Agree, FineTuningStartsAtTheLossOfTheFolder) {
  for (const char* name : kGoldens) {
    TempFolder tmp;
    tiny_run(tmp.path(), 1);
    int64_t windows = (TokenShard::open(tmp / "data/train").tokens() - 1) / 13;
    fs::path file = golden_run(tmp.path(), name, fmt::format("[batch]\nglobal = {}\nmicro = 1\n", windows));
    json eval = json_of(trireme(tmp.path(), {"eval", file.string(), "--json"}));
    EXPECT_EQ(eval["step"], 0);
    EXPECT_EQ(eval["model"], golden(name).string());
    json end =
        json_of(trireme(tmp.path(), {"train", file.string(), "--json", "--set", "optimizer.warmup=0", "--set",
                                     "optimizer.schedule=constant", "--set", "train.eval_every=0"}));
    EXPECT_NEAR(end["loss"].get<double>(), eval["loss"].get<double>(), 1e-12) << name;
    EXPECT_EQ(metrics_of(tmp / "run").at(0)["tokens"], eval["tokens"]);
    EXPECT_LT(end["eval_loss"], end["loss"]) << "the step was a step down";
  }
}

// What docs/plan.md shows of --axes is what its commands print: each line but those left out.
TEST(Agree, TheAxesInTheDocsAreThePrograms) {
  const auto starts = [](const std::string& s, std::string_view with) { return s.rfind(with, 0) == 0; };
  TempFolder tmp;
  std::vector<std::string> first, args;
  std::string printed;
  int tables = 0, rows = 0;
  bool block = false, command = false;
  for (std::string line : lines_of(read_text(source_dir() / "docs/plan.md"))) {
    if (starts(line, "```")) block = !block;
    if (!block || starts(line, "```")) continue;
    const bool begins = starts(line, "$ ");
    if (begins) args = starts(line, "$ ...") ? first : std::vector<std::string>();
    if (begins || command) {
      command = line.ends_with("\\");
      std::istringstream words(line);
      for (std::string w; words >> w;) {
        if (w == "$" || w == "..." || w == "trireme" || w == "\\") continue;
        const size_t at = w.find("configs/");
        args.push_back(at == std::string::npos ? w : w.replace(at, 8, (source_dir() / "configs/").string()));
      }
      if (command || std::find(args.begin(), args.end(), "--axes") == args.end()) continue;
      if (first.empty()) first = args;
      const Ran r = trireme(tmp.path(), args);
      ASSERT_EQ(r.code, 0) << r.err;
      printed = "\n" + r.out, tables++;
      continue;
    }
    if (printed.empty()) continue;
    EXPECT_NE(printed.find("\n" + line + "\n"), std::string::npos) << line;
    rows++;
  }
  EXPECT_EQ(tables, 2);
  EXPECT_GT(rows, 60);
}

TEST(Agree, AFolderInIsTheFolderOut) {
  for (const char* name : kGoldens) {
    TempFolder tmp;
    fs::path file = golden_run(tmp.path(), name, "[optimizer]\nlr = 0.0\n[batch]\nglobal = 2\nmicro = 2\n");
    const auto want = tensors_of(golden(name));
    ASSERT_GT(want.size(), 10u);
    ModelSpec model = model_from_hf(golden(name) / "config.json");
    // Straight, then through a checkpoint whose one step has a learning rate of zero.
    for (const char* out : {"straight", "through"}) {
      if (std::string(out) == "through") {
        ASSERT_EQ(trireme(tmp.path(), {"train", file.string()}).code, 0);
      }
      Ran r = trireme(tmp.path(), {"convert", file.string(), "--to", (tmp / out).string()});
      EXPECT_EQ(r.code, 0) << r.err;
      EXPECT_TRUE(tensors_of(tmp / out) == want) << name << " " << out;
      EXPECT_EQ(model_from_hf(tmp / out / "config.json"), model) << name;
    }
  }
}

// A checkpoint of several ranks, whose experts, heads and optimizer's shards lie apart: what `convert` makes
// of it is the folder that the run began from, for its one step had a learning rate of zero.
TEST(Agree, AFolderInIsTheFolderOutOfManyRanks) {
  struct {
    const char *name, *layout;
    int sequences;
  } cases[] = {{"mixtral", "dp = 5\nep = 5\nzero = 1\n", 5},
               {"qwen2_moe", "dp = 3\ntp = 2\nep = 6\nzero = 3\n", 3},
               {"qwen3_moe", "dp = 7\nep = 7\nzero = 2\n", 7},
               {"deepseek_v2", "dp = 3\npp = 2\nep = 3\n", 6},
               {"deepseek_v3", "dp = 2\ntp = 2\nep = 2\nsequence = true\nzero = 3\n", 2}};
  for (const auto& [name, layout, sequences] : cases) {
    SCOPED_TRACE(name);
    TempFolder tmp;
    const fs::path file =
        golden_run(tmp.path(), name,
                   fmt::format("[optimizer]\nlr = 0.0\n[batch]\nglobal = {}\nmicro = 1\n[layout]\n{}",
                               sequences, layout));
    const Ran trained = trireme(tmp.path(), {"train", file.string(), "--set", "data.seq_len=12"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Ran r = trireme(
        tmp.path(), {"convert", file.string(), "--to", (tmp / "out").string(), "--set", "data.seq_len=12"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.out.find("step-00000001"), std::string::npos) << r.out;
    const auto want = tensors_of(golden(name)), got = tensors_of(tmp / "out");
    ASSERT_GT(want.size(), 10u);
    EXPECT_EQ(got.size(), want.size());
    for (const auto& [tensor, bytes] : want)
      EXPECT_TRUE(got.count(tensor) && got.at(tensor) == bytes) << tensor;
  }
}

// convert --dtype f16: every weight rounded once; and what was written evaluates and generates in f16.
TEST(Agree, AnExportInF16IsTheModelRounded) {
  TempFolder tmp;
  fs::path file = golden_run(tmp.path(), "llama3"), half = tmp / "half";
  Ran r = trireme(tmp.path(), {"convert", file.string(), "--to", half.string(), "--dtype", "f16"});
  ASSERT_EQ(r.code, 0) << r.err;
  auto want = tensors_of(golden("llama3")), got = tensors_of(half);
  ASSERT_EQ(got.size(), want.size());
  for (auto& [name, t] : want) {
    std::string rounded;
    for (size_t at = 0; at < t.second.size(); at += 4) {
      float f;
      std::memcpy(&f, t.second.data() + at, 4);
      f16 h(f);
      rounded.append(reinterpret_cast<const char*>(&h), 2);
    }
    EXPECT_TRUE(got[name].second == rounded) << name;
    EXPECT_EQ(got[name].first, "F16" + t.first.substr(3)) << name;
  }
  double full = json_of(trireme(tmp.path(), {"eval", file.string(), "--json"}))["loss"];
  double low =
      json_of(trireme(tmp.path(), {"eval", file.string(), "--json", "--set", "model.from=" + half.string(),
                                   "--set", "precision.compute=f16"}))["loss"];
  EXPECT_NEAR(low / full, 1, 1e-3);
  EXPECT_NE(low, full);
}

// A folder as published ones are: bf16 or f16 with norms in f32, a tokenizer's files beside the weights.
TEST(Agree, ConvertKeepsTypesIdsAndTokenizers) {
  const char* companions[] = {"tokenizer.json", "merges.txt", "tokenizer.model", "generation_config.json"};
  for (const char* name : {"gpt2", "llama2", "qwen2", "qwen3_tied"})
    for (DType low : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} {}", name, name_of(low)));
      TempFolder tmp;
      fs::path from = tmp / "from";
      make_folders(from);
      write_low(golden(name), from, low);
      json config = json::parse(read_text(golden(name) / "config.json"));
      config["bos_token_id"] = 3, config["eos_token_id"] = {4, 5}, config["pad_token_id"] = 6;
      put_file(from / "config.json", config.dump());
      for (const char* file : companions) put_file(from / file, std::string("not parsed: ") + file);
      put_file(tmp / "run.toml", fmt::format("[model]\nfrom = \"{0}\"\n[data]\nseq_len = 13\n"
                                             "[train]\nthreads = 1\ndir = \"{1}/run\"\n",
                                             from.string(), tmp.path().string()));
      Ran r = trireme(tmp.path(), {"convert", (tmp / "run.toml").string(), "--to", (tmp / "to").string()});
      EXPECT_EQ(r.code, 0) << r.err;
      EXPECT_TRUE(tensors_of(tmp / "to") == tensors_of(from));
      json out = json::parse(read_text(tmp / "to" / "config.json"));
      for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
        EXPECT_EQ(out[key], config[key]);
      EXPECT_EQ(out["torch_dtype"], low == DType::bf16 ? "bfloat16" : "float16");
      for (const char* file : companions) EXPECT_EQ(read_text(tmp / "to" / file), read_text(from / file));
      // Asked for f32, every tensor is; back from there to the low type, as it was.
      std::string f32 = (tmp / "f32").string();
      EXPECT_EQ(
          trireme(tmp.path(), {"convert", (tmp / "run.toml").string(), "--to", f32, "--dtype", "f32"}).code,
          0);
      r = trireme(tmp.path(), {"convert", (tmp / "run.toml").string(), "--to", (tmp / "low").string(),
                               "--dtype", std::string(name_of(low)), "--set", "model.from=" + f32});
      EXPECT_EQ(r.code, 0) << r.err;
      for (const auto& [tensor, value] : tensors_of(tmp / "low"))
        if (tensor.find("norm") == std::string::npos && tensor.find("ln_") == std::string::npos) {
          EXPECT_TRUE(value == tensors_of(from)[tensor]) << tensor;
        }
    }
}

// Values that are not finite are written unchanged, and a note names them.
TEST(Agree, ConvertTellsOfValuesThatAreNotFinite) {
  TempFolder tmp;
  const fs::path from = tmp / "from";
  fs::copy(golden("gpt2"), from);
  std::string weights = read_text(from / "model.safetensors");
  const float nan = std::nanf("");
  std::memcpy(weights.data() + weights.size() - 4, &nan, 4);
  std::memcpy(weights.data() + weights.size() - 12, &nan, 4);
  fs::remove(from / "model.safetensors");
  put_file(from / "model.safetensors", weights);
  put_file(tmp / "run.toml", fmt::format("[model]\nfrom = \"{0}\"\n[data]\nseq_len = 13\n"
                                         "[train]\nthreads = 1\ndir = \"{1}/run\"\n",
                                         from.string(), tmp.path().string()));
  const auto convert = [&](const char* type) {
    return trireme(tmp.path(),
                   {"convert", (tmp / "run.toml").string(), "--to", (tmp / type).string(), "--dtype", type});
  };
  for (const char* type : {"auto", "bf16"}) {
    const Ran r = convert(type);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find("note: values that are not finite, written unchanged: 2 of "), std::string::npos)
        << r.err;
  }
}

}  // namespace
}  // namespace trireme::test
