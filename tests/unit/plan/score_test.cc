// Forecasts against measured runs: the reader's refusals, controls by hand, a planted source that the fit
// finds again, and the shipped rows.
#include "published/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "catalog/cluster_data.h"
#include "catalog/data_texts.h"
#include "cost/pipeline_layers.h"
#include "cost/step_memory.h"
#include "forecast/searched_step.h"
#include "score_row.h"
#include "source_dir.h"

namespace trireme {
namespace {

using test::TestJson, test::read_one, test::whole_row;

TEST(ScoreRows, AWholeRow) {
  const MeasuredRow r = read_one(whole_row());
  EXPECT_EQ(r.skipped, "");
  ASSERT_EQ(r.cases.size(), 1u);
  EXPECT_EQ(r.cases[0].microbatches, 24);
  EXPECT_EQ(r.cases[0].gpus(), 16);
  EXPECT_EQ(r.family, "vTrain");
  EXPECT_EQ(r.metric, "step_time_s");
  EXPECT_TRUE(r.notes.empty());
}

// What is wrong with a row, and a word of why it is left out.
struct BadRow {
  const char* name;
  const char* where;  // JSON pointer
  TestJson value;     // null: removed
  const char* reason;
};

class BadRows : public testing::TestWithParam<BadRow> {};

TEST_P(BadRows, AreNamed) {
  TestJson row = whole_row();
  const TestJson::json_pointer at(GetParam().where);
  row[at] = GetParam().value;
  EXPECT_NE(read_one(row).skipped.find(GetParam().reason), std::string::npos) << read_one(row).skipped;
  EXPECT_TRUE(read_one(row).cases.empty());
}

const std::vector<BadRow> kBadRows = {
    {"Degrees", "/layout/dp", 3, "degrees do not multiply: tp 4 x pp 2 x cp 1 x dp 3 is not 16"},
    {"TooManyDegrees", "/layout/tp", 32, "degrees do not multiply"},
    {"MoreThanPeak", "/result/step_time_s", 0.9, "more than the peak of 312"},
    {"Batch", "/layout/global_batch", 97, "global batch 97 is no multiple of dp 2"},
    {"Micro", "/layout/micro_batch", 5, "no multiple of dp 2 x micro 5"},
    {"Device", "/cluster/gpu", "Abacus", "\"Abacus\" has no figures"},
    {"DeviceWithAnotherNumber", "/cluster/gpu", "H1000", "\"H1000\" has no figures"},
    {"NoDevice", "/cluster/gpu", nullptr, "no cluster.gpu"},
    {"NoCount", "/cluster/count", nullptr, "no cluster.count"},
    {"Analytic", "/kind", "published-analytic", "nothing was measured"},
    {"NoTp", "/layout/tp", nullptr, "no layout.tp"},
    {"NoSeq", "/model/seq", nullptr, "no model.seq"},
    {"NoLayers", "/model/layers", nullptr, "no model.layers"},
    {"Shape", "/model/hidden", nullptr, "no shape of the model"},
    {"Experts", "/layout/ep", 2, "ep 2 of 0 experts"},
    {"Precision", "/precision", "ternary", "\"ternary\" is not known"},
    {"NoFp8", "/precision", "fp8", "has no peak"},
    {"Task", "/model/task", "LoRA", "task \"LoRA\""},
    {"NoResult", "/result/step_time_s", nullptr, "no step time"},
};
INSTANTIATE_TEST_SUITE_P(All, BadRows, testing::ValuesIn(kBadRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ScoreRows, ABadFileIsOneLine) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      read_rows(text, "rows.json", shipped_catalog());
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message("[{").find("rows.json: not JSON"), std::string::npos);
  EXPECT_NE(message("{}").find("no list of measured runs"), std::string::npos);
  EXPECT_NE(message("[3]").find("row 1 is no object"), std::string::npos);
  TestJson row = whole_row();
  row["model"]["hidden"] = -4;
  EXPECT_NE(message(TestJson::array({row}).dump()).find("model.hidden is -4; right is"), std::string::npos);
  row = whole_row();
  row["id"] = true;
  EXPECT_NE(message(TestJson::array({row}).dump()).find("id is true; right is text"), std::string::npos);
  row = whole_row();
  row["layout"] = 7;
  EXPECT_NE(message(TestJson::array({row}).dump()).find("layout is 7; right is an object"),
            std::string::npos);
}

TEST(ScoreRows, WhatIsMissingIsSolvedOrRangedOver) {
  TestJson row = whole_row();
  row["model"]["seq"] = nullptr;
  row["result"]["tokens_per_s"] = 96 * 2048 / 9.5;
  MeasuredRow r = read_one(row);
  EXPECT_EQ(r.skipped, "");
  EXPECT_EQ(r.cases.at(0).seq, 2048);
  ASSERT_EQ(r.notes.size(), 1u);

  row = whole_row();
  row["source"] = "BigScience BLOOM, a test";
  row["model"]["layers"] = nullptr;
  row["result"]["tflops_per_gpu"] = 96.0 * 96 * 2048 * 40 * 5120 * 5120 / (9.5 * 16 * 1e12);
  r = read_one(row);
  EXPECT_EQ(r.skipped, "");
  EXPECT_EQ(r.cases.at(0).model.layers, 40);

  row = whole_row();
  row["layout"]["interleave"] = nullptr;
  row["layout"]["micro_batch"] = nullptr;
  r = read_one(row);
  EXPECT_EQ(r.missing, (std::vector<std::string>{"micro_batch", "interleave"}));
  const RowForecast f = forecast_of(r, parse_constants(kScoreConstants, "shipped").of(r));
  EXPECT_LT(f.low, f.middle);
  EXPECT_GT(f.high, f.middle);

  row = whole_row();
  row["layout"]["grad_accum"] = 7;
  EXPECT_NE(read_one(row).notes.at(0).find("grad_accum 7 contradicts global_batch 96"), std::string::npos);
}

// A row without recompute, of a source that does not state it: the interval spans no recompute, attention's
// core and whole blocks. Whole blocks count for the forecast only if no other setting has room.
TEST(ScoreRows, AMissingRecomputeIsRangedOver) {
  const ScoreConstants constants = parse_constants(kScoreConstants, "shipped");
  TestJson row = whole_row();
  row["layout"]["micro_batch"] = 1;
  const auto as = [&](const TestJson& recompute) {
    row["layout"]["recompute"] = recompute;
    return read_one(row);
  };
  const MeasuredRow missing = as(nullptr);
  EXPECT_EQ(missing.skipped, "");
  EXPECT_EQ(missing.missing, std::vector<std::string>{"recompute"});
  ASSERT_EQ(missing.cases.size(), 3u);
  EXPECT_EQ(missing.cases[0].recompute, 0);
  EXPECT_FALSE(missing.cases[0].recompute_attention);
  EXPECT_EQ(missing.cases[1].recompute, 0);
  EXPECT_TRUE(missing.cases[1].recompute_attention);
  EXPECT_EQ(missing.cases[2].recompute, 1);
  const FitValues v = constants.of(missing);
  const RowForecast f = forecast_of(missing, v), bytes = memory_of(missing, v);
  EXPECT_DOUBLE_EQ(f.low, forecast_of(as("none"), v).middle);
  EXPECT_DOUBLE_EQ(f.high, forecast_of(as("full"), v).middle);
  EXPECT_GT(f.high, 1.2 * f.low);
  EXPECT_LT(f.low, f.middle);
  EXPECT_NEAR(f.middle, std::sqrt(f.low * forecast_of(as("attention"), v).middle), 1e-9 * f.middle);
  EXPECT_NEAR(bytes.low / memory_of(as("full"), v).middle, 1, 1e-12);
  EXPECT_NEAR(bytes.high / memory_of(as("none"), v).middle, 1, 1e-12);
  // A word that nobody knows says nothing.
  const MeasuredRow unknown = as("some");
  EXPECT_EQ(unknown.cases.size(), 3u);
  EXPECT_EQ(unknown.notes.at(0), "layout.recompute \"some\" is not known: read as missing");
  // With 48 sequences at once only what is done again in full has room on 80 GB; a run that did not fit
  // may have tried anything.
  row["layout"]["micro_batch"] = 48;
  ASSERT_EQ(as(nullptr).cases.size(), 1u);
  EXPECT_EQ(as(nullptr).cases[0].recompute, 1);
  EXPECT_DOUBLE_EQ(forecast_of(as(nullptr), v).middle, forecast_of(as("full"), v).middle);
  row["result"] = {{"oom", true}};
  EXPECT_EQ(as(nullptr).cases.size(), 3u);
}

// FLOP/s that count what is done again are seconds only where that is known.
TEST(ScoreRows, FlopsWithRecomputeNeedIt) {
  TestJson row = whole_row();
  row["result"] = {{"tflops_per_gpu", 100.0}};
  EXPECT_EQ(read_one(row).skipped, "");
  row["layout"]["recompute"] = nullptr;
  EXPECT_EQ(read_one(row).skipped,
            "its tflops_per_gpu counts what is done again, and no layout.recompute says what that is");
}

TEST(ScoreRows, NoneOfShortSequencesSaysNothingOfLongerOnes) {
  TestJson row = whole_row();
  row["layout"]["recompute"] = "none at 2K";
  EXPECT_EQ(read_one(row).cases.size(), 1u);
  row["layout"]["recompute"] = "none at 1K";
  EXPECT_GT(read_one(row).cases.size(), 1u);
}

// A schedule that is said to be interleaved has several chunks, however many.
TEST(ScoreRows, InterleavedIsNotOneChunk) {
  TestJson row = whole_row();
  row["layout"]["interleave"] = nullptr;
  const auto least = [&](const char* schedule) {
    row["layout"]["schedule"] = schedule;
    const MeasuredRow r = read_rows(TestJson::array({row}).dump(), "t", shipped_catalog())[0];
    EXPECT_EQ(r.skipped, "");
    int64_t chunks = 1 << 20;
    for (const StepCase& c : r.cases) chunks = std::min(chunks, c.chunks);
    return chunks;
  };
  EXPECT_EQ(least("interleaved"), 2);
  EXPECT_EQ(least("some"), 1);
}

// Words of the catalog that are not known are refused, not read as what is usual.
// One source of each number: what a name says of a device its cluster file says.
TEST(ScoreCatalog, EveryNameHasTheMemoryOfItsFiles) {
  int alike = 0;
  for (const ShippedCluster& file : kShippedClusters) {
    const ClusterSpec& c = *shipped_cluster(file.name);
    std::string name(file.name);
    for (char& letter : name)
      if (letter >= 'a' && letter <= 'z') letter = char(letter - 'a' + 'A');
    const KnownDevice* k = shipped_catalog().device_alike(name, double(c.memory_bytes));
    if (!k) continue;
    alike++;
    EXPECT_EQ(k->figures.memory, double(c.memory_bytes)) << file.name << " and " << k->name;
  }
  EXPECT_GE(alike, 8);
  EXPECT_EQ(shipped_cluster("h100"), nullptr);
}

// A maker's name alone says nothing: AMD's processors are not its accelerators.
TEST(ScoreCatalog, DevicesOfOneMakerAreNotAlike) {
  const Catalog& c = shipped_catalog();
  for (const char* name : {"AMD EPYC", "INTEL XEON", "NVIDIA GRACE", "RTX A2000", "AMD", ""})
    EXPECT_EQ(c.device_alike(name, 25e9), nullptr) << name;
  struct Known {
    const char* name;
    double memory;
    const char* device;
  };
  for (const Known& k : {Known{"NVIDIA H100 NVL", 100e9, "H100-96GB"},
                         {"H100-PCIE", 85e9, "H100"},
                         {"NVIDIA A100-PCIE-40GB", 42e9, "A100-40GB"},
                         {"NVIDIA GEFORCE RTX 4090 D", 25e9, "RTX 4090"},
                         {"AMD INSTINCT MI250X", 137e9, "MI250X"}}) {
    const KnownDevice* d = c.device_alike(k.name, k.memory);
    ASSERT_TRUE(d) << k.name;
    EXPECT_EQ(d->name, k.device) << k.name;
  }
}

TEST(ScoreCatalog, UnknownWordsAreNamed) {
  const auto message = [](const char* key, const TestJson& value) -> std::string {
    const TestJson rule = {{"source", "s"}, {"family", "f"},    {"software", "w"},
                           {"site", "x"},   {"flops", "model"}, {key, value}};
    const TestJson catalog = {{"shapes", TestJson::array()},
                              {"devices", TestJson::array()},
                              {"sites", TestJson::array()},
                              {"sources", TestJson::array({rule})}};
    try {
      parse_catalog(catalog.dump(), "c.json");
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message("recompute", "al but products"),
            "c.json: recompute \"al but products\"; right are none, full, unknown, none or attention, "
            "attention, all but products, all but qkv and out, all but qkv");
  EXPECT_EQ(message("attention", "flash 3"),
            "c.json: attention \"flash 3\"; right are flash, flash 1, flash 2, unfused");
  EXPECT_EQ(message("hides", {"tp", "cp"}), "c.json: hides \"cp\"; right are tp, pp, dp");
  for (const std::string_view known : kRecomputes) EXPECT_EQ(message("recompute", known), "");
}

TEST(Score, ControlByHand) {
  // Forward of a token: 40 layers of 24 h^2 + 2 s h (half of the scores), logits 2 h V; full recompute: four
  // forward passes of the blocks, three of the logits.
  const double h = 5120, s = 2048, tokens = 96 * s;
  const double blocks = 40 * (24 * h * h + 2 * s * h), head = 2 * h * 51200;
  const double flops = tokens * (4 * blocks + 3 * head);
  const double by_hand = flops / (16 * 312e12 * 0.5) * (1 + 1.0 / 24);
  EXPECT_NEAR(control_seconds(read_one(whole_row())) / by_hand, 1, 1e-9);
}

// Runs of a made-up site with known constants and 1 % of noise, over shapes and layouts at random.
std::vector<MeasuredRow> planted_rows(const FitValues& truth, int count) {
  std::vector<MeasuredRow> rows;
  const auto draw = [](uint64_t i, uint64_t what, int n) { return int(uniform(17, i * 16 + what) * n); };
  for (uint64_t i = 0; int(rows.size()) < count; ++i) {
    TestJson row = whole_row();
    row["id"] = "planted" + std::to_string(i);
    const int heads = 8 * (2 + draw(i, 0, 6)), tp = 1 << draw(i, 1, 4), pp = 1 << draw(i, 2, 3),
              dp = 1 << draw(i, 3, 4);
    row["model"]["heads"] = heads, row["model"]["kv_heads"] = heads;
    row["model"]["hidden"] = heads * 128, row["model"]["ffn"] = heads * 512;
    row["model"]["layers"] = 8 * (1 + draw(i, 4, 7));
    row["cluster"]["count"] = tp * pp * dp;
    const int micro = 1 << draw(i, 5, 4);
    row["layout"] = {{"tp", tp},
                     {"pp", pp},
                     {"dp", dp},
                     {"micro_batch", micro},
                     {"interleave", 1},
                     {"global_batch", dp * micro * (pp * (1 + draw(i, 6, 8)))},
                     {"recompute", i % 2 ? "full" : "none"}};
    row["result"]["step_time_s"] = 1e6;
    MeasuredRow r = read_one(row);
    if (!r.skipped.empty()) continue;
    r.step_s = forecast_of(r, truth).middle * (1 + 0.02 * (uniform(18, i) - 0.5));
    rows.push_back(r);
  }
  return rows;
}

TEST(Score, APlantedSourceIsFoundAgain) {
  ScoreConstants priors = parse_constants(kScoreConstants, "shipped");
  priors.fitted.clear();
  FitValues truth{};
  for (size_t f = 0; f < kFits; ++f) truth[f] = priors.priors[f].center;
  truth[size_t(Fit::gemm_soft)] = 0.89, truth[size_t(Fit::host)] = 0.004, truth[size_t(Fit::memory)] = 2.1;
  truth[size_t(Fit::dp)] = 1.3, truth[size_t(Fit::tp)] = 0.6;
  const std::vector<MeasuredRow> rows = planted_rows(truth, 60);
  const ScoreReport r = score_rows(rows, priors, {.leave_out = LeaveOut::half, .splits = 3});
  EXPECT_EQ(r.time.all.rows, 60);
  EXPECT_LT(r.time.all.mape, 2.5);
  EXPECT_GT(r.time.all.fitted_control_mape, 4 * r.time.all.mape);
  EXPECT_GE(r.time.all.coverage, 65);
  EXPECT_LE(r.time.all.coverage, 95);
}

// A constant without a spread is known: steps that contradict it move others.
TEST(Score, WhatIsKnownIsNotFitted) {
  ScoreConstants priors = parse_constants(kScoreConstants, "shipped");
  priors.fitted.clear();
  FitValues truth{};
  for (size_t f = 0; f < kFits; ++f) truth[f] = priors.priors[f].center;
  truth[size_t(Fit::pp)] *= 3, truth[size_t(Fit::host)] *= 3;
  const std::vector<MeasuredRow> rows = planted_rows(truth, 20);
  std::vector<const MeasuredRow*> all;
  for (const MeasuredRow& r : rows) all.push_back(&r);
  const auto fitted = [&](double spread) {
    priors.priors[size_t(Fit::pp)].sigma = spread;
    return fit_constants(parse_constants(save_constants(priors), "saved"), all);
  };
  const ScoreConstants known = fitted(0), free = fitted(0.6);
  for (const auto& [scope, values] : known.fitted) EXPECT_FALSE(values.contains(Fit::pp)) << scope;
  EXPECT_EQ(known.of(rows[0])[size_t(Fit::pp)], priors.priors[size_t(Fit::pp)].center);
  EXPECT_GT(free.of(rows[0])[size_t(Fit::pp)], 1.05 * priors.priors[size_t(Fit::pp)].center);
  EXPECT_GT(known.of(rows[0])[size_t(Fit::host)], 1.5 * priors.priors[size_t(Fit::host)].center);
}

// The shipped values are what the fit makes of the shipped rows and priors today, and of no earlier fit.
TEST(Score, TheShippedConstantsAreTheFit) {
  const ScoreConstants shipped = parse_constants(kScoreConstants, "shipped");
  std::vector<const MeasuredRow*> timed;
  for (const MeasuredRow& r : published_rows())
    if (r.skipped.empty() && r.step_s > 0) timed.push_back(&r);
  ScoreConstants stale = shipped;
  stale.fitted["software"][Fit::host] = 0.0033;  // known: its spread is 0
  const ScoreConstants fitted = fit_constants(stale, timed);
  ASSERT_EQ(fitted.fitted.size(), shipped.fitted.size());
  for (const auto& [scope, values] : fitted.fitted) {
    ASSERT_TRUE(shipped.fitted.contains(scope)) << scope;
    ASSERT_EQ(values.size(), shipped.fitted.at(scope).size()) << scope;
    for (const auto& [f, value] : values)
      EXPECT_NEAR(shipped.factor(scope, f) / value, 1, 0.01) << scope << " " << name_of(f);
  }
}

// What an earlier fit made of all rows is no part of a forecast of a half; and the table ends the report.
TEST(Score, AnEarlierFitTellsNothing) {
  ScoreConstants fresh = parse_constants(kScoreConstants, "shipped");
  fresh.fitted.clear();
  FitValues truth{};
  for (size_t f = 0; f < kFits; ++f) truth[f] = fresh.priors[f].center;
  std::vector<MeasuredRow> rows = planted_rows(truth, 12);
  rows[3].site = "alone";  // in one half only: the other has nothing to fit it with
  ScoreConstants told = fresh;
  for (const char* scope : {"device", "device:A100-80GB", "site", "site:alone", "software"})
    for (size_t f = 0; f < kFits; ++f) told.fitted[scope][Fit(f)] = 7;
  const ScoreOptions half{.leave_out = LeaveOut::half, .splits = 1}, as_is{.leave_out = LeaveOut::nothing};
  EXPECT_EQ(score_json(score_rows(rows, told, half)), score_json(score_rows(rows, fresh, half)));
  EXPECT_NE(score_json(score_rows(rows, told, as_is)), score_json(score_rows(rows, fresh, as_is)));
  const std::string text = score_text(score_rows(rows, fresh, half), true);
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_TRUE(last.starts_with("all ")) << last;
}

TEST(Score, TwoStepsOfOnesOwnCalibrateASite) {
  const ScoreConstants shipped = parse_constants(kScoreConstants, "shipped");
  std::vector<MeasuredRow> rows = planted_rows(shipped.of(read_one(whole_row())), 30);
  for (MeasuredRow& r : rows) {  // a site of its own, a tenth slower
    r.site = "mine";
    r.step_s = 1.1 * forecast_of(r, shipped.of(r)).middle;
  }
  const std::vector<const MeasuredRow*> two = {&rows[0], &rows[1]};
  const ScoreConstants mine = fit_constants(shipped, two, Moves::sites_alone);
  for (const auto& [scope, fits] : mine.fitted) {
    if (scope == "site:mine") continue;
    EXPECT_EQ(fits, shipped.fitted.at(scope)) << scope;
  }
  double before = 0, after = 0;
  for (size_t i = 2; i < rows.size(); ++i) {
    before += std::abs(std::log(forecast_of(rows[i], shipped.of(rows[i])).middle / rows[i].step_s));
    after += std::abs(std::log(forecast_of(rows[i], mine.of(rows[i])).middle / rows[i].step_s));
  }
  EXPECT_LT(after, 0.5 * before);
}

// One row says nothing of how far off the next may be: no interval is a point.
TEST(Score, AFewRowsHaveIntervalsAsWideAsIsUsual) {
  const ScoreConstants shipped = parse_constants(kScoreConstants, "shipped");
  std::vector<MeasuredRow> rows = planted_rows(shipped.of(read_one(whole_row())), 12);
  for (MeasuredRow& r : rows) {
    r.step_s = forecast_of(r, shipped.of(r)).middle;
    r.memory = memory_of(r, shipped.of(r)).middle;  // to the byte: of residuals that are nothing
  }
  for (const size_t n : {1, 2, 3}) {
    const std::vector<MeasuredRow> few(rows.begin(), rows.begin() + std::ptrdiff_t(n));
    const ScoreReport report = score_rows(few, shipped, {.leave_out = LeaveOut::nothing});
    ASSERT_EQ(report.verdicts.size(), n);
    for (const RowVerdict& v : report.verdicts) EXPECT_GT(v.high / v.low, 1.15) << n << " " << v.id;
    for (const ScoredRow& r : report.rows) EXPECT_GT(r.high / r.low, 1.15) << n << " " << r.id;
  }
}

TEST(Score, ConstantsAreReadAsWritten) {
  const ScoreConstants c = parse_constants(kScoreConstants, "shipped");
  const std::string text = save_constants(c);
  EXPECT_EQ(save_constants(parse_constants(text, "again")), text);
  for (const char* bad : {"{}", "[]", R"({"priors": {"gem": [1, 1]}, "scope_priors": {}, "fitted": {}})",
                          R"({"priors": {"gemm": [1, -1]}, "scope_priors": {}, "fitted": {}})"})
    EXPECT_THROW(parse_constants(bad, "bad"), Error) << bad;
}

TEST(Score, TheShippedRows) {
  const fs::path file = test::source_dir() / "data/published_runs.json";
  const std::vector<MeasuredRow> rows = read_rows(read_text(file), file.string(), shipped_catalog());
  EXPECT_EQ(rows.size(), 851u);
  const ScoreReport r = score_rows(rows, parse_constants(kScoreConstants, "shipped"),
                                   {.leave_out = LeaveOut::half, .splits = 2});
  EXPECT_GE(r.measured_rows, 655);
  EXPECT_LT(r.time.all.mape, 9);
  EXPECT_LT(r.time.all.median, 5);
  EXPECT_LT(r.time.all.mape, r.time.all.fitted_control_mape);
  EXPECT_GE(r.time.all.coverage, 75);
  EXPECT_LE(r.time.all.coverage, 88);
  for (const bool experts : {false, true}) {
    const MeasuredRatios now = measured_ratios(r.rows, experts), stated = unseen_ratios(experts, true);
    EXPECT_NEAR(now.low, stated.low, 0.01) << experts;
    EXPECT_NEAR(now.high, stated.high, 0.01) << experts;
  }
  EXPECT_LT(r.memory.all.mape, 7);
  EXPECT_GE(r.memory.all.rows, 140);
  EXPECT_LT(r.fits.all.wrong, 2);
  EXPECT_GT(r.fits.all.right, 85);
  EXPECT_EQ(r.verdicts.size() + r.skipped.size(), rows.size());
  EXPECT_EQ(r.verdicts.size() - r.rows.size(), 5u);  // ran out of memory: a verdict alone
  EXPECT_EQ(
      score_text(r, false).substr(0, 90),
      fmt::format("851 rows: {} forecast and held against their step time, 5 without one (5 of them ran "
                  "out of memory",
                  r.rows.size())
          .substr(0, 90));
}

// Where a source's rule says otherwise than all others what memory holds or a step does, it says why.
TEST(Score, RulesSayWhy) {
  const auto catalog =
      nlohmann::json::parse(read_text(test::source_dir() / "data/score_catalog.json")).at("sources");
  int seen = 0;
  for (const auto& rule : catalog)
    for (const char* key : {"dense_layers", "stages", "keeping", "binary", "sliced", "interleaved",
                            "chunk_layers", "shards", "expert_tp", "hides", "side_by_side", "messages",
                            "scatters", "adds_gradients", "reduces_gate", "sums_whole", "blocking"})
      if (rule.contains(key)) {
        seen++;
        EXPECT_GT(rule.value("why", "").size(), 20u) << rule.at("source") << ": " << key;
      }
  EXPECT_GT(seen, 6);
}

// Two of three right and one wrong leave no less than nothing.
TEST(Score, NoVerdictIsRiskyLessThanNever) {
  TestJson failed = whole_row();
  failed["result"] = {{"oom", true}};
  const auto rows =
      read_rows(TestJson::array({whole_row(), whole_row(), failed}).dump(), "rows.json", shipped_catalog());
  const ScoreReport r =
      score_rows(rows, parse_constants(kScoreConstants, "shipped"), {.leave_out = LeaveOut::nothing});
  EXPECT_NEAR(r.fits.all.wrong, 100.0 / 3, 1e-9);
  EXPECT_GE(r.fits.all.risky, 0);
  EXPECT_FALSE(std::signbit(r.fits.all.risky));
}

TEST(Score, Json) {
  TestJson second = whole_row();
  second["id"] = "r2", second["layout"]["dp"] = 5;
  TestJson large = whole_row(), small = whole_row();  // in 42.9 GB: 49.7 and more of states, and 12.4
  large["id"] = "r3", large["cluster"]["gpu"] = small["cluster"]["gpu"] = "A100-SXM-40GB";
  large["model"]["layers"] = 160, large["result"] = {{"oom", true}};
  small["id"] = "r4";
  const auto rows =
      read_rows(TestJson::array({whole_row(), second, large, small}).dump(), "rows.json", shipped_catalog());
  const ScoreReport r =
      score_rows(rows, parse_constants(kScoreConstants, "shipped"), {.leave_out = LeaveOut::nothing});
  const TestJson j = TestJson::parse(score_json(r));
  // Each row is held against a step time, has a verdict alone, or is left out.
  EXPECT_EQ(j.at("rows").size(), 2u);
  ASSERT_EQ(j.at("fits").at("rows").size(), 3u);
  EXPECT_EQ(j.at("rows").at(0).at("verdict"), "fits");
  const TestJson& v = j.at("fits").at("rows").at(1);
  EXPECT_EQ(v.at("id"), "r3");
  EXPECT_EQ(v.at("verdict"), "does not fit");
  EXPECT_EQ(v.at("ran"), false);
  EXPECT_GT(v.at("low").get<double>(), v.at("room").get<double>());
  const std::string text = score_text(r, true);
  EXPECT_EQ(
      text.substr(0, text.find('\n')),
      "4 rows: 2 forecast and held against their step time, 1 without one (1 of them ran out of memory: "
      "a verdict alone), 1 not forecast");
  EXPECT_NE(text.find(" GB of 42.9: does not fit\n"), text.npos);
  EXPECT_NE(text.find(" %  fits\n"), text.npos);
  EXPECT_NE(text.find("\nvTrain                                 3  100.0     0.0    0.0"), text.npos) << text;
  for (const char* key :
       {"source", "rows", "mape", "median", "p90", "coverage", "control_mape", "fitted_control_mape"})
    EXPECT_TRUE(j.at("all").contains(key) && j.at("sources").at(0).contains(key)) << key;
  for (const char* key : {"id", "metric", "predicted", "low", "high", "measured"})
    EXPECT_TRUE(j.at("rows").at(0).contains(key)) << key;
  for (const char* key : {"right", "risky", "wrong"})
    EXPECT_TRUE(j.at("fits").at("all").contains(key)) << key;
  EXPECT_TRUE(j.at("memory").at("all").contains("mape"));
  EXPECT_EQ(j.at("skipped").at(0).at("id"), "r2");
  EXPECT_EQ(j.at("all").at("rows"), 2);
}

}  // namespace
}  // namespace trireme
