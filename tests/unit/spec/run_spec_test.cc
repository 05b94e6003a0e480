#include "spec/recompute.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "spec/identity.h"
#include "spec/supported.h"
#include "spec/toml.h"
#include "spec/walk.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::lines_of;

RunSpec parse(std::string_view toml, std::vector<std::string> sets = {}) {
  return parse_run(toml, "run.toml", sets);
}
std::string wrong(std::string_view toml, std::vector<std::string> sets = {}) {
  return error_of([&] { parse(toml, sets); });
}

// The run file of DESIGN.md section 5, as it stands there. Tools and people rely on these keys and defaults.
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
global = 32
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
lr = 1e-3
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
clip_norm = 1.0
schedule = "cosine"
warmup = 100
min_lr = 0.0
[train]
steps = 1000
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

TEST(RunSpec, AllErrorsAtOnceEachWithItsLine) {
  std::string err = wrong(
      "[model]\n"              // 1
      "layer = 3\n"            // 2
      "hidden = \"big\"\n"     // 3
      "heads = 0\n"            // 4
      "[data]\n"               // 5
      "order = \"shufled\"\n"  // 6
      "[optimizr]\n"           // 7
      "lr = 1\n"               // 8
      "[optimizer]\n"          // 9
      "betas = [0.9, 1.0]\n"   // 10
      "lr = nan\n"             // 11
      "[batch]\n"              // 12
      "global = 30\n",         // 13
      {"train.stepz=4", "nonsense"});
  // clang-format off
  EXPECT_EQ(lines_of(err), (std::vector<std::string>{
      "run.toml:2: model.layer: unknown key, did you mean model.layers?",
      "run.toml:3: model.hidden: \"big\" is a string; give a whole number from 1 to 16777216, such as 384",
      "run.toml:4: model.heads: 0 is out of range; give a whole number from 1 to 16777216, such as 6",
      "run.toml:6: data.order: \"shufled\" is not known, did you mean \"shuffled\"; give one of shuffled, sequential, such as \"shuffled\"",
      "run.toml:7: optimizr: unknown section, did you mean optimizer?",
      "run.toml:10: optimizer.betas: [0.9, 1] is out of range; give a list of two numbers from 0 to below 1, such as [0.9, 0.95]",
      "run.toml:11: optimizer.lr: nan is out of range; give a number from 0 to 1000000, such as 0.001",
      "run.toml:13: batch.global: 30 is not a multiple of dp * micro = 1 * 8 = 8",
      "--set: \"nonsense\" is not section.key=value, such as batch.micro=4",
      "--set: train.stepz: unknown key, did you mean train.steps?"}));
  // clang-format on
}

// What a bad value seems to contradict is not reported on top of it.
TEST(RunSpec, NoErrorsThatFollowFromErrors) {
  EXPECT_EQ(lines_of(wrong("[model]\nhidden = \"big\"\nheads = 7")).size(), 1u);
  EXPECT_EQ(lines_of(wrong("[batch]\nglobal = 9\nmicro = 0")).size(), 1u);
  EXPECT_EQ(lines_of(wrong("[model]\nhidden = 378\nheads = 7")).size(), 0u);
  EXPECT_EQ(lines_of(wrong("[model]\nhidden = 386\nheads = 7")).size(), 1u);
}

TEST(RunSpec, WrongShapes) {
  EXPECT_HAS(wrong("model = 3"), "run.toml:1: model: 3 is a whole number; it is a section: write [model]");
  EXPECT_HAS(wrong("[[model]]\nlayers = 1"), "run.toml:1: model: it is a list of tables; it is a section");
  EXPECT_HAS(wrong("[model.layers]\nx = 1"),
             "run.toml:1: model.layers: it is a section; give a whole number");
  EXPECT_EQ(lines_of(wrong("[model.layers]\nx = 1")).size(), 1u);
  EXPECT_HAS(wrong("layers = 3"), "run.toml:1: layers: unknown key, did you mean model.layers?");
  EXPECT_HAS(wrong("[zzz]\na = 1\nb = 2"),
             "run.toml:1: zzz: unknown section, sections are batch, cluster, data,");
  EXPECT_EQ(lines_of(wrong("[zzz]\na = 1\nb = 2")).size(), 1u);
  EXPECT_HAS(wrong("[optimizer]\nbetas = [0.9]"), "[0.9] has 1 numbers");
  EXPECT_HAS(wrong("[optimizer]\nbetas = 0.9"), "0.9 is a number; give a list of two numbers");
  EXPECT_HAS(wrong("[model]\nlayers = 2.5"), "2.5 is a number; give a whole number");
  EXPECT_HAS(wrong("[model]\ntied = 1"), "1 is a whole number; give true or false");
  EXPECT_HAS(wrong("[model]\nfrom = 1979-05-27"), "is a date; give a string");
  EXPECT_HAS(wrong("[train]\ncheckpoint_every = \"always\""), "give a whole number, or \"auto\"");
}

