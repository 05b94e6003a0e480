// Adapters of low rank in every layout, against one rank; what is frozen has no gradient, no state, no bytes.
#include <fmt/format.h>

#include "checks.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

bool is_factor(const std::string& name) {
  return name.ends_with(".lora_a") || name.ends_with(".lora_b");
}

// Key/value heads that ranks divide or share; matrices that compress, whole on every rank; frozen experts and
// tied tables; layers with adapters of some matrices.
class Lora : public testing::TestWithParam<const char*> {};

TEST_P(Lora, EveryGradientIsOneRanks) {
  SCOPED_TRACE(GetParam());
  const Pair p = expect_bounded_gradients(from_text(GetParam()));
  for (const auto& [name, g] : p.one.gradients[0]) {
    EXPECT_TRUE(is_factor(name)) << name;
    EXPECT_GT(norm_of(g), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Lora,
                         testing::Values("lora=3 dp=2 zero=1 microbatches=2",
                                         "lora=3 dp=3 zero=3 tied=1 microbatches=2",
                                         "lora=2 dp=2 zero=2 arch=gpt2 tied=1 targets=*+!*.attn.k",
                                         "lora=3 dp=2 zero=3 reshard=0", "lora=3 tp=2 heads=6 kv_heads=2",
                                         "lora=3 tp=4 heads=4 kv_heads=2 hidden=40 arch=qwen2",
                                         "lora=3 tp=2 heads=2 arch=qwen3 sequence=1 seq=22 chunks=3",
                                         "lora=2 tp=3 dp=2 zero=3 arch=gpt2 vocab=67 targets=*.mlp.*",
                                         "lora=3 tp=2 latent=2 heads=4", "lora=3 cp=2 seq=24",
                                         "lora=3 cp=2 dp=2 zero=3 seq=24 method=ulysses heads=2 kv_heads=2",
                                         "lora=3 pp=2 layers=3 microbatches=3 tied=1",
                                         "lora=3 pp=2 layers=4 microbatches=4 schedule=zb-h1 dp=2 zero=1",
                                         "lora=3 pp=2 layers=4 microbatches=4 schedule=dualpipe heads=2",
                                         "lora=3 recompute=full dp=2 zero=3",
                                         "lora=3 recompute=selective tp=2 heads=2 again=n1+qkv+o+u+a",
                                         "lora=3 arch=mixtral dp=2 ep=2 experts=4 zero=1",
                                         "lora=3 arch=deepseek_v3 tp=2 heads=4 dp=2 zero=3"));

// Losses of a whole run, in which adapters and moments move.
TEST(LoraRun, TrainsAsOneRank) {
  for (const char* text : {"lora=3 tp=2 heads=6 kv_heads=2 dp=2 zero=3 microbatches=2",
                           "lora=3 pp=2 layers=3 microbatches=3 tied=1"}) {
    SCOPED_TRACE(text);
    const Pair p = expect_bounded_losses(from_text(text));
    EXPECT_LT(p.one.losses.back(), p.one.losses.front());
  }
}

TEST(LoraZero, StagesAreBitIdentical) {
  for (const char* text : {"lora=3 dp=2", "lora=2 tp=2 dp=2 heads=2 arch=qwen3 tied=1"}) {
    SCOPED_TRACE(text);
    expect_zero_stages_identical(from_text(text));
  }
}

TEST(LoraRecompute, ChangesNoBit) {
  const Ran plain = train_layout(run_of(from_text("lora=3")), {.steps = 4});
  for (const char* text : {"lora=3 recompute=full", "lora=3 recompute=selective again=n1+n2+qkv+o+mid+u+a"}) {
    SCOPED_TRACE(text);
    expect_identical(train_layout(run_of(from_text(text)), {.steps = 4}), plain);
  }
}

// B is zero: the first loss is the base model's, bit-identical. The base does not change.
TEST(LoraFresh, BeginsAsTheBaseAndLeavesItAlone) {
  for (const char* text : {"heads=2", "heads=2 compute=bf16 arch=gpt2", "tp=2 heads=2"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran base = train_layout(run_of(c), {.steps = 1, .gradients = true});
    c.lora = 3;
    const Ran run = train_layout(run_of(c), {.steps = 4, .fresh_adapters = true});
    EXPECT_EQ(run.losses[0], base.losses[0]);
    EXPECT_LT(run.losses[3], run.losses[0] + 1);
    for (const auto& [name, values] : run.state.at("")) {
      if (!is_factor(name)) {
        const Values& before = base.state.at("").at(name);  // lr = 0
        if (c.compute == "f32") {
          EXPECT_TRUE(same_bits(values, before)) << name;
        }
        EXPECT_FALSE(run.state.at("exp_avg").contains(name)) << name;
      } else if (name.ends_with(".lora_b")) {
        EXPECT_GT(norm_of(values), 0) << name;
      }
    }
  }
}

// Booked bytes equal each rank's ledger, bucket by bucket. Gradients, master copies and moments are the
// adapters'.
TEST(LoraBytes, AreTheAdapters) {
  for (const char* text :
       {"lora=3 compute=bf16 microbatches=2", "lora=3 dp=2 zero=1 compute=bf16",
        "lora=3 dp=2 zero=3 compute=bf16 tied=1", "lora=2 tp=2 heads=2 pp=2 layers=3 microbatches=2"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    const RunSpec run = run_of(c);
    const Ran ran = train_layout(run, {.steps = 2});
    for (const RankFacts& r : ran.ranks) {
      EXPECT_LE(r.high_water, ran.booking.arena_bytes);
      EXPECT_EQ(r.left_over, 0);
      if (c.pp > 1) continue;
      EXPECT_EQ(r.state, ran.booking.state);
      EXPECT_EQ(r.peaks, ran.booking.peak);
      EXPECT_EQ(r.peak_total, ran.booking.peak_total);
    }
    if (run.world() > 1) continue;
    int64_t all = 0, trained = 0;
    for (const auto& [name, values] : ran.state.at("")) {
      all += int64_t(values.size());
      if (is_factor(name)) trained += int64_t(values.size());
    }
    EXPECT_EQ(ran.booking.state[size_t(Bucket::weights)], 2 * all);
    EXPECT_EQ(ran.booking.state[size_t(Bucket::grads)], 4 * trained);
    EXPECT_EQ(ran.booking.state[size_t(Bucket::optimizer)], 12 * trained);
  }
}

TEST(LoraLow, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"lora=3 tp=2 heads=2 compute=bf16 grads=bf16", "lora=3 dp=2 zero=2 compute=f16 microbatches=2"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

TEST(LoraTargets, MustNameMatrices) {
  const auto fails = [](const char* text, std::string_view words) {
    try {
      train_layout(run_of(from_text(text)), {.steps = 1});
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  fails("lora=2 targets=*.q_proj", "lora.targets: \"*.q_proj\" names no linear layer");
  fails("lora=2 targets=*.attn.q+!*", "lora.targets chooses no matrix");
}

}  // namespace
}  // namespace trireme::parity
