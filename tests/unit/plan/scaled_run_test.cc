// A run in closed form, put in order by its schedule: the same seconds as the closed form's sum where nothing
// waits, its bubble where something does; a world of 16,384 ranks from few classes.
#include "forecast/scaled_run.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "catalog/catalog.h"
#include "catalog/data_texts.h"
#include "cost/flops.h"
#include "cost/step_memory.h"
#include "forecast/bound_step.h"
#include "model/stages.h"
#include "published/score_fit.h"
#include "sim/rank_program.h"
#include "sim/world_report.h"

namespace trireme {
namespace {

ScaledRun scaled(const char* model, const char* device, std::vector<std::string> sets) {
  ScaledRun s;
  RunSpec base;
  const KnownShape* shape = shipped_catalog().shape_named(model);
  base.model = shape->model;
  sets.insert(sets.begin(), "data.seq_len=4096");
  base.model.finish(4096), base.model.max_positions = 0;
  s.run = resolve(parse_run(save_run(base), "test", sets), {.native_bf16 = true});
  s.figures = shipped_catalog().device_named(device)->figures;
  s.by.device = shipped_catalog().device_named(device)->name;
  return s;
}
double simulated(const ScaledRun& s) {
  return double(replay_world(world_of(s)).replay.makespan) * 1e-9;
}
double closed(const ScaledRun& s) {
  const StepCase c = step_case_of(s);
  if (!s.software.ordered()) return step_time(c, s.figures, constants_of(s.by)).total;
  StepBound bound(s.run.model, s.run.data.seq_len, s.run.layout.cut);
  BoundStep one;
  return one
      .of(bound, s.run.layout.pp > 1 ? s.run.layout.schedule : "1f1b", c, s.figures,
          ordered_constants(constants_of(s.by)), s.run.layout, 0, 0, true)
      .total;
}

// What a run file says is what is priced.
TEST(ScaledRun, IsTheRunsCase) {
  const auto of = [](std::vector<std::string> sets) {
    sets.insert(sets.end(),
                {"layout.tp=4", "layout.dp=2", "layout.pp=2", "batch.global=24", "batch.micro=3"});
    return step_case_of(scaled("llama3-8B", "H100", sets));
  };
  const StepCase plain = of({"precision.reduce=f32", "precision.grads=f32"});
  EXPECT_EQ(plain.seq, 4096);
  EXPECT_EQ(plain.tp * 100 + plain.dp * 10 + plain.pp, 422);
  EXPECT_EQ(plain.micro, 3);
  EXPECT_EQ(plain.microbatches, 4);
  EXPECT_EQ(plain.grad_bytes, 4);
  EXPECT_EQ(plain.grad_stored, 4);
  EXPECT_EQ(plain.recompute, 0);
  EXPECT_FALSE(plain.renorm);
  EXPECT_FALSE(plain.sequence);
  EXPECT_EQ(plain.nearest, Nearest::tensor);
  EXPECT_EQ(of({"precision.reduce=bf16"}).grad_bytes, 2);
  EXPECT_EQ(of({"precision.grads=bf16"}).grad_stored, 2);
  EXPECT_TRUE(of({"layout.recompute=selective"}).renorm);
  EXPECT_EQ(of({"layout.recompute=full"}).recompute, 1);
  EXPECT_TRUE(of({"layout.sequence=true"}).sequence);
  EXPECT_EQ(of({"layout.order=dp pp cp tp"}).nearest, Nearest::stages);
  EXPECT_EQ(of({"layout.order=pp tp cp dp"}).nearest, Nearest::replicas);
  EXPECT_EQ(of({"precision.compute=fp8"}).numbers, NumberType::fp8);
  EXPECT_EQ(of({"layout.zero=2"}).zero, 2);
}

// A message is a microbatch's rows in 16 bits, a tp-th of them where what lies between products is divided.
TEST(ScaledRun, MessagesByHand) {
  for (const bool sequence : {false, true}) {
    const ScaledRun s =
        scaled("llama3-8B", "H100",
               {"layout.tp=4", "layout.pp=2", "layout.cp=2", "batch.global=12", "batch.micro=3",
                sequence ? "layout.sequence=true" : "layout.sequence=false"});
    EXPECT_EQ(world_of(s).work.message_bytes, 3 * 4096 / 2 * 4096 * 2 / (sequence ? 4 : 1));
  }
}

// ZeRO 3 reduces each layer once a microbatch, also where the backward pass is in two.
TEST(ScaledRun, ZeroThreeReducesEachLayerOnceAMicrobatch) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const ScaledRun s = scaled("llama3-8B", "H100",
                               {"layout.dp=8", "layout.pp=2", "layout.zero=3", "batch.global=24",
                                "batch.micro=1", std::string("layout.schedule=") + schedule});
    const World w = world_of(s);
    for (int pp = 0; pp < 2; pp++) {
      const RankProgram program = program_of(w, pp);
      size_t reductions = 0;
      for (const Piece& p : program.tape.pieces) reductions += p.name == "reduce_scatter";
      EXPECT_EQ(reductions, 3 * w.work.stages[size_t(pp)].layers.size()) << schedule << pp;
    }
  }
}

