// What a run file says: keys, their defaults, what follows from others, what is saved and hashed.
#include <algorithm>
#include <cmath>
#include <set>

#include "run_text.h"
#include "spec/identity.h"
#include "spec/notes.h"
#include "spec/recompute.h"
#include "spec/supported.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::lines_of;
using testing::parse;
using testing::wrong;

// The run file of DESIGN.md section 5. Sizes, warmup and learning rate follow rules (spec/size_rule.h) since.
// Tools and people rely on these keys and defaults.
constexpr const char* kContract = R"(
[model]
arch = "llama"
vocab = 4096
layers = 6
hidden = 384
heads = 6
kv_heads = 6
ffn = 1024
[data]
train = "data/train"
valid = "data/valid"
seq_len = 256
order = "shuffled"
[batch]
global = "auto"
micro = 8
[layout]
dp = 1
tp = 1
pp = 1
cp = 1
ep = 1
order = "pp dp cp tp"
sequence = false
cp_method = "ring"
cp_placement = "zigzag"
zero = 0
shard_group = 0
schedule = "1f1b"
chunks = 1
recompute = "none"
[precision]
compute = "auto"
grads = "auto"
[optimizer]
name = "adamw"
lr = "auto"
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
clip_norm = 1.0
schedule = "cosine"
warmup = "auto"
min_lr = 0.0
[train]
steps = "auto"
seed = 1
device = "cpu"
comm = "thread"
threads = 0
timeout = 600
dir = "runs/demo"
checkpoint_every = 200
keep = 2
[cluster]
file = ""
)";
TEST(RunSpec, ContractKeysHaveTheContractDefaults) {
  EXPECT_EQ(diff(parse(""), parse(kContract)), std::vector<std::string>{});
  std::set<std::string> keys;
  for (const ConfigRow& r : config_rows()) keys.insert(r.key);
  std::string section;
  int contract = 0;
  for (const std::string& line : lines_of(kContract)) {
    if (line.empty()) continue;
    if (line[0] == '[') {
      section = line.substr(1, line.size() - 2);
    } else {
      EXPECT_TRUE(keys.count(section + "." + line.substr(0, line.find(' ')))) << line;
      contract++;
    }
  }
  EXPECT_EQ(contract, 48);
}

TEST(RunSpec, DefaultsAreDerivedFromOtherKeys) {
  RunSpec run = parse("[model]\nhidden = 4096\nheads = 32\nvocab = 32000");
  EXPECT_EQ(run.model.kv_heads, 32);
  EXPECT_EQ(run.model.head_dim, 128);
  EXPECT_EQ(run.model.ffn, 11008);  // as in llama 7B
  EXPECT_EQ(run.model.max_positions, 256);
  EXPECT_EQ(run.model.norm, "rms");
  EXPECT_FALSE(run.model.tied);

  run = parse("[data]\nseq_len = 77\n[model]\nhidden = 768\nheads = 12\narch = \"gpt2\"");
  EXPECT_EQ(run.model.ffn, 3072);
  EXPECT_EQ(run.model.max_positions, 77);
  EXPECT_EQ(run.model.norm, "layer");
  EXPECT_EQ(run.model.activation, "gelu_tanh");
  EXPECT_EQ(run.model.positions, "learned");
  EXPECT_TRUE(run.model.attn_bias && run.model.mlp_bias && run.model.tied);
  // An explicit key wins over what the architecture sets, in any order in the file.
  EXPECT_FALSE(parse("[model]\ntied = false\narch = \"gpt2\"").model.tied);
}

