// What a run file may not say.
#include <algorithm>
#include <cmath>
#include <set>

#include "run_text.h"
#include "spec/identity.h"
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
      "run.toml:11: optimizer.lr: nan is out of range; give \"auto\", or a number from 0 to 1000000",
      "run.toml:13: batch.global: 30 is not a multiple of dp * micro = 1 * 8 = 8; give 16, 24, 32 or 40",
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

// An example that shows nothing is left out.
TEST(RunSpec, NoEmptyExample) {
  EXPECT_EQ(wrong("[data]\ntokenizer = 3.5"), "run.toml:2: data.tokenizer: 3.5 is a number; give a string");
  EXPECT_EQ(wrong("[data]\nweights = \"all\""),
            "run.toml:2: data.weights: \"all\" is a string; give a list of numbers from 0 to 1e+300");
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
             "run.toml:3: model.hidden: 16777216: the model has about");
  EXPECT_HAS(wrong("[batch]\nmicro = 2147483647\nglobal = 2147483647\n[data]\nseq_len = 2147483647"),
             "run.toml:2: batch.micro: 2147483647 sequences of 2147483647 tokens");
  EXPECT_HAS(wrong("[layout]\ndp = 1048576\ntp = 1048576\npp = 1048576\ncp = 1048576"),
             "world = pp * dp * cp * tp");
  EXPECT_HAS(
      wrong("[batch]\nmicro = 1\nglobal = 2147483647\n[data]\nseq_len = 2147483647\n[train]\nsteps = 1e12"),
      "run.toml:7: train.steps: 1000000000000: the run has 4.6e+30 tokens");
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
           {"[model]\nhidden = 100",
            "run.toml:2: model.hidden: 100: model.heads = 6 does not divide hidden = 100"},
           {"[model]\nkv_heads = 4", "run.toml:2: model.kv_heads: 4 does not divide heads = 6"},
           {"[model]\narch = \"gpt2\"\nqkv_bias = true",
            "run.toml:3: model.qkv_bias: true adds nothing to attn_bias = true"},
           {"[model]\nhead_dim = 63", "run.toml:2: model.head_dim: 63 is odd"},
           {"[model]\nmax_positions = 100",
            "model.max_positions: 100: data.seq_len = 256 is longer than model.max_positions = 100"},
           {"[model]\narch = \"gpt2\"\nrope_scaling.type = \"linear\"", "has no effect on learned positions"},
           {"[model]\nrope_scaling.factor = 2", "2 has no effect with type = \"none\""},
           {"[model.rope_scaling]\ntype = \"llama3\"\nlow_freq_factor = 4",
            "must be below high_freq_factor = 4"},
           {"[batch]\nmicro = 5\nglobal = 32",
            "run.toml:3: batch.global: 32 is not a multiple of dp * micro = 1 * 5 = 5; give 25, 30, 35 or "
            "40"},
           {"[layout]\ndp = 3\n[batch]\nglobal = 32\nmicro = 8",
            "run.toml:4: batch.global: 32 is not a multiple of dp * micro = 3 * 8 = 24; give 24, 48 or 72"},
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
            "data.seq_len = 256 is not a multiple of it"},
           {"[layout]\npp = 4\nchunks = 2", "pp * chunks = 4 * 2 stages are more than model.layers = 6"},
           {"[layout]\ndp = 4\nshard_group = 3", "run.toml:3: layout.shard_group: 3 does not divide dp = 4"},
           {"[optimizer]\nlr = 0.001\nmin_lr = 0.1", "run.toml:3: optimizer.min_lr: 0.1 is above lr = 0.001"},
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
           {"[train]\ndir = \"\"", "run.toml:2: train.dir: \"\" is not a folder"},
           {"[data]\ntrain = \"\"", "run.toml:2: data.train: \"\" is not a token shard"},
           {"[data]\ntrain = []", "run.toml:2: data.train: [] is not a token shard"},
           {"[data]\ntrain = [\"a\", 1]",
            "run.toml:2: data.train: it is a list of other things than numbers or"},
           {"[data]\ntrain = [\"a\", \"\"]", "run.toml:2: data.train: [\"a\", \"\"] has an empty"},
           {"[data]\ntrain = [1]",
            "run.toml:2: data.train: [1] is a list; give a string, or a list of strings"},
           {"[data]\nweights = [1, 2]",
            "run.toml:2: data.weights: [1, 2]: 2 weights for the 1 shards of data.train"},
           {"[data]\nweights = [-1]", "run.toml:2: data.weights: [-1] is out of range"},
           {"[data]\nweights = [inf]", "run.toml:2: data.weights: [inf] is out of range"},
           {"[data]\nweights = 1", "run.toml:2: data.weights: 1 is a whole number; give a list of numbers"},
           {"[data]\nweights = [0]", "run.toml:2: data.weights: [0]: every weight is 0"},
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
  EXPECT_HAS(wrong("[model]\nshared_gate = true"), "model.shared_gate: true has no effect");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nexperts_per_token = 9"), "9 is more than experts = 8");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nactivation = \"gelu\""), "is not what experts compute");
  EXPECT_HAS(wrong("[model]\narch = \"mixtral\"\nmlp_bias = true"), "experts have no biases");
  const std::string mixtral = "[model]\narch = \"mixtral\"\n";
  auto refused = [&](const std::string& text) {
    return error_of([&] { refuse_unsupported(parse(mixtral + text)); });
  };
  refuse_unsupported(parse(mixtral + "[layout]\ntp = 2\ndp = 2\nep = 4\nzero = 3"));
  EXPECT_HAS(error_of([] { refuse_unsupported(parse("[layout]\ndp = 2\nep = 2")); }),
             "layout.ep: 2 divides experts, and the model has none; give 1");
  EXPECT_HAS(refused("[layout]\ndp = 3\nep = 3\n[batch]\nglobal = 48"),
             "layout.ep: 3 does not divide model.experts = 8");
  EXPECT_HAS(refused("[layout]\ntp = 2\n[data]\nseq_len = 255"),
             "layout.tp: 2 does not divide data.seq_len = 255");
  EXPECT_HAS(refused("[layout]\ndp = 4\nep = 2\nzero = 1\nshard_group = 2"), "experts have one shard group");
  EXPECT_HAS(refused("[layout]\noffload = \"state\"\n[optimizer]\nname = \"muon\""),
             "layout.offload: \"state\" is not supported by this version; Muon's momentum");
  EXPECT_HAS(refused("[layout]\ndp = 2\nep = 2\n[train]\nnoise_scale = 2\n[batch]\nglobal = 16"),
             "train.noise_scale: 2");
  refuse_unsupported(parse(mixtral + "[layout]\ndp = 2\nep = 2\n[train]\nnoise_scale = 2"));
  EXPECT_HAS(wrong("[moe]\naux_loss = 0.1"), "moe.aux_loss: 0.1 has no effect with model.experts = 0");
}