// One stage, nothing hidden: the sum of its parts.
TEST(ScaledRun, OneStageIsTheClosedFormsSum) {
  const std::vector<std::vector<std::string>> layouts = {
      {"layout.tp=2", "batch.global=6", "batch.micro=2"},
      {"layout.tp=4", "layout.dp=3", "batch.global=12", "batch.micro=1", "layout.recompute=full"},
      {"layout.dp=16", "batch.global=32", "batch.micro=2", "layout.zero=1", "layout.recompute=selective"},
      {"layout.tp=8", "layout.cp=2", "layout.dp=2", "batch.global=6", "batch.micro=1",
       "layout.sequence=true"}};
  for (const auto& sets : layouts)
    for (const char* device : {"A100-80GB", "H100"}) {
      const ScaledRun s = scaled("llama3-8B", device, sets);
      EXPECT_NEAR(simulated(s) / closed(s), 1, 1e-6) << sets[0] << " " << device;
    }
}

// State that waits elsewhere takes its way there and back once a step: 24 bytes a parameter where reads and
// writes share the link, 12 where it goes both ways at once.
TEST(ScaledRun, StateThatWaitsElsewhere) {
  ScaledRun s =
      scaled("llama3-8B", "H100", {"layout.dp=4", "layout.zero=1", "batch.global=8", "batch.micro=1"});
  const double without = simulated(s), whole = double(parameters(s.run.model));
  s.run.layout.offload = "state";
  try {
    step_case_of(s);
    ADD_FAILURE() << "a link of which nothing is known";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("with disk_bandwidth"), std::string::npos) << e.what();
  }
  s.offload = 10e9;
  for (const bool own : {false, true})
    for (const bool each_way : {false, true}) {
      s.software = own ? kTrireme : kElsewhere;
      s.offload_each_way = each_way;
      const double bytes = (each_way ? 12 : 24) * whole / 4;
      // trireme's own: weights are on their way while the next unit's state is.
      EXPECT_NEAR(simulated(s) / closed(s), 1, own ? 2e-3 : 1e-6) << own << each_way;
      if (!own) {
        EXPECT_NEAR((simulated(s) - without) / (bytes / 10e9), 1, 0.01) << each_way;
      }
    }
  s.run.layout.offload = "all";
  EXPECT_THROW(step_case_of(s), Error);
}

// Experts have their own exchange and their own replicas.
TEST(ScaledRun, ExpertsToo) {
  const ScaledRun s =
      scaled("mixtral-8x7B", "H100",
             {"layout.dp=16", "layout.ep=8", "batch.global=64", "batch.micro=1", "layout.zero=1"});
  EXPECT_NEAR(simulated(s) / closed(s), 1, 1e-6);
}

// ZeRO 3 gathers a rank's experts from replicas on other nodes, so all of their bytes pass its own network
// card. They take longer than compute: the step is theirs in both.
TEST(ScaledRun, ShardedExpertsAreGatheredFromOtherNodes) {
  for (const char* model : {"gpt-oss-120b", "DeepSeek-V3", "qwen3-235B-A22B"}) {
    const ScaledRun s = scaled(
        model, "H100", {"layout.dp=64", "layout.ep=8", "batch.global=512", "batch.micro=1", "layout.zero=3"});
    EXPECT_NEAR(simulated(s) / closed(s), 1, 0.05) << model;
  }
}