TEST(RunSpec, HostileValues) {
  EXPECT_HAS(wrong("[model]\nlayers = -1"), "-1 is out of range");
  EXPECT_HAS(wrong("[model]\nlayers = 9223372036854775807"), "is out of range");
  EXPECT_HAS(wrong("[model]\nvocab = 0"), "run.toml:2: model.vocab: 0 is out of range");
  EXPECT_HAS(wrong("[train]\nseed = -5"), "-5 is out of range");
  EXPECT_HAS(wrong("[optimizer]\neps = 0.0"), "0.0 is out of range; give a number above 0 to 1");
  EXPECT_HAS(wrong("[optimizer]\nlr = inf"), "inf is out of range");
  EXPECT_HAS(wrong("[train]\ntimeout = -nan"), "is out of range");
  EXPECT_HAS(wrong("[train]\ndir = \"a\\u0000b\""), "NUL");
  // Sizes that are each allowed, and whose products are not.
  EXPECT_HAS(wrong("[model]\nlayers = 65536\nhidden = 16777216\nheads = 65536\nvocab = 2147483647"),
             "run.toml:3: model.hidden: the model has about");
  EXPECT_HAS(wrong("[batch]\nmicro = 2147483647\nglobal = 2147483647\n[data]\nseq_len = 2147483647"),
             "run.toml:2: batch.micro: 2147483647 sequences of 2147483647 tokens");
  EXPECT_HAS(wrong("[layout]\ndp = 1048576\ntp = 1048576\npp = 1048576\ncp = 1048576"),
             "world = pp * dp * cp * tp");
  EXPECT_HAS(
      wrong("[batch]\nmicro = 1\nglobal = 2147483647\n[data]\nseq_len = 2147483647\n[train]\nsteps = 1e12"),
      "run.toml:7: train.steps: the run has 4.6e+30 tokens");
  std::string many;
  for (int i = 0; i < 5000; i++) many += "key" + std::to_string(i) + " = 1\n";
  EXPECT_EQ(lines_of(wrong(many)).size(), 51u);
  EXPECT_HAS(wrong(many), "run.toml: and 4950 more unknown keys");
}