TEST(RunSpec, Sets) {
  RunSpec run =
      parse("[batch]\nmicro = 8\nglobal = 32",
            {"batch.micro=4", "layout.schedule=gpipe", "train.dir=123", "optimizer.betas=[0.8, 0.9]",
             "train.checkpoint_every=auto", "train.steps=1e6", "batch.micro=2", "train.timeout=5"});
  EXPECT_EQ(run.batch.micro, 2);  // the last one counts
  EXPECT_EQ(run.batch.global, 32);
  EXPECT_EQ(run.layout.schedule, "gpipe");
  EXPECT_EQ(run.train.dir, "123");
  EXPECT_EQ(run.optimizer.betas, (std::array<double, 2>{0.8, 0.9}));
  EXPECT_TRUE(run.train.checkpoint_every.automatic);
  EXPECT_EQ(run.train.steps, 1000000);
  EXPECT_EQ(run.train.timeout, 5);
  EXPECT_EQ(parse("[batch]\nglobal = 64", {"batch={micro=2}"}).batch.global, 64);
  EXPECT_EQ(wrong("", {"batch.micro=three"}),
            "--set: batch.micro: \"three\" is a string; give a whole number from 1 to 2147483647, such as 8");
  EXPECT_EQ(wrong("", {"batch.micr=4"}), "--set: batch.micr: unknown key, did you mean batch.micro?");
  EXPECT_HAS(wrong("", {"batch.global=9"}),
             "--set: batch.global: 9 is not a multiple of dp * micro = 1 * 8 = 8");
}

TEST(RunSpec, RecomputeOfABlock) {
  LayoutSpec l;
  EXPECT_FALSE(recompute_of(l, 0).any());
  l.recompute = "selective";
  for (const char* name : {"n1", "n2", "a"}) EXPECT_TRUE(recompute_of(l, 7).has(name));
  for (const char* name : {"qkv", "o", "mid", "u"}) EXPECT_FALSE(recompute_of(l, 7).has(name));
  l.recompute = "full", l.recompute_blocks = 2, l.recompute_rest = "o";
  EXPECT_TRUE(recompute_of(l, 1).full);
  EXPECT_FALSE(recompute_of(l, 2).full);
  EXPECT_TRUE(recompute_of(l, 2).has("o"));
}

TEST(RunSpec, ResolvePutsTypesInPlaceOfAuto) {
  auto types = [](const char* toml, bool native) {
    RunSpec r = resolve(parse(toml), {.native_bf16 = native});
    return r.precision.compute + "/" + r.precision.grads;
  };
  EXPECT_EQ(types("", true), "bf16/f32");  // 128 / 8 = 16 microbatches
  EXPECT_EQ(types("[batch]\nglobal = 32\nmicro = 32", true), "bf16/bf16");
  EXPECT_EQ(types("[precision]\ncompute = \"f16\"", true), "f16/f32");
  EXPECT_EQ(types("[batch]\nglobal = 32\nmicro = 32\n[precision]\ncompute = \"f16\"", true), "f16/f32");
  EXPECT_EQ(types("[batch]\nglobal = 32\nmicro = 16\n[layout]\ndp = 2", true), "bf16/bf16");
  EXPECT_EQ(types("[batch]\nglobal = 32\nmicro = 32", false), "f32/f32");
  EXPECT_EQ(types("[precision]\ncompute = \"bf16\"", false), "bf16/f32");
  EXPECT_EQ(types("[precision]\ngrads = \"bf16\"", true), "bf16/bf16");
  EXPECT_HAS(error_of([&] { types("[precision]\ngrads = \"bf16\"", false); }), "precision.grads: ");
}

TEST(RunSpec, SavedTextReadsBackAsTheSameSpec) {
  RunSpec run = parse(R"(
[model]
arch = "gpt2"
hidden = 96
heads = 3
tied = false
norm_eps = 1.2345678901234567e-6
[optimizer]
lr = 0.1
betas = [0.123456789012345678, 0.3]
[train]
dir = "a \"quoted\" folder\\with\ttab"
checkpoint_every = "auto"
)");
  EXPECT_EQ(diff(run, parse(save_run(run))), std::vector<std::string>{});
  EXPECT_TRUE(run == parse(save_run(run)));
  EXPECT_EQ(save_run(parse(save_run(run))), save_run(run));
  RunSpec llama3 = parse("[model.rope_scaling]\ntype = \"llama3\"\nfactor = 8");
  EXPECT_TRUE(llama3 == parse(save_run(llama3)));
}

TEST(RunSpec, LossScaleIsDynamicOrANumber) {
  EXPECT_TRUE(parse("").precision.loss_scale.dynamic);
  RunSpec fixed = parse("[precision]\nloss_scale = 1024");
  EXPECT_EQ(fixed.precision.loss_scale, (NumberOrDynamic{.number = 1024, .dynamic = false}));
  EXPECT_TRUE(parse(save_run(fixed)) == fixed);
  EXPECT_TRUE(parse("[precision]\nloss_scale = 8", {"precision.loss_scale=dynamic"}) == parse(""));
  EXPECT_EQ(parse("", {"precision.loss_scale=0.5"}).precision.loss_scale.number, 0.5);
}