// A software's kernel of attention is that of its rows, in closed form and as simulated.
TEST(ScaledRun, AttentionIsThatOfTheSoftwaresRows) {
  const Catalog& all = shipped_catalog();
  EXPECT_EQ(all.fused_attention_of("torchtitan"), AttentionKind::flash2);
  EXPECT_EQ(all.fused_attention_of("llm-foundry-h100"), AttentionKind::flash1);
  for (const char* fastest : {"", "nemo", "megatron-0.14", "megatron-2021"})
    EXPECT_EQ(all.fused_attention_of(fastest), AttentionKind::flash) << fastest;
  ScaledRun s = scaled("llama3-8B", "H100", {"layout.dp=16", "batch.global=32", "batch.micro=2"});
  const double fastest = closed(s);
  s.attention = AttentionKind::flash2;
  EXPECT_GT(closed(s), 1.01 * fastest);
  EXPECT_NEAR(simulated(s) / closed(s), 1, 1e-6);
}

// Biases that experts' products add are traffic of the simulated step as of the closed form.
TEST(ScaledRun, ExpertsBiasesToo) {
  ScaledRun s = scaled("mixtral-8x7B", "H100",
                       {"layout.dp=16", "layout.ep=8", "batch.global=64", "batch.micro=1", "layout.zero=1"});
  const double without = simulated(s);
  s.expert_bias = true;
  EXPECT_GT(simulated(s), 1.001 * without);
  EXPECT_NEAR(simulated(s) / closed(s), 1, 1e-6);
}

// ZeRO 2 reduces behind every microbatch, beside the next one's compute: what travels is the closed form's,
// the step is a bound from below.
TEST(ScaledRun, Zero2ReducesBehindEveryMicrobatch) {
  const ScaledRun s =
      scaled("llama3-8B", "H100", {"layout.dp=16", "batch.global=96", "batch.micro=2", "layout.zero=2"});
  const RankProgram program = program_of(world_of(s), 0);
  double travels = 0;
  int reductions = 0;
  for (size_t i = 0; i < program.tape.pieces.size(); i++) {
    const Piece& p = program.tape.pieces[i];
    if (p.kind != PieceKind::call || program.kinds[size_t(p.group)] != GroupKind::dp) continue;
    travels += double(program.prices[i].time) * 1e-9, reductions += p.name == "reduce_scatter";
  }
  EXPECT_EQ(reductions, 3);
  const StepSeconds t = step_time(step_case_of(s), s.figures, constants_of(s.by));
  EXPECT_NEAR(travels / (t.gradients * t.total / (t.total - t.jitter)), 1, 1e-6);
  EXPECT_LT(simulated(s), t.total);
  EXPECT_GT(simulated(s), t.total - t.gradients * t.total / (t.total - t.jitter));
}

// ZeRO 3 with experts over ranks and a split backward: all of a layer's weights are gathered for F and for I,
// its experts' once more for W.
TEST(ScaledRun, ExpertsAreGatheredForWeightGradientsToo) {
  const ScaledRun s = scaled("mixtral-8x7B", "H100",
                             {"layout.dp=16", "layout.ep=8", "layout.pp=2", "layout.zero=3",
                              "layout.schedule=zb-h1", "batch.global=64", "batch.micro=1"});
  const World w = world_of(s);
  const int64_t blocks = s.run.model.layers / 2, microbatches = 4;
  for (int pp = 0; pp < 2; pp++) {
    const RankProgram program = program_of(w, pp);
    int64_t dense = 0, experts = 0, unshards = 0;
    for (const Piece& p : program.tape.pieces) {
      if (p.kind != PieceKind::call || p.name != "all_gather") continue;
      (program.kinds[size_t(p.group)] == GroupKind::edp ? experts : dense)++;
    }
    for (const Action& a : w.schedule.ranks[size_t(pp)]) unshards += a.kind == Act::Unshard;
    EXPECT_EQ(unshards, 3 * microbatches);
    EXPECT_EQ(experts, unshards * blocks) << pp;
    EXPECT_EQ(dense, 2 * microbatches * (blocks + 1)) << pp;  // the embedding or the head beside
  }
}

// Pipelines: the closed form's bubble is that of even stages.
TEST(ScaledRun, PipelinesAreNearTheClosedForm) {
  const std::vector<std::vector<std::string>> layouts = {
      {"layout.pp=4", "layout.tp=2", "layout.dp=2", "batch.global=32", "batch.micro=1"},
      {"layout.pp=8", "layout.tp=4", "layout.dp=4", "batch.global=128", "batch.micro=1", "layout.zero=1"},
      {"layout.pp=4", "layout.tp=8", "batch.global=32", "batch.micro=1", "layout.recompute=full"}};
  for (const auto& sets : layouts) {
    const ScaledRun s = scaled("llama3-70B", "H100", sets);
    EXPECT_NEAR(simulated(s) / closed(s), 1, 0.05) << sets[0];
  }
}