TEST(RunSpec, Contradictions) {
  struct Case {
    const char *toml, *says;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"[model]\nhidden = 100", "run.toml:2: model.hidden: 6 does not divide hidden = 100"},
           {"[model]\nkv_heads = 4", "run.toml:2: model.kv_heads: 4 does not divide heads = 6"},
           {"[model]\narch = \"gpt2\"\nqkv_bias = true",
            "run.toml:3: model.qkv_bias: true adds nothing to attn_bias = true"},
           {"[model]\nhead_dim = 63", "run.toml:2: model.head_dim: 63 is odd"},
           {"[model]\nmax_positions = 100",
            "model.max_positions: 256 is longer than model.max_positions = 100"},
           {"[model]\narch = \"gpt2\"\nrope_scaling.type = \"linear\"", "has no effect on learned positions"},
           {"[model]\nrope_scaling.factor = 2", "2 has no effect with type = \"none\""},
           {"[model.rope_scaling]\ntype = \"llama3\"\nlow_freq_factor = 4",
            "must be below high_freq_factor = 4"},
           {"[batch]\nmicro = 5", "run.toml:2: batch.micro: 32 is not a multiple of dp * micro = 1 * 5 = 5"},
           {"[layout]\ndp = 3", "run.toml:2: layout.dp: 32 is not a multiple of dp * micro = 3 * 8 = 24"},
           {"[layout]\nep = 2", "run.toml:2: layout.ep: 2 does not divide dp * cp * tp = 1"},
           {"[layout]\norder = \"pp dp cp\"", "\"pp dp cp\" must name pp, dp, cp and tp once each"},
           {"[layout]\norder = \"pp dp cp cp\"", "must name pp, dp, cp and tp once each"},
           {"[layout]\ntp = 4", "run.toml:2: layout.tp: 4 does not divide model.heads = 6"},
           {"[layout]\ntp = 3\n[model]\nffn = 1024", "layout.tp: 3 does not divide model.ffn = 1024"},
           {"[layout]\ntp = 4\n[model]\nheads = 12\nkv_heads = 6",
            "layout.tp: 4 neither divides model.kv_heads = 6 nor is a multiple of it"},
           {"[layout]\ntp = 6\n[model]\nffn = 1536\nvocab = 8",
            "layout.tp: 6 parts of 2 rows leave the last rank none of model.vocab = 8"},
           {"[layout]\nsequence = true", "run.toml:2: layout.sequence: true has no effect with tp = 1"},
           {"[layout]\nsequence = true\ntp = 3\n[model]\nffn = 768",
            "data.seq_len = 256 is no multiple of it"},
           {"[layout]\npp = 4\nchunks = 2", "pp * chunks = 4 * 2 stages are more than model.layers = 6"},
           {"[layout]\ndp = 4\nshard_group = 3", "run.toml:3: layout.shard_group: 3 does not divide dp = 4"},
           {"[optimizer]\nmin_lr = 0.1", "run.toml:2: optimizer.min_lr: 0.1 is above lr = 0.001"},
           {"[optimizer]\npost_validation = \"calm\"",
            "run.toml:2: optimizer.post_validation: \"calm\" has no effect with pp = 1"},
           {"[precision]\ncompute = \"f32\"\ngrads = \"bf16\"",
            "run.toml:3: precision.grads: \"bf16\" gradients need"},
           {"[precision]\ncompute = \"f16\"\ngrads = \"bf16\"",
            "run.toml:3: precision.grads: \"bf16\" gradients need compute = \"bf16\"; with f16 give \"f32\""},
           {"[precision]\nloss_scale = \"static\"",
            "run.toml:2: precision.loss_scale: \"static\" is a string; give \"dynamic\", or a number above "
            "0"},
           {"[precision]\nloss_scale = 0", "run.toml:2: precision.loss_scale: 0 is out of range"},
           {"[precision]\ninitial_scale = 0.5",
            "run.toml:2: precision.initial_scale: 0.5 is below min_scale = 1"},
           {"[train]\ndir = \"\"", "run.toml:2: train.dir: \"\" is no folder"},
           {"[data]\ntrain = \"\"", "run.toml:2: data.train: \"\" is no token shard"},
           {"[data]\ntrain = []", "run.toml:2: data.train: \"\" is no token shard"},
           {"[data]\ntrain = [\"a\", 1]",
            "run.toml:2: data.train: it is a list of other things than numbers or"},
           {"[data]\ntrain = [\"a\", \"\"]", "run.toml:2: data.train: [\"a\", \"\"] has an empty"},
           {"[data]\ntrain = [1]",
            "run.toml:2: data.train: [1] is a list; give a string, or a list of strings"},
           {"[data]\nweights = [1, 2]", "run.toml:2: data.weights: 2 weights for the 1 shards of data.train"},
           {"[data]\nweights = [-1]", "run.toml:2: data.weights: [-1] is out of range"},
           {"[data]\nweights = [inf]", "run.toml:2: data.weights: [inf] is out of range"},
           {"[data]\nweights = 1", "run.toml:2: data.weights: 1 is a whole number; give a list of numbers"},
           {"[data]\nweights = [0]", "run.toml:2: data.weights: every weight is 0"},
           {"[data]\nprefetch = -1", "run.toml:2: data.prefetch: -1 is out of range"}}) {
    std::string err = wrong(c.toml);
    EXPECT_HAS(err, c.says);
    EXPECT_EQ(lines_of(err).size(), 1u) << err;
  }
  EXPECT_EQ(wrong("[train]\nsteps = 3"), "");  // shorter than the warmup: the rate just climbs
  EXPECT_EQ(wrong("[model]\nheads = 5\nhead_dim = 64"), "");
  EXPECT_EQ(wrong("[layout]\norder = \"tp  cp dp pp\""), "");
}