TEST(RunSpec, HashFollowsWhatDeterminesTheNumbers) {
  const RunSpec base = resolve(parse(""), {});
  auto changed = [&](const char* set) { return hash(resolve(parse("", {set}), {})) != hash(base); };
  EXPECT_EQ(hash(base), hash(resolve(parse(kContract), {})));
  for (const char* set :
       {"model.layers=5", "model.rope_theta=1e5", "model.rope_scaling.type=llama3", "model.init_std=0.01",
        "model.head_std=0.5", "data.weights=[3]", "data.seq_len=128", "data.order=sequential",
        "data.documents=separate", "batch.global=64", "precision.compute=bf16", "precision.fp8=block",
        "precision.reduce=bf16", "optimizer.lr=1e-4", "optimizer.betas=[0.9, 0.99]", "train.steps=999",
        "train.seed=2"})
    EXPECT_TRUE(changed(set)) << set;
  for (const char* set : {"train.dir=x", "train.device=cuda", "train.checkpoint_every=7", "train.keep=3",
                          "train.threads=1", "train.log_every=1", "data.valid=x", "data.tokenizer=x",
                          "cluster.file=x", "layout.schedule=gpipe", "train.eval_every=5", "data.prefetch=0",
                          "layout.dp=2", "layout.zero=3", "batch.micro=4", "data.train=other"})
    EXPECT_FALSE(changed(set)) << set;
  const auto posts = [](const char* how) {
    return hash(resolve(parse("[layout]\npp = 2", {fmt::format("optimizer.post_validation={}", how)}), {}));
  };
  EXPECT_EQ(posts("always"), posts("off"));
  // Loss scaling is f16's alone.
  const std::vector<const char*> scaling = {"precision.loss_scale=8", "precision.initial_scale=1024",
                                            "precision.growth_interval=9", "precision.backoff_factor=0.25",
                                            "precision.min_scale=2"};
  for (const char* set : scaling) {
    for (const char* compute : {"f32", "bf16"}) {
      const std::string type = std::string("precision.compute=") + compute;
      EXPECT_EQ(hash(resolve(parse("", {type, set}), {})), hash(resolve(parse("", {type}), {})))
          << type << set;
    }
    EXPECT_NE(hash(resolve(parse("", {"precision.compute=f16", set}), {})),
              hash(resolve(parse("", {"precision.compute=f16"}), {})))
        << set;
  }
}