TEST(ScaledRun, SixteenThousandRanksFromSixteenClasses) {
  const ScaledRun s = scaled("llama3-405B", "H100",
                             {"layout.tp=8", "layout.pp=16", "layout.dp=128", "layout.zero=1",
                              "layout.sequence=true", "batch.micro=1", "batch.global=2048"});
  World w = world_of(s);
  const WorldReplay even = replay_world(w);
  EXPECT_EQ(even.classes.size(), 16u);
  EXPECT_EQ(even.class_of.size(), 16384u);
  w.disturbed.slow_ranks[5000] = 1.3;
  const WorldReplay slow = replay_world(w);
  EXPECT_EQ(slow.classes.size(), 64u);
  EXPECT_GT(slow.replay.makespan, even.replay.makespan);
  EXPECT_LT(slow.replay.makespan, even.replay.makespan * 13 / 10);
}

// The head counts as more than a block: the last stage has fewer.
TEST(ScaledRun, StagesAreCutAsTheRunCutsThem) {
  const ScaledRun s =
      scaled("llama3-70B", "H100", {"layout.pp=8", "layout.tp=8", "batch.global=16", "batch.micro=1"});
  const World w = world_of(s);
  const std::vector<StageRange> ranges = split_layers(s.run.model, s.run.data.seq_len, 8);
  ASSERT_EQ(w.work.stages.size(), ranges.size());
  for (size_t i = 0; i < ranges.size(); i++)
    EXPECT_EQ(int64_t(w.work.stages[i].layers.size()),
              ranges[i].last - ranges[i].first + ranges[i].embedding + ranges[i].head)
        << i;
  EXPECT_LT(w.work.stages[7].layers.size() - 1, w.work.stages[1].layers.size());
}

// Llama 3's own cut: a block a chunk, the first and the last chunk without one.
TEST(ScaledRun, StagesCutEvenlyMayHaveNoBlock) {
  const auto of = [](const char* chunks) {
    return scaled("llama3-405B", "H100",
                  {"layout.tp=8", "layout.pp=16", "layout.dp=128", "layout.schedule=interleaved", chunks,
                   "layout.cut=even", "layout.zero=1", "layout.sequence=true", "batch.micro=1",
                   "batch.global=2048", "data.seq_len=8192"});
  };
  ScaledRun s = of("layout.chunks=8");
  s.by.software = s.by.site = "llama3";
  const World w = world_of(s);
  ASSERT_EQ(w.work.stages.size(), 128u);
  for (const StageWork& stage : w.work.stages) EXPECT_EQ(stage.layers.size(), 1u);
  EXPECT_EQ(w.work.stages.front().layers[0].name, "embed");
  EXPECT_EQ(w.work.stages.back().layers[0].name, "head");
  EXPECT_EQ(step_case_of(s).cut, StageCut::even);
  EXPECT_NEAR(simulated(s) / closed(s), 1, 0.05);
  EXPECT_THROW(of("layout.chunks=9"), Error);
}

// The first stage's peak is the closed form's where stages are even: the same layers, as many microbatches in
// flight.
TEST(ScaledRun, MemoryIsTheClosedForms) {
  const ScaledRun s = scaled("llama3-405B", "H100",
                             {"layout.pp=9", "layout.tp=8", "layout.dp=2", "batch.global=64", "batch.micro=1",
                              "layout.zero=1", "layout.sequence=true"});
  const World w = world_of(s);
  const std::vector<StepRow> rows = rows_of(w, replay_world(w));
  const StepMemory m = step_memory(step_case_of(s), constants_of(s.by));
  EXPECT_NEAR(double(rows[0].peak) / m.total, 1, 0.01);
  EXPECT_GT(rows[0].peak, rows[6].peak);
}