TEST(RunSpec, ArchitecturesAreRefusedByName) {
  EXPECT_EQ(
      wrong("[model]\narch = \"mistral\""),
      "run.toml:2: model.arch: \"mistral\" is not supported by this version; gpt2, llama, qwen2, qwen3, "
      "mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3 are");
  EXPECT_HAS(wrong("[model]\narch = \"lama\""), "\"lama\" is not known, did you mean \"llama\"?");
  EXPECT_HAS(wrong("[model]\narch = 3"), "3 is a whole number; give one of gpt2, llama");
  EXPECT_HAS(error_of([] { ModelSpec::of("phi3"); }), "model.arch: \"phi3\" is not supported");
}

TEST(RunSpec, Experts) {
  ModelSpec m = parse("[model]\narch = \"qwen2_moe\"\nmoe_ffn = 100\nexperts = 12").model;
  EXPECT_TRUE(m.experts == 12 && m.experts_per_token == 4 && m.shared_ffn == 400 && m.shared_gate);
  m = parse("[model]\nexperts = 3").model;  // a llama of experts
  EXPECT_TRUE(m.experts_per_token == 2 && m.moe_ffn == m.ffn && m.shared_ffn == 0);
  EXPECT_HAS(wrong("[model]\nexperts_per_token = 2"),
             "model.experts_per_token: 2 has no effect with experts = 0");
  EXPECT_HAS(wrong("[model]\nmoe_ffn = 64"), "model.moe_ffn: 64 has no effect with experts = 0");
  EXPECT_HAS(wrong("[model]\nshared_gate = true"), "model.shared_gate: 1 has no effect");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nexperts_per_token = 9"), "9 is more than experts = 8");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nactivation = \"gelu\""), "is not what experts compute");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nmlp_bias = true"), "experts have no biases");
  const std::string mixtral = "[model]\narch = \"mixtral\"\n";
  auto refused = [&](const std::string& text) {
    return error_of([&] { refuse_unsupported(parse(mixtral + text)); });
  };
  refuse_unsupported(parse(mixtral + "[layout]\ntp = 2\ndp = 2\nep = 4\nzero = 3"));
  EXPECT_HAS(error_of([] { refuse_unsupported(parse("[layout]\ndp = 2\nep = 2")); }),
             "layout.ep: 2 is not supported by this version; the model has no experts");
  EXPECT_HAS(refused("[layout]\ndp = 3\nep = 3\n[batch]\nglobal = 48"),
             "ranks have equally many experts: give a divisor of model.experts = 8");
  EXPECT_HAS(refused("[layout]\ntp = 2\n[data]\nseq_len = 255"), "give a divisor of data.seq_len = 255");
  EXPECT_HAS(refused("[layout]\ndp = 4\nep = 2\nzero = 1\nshard_group = 2"), "experts have one shard group");
  EXPECT_HAS(refused("[layout]\noffload = \"state\"\n[optimizer]\nname = \"muon\""),
             "layout.offload: \"state\" is not supported by this version; Muon's momentum");
  EXPECT_HAS(refused("[layout]\ndp = 2\nep = 2\n[train]\nnoise_scale = 2\n[batch]\nglobal = 16"),
             "train.noise_scale: 2");
  refuse_unsupported(parse(mixtral + "[layout]\ndp = 2\nep = 2\n[train]\nnoise_scale = 2"));
  EXPECT_HAS(wrong("[moe]\naux_loss = 0.1"), "moe.aux_loss: 0.1 has no effect with model.experts = 0");
}

TEST(RunSpec, BiasesOfRoutersWantASettledStep) {
  const std::string run =
      "[model]\nexperts = 8\nrouter_bias = true\n[layout]\npp = 2\n[optimizer]\npost_validation = "
      "\"always\"\n[moe]\nbias_rate = ";
  refuse_unsupported(parse(run + "0.0"));
  EXPECT_HAS(
      error_of([&] { refuse_unsupported(parse(run + "0.01")); }),
      "optimizer.post_validation: \"always\" is not supported by this version; biases of routers move");
  EXPECT_HAS(error_of([&] { refuse_unsupported(parse(run + "0.0", {"layout.offload=state"})); }),
             "the state before a step would lie in the memory that offloading it frees");
}

