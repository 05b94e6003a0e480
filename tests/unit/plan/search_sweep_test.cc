// Sweeps over devices, and the largest models that fit: the tables of ZeRO and GPipe.
#include "search/search_sweep.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"
#include "cost/flops.h"
#include "sanitized.h"
#include "search_requests.h"

namespace trireme {
namespace {

SearchRequest sweep_request() {
  SearchRequest q = test::llama_request("8B", {32, 4096, 32, 8, 14336, 128256, 4096},
                                        {.bf16 = 989e12,
                                         .memory = 80e9,
                                         .bandwidth = 3.3e12,
                                         .bus = 360e9,
                                         .near = 8,
                                         .nic = 50e9,
                                         .attention = 450e12});
  q.fits[size_t(Fit::gemm)] = 0.75;
  q.fits[size_t(Fit::host)] = q.fits[size_t(Fit::host_moe)] = q.fits[size_t(Fit::each)] = 1e-3;
  q.fits[size_t(Fit::jitter)] = 0.005, q.fits[size_t(Fit::step)] = 0.02, q.fits[size_t(Fit::base)] = 4e9;
  q.gpus = {8, 16, 32, 64, 128, 256, 512}, q.globals = {512};
  return q;
}

TEST(Sweep, MoreDevicesAreFasterAndDearerUntilADoublingDoesNotPay) {
  if (test::one_of(1, 2) > 1) GTEST_SKIP() << "a minute there; the other sweeps are of the same code";
  SearchRequest q = sweep_request();
  q.figures.nic = 2e9;  // a slow network: doubling stops paying early
  const Sweep s = sweep(q);
  ASSERT_EQ(s.rows.size(), q.gpus.size());
  for (size_t i = 1; i < s.rows.size(); i++) {
    ASSERT_TRUE(s.rows[i].any);
    EXPECT_EQ(s.rows[i].best.layout.gpus, q.gpus[i]);
    EXPECT_GT(s.rows[i].speedup, 0.9);
    EXPECT_NEAR(s.rows[i].speedup, s.rows[i - 1].best.token_s / s.rows[i].best.token_s, 1e-12);
    EXPECT_FALSE(s.rows[i].eats.empty());
    EXPECT_LT(s.rows[i].eaten, 1);
  }
  ASSERT_GT(s.enough, 0);
  for (size_t i = 1; i < s.rows.size(); i++) {
    const bool pays = s.rows[i].speedup >= kPays;
    if (s.rows[i - 1].gpus < s.enough) {
      EXPECT_TRUE(pays) << s.rows[i].gpus;
    }
    if (s.rows[i - 1].gpus == s.enough) {
      EXPECT_FALSE(pays) << s.rows[i].gpus;
    }
  }
  const nlohmann::json j = nlohmann::json::parse(sweep_json(q, s));
  EXPECT_EQ(j["enough"], s.enough);
  EXPECT_EQ(j["sweep"].size(), s.rows.size());
  EXPECT_NE(sweep_svg(q, s).find(std::to_string(s.enough) + " are enough"), std::string::npos);
  EXPECT_NE(mix_svg(q, s).find("tokens of a step a device"), std::string::npos);
  EXPECT_NE(sweep_text(q, s).find("less than 1.5 times as fast"), std::string::npos);
  EXPECT_NE(sweep_text(q, s).find("rows are closed forms, not booked: --confirm"), std::string::npos);
}

TEST(Sweep, ByLossASpeedupIsOfTheTimeToTheLoss) {
  SearchRequest q = sweep_request();
  q.gpus = {8, 1024}, q.globals = {64, 512}, q.figures.nic = 5e9, q.by = RankBy::loss, q.loss = 2.2;
  const Sweep s = sweep(q);
  bool differs = false;
  for (size_t i = 1; i < s.rows.size(); i++) {
    ASSERT_TRUE(s.rows[i].any);
    EXPECT_NEAR(s.rows[i].speedup, s.rows[i - 1].best.score / s.rows[i].best.score, 1e-12);
    differs |= s.rows[i].best.layout.global != s.rows[i - 1].best.layout.global;
  }
  EXPECT_TRUE(differs);  // else both readings are one
}

// What a doubling loses to: of all device-seconds a token, those that grew most; failures and spares are what
// is paid for beside the step.
TEST(Sweep, WhatEatsADoublingIsWhatGrewMost) {
  for (const double mtbf_days : {2.0, 100000.0}) {
    SearchRequest q = sweep_request();
    q.gpus = {64, 128}, q.globals = {256}, q.figures.nic = 20e9;
    q.reliability.mtbf_device_s = mtbf_days * 86400, q.reliability.repair_s = 0, q.reliability.spares = 2;
    const Sweep s = sweep(q);
    ASSERT_TRUE(s.rows[0].any && s.rows[1].any);
    std::map<std::string, double> grown;  // device-seconds a token
    for (const auto& [row, sign] : {std::pair(&s.rows[1], 1.0), {&s.rows[0], -1.0}}) {
      const double tokens = 256.0 * 4096, own = double(row->gpus) / tokens,
                   all = double(row->gpus + 16) / tokens;
      for (const auto& [toll, seconds] : tolls_of(row->best.time)) grown[toll] += sign * seconds * own;
      const double step = row->best.time.total;
      grown["failures and spares"] += sign * (step / row->goodput.share * all - step * own);
    }
    const auto most = std::max_element(grown.begin(), grown.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_EQ(s.rows[1].eats, most->first);
    EXPECT_EQ(most->first == "failures and spares", mtbf_days < 100) << most->first;
    EXPECT_NEAR(s.rows[1].eaten, most->second / (s.rows[1].best.token_s * (128 + 16)), 1e-9);
  }
}

// A row is what a search of as many devices says, its best booked and simulated.
TEST(Sweep, EachRowsBestIsConfirmed) {
  SearchRequest q = test::small_request();
  q.figures.memory = 2.2e9;  // so that some do not fit as booked
  q.gpus = {6, 12};
  const ConfirmRequest how{.most = 2};
  const Sweep s = sweep(q, &how);
  ASSERT_EQ(s.rows.size(), 2u);
  const nlohmann::json j = nlohmann::json::parse(sweep_json(q, s));
  const std::string text = sweep_text(q, s);
  int64_t looked_at = 0, dropped = 0;
  for (size_t i = 0; i < 2; i++) {
    SearchRequest one = q;
    one.gpus = {q.gpus[i]}, one.best = kMostConfirmed;
    SearchResult r;
    const Confirmation all = search_and_confirm(one, r, how);
    looked_at += int64_t(all.looked_at.size()), dropped += all.dropped;
    ASSERT_TRUE(s.rows[i].any && s.rows[i].confirmed);
    EXPECT_EQ(s.rows[i].best.layout, r.best[0].layout);
    EXPECT_EQ(s.rows[i].confirmed->priced.layout, s.rows[i].best.layout);
    EXPECT_TRUE(s.rows[i].confirmed->fits);
    EXPECT_LE(s.rows[i].confirmed->bytes, q.figures.memory);
    EXPECT_EQ(s.rows[i].confirmed->step_s, all.of(r.best[0].layout)->step_s);
    EXPECT_EQ(j["sweep"][i]["confirmed"], true);
    // A layout that cannot be simulated, such as one with shard groups, has no such time.
    const double simulated = s.rows[i].confirmed->step_s;
    if (simulated > 0)
      EXPECT_EQ(j["sweep"][i]["simulated_s"], simulated);
    else
      EXPECT_TRUE(j["sweep"][i]["simulated_s"].is_null());
    EXPECT_NE(text.find(fmt::format("{} {:>9}", simulated > 0 ? fmt::format("{:.3f} s", simulated) : "-",
                                    fmt::format("{:.1f} GB", s.rows[i].confirmed->bytes / 1e9))),
              std::string::npos)
        << text;
  }
  EXPECT_GT(dropped, 0);  // else confirming changes nothing
  EXPECT_EQ(s.looked_at, looked_at);
  EXPECT_EQ(s.dropped, dropped);
  EXPECT_NE(text.find(fmt::format("{} layouts booked on meta", looked_at)), std::string::npos) << text;
}

TEST(Sweep, WhatFitsNowhereIsSaid) {
  SearchRequest q = sweep_request();
  q.figures.memory = 5e9;
  q.gpus = {8, 16};
  const Sweep s = sweep(q);
  EXPECT_FALSE(s.rows[0].any);
  EXPECT_NE(sweep_text(q, s).find("nothing fits"), std::string::npos);
}

// Rajbhandari et al. 2020, table 1: GB of state a device, 7.5 B, 128 B and 1 T parameters among N.
TEST(Largest, ZeroTable1) {
  struct Row {
    double parameters;
    int64_t n;
    double os, osg, osgp;
  };
  const Row rows[] = {
      {7.5e9, 1, 120, 120, 120},     {7.5e9, 4, 52.5, 41.3, 30},     {7.5e9, 16, 35.6, 21.6, 7.5},
      {7.5e9, 64, 31.4, 16.6, 1.88}, {7.5e9, 256, 30.4, 15.4, 0.47}, {7.5e9, 1024, 30.1, 15.1, 0.12},
      {128e9, 64, 536, 284, 32},     {128e9, 1024, 513, 257, 2},     {1e12, 1024, 4011, 2013, 15.6}};
  SearchRequest q = sweep_request();
  for (const Row& r : rows) {
    q.globals = {r.n};
    StepCase c = step_case(q, {.gpus = r.n, .global = r.n, .dp = r.n});
    const double parameters = [&] {  // that the closed form sees: states of one rank, 16 bytes each
      c.zero = 0;
      return least_memory(c) / 16;
    }();
    const auto gb = [&](int zero) {
      c.zero = zero;
      return least_memory(c) / parameters * r.parameters / 1e9;
    };
    EXPECT_NEAR(gb(1) / r.os, 1, 0.005) << r.n;
    EXPECT_NEAR(gb(2) / r.osg, 1, 0.005) << r.n;
    EXPECT_NEAR(gb(3) / r.osgp, 1, 0.025) << r.n;  // 1.88 and 0.12 are printed so short
    for (const int zero : {1, 2, 3})
      EXPECT_NEAR(most_parameters_by_states(gb(zero) * 1e9, zero, r.n, 1) / r.parameters, 1, 1e-9);
  }
}

// Table 2: parameters that 32 GB of state are, by model parallel ranks and devices: 1.4, 4.1 and so on there
// are measured; these are its left half.
TEST(Largest, ZeroTable2) {
  struct Row {
    int64_t mp, gpus;
    double baseline, os, osg, osgp;  // 1e9
  };
  const Row rows[] = {{1, 64, 2, 7.6, 14.4, 128},
                      {2, 128, 4, 15.2, 28.8, 256},
                      {4, 256, 8, 30.4, 57.6, 512},
                      {8, 512, 16, 60.8, 115.2, 1024},
                      {16, 1024, 32, 121.6, 230.4, 2048}};
  for (const Row& r : rows) {
    const int64_t dp = r.gpus / r.mp;
    const auto most = [&](int zero) { return most_parameters_by_states(32e9, zero, dp, r.mp) / 1e9; };
    EXPECT_NEAR(most(0) / r.baseline, 1, 1e-9);
    EXPECT_NEAR(most(1) / r.os, 1, 0.006);  // 7.64 is printed as 7.6, and multiplied from there
    EXPECT_NEAR(most(2) / r.osg, 1, 0.003);
    EXPECT_NEAR(most(3) / r.osgp, 1, 1e-9);
  }
}

// GPipe's transformer (Huang et al. 2019, table 1): width 2048, feed-forward 8192, 32 k tokens; 3, 13, 103,
// 415 and 1,663 layers are 282.2 M, 785.8 M, 5.3 B, 21.0 B and 83.9 B parameters, on 1, 1, 8, 32 and 128
// devices.
ModelSpec gpipe_model(int64_t layers) {
  ModelSpec m = ModelSpec::of("gpt2");
  m.layers = layers, m.hidden = 2048, m.heads = 32, m.ffn = 8192, m.vocab = 32000;
  m.positions = "rope", m.attn_bias = m.mlp_bias = false, m.tied = false;
  m.finish(1024);
  return m;
}

TEST(Largest, GPipeTable1) {
  const auto millions = [](int64_t layers) { return double(parameters(gpipe_model(layers))) / 1e6; };
  EXPECT_NEAR(millions(3) / 282.2, 1, 0.01);
  EXPECT_NEAR(millions(13) / 785.8, 1, 0.01);
  EXPECT_NEAR(millions(103) / 5300, 1, 0.01);
  EXPECT_NEAR(millions(415) / 21000, 1, 0.01);
  EXPECT_NEAR(millions(1663) / 83900, 1, 0.01);
  // Devices that hold 13 layers each and no 14th: with the head beside 12 on the last one 8, 32 and 128 of
  // them hold 103, 415 and 1,663, as theirs; a lone one, with both tables and the logits, 11 to 13.
  SearchRequest q = sweep_request();
  q.seq = 1024;
  const auto bytes = [&](int64_t layers, int64_t p) {
    q.model = gpipe_model(layers);
    SearchLayout l{.gpus = p, .global = 1, .pp = p};
    l.again = Again::full, l.schedule = p > 1 ? "gpipe" : "1f1b";
    return price_layout(q, l).memory.total;
  };
  q.figures.memory = (bytes(103, 8) + bytes(104, 8)) / 2;
  for (const auto& [p, published] : {std::pair{1, 13}, {8, 103}, {32, 415}, {128, 1663}}) {
    int64_t layers = p;
    while (bytes(layers + 1, p) <= q.figures.memory) layers++;
    EXPECT_NEAR(double(layers), published, p == 1 ? 2 : 0) << p;
  }
}

TEST(Largest, TogetherIsMoreThanEachAlone) {
  SearchRequest q = sweep_request();
  q.gpus = {64}, q.globals = {64};
  const std::vector<LargestRow> rows = largest(q);
  ASSERT_EQ(rows.size(), 9u);
  for (const LargestRow& r : rows) {
    ASSERT_TRUE(r.any) << r.technique;
    EXPECT_LE(r.memory.total, q.figures.memory);
    EXPECT_GE(rows.back().parameters, r.parameters) << r.technique;
    // As a run would have it: the batch that was given, degrees that divide, what the technique says.
    EXPECT_EQ(r.layout.global, 64) << r.technique;
    EXPECT_EQ(division_refusal(r.model, q.seq, r.layout), Refusal::count) << r.technique;
    RunSpec run;
    run.model = r.model, run.data.seq_len = q.seq;
    EXPECT_TRUE(problems_of(with_layout(run, r.layout)).empty()) << r.technique;
  }
  const auto named = [&](std::string_view name) {
    for (const LargestRow& r : rows)
      if (r.technique == name) return r.parameters;
    return 0.0;
  };
  EXPECT_LT(named("data parallel alone"), named("zero 1"));
  EXPECT_LT(named("zero 1"), named("zero 2"));
  EXPECT_LT(named("zero 2"), named("zero 3"));
  EXPECT_NE(largest_text(q, rows).find("all together"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(largest_json(q, rows))["largest"].size(), rows.size());
}

const LargestRow& technique(const std::vector<LargestRow>& rows, std::string_view name) {
  for (const LargestRow& r : rows)
    if (r.technique == name) return r;
  ADD_FAILURE() << name;
  return rows[0];
}

// Of all members of the family: nothing larger fits, though larger ones may divide where smaller do not.
TEST(Largest, NothingLargerFits) {
  SearchRequest q = sweep_request();
  q.model.heads = 20, q.model.kv_heads = 5, q.model.head_dim = 128, q.model.hidden = 2560;  // tp 4 for some
  q.model.layers = 18, q.model.ffn = 6400;
  q.model.finish(q.seq);
  q.gpus = {12}, q.globals = {24}, q.figures.near = 6;
  const std::vector<LargestRow> rows = largest(q);
  const auto fits = [&](int64_t layers, std::string_view name, SearchLayout l) {
    SearchRequest of = q;
    of.model = scaled_model(q.model, layers, q.seq);
    bool any = false;
    for (int64_t n = 2; n <= 12; n++) {
      if (12 % n != 0 || (n > 6 && name != "pipeline over all")) continue;
      SearchLayout d = l;
      (name[0] == 't' ? d.tp : name[0] == 'p' ? d.pp : d.cp) = n, d.dp = 12 / n;
      if (division_refusal(of.model, q.seq, d) != Refusal::count) continue;
      any = price_layout(of, d).memory.total <= q.figures.memory;  // of the largest that divides
    }
    return any;
  };
  std::vector<int64_t> edges;
  for (const std::string_view name :
       {"tensor parallel in a node", "context parallel in a node", "pipeline over all"}) {
    const LargestRow& r = technique(rows, name);
    ASSERT_TRUE(r.any) << name;
    const SearchLayout l{.gpus = 12, .global = 24, .dp = 12};
    int64_t most = 0, changes = 0;
    bool before = true;
    for (int64_t layers = 1; layers <= 150; layers++) {
      const bool now = fits(layers, name, l);
      if (now) most = layers;
      changes += now != before, before = now;
    }
    EXPECT_EQ(r.model.layers, most) << name;
    edges.push_back(changes);
  }
  EXPECT_GT(*std::max_element(edges.begin(), edges.end()), 1);  // bisection could stop below
  const LargestRow& all = rows.back();
  for (int64_t more = 1; more <= 12; more++) {
    SearchRequest of = q;
    of.model = scaled_model(q.model, all.model.layers + more, q.seq), of.best = 1;
    EXPECT_TRUE(search(of).best.empty()) << more;
  }
}

// What cannot be divided is not another technique under its name, and no batch but the one that is asked for.
TEST(Largest, SaysWhatIsNot) {
  SearchRequest q = sweep_request();
  q.gpus = {8}, q.globals = {8}, q.seq = 1021;  // a prime: neither tp beside sequence parallelism nor cp
  std::vector<LargestRow> rows = largest(q);
  EXPECT_TRUE(technique(rows, "zero 1").any);
  for (const char* name : {"tensor parallel in a node", "context parallel in a node"}) {
    EXPECT_FALSE(technique(rows, name).any) << name;
    EXPECT_NE(technique(rows, name).why.find("divides"), std::string::npos) << name;
    EXPECT_NE(largest_text(q, rows).find(technique(rows, name).why), std::string::npos);
  }
  q = sweep_request();
  q.gpus = {8}, q.globals = {3};
  rows = largest(q);
  EXPECT_EQ(technique(rows, "zero 3").why, "8 replicas do not divide 3 sequences a step");
  EXPECT_EQ(technique(rows, "tensor parallel in a node").layout.dp, 1);
  EXPECT_EQ(technique(rows, "pipeline over all").layout.global, 3);
  q.gpus = {1}, q.globals = {1};
  rows = largest(q);
  for (const char* name : {"zero 1", "zero 2", "zero 3", "tensor parallel in a node",
                           "context parallel in a node", "pipeline over all"})
    EXPECT_FALSE(technique(rows, name).any) << name;
  EXPECT_TRUE(rows.back().any);
  q.figures.memory = 1e9;
  EXPECT_EQ(technique(largest(q), "full recompute").why, "not even one layer fits");
}

TEST(Largest, AFamilyKeepsItsProportions) {
  const SearchRequest q = sweep_request();
  EXPECT_EQ(scaled_model(q.model, 32, q.seq).hidden, 4096);
  EXPECT_EQ(scaled_model(q.model, 32, q.seq).ffn, 14336);
  double before = 0;
  for (int64_t layers = 1; layers < 200; layers++) {
    const ModelSpec m = scaled_model(q.model, layers, q.seq);
    EXPECT_EQ(m.head_dim, 128);
    EXPECT_EQ(m.heads % m.kv_heads, 0);
    EXPECT_GT(double(parameters(m)), before);
    before = double(parameters(m));
  }
}

}  // namespace
}  // namespace trireme