TEST(ScaledRun, WhatIsNotPricedIsRefusedByName) {
  const auto why = [](std::vector<std::string> sets) -> std::string {
    sets.insert(sets.end(), {"layout.dp=4", "layout.tp=2", "batch.global=8", "batch.micro=1"});
    try {
      world_of(scaled("llama3-8B", "H100", sets));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(why({}), "");
  EXPECT_NE(why({"layout.zero=3", "layout.shard_group=2"}).find("layout.shard_group = 2"), std::string::npos);
  EXPECT_NE(why({"layout.tp_chunks=2"}).find("layout.tp_chunks = 2"), std::string::npos);
  EXPECT_NE(why({"precision.compute=f32"}).find("precision.compute = \"f32\""), std::string::npos);
  EXPECT_NE(why({"lora.rank=8"}).find("lora.rank = 8"), std::string::npos);
  EXPECT_NE(why({"optimizer.name=muon"}).find("optimizer.name = \"muon\""), std::string::npos);
  EXPECT_EQ(why({"layout.recompute=selective", "layout.recompute_tensors=[\"a\", \"n2\", \"n1\"]"}), "");
  EXPECT_NE(why({"layout.recompute=selective", "layout.recompute_tensors=[\"qkv\", \"o\"]"})
                .find("layout.recompute_tensors = [\"qkv\", \"o\"]"),
            std::string::npos);
  EXPECT_NE(
      why({"layout.recompute=full", "layout.recompute_shard=true"}).find("layout.recompute_shard = true"),
      std::string::npos);
  EXPECT_NE(why({"layout.cp=2", "layout.cp_method=ulysses"}).find("layout.cp_method = \"ulysses\""),
            std::string::npos);
  EXPECT_NE(why({"layout.order=tp pp cp dp"}).find("layout.order"), std::string::npos);
}

// What would take this machine's memory is refused before it is there.
TEST(ScaledRun, TooManyEventsAreRefused) {
  const auto why = [](std::vector<std::string> sets, bool all_ranks) -> std::string {
    sets.insert(sets.end(), {"batch.micro=1", "layout.zero=1"});
    try {
      replay_world(world_of(scaled("llama3-70B", "H100", sets)), all_ranks);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(why({"layout.dp=65536", "batch.global=262144"}, false), "");
  EXPECT_NE(why({"layout.dp=65536", "batch.global=1048576"}, true).find("--all-ranks: "), std::string::npos);
}

TEST(ScaledRun, WhoseConstantsAreKnown) {
  const auto why = [](const PricedBy& by) -> std::string {
    try {
      constants_of(by);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(why({.device = "H100", .software = "llama3", .site = "llama3"}), "");
  EXPECT_NE(
      why({.device = "H100", .software = "lama3"}).find("--software: no \"lama3\", did you mean llama3?"),
      std::string::npos);
  EXPECT_NE(why({.device = "H100", .site = "nowhere"}).find("--site: no \"nowhere\"; right is one of: "),
            std::string::npos);
}

// A file of constants of one's own: its one own site is taken; of several one is named; what says nothing is
// refused.
TEST(ScaledRun, ConstantsOfOnesOwn) {
  ScoreConstants mine = parse_constants(kScoreConstants, "shipped");
  const auto refused = [](PricedBy by, const ScoreConstants& c) {
    try {
      price_by_own(by, save_constants(c), "mine.json");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused({}, mine).find("mine.json differs from the shipped constants in its sites at most"),
            std::string::npos);
  mine.fitted["site:mine"] = {{Fit::pace, 1.07}, {Fit::jitter, 1}};
  PricedBy by{.device = "H100", .software = "nemo", .site = "", .own = nullptr, .file = ""};
  const FitValues before = constants_of(by);
  EXPECT_EQ(site_slowness(by, 64), 1);
  price_by_own(by, save_constants(mine), "mine.json");
  EXPECT_EQ(by.site, "mine");
  const FitValues after = constants_of(by);
  for (size_t f = 0; f < kFits; f++)
    EXPECT_NEAR(after[f] / before[f],
                Fit(f) == Fit::pace                       ? 1.07
                : layer_of(Fit(f)) == ConstantLayer::site ? 1.0
                                                          : 1.0,
                2e-3)
        << name_of(Fit(f));
  const double jitter = after[size_t(Fit::jitter)];
  EXPECT_NEAR(site_slowness(by, 8), after[size_t(Fit::pace)], 1e-12);
  EXPECT_NEAR(site_slowness(by, 64), after[size_t(Fit::pace)] * (1 + 3 * jitter), 1e-12);
  EXPECT_EQ(text_of(by),
            "constants of mine.json: software nemo, site mine (the whole step x 1.070 of what all sites have "
            "in common)");
  mine.fitted["site:other"] = {{Fit::pace, 1.5}};
  EXPECT_NE(refused({}, mine).find("has 2 sites of its own; name one: --site mine, --site other"),
            std::string::npos);
  PricedBy named{.device = "", .software = "", .site = "other", .own = nullptr, .file = ""};
  EXPECT_EQ(refused(named, mine), "");
}

}  // namespace
}  // namespace trireme