TEST(RunSpec, PartsOfSequencesAreEqual) {
  EXPECT_HAS(wrong("[layout]\ncp = 3"), "256 is no multiple of 6");
  EXPECT_HAS(wrong("[layout]\ncp = 3\ncp_placement = \"striped\""), "256 is no multiple of 3");
  parse("[layout]\ncp = 3\ncp_placement = \"contiguous\"\n[data]\nseq_len = 9");
  EXPECT_HAS(wrong("[layout]\ncp = 4\ntp = 2\ncp_method = \"ulysses\"\n[model]\nheads = 4\nkv_heads = 2"),
             "does not divide model.heads = 4; give \"ring\"");
  EXPECT_HAS(wrong("[layout]\ncp = 4\ncp_method = \"ulysses\"\n[model]\nheads = 4\nkv_heads = 2"),
             "does not divide model.kv_heads = 2; give \"ring\"");
  EXPECT_HAS(wrong("[layout]\ncp = 2\nshard_group = 4"), "4 does not divide dp * cp = 1 * 2");
  EXPECT_HAS(wrong("[layout]\ncp = 2\ntp = 2\nsequence = true\ncp_placement = \"striped\"\n"
                   "[model]\nheads = 4\n[data]\nseq_len = 6"),
             "no multiple of it");
}

TEST(RunSpec, DenseLayersAndGroupsOfExperts) {
  ModelSpec m = parse("[model]\narch = \"mixtral\"\nlayers = 7\ndense_layers = 2\nexpert_step = 2").model;
  EXPECT_EQ(m.expert_blocks(), 2);  // 3 and 5
  for (int64_t i = 0; i < 7; i++) EXPECT_EQ(m.expert_block(i), i == 3 || i == 5) << i;
  EXPECT_HAS(wrong("[model]\ndense_layers = 1"), "model.dense_layers: 1 has no effect with experts = 0");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nlayers = 2\ndense_layers = 2"),
             "leaves no block of experts");
  EXPECT_HAS(wrong("[model]\nexperts = 8\nexpert_groups = 3"), "3 does not divide experts = 8");
  EXPECT_HAS(wrong("[model]\nexperts = 8\nexpert_groups = 4\ntop_groups = 5"), "more than expert_groups = 4");
  EXPECT_HAS(wrong("[model]\nexperts = 8\nexpert_groups = 4\ntop_groups = 1\nexperts_per_token = 3"),
             "3 is more than the 2 experts of top_groups = 1 groups");
  EXPECT_HAS(wrong("[model]\nexperts = 4\nexpert_groups = 4\ntop_groups = 2\ngroup_worth = \"pair\""),
             "groups of at least two experts");
}

TEST(RunSpec, LatentAttention) {
  ModelSpec m = parse("[model]\nkv_rank = 32\nnope_head_dim = 20\nrope_head_dim = 8").model;
  EXPECT_TRUE(m.latent() && m.head_dim == 28 && m.v_head_dim == 20 && m.value_dim() == 20 &&
              m.rope_dim() == 8);
  m = parse("[model]\narch = \"deepseek_v3\"\nheads = 4").model;
  EXPECT_TRUE(m.head_dim == 192 && m.o_size() == 512 && m.router_bias && m.expert_block(3) &&
              !m.expert_block(2));
  EXPECT_HAS(wrong("[model]\nq_rank = 8"), "model.q_rank: 8 has no effect with kv_rank = 0");
  EXPECT_HAS(wrong("[model]\nkv_rank = 32\nnope_head_dim = 20"), "rotary positions turn pairs");
  const std::string latent = "[model]\nkv_rank = 32\nnope_head_dim = 20\nrope_head_dim = 8\n";
  EXPECT_HAS(wrong(latent + "head_dim = 27"), "27 is not nope_head_dim + rope_head_dim = 28");
  EXPECT_HAS(wrong(latent + "kv_heads = 2"), "latent keys and values are of every head");
  EXPECT_HAS(wrong(latent + "qk_norm = true"), "latent attention normalises what it compresses");
  EXPECT_HAS(wrong(latent + "attn_bias = true"), "q_rank = 0 compresses no queries");
  refuse_unsupported(parse(latent + "[layout]\ntp = 2\ncp = 2"));
  EXPECT_HAS(wrong("[model]\narch = \"deepseek_v2\"\nshared_ffn = 21\n[layout]\ntp = 2"),
             "layout.tp: 2 does not divide model.shared_ffn = 21");
}