TEST(RunSpec, ShardsAreOneOrAList) {
  EXPECT_EQ(parse("").data.train.list, (std::vector<std::string>{"data/train"}));
  RunSpec one = parse("[data]\ntrain = [\"x\"]\nvalid = \"\"");
  EXPECT_EQ(one.data.train.first(), "x");
  EXPECT_TRUE(one.data.valid.empty());
  EXPECT_HAS(save_run(one), "train = \"x\"\n");
  EXPECT_HAS(save_run(one), "valid = \"\"\n");
  RunSpec mix = parse("[data]\ntrain = [\"a\", \"b c\"]\nweights = [3, 0.5]\nvalid = [\"v\", \"w\"]");
  EXPECT_EQ(mix.data.train.list, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(mix.data.weights, (Numbers{3, 0.5}));
  EXPECT_EQ(mix.data.valid.size(), 2u);
  EXPECT_TRUE(parse(save_run(mix)) == mix);
  EXPECT_TRUE(parse("", {"data.train=[\"a\", 'b c']", "data.weights=[3, 0.5]", "data.valid=[\"v\",\"w\"]"}) ==
              mix);
  EXPECT_EQ(parse("", {"data.train=x y"}).data.train.first(), "x y");
  EXPECT_NE(hash(resolve(mix, {})), hash(resolve(parse("[data]\ntrain = [\"a\", \"b c\"]"), {})));
}

TEST(RunSpec, Diff) {
  EXPECT_EQ(diff(parse(""), parse("", {"batch.micro=4", "model.rope_theta=5e5"})),
            (std::vector<std::string>{"model.rope_theta: 10000.0 -> 500000.0", "batch.micro: 8 -> 4"}));
}

// What refuses a checkpoint of another run names what makes it another, not what a resume may change.
TEST(RunSpec, DiffOfIdentityNamesWhatTheHashCovers) {
  RunSpec a = resolve(parse("", {"batch.global=48"}), {});
  RunSpec b = resolve(parse("", {"batch.global=48", "train.seed=8", "layout.dp=3", "layout.zero=2",
                                 "batch.micro=4", "train.keep=9"}),
                      {});
  EXPECT_EQ(diff_of_identity(a, b), (std::vector<std::string>{"train.seed: 1 -> 8"}));
  b.train.attention = "sm90", b.train.dir = "elsewhere", b.layout.offload_dir = "disk";
  EXPECT_EQ(diff_of_division(a, b),
            (std::vector<std::string>{"batch.micro: 8 -> 4", "layout.dp: 1 -> 3", "layout.zero: 0 -> 2",
                                      "train.attention: \"auto\" -> \"sm90\""}));
  b.train.seed = a.train.seed;
  EXPECT_EQ(diff_of_identity(a, b), std::vector<std::string>());
  EXPECT_EQ(hash(a), hash(b));
  for (const FieldText& f : fields_of(a)) {  // a key is named exactly where the hash moves with it
    if (f.key == "model.from" || f.type != "a whole number") continue;
    RunSpec c = a;
    Walk walk(
        [&](const FieldInfo& i, FieldRef r) {
          if (i.key == f.key) ++*std::get<int64_t*>(r);
        },
        [](const std::string&, std::string_view) {});
    c.visit(walk);
    EXPECT_EQ(diff_of_identity(a, c).size(), hash(a) == hash(c) ? 0u : 1u) << f.key;
  }
}

std::vector<std::string> identity_diff(const std::vector<std::string>& before,
                                       const std::vector<std::string>& after) {
  return diff_of_identity(resolve(parse("", before), {}), resolve(parse("", after), {}));
}

// Keys that count only with other keys are named too, with both values.
TEST(RunSpec, DiffOfIdentityNamesKeysAtTheirDefaults) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(identity_diff({}, {"data.documents=separate"}),
            Lines{"data.documents: \"attend\" -> \"separate\""});
  EXPECT_EQ(identity_diff({"data.documents=separate"}, {}),
            Lines{"data.documents: \"separate\" -> \"attend\""});
  EXPECT_EQ(identity_diff({}, {"precision.fp8=block"}), Lines{"precision.fp8: \"none\" -> \"block\""});
  EXPECT_EQ(identity_diff({"precision.fp8=block", "precision.fp8_margin=2"}, {}),
            (Lines{"precision.fp8: \"block\" -> \"none\"", "precision.fp8_margin: 2 -> 0"}));
  EXPECT_EQ(identity_diff({"precision.compute=f32"}, {"precision.compute=f16", "precision.initial_scale=8"}),
            (Lines{"precision.compute: \"f32\" -> \"f16\"", "precision.initial_scale: 65536.0 -> 8.0"}));
  EXPECT_EQ(identity_diff({"train.steps=9", "batch.global=8"},
                          {"train.steps=9", "batch.global=8", "model.experts=4", "moe.z_loss=0.5"})
                .back(),
            "moe.z_loss: 0.0 -> 0.5");
}