TEST(RunSpec, Bf16MomentsAreRefusedWhereTheyAreNotKept) {
  const auto refused = [](const std::string& text) {
    return error_of([&] { refuse_unsupported(parse("[precision]\nmoments = \"bf16\"\n" + text)); });
  };
  refuse_unsupported(
      parse("[precision]\nmoments = \"bf16\"\n[layout]\noffload = \"inputs\"\nrecompute = \"full\""));
  EXPECT_HAS(refused("[optimizer]\nname = \"muon\""),
             "precision.moments: \"bf16\" is not supported by this version; Muon's momentum is f32");
  EXPECT_HAS(refused("[layout]\noffload = \"state\""),
             "precision.moments: \"bf16\" is not supported by this version; offloaded state is f32");
  EXPECT_HAS(refused("[train]\ndevice = \"cuda\""),
             "precision.moments: \"bf16\" is not supported by this version; the GPU's update has f32");
  EXPECT_HAS(wrong("[precision]\nmoments = \"f16\""), "precision.moments: \"f16\"");
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
  EXPECT_HAS(wrong("[layout]\ncp = 3"), "256 is not a multiple of 6");
  EXPECT_HAS(wrong("[layout]\ncp = 3\ncp_placement = \"striped\""), "256 is not a multiple of 3");
  parse("[layout]\ncp = 3\ncp_placement = \"contiguous\"\n[data]\nseq_len = 9");
  EXPECT_HAS(wrong("[layout]\ncp = 4\ntp = 2\ncp_method = \"ulysses\"\n[model]\nheads = 4\nkv_heads = 2"),
             "does not divide model.heads = 4; give \"ring\"");
  EXPECT_HAS(wrong("[layout]\ncp = 4\ncp_method = \"ulysses\"\n[model]\nheads = 4\nkv_heads = 2"),
             "does not divide model.kv_heads = 2; give \"ring\"");
  EXPECT_HAS(wrong("[layout]\ncp = 2\nshard_group = 4"), "4 does not divide dp * cp = 1 * 2");
  EXPECT_HAS(wrong("[layout]\ncp = 2\ntp = 2\nsequence = true\ncp_placement = \"striped\"\n"
                   "[model]\nheads = 4\n[data]\nseq_len = 6"),
             "not a multiple of it");
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
  for (const char* set : {"precision.compute=fp8"}) {
    std::string key = std::string(set).substr(0, std::string(set).find('='));
    RunSpec run = parse("", {set});
    std::string err = error_of([&] { refuse_unsupported(run); });
    EXPECT_EQ(err.find(key + ": "), 0u) << err;
    EXPECT_HAS(err, "not supported by this version; ");
    EXPECT_EQ(lines_of(err).size(), 1u) << err;
  }
  refuse_unsupported(parse("[train]\ndevice = \"cuda\"\n[precision]\nfp8 = \"block\""));
  refuse_unsupported(parse("[train]\ndevice = \"cuda\"\n[layout]\ntp = 2\ntp_chunks = 4"));
  EXPECT_HAS(error_of([] { refuse_unsupported(parse("[layout]\ntp = 2\ntp_chunks = 4")); }),
             "layout.tp_chunks: 4 costs time on a CPU, whose cores both multiply and add up; give 1, or "
             "train.device");
  refuse_unsupported(parse("[train]\ndevice = \"cuda\"\ncomm = \"nccl\"\nsum_order = \"auto\""));
  EXPECT_HAS(error_of([] { refuse_unsupported(parse("[train]\ndevice = \"cuda\"\ncomm = \"nccl\"")); }),
             "train.sum_order: \"ordered\" cannot be had with train.comm = \"nccl\", where NCCL chooses the "
             "order; give "
             "\"auto\"");
  EXPECT_HAS(error_of([] { refuse_unsupported(parse("[train]\ncomm = \"nccl\"")); }),
             "moves memory of GPUs; give train.device = \"cuda\", or \"thread\" or \"mpi\"");
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
             "layout.tp: 4 does not divide data.seq_len / layout.cp = 10");
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
  EXPECT_HAS(wrong("recompute_tensors = [\"scores\"]"),
             "layout.recompute_tensors: [\"scores\"]: \"scores\" is not a tensor that can be recomputed; "
             "those are n1, qkv, "
             "o, mid, n2, u, a");
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