TEST(RunSpec, UnsupportedByThisVersion) {
  refuse_unsupported(parse(""));
  refuse_unsupported(parse("[layout]\ndp = 4\nzero = 3\nshard_group = 2\n[train]\ncomm = \"mpi\""));
  refuse_unsupported(parse("[layout]\npp = 2\nzero = 2\ndp = 2"));
  refuse_unsupported(parse("[layout]\ntp = 2\ndp = 3\n[batch]\nglobal = 48"));
  refuse_unsupported(parse("[layout]\nschedule = \"gpipe\"\n[precision]\ncompute = \"bf16\""));
  for (const char* set : {"precision.compute=fp8", "train.comm=nccl"}) {
    std::string key = std::string(set).substr(0, std::string(set).find('='));
    RunSpec run = parse("", {set});
    std::string err = error_of([&] { refuse_unsupported(run); });
    EXPECT_EQ(err.find(key + ": "), 0u) << err;
    EXPECT_HAS(err, "not supported by this version; ");
    EXPECT_EQ(lines_of(err).size(), 1u) << err;
  }
  refuse_unsupported(parse("[train]\ndevice = \"cuda\"\n[precision]\nfp8 = \"block\""));
  refuse_unsupported(parse("[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\""));
  EXPECT_HAS(
      error_of([] { refuse_unsupported(parse("[train]\ndevice = \"cuda\"\ncomm = \"nccl\"")); }),
      "train.sum_order: \"ordered\" is not supported by this version; train.comm = \"nccl\" adds in an order "
      "that NCCL chooses: give \"auto\"");
  EXPECT_HAS(error_of([] { refuse_unsupported(parse("[train]\ncomm = \"nccl\"")); }),
             "it moves memory of GPUs: give train.device = \"cuda\", or \"thread\" or \"mpi\"");
  RunSpec gpu = parse("[train]\ndevice = \"cuda\"\ncomm = \"mpi\"\n[layout]\noffload = \"state\"");
  const std::string no = error_of([&] { refuse_unsupported(gpu); });
  EXPECT_HAS(no, "train.comm: ");
  EXPECT_EQ(lines_of(no).size(), 1u) << no;
  for (const char* to : {"file", "host"}) {
    const RunSpec away =
        parse("[train]\ndevice = \"cuda\"\n[layout]\noffload = \"all\"\nrecompute = \"full\"",
              {std::string("layout.offload_to=") + to});
    EXPECT_TRUE(problems_of(away).empty()) << to;
    refuse_unsupported(away);
  }
  refuse_unsupported(parse("[layout]\ncp = 4\ntp = 2\ndp = 2\nzero = 3\nshard_group = 8"));
  auto beside_cp = [](const char* toml) {
    return error_of([&] { refuse_unsupported(parse(toml, {"layout.cp=2"})); });
  };
  for (const char* runs :
       {"[model]\nresid_pdrop = 0.1\nattn_pdrop = 0.1\nembd_pdrop = 0.1", "[optimizer]\nname = \"muon\"",
        "[model]\narch = \"deepseek_v2\"", "[model]\narch = \"mixtral\"\n[layout]\nep = 2"})
    refuse_unsupported(parse(runs, {"layout.cp=2"}));
  EXPECT_HAS(beside_cp("[model]\narch = \"mixtral\"\nheads = 4\n[data]\nseq_len = 20\n[layout]\ntp = 4\n"
                       "cp_placement = \"striped\""),
             "give a divisor of data.seq_len / layout.cp = 10");
  refuse_unsupported(parse("[train]\nnoise_scale = 2", {"layout.cp=2"}));
  EXPECT_HAS(error_of([] {
               refuse_unsupported(parse("[layout]\npp = 2\n[model]\ntied = true\n[train]\nnoise_scale = 2"));
             }),
             "train.noise_scale: 2 is not supported by this version; two stages have summands");
  refuse_unsupported(parse("[layout]\npp = 2\nschedule = \"dualpipe\""));
  EXPECT_HAS(
      error_of([] {
        refuse_unsupported(parse("[layout]\npp = 2\nschedule = \"dualpipe\"\n[train]\nnoise_scale = 2"));
      }),
      "train.noise_scale: 2 is not supported by this version; two ranks have each stage");
  const std::string experts =
      "[model]\narch = \"mixtral\"\n[layout]\npp = 2\nschedule = \"dualpipe\"\n[moe]\naux_loss = 0.1\nunit "
      "= ";
  refuse_unsupported(parse(experts + "\"microbatch\""));
  EXPECT_HAS(error_of([&] { refuse_unsupported(parse(experts + "\"global\"")); }),
             "moe.unit: \"global\" is not supported by this version; two ranks have each stage");
  RunSpec run = parse("[layout]\ndp = 2\nep = 2\n[train]\ncomm = \"nccl\"");
  EXPECT_EQ(lines_of(error_of([&] { refuse_unsupported(run); })).size(), 2u);
}