// Auxiliary loss and capacity are functions of all sequences that a unit spans, and of nothing else that a
// division changes.
TEST(RunSpec, IdentityHasTheSequencesThatAUnitSpans) {
  auto moe = [](std::string unit, const char* factor, int dp, int micro) {
    return std::vector<std::string>{"model.experts=4",
                                    "moe.unit=" + unit,
                                    factor,
                                    "batch.global=32",
                                    fmt::format("layout.dp={}", dp),
                                    fmt::format("batch.micro={}", micro)};
  };
  for (const char* factor : {"moe.aux_loss=0.5", "moe.capacity=1.5"}) {
    using Lines = std::vector<std::string>;
    EXPECT_EQ(identity_diff(moe("microbatch", factor, 1, 8), moe("microbatch", factor, 1, 1)),
              Lines{"moe.unit: \"microbatch\" of batch.micro = 8 -> \"microbatch\" of batch.micro = 1"});
    EXPECT_EQ(identity_diff(moe("microbatch", factor, 1, 8), moe("microbatch", factor, 4, 8)), Lines());
    EXPECT_EQ(identity_diff(moe("global", factor, 2, 4), moe("global", factor, 1, 8)), Lines());
    EXPECT_EQ(identity_diff(moe("global", factor, 2, 4), moe("global", factor, 4, 4)),
              Lines{"moe.unit: \"global\" of layout.dp * batch.micro = 2 * 4 = 8 -> "
                    "\"global\" of layout.dp * batch.micro = 4 * 4 = 16"});
    EXPECT_EQ(identity_diff(moe("sequence", factor, 1, 8), moe("sequence", factor, 4, 1)), Lines());
  }
  EXPECT_TRUE(
      identity_diff(moe("global", "moe.z_loss=1", 1, 8), moe("global", "moe.z_loss=1", 4, 1)).empty());
}

// A type that "auto" chose may follow the number of microbatches; a chosen one is the run's own.
TEST(RunSpec, IdentityHasTheTypeOfGradientSums) {
  auto grads = [](const char* type, int micro) {
    return std::vector<std::string>{"precision.compute=bf16", "batch.global=32",
                                    std::string("precision.grads=") + type,
                                    fmt::format("batch.micro={}", micro)};
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(identity_diff(grads("auto", 32), grads("auto", 8)), Lines());
  EXPECT_EQ(identity_diff(grads("f32", 32), grads("f32", 8)), Lines());
  EXPECT_EQ(identity_diff(grads("auto", 8), grads("bf16", 8)),
            Lines{"precision.grads: \"f32\" -> \"bf16\" over 4 microbatches"});
  EXPECT_EQ(identity_diff(grads("bf16", 8), grads("f32", 8)),
            Lines{"precision.grads: \"bf16\" over 4 microbatches -> \"f32\""});
  EXPECT_EQ(identity_diff(grads("bf16", 8), grads("bf16", 4)),
            Lines{"precision.grads: \"bf16\" over 4 microbatches -> \"bf16\" over 8 microbatches"});
  EXPECT_EQ(identity_diff(grads("f32", 32), grads("bf16", 32)),
            Lines{"precision.grads: \"f32\" -> \"bf16\" over 1 microbatch"});
  EXPECT_EQ(identity_diff(grads("auto", 8), {"precision.compute=bf16", "batch.global=32", "batch.micro=8",
                                             "precision.reduce=f32"}),
            Lines{"precision.reduce: \"bf16\" -> \"f32\""});
}

TEST(RunSpec, EveryKeyHasASentenceAndTheTableIsARunFile) {
  std::set<std::string> seen;
  for (const ConfigRow& r : config_rows()) {
    EXPECT_TRUE(seen.insert(r.key).second) << r.key << " twice";
    EXPECT_GE(r.help.size(), 8u) << r.key;
    EXPECT_FALSE(r.type.empty() || r.value.empty() || r.allowed.empty()) << r.key;
    EXPECT_HAS(r.key, ".");
  }
  RunSpec defaults = parse("");
  EXPECT_TRUE(parse(config_table()) == defaults);
  for (const std::string& line : lines_of(config_table()))
    EXPECT_TRUE(line.empty() || testing::has(line, "# ")) << line;
}

// The line of `trireme config` that begins with `key = `.
std::string config_line(const std::string& key) {
  for (const std::string& line : lines_of(config_table()))
    if (line.starts_with(key + " = ")) return line;
  return "no " + key;
}

// What refuse_unsupported() refuses is marked, and nothing else: whatever a version runs, of each marked key
// some values are refused and those that the mark names are not.
TEST(RunSpec, TheTableMarksWhatThisVersionRefuses) {
  auto refused = [](const std::string& key, const std::string& value) {
    for (const Problem& p : unsupported_of(parse("", {key + "=" + value})))
      if (p.keys.front() == key) return true;
    return false;
  };
  auto limits = limits_of_version();
  for (std::string key : {std::string("precision.compute")}) {
    ASSERT_TRUE(limits.count(key)) << key;
    for (const FieldText& f : fields_of(RunSpec()))
      if (f.key == key)
        for (std::string_view c : f.rule.choices) {
          std::string words = " " + limits[key] + " ";
          std::replace(words.begin(), words.end(), ',', ' ');
          EXPECT_EQ(words.find(" " + std::string(c) + " ") == std::string::npos, refused(key, std::string(c)))
              << key << " = " << c << ": " << limits[key];
        }
  }
  EXPECT_HAS(config_line("comm"), "(one of thread, mpi, nccl)");
  for (const char* key : {"train.device", "train.comm", "layout.dp", "layout.zero", "optimizer.name",
                          "train.async_save", "model.layers"})
    EXPECT_FALSE(limits.count(key)) << key << ": " << limits[key];
  for (auto& [key, text] : limits) EXPECT_HAS(config_table(), "this version: " + text);
}

TEST(RunSpec, Required8BitKernelsAreAGpusAndOfFp8) {
  const std::string required = "precision.fp8_kernels=\"required\"", fp8 = "precision.fp8=\"current\"";
  const auto refused = [](const std::vector<std::string>& sets) {
    std::vector<std::string> keys;
    for (const Problem& p : unsupported_of(parse("", sets))) keys.push_back(p.keys.front());
    return keys;
  };
  const std::vector<std::string> key = {"precision.fp8_kernels"};
  EXPECT_EQ(refused({required}), key);
  EXPECT_EQ(refused({required, fp8}), key);  // on a processor
  EXPECT_EQ(refused({required, "train.device=\"cuda\""}), key);
  EXPECT_EQ(refused({required, fp8, "train.device=\"cuda\""}), std::vector<std::string>());
}

TEST(RunSpec, KernelsOfAGpuAreRefusedOnAProcessor) {
  const std::string asked = "train.attention=\"sm90\"";
  const std::vector<Problem> refused = unsupported_of(parse("", {asked}));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].keys.front(), "train.attention");
  EXPECT_EQ(unsupported_of(parse("", {asked, "train.device=\"cuda\""})).size(), 0u);
}

