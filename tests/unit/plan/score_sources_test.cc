// What sources' own words, recipes and code say of their rows, as they are read.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "cost/pipeline_layers.h"
#include "cost/step_memory.h"
#include "score_row.h"

namespace trireme {
namespace {

using test::read_one, test::row_of, test::shipped_rows, test::TestJson, test::whole_row;

// What the recipes of NVIDIA's JAX runs keep: products' results (Pax 5 B); queries, keys, values and
// attention's projection (Pax 175 B, MaxText of 2024), or the first three (MaxText of 2025).
TEST(ScoreRows, JaxRowsDoAgainWhatTheirRecipesSay) {
  // MaxText's Llama 2 70B: h (q + 2 kv) + q h + 3 h f parameters of a block's products, of which gate and up
  // are done again, and with 2025's policy attention's projection.
  const double h = 8192, kv = 1024, f = 28672, block = h * (h + 2 * kv) + h * h + 3 * h * f;
  const std::pair<const char*, double> expected[] = {{"_paxml_GPT-5B_", 0},
                                                     {"_paxml_GPT-175B_", 1.0 / 3},
                                                     {"v24.11.1_maxtext_", 2 * h * f / block},
                                                     {"v25.02_maxtext_", (2 * h * f + h * h) / block}};
  size_t seen = 0;
  for (const auto& [part, share] : expected)
    for (const MeasuredRow& r : shipped_rows(part)) {
      ++seen;
      ASSERT_EQ(r.cases.size(), 1u) << r.id;
      EXPECT_NEAR(r.cases[0].recompute, share, 1e-9) << r.id;
      EXPECT_TRUE(r.cases[0].renorm && r.cases[0].recompute_attention) << r.id;
    }
  EXPECT_EQ(seen, 21u);
  for (const MeasuredRow& r : shipped_rows("_paxml_GPT-5B_")) EXPECT_EQ(r.cases[0].shards, 8) << r.id;
  for (const MeasuredRow& r : shipped_rows("_paxml_GPT-175B_")) EXPECT_EQ(r.cases[0].shards, 128) << r.id;
}

// DeepSpeed of 2021 gathers each of a block's four matrices as a list of slices.
TEST(ScoreRows, DeepSpeedsLists) {
  const std::vector<MeasuredRow> rows = shipped_rows("narayanan21_t2_zero3_");
  EXPECT_EQ(rows.size(), 5u);
  for (const MeasuredRow& r : rows)
    for (const StepCase& c : r.cases) EXPECT_EQ(c.sliced, 4) << r.id;
}

// Without sequence parallelism the gradients of gate's and up's inputs are summed one by one: five
// collectives for four. Each replica sums all gradients in f32 and gathers 16-bit weights: 10 bytes for 6.
TEST(ScoreRows, CollectivesOfAlephAlphasCode) {
  FitValues v;
  v.fill(1);
  v[size_t(Fit::ring)] = 0;
  size_t gates = 0;
  const fs::path file = test::source_dir() / "data/published_runs_2.json";
  for (const MeasuredRow& r : read_rows(read_text(file), file.string(), shipped_catalog())) {
    if (r.software != "aleph-alpha" || !r.skipped.empty()) continue;
    const StepCase& c = r.cases.at(0);
    EXPECT_TRUE(c.adds_gradients && c.messages == StageMessages::in_turn) << r.id;
    StepCase sums = c, fewer = c;
    sums.adds_gradients = fewer.adds_gradients = fewer.reduces_gate = fewer.sums_whole = false;
    const StepSeconds all = step_time(sums, r.figures, v), less = step_time(fewer, r.figures, v);
    EXPECT_NEAR(all.gradients, less.gradients * 10 / 6, 1e-9 * all.gradients) << r.id;
    if (c.tp == 1 || c.recompute > 0) continue;
    const double more = step_parts(c, r.figures, v).tp / step_parts(fewer, r.figures, v).tp;
    EXPECT_NEAR(more, c.sequence ? 1 : 5. / 4, 1e-9) << r.id;
    gates += !c.sequence;
  }
  EXPECT_GT(gates, 5u);
}

// DeepSpeed of 2022 adds gradients of every microbatch but the first in separate passes: two operands are
// read and one is written, in 16 bits each.
TEST(ScoreRows, GradientsThatAreAddedOneByOne) {
  FitValues v;
  v.fill(1);
  const std::vector<MeasuredRow> rows = shipped_rows("bloom_prequel_034_");
  ASSERT_EQ(rows.size(), 1u);
  const StepCase& c = rows[0].cases.at(0);
  EXPECT_TRUE(c.adds_gradients);
  StepCase fused = c;
  fused.adds_gradients = false;
  const DeviceFigures& d = rows[0].figures;
  const StepParts parts = step_parts(c, d, v);
  const double added = 511 * 6 * parts.dense / (0.8 * d.bandwidth);
  EXPECT_EQ(c.microbatches, 512);
  EXPECT_NEAR(step_time(c, d, v).gradients - step_time(fused, d, v).gradients, added, 1e-9 * added);
}

// DeepSpeed's pipeline engine: before each pass a stage's neighbor sends an activation and receives a
// gradient, one after another. So a microbatch waits for four messages, not two.
TEST(ScoreRows, MessagesInTurn) {
  FitValues v;
  v.fill(1);
  for (const char* id : {"bloom_prequel_034_", "bloom_prequel_100_"}) {
    const std::vector<MeasuredRow> rows = shipped_rows(id);
    ASSERT_EQ(rows.size(), 1u) << id;
    const StepCase& c = rows[0].cases.at(0);
    EXPECT_EQ(c.messages, StageMessages::in_turn) << id;
    StepCase both = c;
    both.messages = StageMessages::waited;
    const auto m = double(c.microbatches), fills = double(c.pp - 1);
    const double in_turn = step_time(c, rows[0].figures, v).messages,
                 at_once = step_time(both, rows[0].figures, v).messages;
    EXPECT_NEAR(in_turn / at_once, (2 * m + fills) / (m + fills), 1e-9) << id;
  }
}

// BLOOM's scripts set CUDA_LAUNCH_BLOCKING=1, so launches do not run ahead of the device.
TEST(ScoreRows, BlockingLaunchesAddUp) {
  FitValues v;
  v.fill(1);
  const std::vector<MeasuredRow> rows = shipped_rows("bloom_prequel_034_");
  ASSERT_EQ(rows.size(), 1u);
  const StepCase& c = rows[0].cases.at(0);
  EXPECT_TRUE(c.blocking);
  StepCase ahead = c;
  ahead.blocking = false;
  v[size_t(Fit::host)] = 0.01;
  const StepParts waits = step_parts(c, rows[0].figures, v), runs = step_parts(ahead, rows[0].figures, v);
  const double host = 1.33 * 0.01 * double(c.model.layers), device = waits.total - waits.host;
  EXPECT_NEAR(waits.host, host, 1e-9 * host);
  EXPECT_NEAR(runs.total, std::hypot(device, host), 1e-9 * device);
}

TEST(ScoreRows, KernelsOfAttentionAreTheirSources) {
  const auto all = [](const char* part, AttentionKind kind, bool again) {
    const std::vector<MeasuredRow> rows = shipped_rows(part);
    EXPECT_FALSE(rows.empty()) << part;
    for (const MeasuredRow& r : rows)
      for (const StepCase& c : r.cases) {
        EXPECT_EQ(c.attention, kind) << r.id;
        EXPECT_EQ(c.recompute_attention, again) << r.id;
      }
  };
  all("_Nemotron4-340B_", AttentionKind::flash2, true);
  all("v25.02_GPT3-175B_", AttentionKind::flash2, false);
  all("_Nemotron4-15B_", AttentionKind::flash, false);
  all("_Grok1-", AttentionKind::flash2, false);
  all("llmfoundry_1", AttentionKind::flash1, false);
  const MeasuredRow h100 = shipped_rows("v25.02_GPT3-175B_").at(0);
  EXPECT_LT(h100.figures.attention2, h100.figures.attention);
  const MeasuredRow a100 = shipped_rows("llmfoundry_1").at(0);
  EXPECT_EQ(a100.figures.attention2, a100.figures.attention);
}

// Grok's experts are divided among tensor parallel ranks, and run one by one.
TEST(ScoreRows, GroksExperts) {
  for (const MeasuredRow& r : shipped_rows("_Grok1-")) {
    EXPECT_EQ(r.cases.at(0).expert_tp, 4) << r.id;
    EXPECT_FALSE(r.cases[0].grouped) << r.id;
  }
  for (const MeasuredRow& r : shipped_rows("_DeepSeekV3_(dropless)")) {
    EXPECT_EQ(r.cases.at(0).expert_tp, 1) << r.id;
    EXPECT_TRUE(r.cases[0].grouped) << r.id;
  }
}

// Each row of the ablation hides what the rows before it hide, and more.
TEST(ScoreRows, MegaScalesAblationAddsUp) {
  struct Step {
    const char* id;
    bool beside, tp, pp, dp;
    AttentionKind attention;
  };
  for (const Step& s : {Step{"megascale_t3_0", false, false, false, false, AttentionKind::flash1},
                        Step{"megascale_t3_3", true, true, false, false, AttentionKind::flash1},
                        Step{"megascale_t3_4", true, true, true, false, AttentionKind::flash1},
                        Step{"megascale_t3_5", true, true, true, true, AttentionKind::flash1},
                        Step{"megascale_t3_6", true, true, true, true, AttentionKind::flash2},
                        Step{"megascale_f9", true, true, true, true, AttentionKind::flash2}}) {
    const StepCase c = shipped_rows(s.id).at(0).cases.at(0);
    EXPECT_EQ(c.side_by_side, s.beside) << s.id;
    EXPECT_EQ(c.tp_exposed, s.tp ? 0.5 : 1.0) << s.id;
    EXPECT_EQ(c.messages == StageMessages::hidden, s.pp) << s.id;
    EXPECT_EQ(c.sums_hidden, s.dp) << s.id;
    EXPECT_EQ(c.attention, s.attention) << s.id;
  }
}

// Jean Zay's nodes were mended on 25 February: what a row's note says its date is decides its site.
TEST(ScoreRows, JeanZayBeforeAndAfter) {
  const TestJson rows = TestJson::parse(read_text(test::source_dir() / "data/published_runs.json"));
  std::map<std::string, bool> mended;
  for (const TestJson& r : rows) {
    const std::string note = r.value("note", ""), id = r.value("id", "");
    if (const size_t at = note.find("date 02-"); id.starts_with("bloom_prequel") && at != note.npos)
      mended[id] = note.substr(at + 8, 2) >= "25";
  }
  int before = 0, after = 0;
  for (const MeasuredRow& r : shipped_rows("bloom_prequel")) {
    ASSERT_TRUE(mended.count(r.id)) << r.id;
    EXPECT_EQ(r.site, mended[r.id] ? "jean-zay/02-25" : "jean-zay") << r.id;
    EXPECT_EQ(r.figures.nic, 6.25e9) << r.id;
    ++(mended[r.id] ? after : before);
  }
  EXPECT_GT(before, 30);
  EXPECT_GT(after, 30);
}

// A model that its source cut to fewer layers is read as cut there: of DeepSeek-V3's 4 layers one is dense.
TEST(ScoreRows, ModelsAreCutAsTheirSourceCutsThem) {
  TestJson row = whole_row();
  row["source"] = "SimuMax, a test", row["precision"] = "bf16";
  row["model"] = {{"name", "deepseekv3"}, {"layers", 4}, {"seq", 4096}};
  row["cluster"] = {{"gpu", "B200-SXM"}, {"count", 8}};
  row["layout"] = {
      {"tp", 1}, {"pp", 1}, {"ep", 8}, {"dp", 8}, {"zero", 1}, {"micro_batch", 1}, {"num_microbatches", 4}};
  EXPECT_EQ(read_one(row).cases.at(0).model.dense_layers, 1);
  row["source"] = "somebody else";
  EXPECT_EQ(read_one(row).cases.at(0).model.dense_layers, 3);
}

// nanotron's table is of global rank 0, of the first stage, in units of 2^30 bytes.
TEST(ScoreRows, NanotronsMemoryIsOfTheFirstStage) {
  TestJson row = row_of("HF Ultra-Scale, a test", "H100", 16);
  row["model"] = {{"params", 1.34e9}, {"seq", 4096}};
  row["layout"] = {{"tp", 1}, {"pp", 2}, {"dp", 8}, {"zero", 1}, {"micro_batch", 1}, {"grad_accum", 32}};
  row["result"] = {{"mfu", 0.4}, {"memory_gb", 20.0}};
  const MeasuredRow r = read_one(row);
  ASSERT_EQ(r.skipped, "");
  EXPECT_EQ(r.memory, 20.0 * 1024 * 1024 * 1024);
  ASSERT_EQ(r.cases.size(), 1u);  // no recompute unless asked for
  const StepCase& c = r.cases[0];
  FitValues v;
  v.fill(1);
  EXPECT_EQ(rank_layers(c, 0), 11);  // 16 blocks and a head of 4: the tenth only reaches half of 20
  EXPECT_EQ(c.sliced, 6);
  const StepMemory m = step_memory(c, v);
  EXPECT_EQ(m.logits, 0);
  EXPECT_EQ(m.total, rank_memory(c, v, {0, 11, 11, 1}).total);
}

// torchtitan's rows all say what they do again, so one that does not is no run without; a source is read
// as one that does nothing again only with a reason.
TEST(ScoreRows, WhoIsKnownToDoNothingAgain) {
  TestJson row = row_of("torchtitan, a test", "H100-SXM-80GB", 256);
  row["model"] = {{"name", "llama3-70B"}, {"seq", 8192}};
  row["layout"] = {{"tp", 8}, {"pp", 1}, {"dp", 32}, {"zero", "FSDP2"}, {"micro_batch", 1}};
  row["result"] = {{"tokens_per_s_per_gpu", 800.0}};
  const MeasuredRow r = read_one(row);
  ASSERT_EQ(r.skipped, "");
  EXPECT_EQ(r.missing, std::vector<std::string>{"recompute"});
  ASSERT_EQ(r.cases.size(), 3u);
  EXPECT_EQ(r.cases[1].recompute, 0.5);  // its selective checkpointing
  // GPT-3 of NeMo 24.07, whose recipes keep all or do attention's core again.
  EXPECT_FALSE(shipped_rows("nemo2407_GPT3-").empty());
  for (const MeasuredRow& gpt : shipped_rows("nemo2407_GPT3-")) {
    ASSERT_EQ(gpt.cases.size(), 4u) << gpt.id;  // and of either whether parameters are 8-bit
    for (const size_t i : {0, 1, 2, 3}) {
      EXPECT_EQ(gpt.cases[i].recompute, 0) << gpt.id;
      EXPECT_EQ(gpt.cases[i].recompute_attention, i >= 2) << gpt.id;
      EXPECT_EQ(gpt.cases[i].keeping.weights8, i % 2 == 1) << gpt.id;
    }
  }
  EXPECT_FALSE(shipped_rows("bridge_26.06_").empty());
  for (const MeasuredRow& bridge : shipped_rows("bridge_26.06_"))
    for (const StepCase& c : bridge.cases) EXPECT_EQ(c.recompute, 0) << bridge.id;
  const TestJson catalog = TestJson::parse(read_text(test::source_dir() / "data/score_catalog.json").c_str());
  int none = 0;
  for (const TestJson& rule : catalog["sources"])
    if (rule.value("recompute", "unknown") == "none") {
      none++;
      EXPECT_NE(rule.value("why", ""), "") << rule["source"] << " " << rule["family"];
    }
  EXPECT_GT(none, 3);
}

// torchtitan splits a local batch into as many microbatches as its pipeline has stages: eight of four
// sequences, all of them in flight on the first rank.
TEST(ScoreRows, TorchtitansMicrobatches) {
  TestJson row = row_of("torchtitan, a test", "H100-96GB", 512);
  row["model"] = {{"name", "llama3-405B"}, {"seq", 8192}};
  row["layout"] = {{"tp", 8},           {"pp", 8},           {"dp", 8},
                   {"zero", "FSDP2"},   {"micro_batch", 32}, {"recompute", "full"},
                   {"schedule", "1f1b"}};
  row["result"] = {{"tokens_per_s_per_gpu", 100.0}};
  const MeasuredRow r = read_one(row);
  ASSERT_EQ(r.skipped, "");
  StepCase c = r.cases.at(0), split = c;
  EXPECT_EQ(c.micro * c.microbatches, 32);
  split.keeping.split = false, split.micro = 4, split.microbatches = 8;
  FitValues v;
  v.fill(1);
  const StepMemory m = step_memory(c, v);
  EXPECT_EQ(m.total, step_memory(split, v).total);
  const double input = 2.0 * 4 * 8192 * 16384 / 8, states = 16.0 / 8 / 8 * 405e9 / 8;
  EXPECT_NEAR(m.states, states, 0.05 * states);
  EXPECT_GT(m.activations, 7 * 15 * input);
  // Two chunks where nobody asked for more; who did is believed.
  row["layout"]["schedule"] = "interleaved";
  ASSERT_EQ(read_one(row).cases.size(), 1u);
  EXPECT_EQ(read_one(row).cases[0].chunks, 2);
  row["layout"]["interleave"] = 4;
  EXPECT_EQ(read_one(row).cases.at(0).chunks, 4);
}

// Llama 3's pipelines have one block a chunk (section 3.3.2); who says how many chunks is believed.
TEST(ScoreRows, ChunksOfSoManyBlocks) {
  const auto published = TestJson::parse(read_text(test::source_dir() / "data/published_runs.json"));
  TestJson row;
  for (const TestJson& r : published)
    if (r.at("id") == "llama3_405B_16384_cp1") row = r;
  ASSERT_FALSE(row.is_null());
  const MeasuredRow r = read_one(row);
  ASSERT_EQ(r.cases.size(), 2u);                             // its gradients may lie divided
  for (const StepCase& c : r.cases) EXPECT_EQ(c.chunks, 8);  // 126 blocks on 16 ranks
  row["layout"]["interleave"] = 2;
  EXPECT_EQ(read_one(row).cases.at(0).chunks, 2);
}

// DeepSeek-V3's rows say neither its latent attention nor that it has no tensor parallel ranks; its report
// does.
TEST(ScoreRows, WhatTheSourceSaysOfItsModelAndLayout) {
  const auto published = TestJson::parse(read_text(test::source_dir() / "data/published_runs.json"));
  TestJson row;
  for (const TestJson& r : published)
    if (r.at("id") == "deepseekv3_isca25_MPFT") row = r;
  ASSERT_FALSE(row.is_null());
  const MeasuredRow r = read_one(row);
  ASSERT_FALSE(r.cases.empty()) << r.skipped;
  for (const StepCase& c : r.cases) {
    EXPECT_EQ(c.tp * 1000000 + c.pp * 10000 + c.dp * 10 + c.zero, 1161281);
    EXPECT_EQ(c.ep, 64);
    EXPECT_EQ(c.model.kv_rank, 512);
    EXPECT_EQ(c.gpus(), 2048);
  }
  EXPECT_DOUBLE_EQ(r.step_s, 19.926);
  row["layout"]["tp"] = 2;
  EXPECT_EQ(read_one(row).cases.at(0).dp, 64);
  row["model"]["layers"] = 30;  // another model
  EXPECT_EQ(read_one(row).cases.at(0).model.kv_rank, 0);
  row["source"] = "somebody else", row["layout"].erase("tp");
  EXPECT_EQ(read_one(row).skipped, "no layout.tp");
}

}  // namespace
}  // namespace trireme