TEST(RunSpec, RecomputeKeysThatSayNothing) {
  auto wrong = [&](const std::string& keys) {
    return error_of([&] { parse(("[layout]\n" + keys).c_str()); });
  };
  parse("[layout]\nrecompute = \"full\"\nrecompute_blocks = 2\nrecompute_rest = [\"n1\", \"o\"]");
  parse("[layout]\nrecompute = \"full\"\nrecompute_shard = true\ntp = 2");
  EXPECT_HAS(
      wrong("recompute_tensors = [\"scores\"]"),
      "layout.recompute_tensors: \"scores\" is no tensor that is computed again; those are n1, qkv, o, mid, "
      "n2, u, a");
  EXPECT_HAS(wrong("recompute_tensors = [\"n1,o\"]"), "several are a list, as [\"n1\", \"o\"]");
  EXPECT_HAS(wrong("recompute = \"selective\"\nrecompute_tensors = []"), "nothing to compute again");
  EXPECT_HAS(wrong("recompute_blocks = 3"),
             "layout.recompute_blocks: 3 has no effect with recompute = \"none\"");
  EXPECT_HAS(wrong("recompute = \"full\"\nrecompute_rest = [\"n1\"]"),
             "has no effect with recompute_blocks = 0");
  EXPECT_HAS(wrong("offload = \"inputs\""),
             "layout.offload: \"inputs\" offloads no inputs with recompute = \"none\"");
  EXPECT_HAS(wrong("offload = \"all\""), "give \"state\", or recompute = \"full\"");
  EXPECT_HAS(wrong("offload_mb = 8"), "layout.offload_mb: 8 has no effect with offload = \"none\"");
  EXPECT_HAS(wrong("offload_mb = 0"), "layout.offload_mb");
  EXPECT_HAS(wrong("offload = \"state\"\noffload_to = \"host\""),
             "layout.offload_to: \"host\" offloads nothing on \"cpu\", whose memory is the host's");
  EXPECT_HAS(wrong("offload_dir = \"/tmp\""), "has no effect with offload = \"none\"");
  EXPECT_HAS(wrong("offload_to = \"host\""),
             "layout.offload_to: \"host\" has no effect with offload = \"none\"; give \"file\"");
  EXPECT_HAS(wrong("offload = \"state\"\noffload_to = \"host\"\noffload_dir = \"/tmp\""),
             "layout.offload_dir: \"/tmp\" has no effect with offload_to = \"host\"");
  EXPECT_HAS(wrong("recompute = \"full\"\nrecompute_limit = 1000"), "recompute_limit: 1000 has no effect");
  EXPECT_HAS(wrong("recompute = \"selective\"\nrecompute_shard = true\ntp = 2"),
             "keeps more than a block's input");
  EXPECT_HAS(wrong("recompute = \"full\"\nrecompute_shard = true"), "true has no effect with tp = 1");
  EXPECT_HAS(wrong("recompute = \"full\"\nrecompute_shard = true\ntp = 2\nsequence = true"),
             "divides activations already");
  EXPECT_HAS(error_of([] {
               parse(
                   "[model]\narch = \"deepseek_v2\"\n[layout]\nrecompute = \"selective\"\n"
                   "recompute_tensors = [\"qkv\"]");
             }),
             "\"qkv\" is kept by latent attention");
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
  EXPECT_EQ(types("", true), "bf16/f32");  // 32 / 8 = 4 microbatches
  EXPECT_EQ(types("[batch]\nmicro = 32", true), "bf16/bf16");
  EXPECT_EQ(types("[precision]\ncompute = \"f16\"", true), "f16/f32");
  EXPECT_EQ(types("[batch]\nmicro = 32\n[precision]\ncompute = \"f16\"", true), "f16/f32");
  EXPECT_EQ(types("[batch]\nmicro = 16\n[layout]\ndp = 2", true), "bf16/bf16");
  EXPECT_EQ(types("[batch]\nmicro = 32", false), "f32/f32");
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
        "data.train=other", "data.seq_len=128", "data.order=sequential", "batch.global=64",
        "precision.compute=bf16", "optimizer.lr=1e-4", "optimizer.betas=[0.9, 0.99]", "train.steps=999",
        "train.seed=2"})
    EXPECT_TRUE(changed(set)) << set;
  for (const char* set : {"train.dir=x", "train.device=cuda", "train.checkpoint_every=7", "train.keep=3",
                          "train.threads=1", "train.log_every=1", "data.valid=x", "data.tokenizer=x",
                          "cluster.file=x", "layout.schedule=gpipe", "train.eval_every=5", "data.prefetch=0",
                          "layout.dp=2", "layout.zero=3", "batch.micro=4", "precision.reduce=bf16"})
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
  EXPECT_EQ(note_of(parse("[model]\narch = \"gpt2\"\nactivation = \"gelu\"\ntied = false")), "");
  EXPECT_EQ(note_of(parse("")), "");
  std::string note = note_of(parse("[model]\narch = \"gpt2\"\nnorm = \"rms\"\nactivation = \"swiglu\""));
  EXPECT_HAS(note, "model.norm = \"rms\" where gpt2 has \"layer\"");
  EXPECT_HAS(note, "model.activation = \"swiglu\"");
  EXPECT_EQ(note.find("positions"), std::string::npos);
  EXPECT_HAS(wrong("[model]\narch = \"gpt2\"\nrope_theta = 5e5", {}),
             "model.rope_theta: 500000 has no effect on learned positions");
}