// What follows from an edited line follows, whatever else the table says.
TEST(RunSpec, TheTableMayBeEditedAnywhere) {
  auto edited = [](std::vector<std::pair<std::string, std::string>> edits) {
    std::string table = config_table();
    for (auto& [from, to] : edits) {
      size_t at = table.find("\n" + from);
      EXPECT_NE(at, std::string::npos) << from;
      table.replace(at + 1, from.size(), to);
    }
    return parse(table);
  };
  RunSpec run = edited({{"hidden = 384", "hidden = 640"}, {"heads = 6", "heads = 10"}});
  EXPECT_TRUE(run == parse("[model]\nhidden = 640\nheads = 10\n"));
  EXPECT_EQ(run.model.kv_heads, 10);
  EXPECT_EQ(run.model.ffn, 1792);
  EXPECT_TRUE(edited({{"arch = \"llama\"", "arch = \"gpt2\""}, {"seq_len = 256", "seq_len = 512"}}) ==
              parse("[model]\narch = \"gpt2\"\n[data]\nseq_len = 512\n"));
  EXPECT_EQ(edited({{"# kv_heads = 6", "kv_heads = 2"}}).model.kv_heads, 2);
}

TEST(RunSpec, PartsOfAnotherArchitectureAreNotedOrRefused) {
  EXPECT_TRUE(notes_of(parse("[model]\narch = \"gpt2\"\nactivation = \"gelu\"\ntied = false")).empty());
  EXPECT_TRUE(notes_of(parse("")).empty());
  const std::vector<std::string> notes =
      notes_of(parse("[model]\narch = \"gpt2\"\nnorm = \"rms\"\nactivation = \"swiglu\""));
  ASSERT_EQ(notes.size(), 1u);
  const std::string& note = notes[0];
  EXPECT_HAS(note, "model.norm = \"rms\" where gpt2 has \"layer\"");
  EXPECT_HAS(note, "model.activation = \"swiglu\"");
  EXPECT_EQ(note.find("positions"), std::string::npos);
  EXPECT_HAS(wrong("[model]\narch = \"gpt2\"\nrope_theta = 5e5", {}),
             "model.rope_theta: 500000 has no effect on learned positions");
}