TEST(RunSpec, EveryKeyCanBeSetAndIsRangeChecked) {
  // A value of the wrong type in each key, one at a time, names the key.
  for (const ConfigRow& r : config_rows()) {
    std::vector<std::string> values = {"[{}]", "{}", "[[1]]"};
    if (r.type.find("list of numbers") == std::string::npos) values.push_back("[3]");
    values.push_back(r.type.find("list of strings") != std::string::npos ? "[\"\"]" : "[\"x\"]");
    for (const std::string& value : values) {
      std::string err = wrong("", {r.key + "=" + value});
      EXPECT_EQ(err.find("--set: " + r.key + ": "), 0u) << r.key << "=" << value << ": " << err;
    }
    EXPECT_EQ(wrong("", {r.key + "=" + r.value}), "") << r.key;  // its own default is allowed
  }
}

// Of every key with a range: its bounds are in (or out, where open), what is just beyond is out.
TEST(RunSpec, BoundsAreExact) {
  int ranges = 0;
  for (const FieldText& f : fields_of(RunSpec())) {
    bool whole = f.type.starts_with("a whole number"), number = f.type == "a number";
    if (!whole && !number) continue;
    ranges++;
    auto out_of_range = [&](double v) {
      std::string text = whole ? std::to_string(int64_t(v)) : toml_number(v);
      return testing::has(wrong("", {f.key + "=" + text}), f.key + ": " + text + " is out of range");
    };
    auto beyond = [&](double v, double sign) {
      return whole ? v + sign : std::nextafter(v, sign * std::numeric_limits<double>::infinity());
    };
    ASSERT_TRUE(std::isfinite(f.rule.low)) << f.key;
    EXPECT_EQ(out_of_range(f.rule.low), f.rule.low_open) << f.key;
    EXPECT_TRUE(out_of_range(beyond(f.rule.low, -1))) << f.key;
    if (!std::isfinite(f.rule.high)) continue;
    EXPECT_EQ(out_of_range(f.rule.high), f.rule.high_open) << f.key;
    EXPECT_TRUE(f.rule.high > 9e15 || out_of_range(beyond(f.rule.high, +1))) << f.key;
  }
  EXPECT_GE(ranges, 35);
}

}  // namespace
}  // namespace trireme