TEST(RunSpec, LostAccuracyIsNotedWithKeyAndCost) {
  const auto notes = [](const std::string& toml) {
    std::string all;
    for (const std::string& n : notes_of(parse(toml.c_str()))) all += n + "\n";
    return all;
  };
  const auto summed = [&](int64_t microbatches) {
    return notes(fmt::format(
        "[batch]\nmicro = 1\nglobal = {}\n[precision]\ncompute = \"bf16\"\ngrads = \"bf16\"", microbatches));
  };
  EXPECT_EQ(summed(1), "");
  EXPECT_HAS(summed(64), "precision.grads = \"bf16\"");
  EXPECT_HAS(summed(64), "less than 0.1 %");
  EXPECT_HAS(summed(1024), "up to 3 %");
  EXPECT_HAS(summed(1024), "2 bytes more per parameter");
  EXPECT_HAS(summed(4096), "up to 35 %");
  EXPECT_EQ(notes("[batch]\nmicro = 1\nglobal = 64\n[precision]\ncompute = \"bf16\""), "");

  const auto reduced = [&](int64_t dp, const char* order, const char* reduce) {
    return notes(
        fmt::format("[batch]\nmicro = 1\nglobal = {}\n[precision]\ncompute = \"bf16\"\nreduce = \"{}\"\n"
                    "[layout]\ndp = {}\n[train]\nsum_order = \"{}\"",
                    dp, reduce, dp, order));
  };
  EXPECT_HAS(reduced(1024, "ring", "auto"), "train.sum_order = \"ring\" with precision.reduce = \"bf16\"");
  EXPECT_EQ(reduced(1024, "ring", "f32"), "");
  EXPECT_EQ(reduced(1024, "ordered", "auto"), "");
  EXPECT_EQ(reduced(8, "ring", "auto"), "");
  EXPECT_HAS(notes("[layout]\ndp = 2\n[precision]\ncompute = \"f32\"\nreduce = \"bf16\""), "on the wire");

  EXPECT_HAS(notes("[precision]\ncompute = \"f16\"\nloss_scale = 1"), "precision.loss_scale = 1");
  EXPECT_HAS(notes("[precision]\ncompute = \"f16\"\ninitial_scale = 2"), "precision.initial_scale = 2");
  EXPECT_EQ(notes("[precision]\ncompute = \"f16\""), "");
  EXPECT_HAS(notes("[precision]\ncompute = \"bf16\"\nfp8 = \"block\""), "precision.fp8 = \"block\"");
  EXPECT_HAS(notes("[optimizer]\neps = 1e-60"), "optimizer.eps = 1e-60");
  EXPECT_HAS(notes("[optimizer]\nbetas = [0.9, 0.99999999999]"), "optimizer.betas");
  EXPECT_HAS(notes("[optimizer]\nlr = 1e-12"), "optimizer.lr = 1e-12");
}

TEST(RunSpec, WhatIsSeldomMeantIsNoted) {
  const auto noted = [](const char* toml) {
    const std::vector<std::string> notes = notes_of(parse(toml));
    return notes.size() == 1 ? notes[0] : fmt::format("{} notes", notes.size());
  };
  EXPECT_EQ(noted("[optimizer]\nlr = 0"), "optimizer.lr = 0: the weights stay as they are");
  EXPECT_EQ(
      noted("[optimizer]\nlr = 1e-3\nwarmup = 200\n[train]\nsteps = 50"),
      "optimizer.warmup = 200 of train.steps = 50: the learning rate ends at 0.00025 and never reaches lr = "
      "0.001");
  EXPECT_EQ(noted("[optimizer]\nwarmup = 50\n[train]\nsteps = 50"), "0 notes");
  EXPECT_EQ(noted("[layout]\nzero = 3"),
            "layout.zero = 3 shards over dp x cp, which is 1: each rank holds all of its state");
  EXPECT_EQ(noted("[layout]\nzero = 2\ncp = 2"), "0 notes");
  EXPECT_EQ(noted("[layout]\nzero = 2\ndp = 2\nshard_group = 1"),
            "layout.zero = 2 with layout.shard_group = 1: each rank holds all of its state");
}

}  // namespace
}  // namespace trireme
