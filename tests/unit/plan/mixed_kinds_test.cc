// Clusters of several kinds of devices: pipeline ranks are priced by, and fit into, their own devices.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "base/units.h"
#include "forecast/forecast.h"
#include "forecast/run_costs.h"
#include "forecast/searched_step.h"
#include "search/confirm.h"
#include "search/kind_cuts.h"
#include "search/one_kind.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr int64_t kGb80 = 85899345920;

ClusterSpec cluster_of(std::vector<KindSpec> kinds) {
  ClusterSpec c;
  c.name = kinds[0].name;
  c.devices_per_node = 4;
  c.intra_node = {.latency = 4e-6, .bandwidth = 450e9};
  c.inter_node = {.latency = 1e-5, .bandwidth = 100e9};
  c.nodes = 0;
  for (const KindSpec& k : kinds) c.nodes += k.nodes;
  c.kinds = std::move(kinds);
  return with_kinds(c, 0, c.kinds.size() - 1);
}
KindSpec h100(int64_t nodes) {
  return {.name = "H100",
          .nodes = nodes,
          .peak = {.bf16 = 989e12},
          .memory_bytes = kGb80,
          .memory_bandwidth = 3.35e12,
          .host_bandwidth = 50e9};
}
KindSpec a100(int64_t nodes) {
  return {.name = "A100-80GB",
          .nodes = nodes,
          .peak = {.bf16 = 312e12},
          .memory_bytes = kGb80,
          .memory_bandwidth = 2e12,
          .host_bandwidth = 25e9};
}

RunSpec run_of(int64_t layers, int64_t global) {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.layers = layers;
  run.model.hidden = 2048;
  run.model.heads = 16;
  run.model.kv_heads = 8;
  run.model.ffn = 8192;
  run.model.vocab = 32000;
  run.data.seq_len = 2048;
  run.model.finish(run.data.seq_len);
  run.batch.global = global;
  run.train.device = "cuda";
  run.train.comm = "nccl";
  run.train.sum_order = "auto";
  run.cluster.file = "test";
  return run;
}

SearchRequest request_of(const RunSpec& run, const ClusterSpec& cluster, int64_t gpus) {
  SubjectDevice d = device_of(cluster, "bf16", gpus);
  complete_figures(d, gpus, "test");
  SearchRequest q;
  static_cast<LayoutCase&>(q) =
      layout_case_of(with_layout(run, {.gpus = gpus, .global = run.batch.global, .dp = gpus}), d);
  set_interval(q, false);
  q.gpus = {gpus};
  q.globals = {run.batch.global};
  q.run = run;
  return q;
}

SearchLayout pipeline(int64_t gpus, int64_t global, NumberList layers) {
  SearchLayout l{.gpus = gpus, .global = global};
  l.pp = int64_t(layers.size());
  l.dp = gpus / l.pp;
  l.stage_layers = interned(layers);
  return l;
}

double replayed(const SearchRequest& q, const SearchLayout& l) {
  const RunSpec run = resolve(with_layout(*q.run, l, q.disk_each_way), {.native_bf16 = true});
  return double(replayed_step(q, {.device = q.device}, run).makespan) * 1e-9;
}

TEST(MixedKinds, RanksFillMachinesInTheOrderOfTheFile) {
  const ClusterSpec c = cluster_of({h100(1), a100(1)});
  LayoutSpec l;
  l.pp = 4;
  l.dp = 2;
  EXPECT_EQ(kinds_of_ranks(c, l), (NumberList{0, 0, 3, 3}));
  l.order = "dp pp cp tp";  // each stage has a rank on each machine
  EXPECT_EQ(kinds_of_ranks(c, l), (NumberList{1, 1, 1, 1}));
  l = {};
  l.pp = 2;
  l.dp = 6;  // four more ranks than the cluster has
  EXPECT_EQ(kinds_of_ranks(c, l), (NumberList{1, 1}));
  l.dp = 2;
  EXPECT_EQ(kinds_of_ranks(c, l), (NumberList{0, 0}));
  EXPECT_EQ(peak_of_ranks(c, 6, "bf16"), 4 * 989e12 + 2 * 312e12);
  l.dp = 4;
  EXPECT_EQ(kinds_text(c, l), "4 x H100, 4 x A100-80GB: pipeline ranks 0 on H100, 1 on A100-80GB");
}

TEST(MixedKinds, PricesAndNamesAreOfTheKindsThatAreUsed) {
  KindSpec dear = h100(1);
  KindSpec cheap = a100(2);
  dear.price_per_hour = 400;
  cheap.price_per_hour = 1;
  dear.watts = 700;
  cheap.watts = 400;
  const ClusterSpec c = cluster_of({dear, cheap});
  LayoutSpec l;
  l.dp = 4;
  EXPECT_EQ(kinds_text(c, l), "4 x H100; not used: 8 x A100-80GB");
  EXPECT_EQ(device_of(c, "bf16", 4).name, "H100");
  EXPECT_EQ(device_of(c, "bf16", 4).figures.bf16, dear.peak.bf16);
  for (const auto& [gpus, price, watts, names] :
       {std::tuple{4, 400., 700., "4 x H100"},
        {5, (4 * 400 + 1) / 5., (4 * 700 + 400) / 5., "4 x H100 + 1 x A100-80GB"},
        {12, (4 * 400 + 8) / 12., (4 * 700 + 8 * 400) / 12., "4 x H100 + 8 x A100-80GB"}}) {
    EXPECT_DOUBLE_EQ(device_of(c, "bf16", gpus).price_per_hour, price);
    EXPECT_DOUBLE_EQ(run_watts(c, gpus), c.power.pue * watts * gpus);
    EXPECT_EQ(used_devices_text(c, gpus), names);
  }
  // The search uses one of two kinds: the other is compared.
  SearchRequest q = request_of(run_of(4, 16), c, 4);
  q.best = kept_to_confirm(q);
  const std::vector<KindAlone> alone = kinds_alone(q, {.most = 1, .run = q.run});
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(alone[0].gpus, 4);
  EXPECT_EQ(alone[0].name, "A100-80GB");
  EXPECT_EQ(alone_text(alone, alone[0].step_s / 2),
            "4 x A100-80GB alone take " + seconds_text(alone[0].step_s) + " (+100.0 %)");
}

TEST(MixedKinds, EqualKindsAreThePlainCluster) {
  ClusterSpec mixed = cluster_of({h100(1), h100(1)});
  ClusterSpec plain = mixed;
  plain.kinds.clear();
  const RunSpec run = run_of(12, 32);
  SearchRequest two = request_of(run, mixed, 8);
  SearchRequest one = request_of(run, plain, 8);
  ASSERT_TRUE(two.kinds);
  ASSERT_FALSE(one.kinds);
  two.best = one.best = 200;
  SearchResult a;
  SearchResult b;
  const Confirmation found =
      search_and_confirm(two, a, {.most = 2, .run = run, .by = {.device = two.device}});
  const Confirmation plainly =
      search_and_confirm(one, b, {.most = 2, .run = run, .by = {.device = one.device}});
  ASSERT_FALSE(b.best.empty());
  EXPECT_EQ(a.best[0].layout, b.best[0].layout);
  EXPECT_EQ(found.of(a.best[0].layout)->step_s, plainly.of(b.best[0].layout)->step_s);
  EXPECT_EQ(found.of(a.best[0].layout)->arena, plainly.of(b.best[0].layout)->arena);
  EXPECT_EQ(a.candidates, b.candidates);
  int pipelines = 0;
  for (size_t i = 0; i < b.best.size(); i += 7) {
    const Priced& p = b.best[i];
    pipelines += p.layout.pp > 1;
    const Priced other = price_layout(two, p.layout);
    const Priced same = price_layout(one, p.layout);
    EXPECT_EQ(other.time.total, same.time.total) << text_of(p.layout);
    EXPECT_EQ(other.memory.total, same.memory.total) << text_of(p.layout);
    EXPECT_EQ(other.headroom, same.headroom) << text_of(p.layout);
    EXPECT_EQ(replayed(two, p.layout), replayed(one, p.layout)) << text_of(p.layout);
  }
  EXPECT_GT(pipelines, 3);
}

TEST(MixedKinds, BoundIsBelowTheReplayAndCloseToIt) {
  const RunSpec run = run_of(12, 32);
  SearchRequest q = request_of(run, cluster_of({h100(1), a100(1)}), 8);
  q.best = 4000;
  q.bound = bound_of(q);
  q.bytes = bytes_of(q);
  const SearchResult r = search(q);
  int pipelines = 0;
  int cut = 0;
  for (int i = 0; i < 60; i++) {
    const Priced& p = r.best[below(rng_key(5, uint64_t(i), "mixed"), 0, r.best.size())];
    const RunSpec laid = with_layout(*q.run, p.layout, q.disk_each_way);
    if (!problems_of(laid).empty() || !unsupported_of(laid).empty()) continue;
    pipelines += p.layout.pp > 1;
    cut += p.layout.stage_layers != nullptr;
    SCOPED_TRACE(text_of(p.layout));
    const double step = replayed(q, p.layout);
    const double bound = price_layout(q, p.layout).time.total;
    EXPECT_LE(bound, step * (1 + 1e-9));
    EXPECT_GE(bound, step * 0.95);
    EXPECT_LE(p.time.total, step * (1 + 1e-9));
    EXPECT_LE(bound_s(q, p.layout, step), bound * (1 + 1e-9));
  }
  EXPECT_GT(pipelines, 10);
  EXPECT_GT(cut, 10);
}

TEST(MixedKinds, PlanHasTheStepOfTheSearchAndFasterDevicesTakeMoreLayers) {
  const ClusterSpec cluster = cluster_of({h100(1), a100(1)});
  const RunSpec run = run_of(12, 64);
  const SearchRequest q = request_of(run, cluster, 8);
  std::vector<double> steps;
  for (const int64_t on_fast : {6, 7, 8}) {
    const SearchLayout l = pipeline(8, 64, {on_fast, 12 - on_fast});
    steps.push_back(replayed(q, l));
    const RunSpec laid = resolve(with_layout(run, l), {.native_bf16 = true});
    const std::optional<SearchedStep> planned = searched_step(laid, cluster);
    ASSERT_TRUE(planned);
    EXPECT_EQ(planned->step_s, steps.back());
    EXPECT_LE(planned->roof_s, planned->step_s);
    EXPECT_EQ(*layout_of(laid), l);
  }
  EXPECT_LT(steps[1], 0.95 * steps[0]);
  EXPECT_LT(steps[2], 0.95 * steps[1]);
  // With the slow devices first the same numbers are the wrong way round.
  const SearchRequest back = request_of(run, cluster_of({a100(1), h100(1)}), 8);
  EXPECT_GT(replayed(back, pipeline(8, 64, {8, 4})), 1.3 * steps[2]);
  // An order of axes in which each stage has both kinds waits for the slowest.
  SearchLayout spread = pipeline(8, 64, {6, 6});
  spread.nearest = Nearest::stages;
  ClusterSpec slow = cluster;
  slow.kinds.clear();
  slow.name = "A100-80GB";
  EXPECT_EQ(replayed(q, spread), replayed(request_of(run, slow, 8), spread));
}

TEST(MixedKinds, LayersMoveToTheFasterDevicesWhileTheBoundDecreases) {
  const SearchRequest q = request_of(run_of(12, 64), cluster_of({h100(1), a100(1)}), 8);
  const Priced from = price_layout(q, pipeline(8, 64, {6, 6}));
  const std::vector<Priced> better = moved_layers(q, from);
  ASSERT_FALSE(better.empty());
  double score = from.score;
  for (const Priced& p : better) {
    EXPECT_LT(p.score, score);
    score = p.score;
  }
  EXPECT_GT((*better.back().layout.stage_layers)[0], 7);
}

TEST(MixedKinds, SearchPutsMoreLayersOnTheFasterKindThanEitherAlone) {
  const RunSpec run = run_of(24, 64);
  SearchRequest q = request_of(run, cluster_of({h100(2), a100(2)}), 16);
  q.best = kept_to_confirm(q);
  SearchResult r;
  const ConfirmRequest how{.most = 1, .run = run};
  const Confirmation all = search_and_confirm(q, r, how);
  ASSERT_FALSE(r.best.empty());
  const SearchLayout& best = r.best[0].layout;
  ASSERT_TRUE(best.stage_layers) << text_of(best);
  int64_t fast = 0;
  for (size_t s = 0; s < best.stage_layers->size(); s++) {
    const auto pp = size_t(best.pp);
    const bool v = best.chunks == 2 && best.schedule != "interleaved";
    const size_t rank = v && s >= pp ? 2 * pp - 1 - s : s % pp;
    if (rank < pp / 2) fast += (*best.stage_layers)[s];
  }
  EXPECT_GT(fast, 14);
  const double step = all.of(best)->step_s;
  const std::vector<KindAlone> alone = kinds_alone(q, how);
  ASSERT_EQ(alone.size(), 3U);
  for (const KindAlone& a : alone) EXPECT_GT(a.step_s, step) << a.name;
  EXPECT_EQ(alone[0].gpus, 8);
  EXPECT_GT(alone[1].step_s, 2 * alone[0].step_s);
  EXPECT_NE(alone_text(alone, step).find("8 x H100 alone take"), std::string::npos);
  // The run file has the cut, and `plan` of it the step.
  const RunSpec laid = resolve(with_layout(run, best, q.disk_each_way), {.native_bf16 = true});
  EXPECT_EQ(NumberList(laid.layout.stage_layers.begin(), laid.layout.stage_layers.end()), *best.stage_layers);
  EXPECT_EQ(searched_step(laid, cluster_of({h100(2), a100(2)}))->step_s, step);
}

TEST(MixedKinds, EachStageFitsIntoItsOwnDevices) {
  const RunSpec run = run_of(8, 16);
  const SearchLayout l = pipeline(4, 16, {6, 2});
  KindSpec large = h100(1);
  KindSpec small = a100(1);
  ClusterSpec cluster = cluster_of({large, small});
  cluster.devices_per_node = 2;
  const double bytes = closed_memory(request_of(run, cluster, 4), l).total;
  // Two thirds of the first stage's bytes are enough for the second stage.
  large.memory_bytes = int64_t(1.1 * bytes);
  small.memory_bytes = int64_t(bytes * 2 / 3);
  const auto fits = [&](const std::vector<KindSpec>& kinds) {
    ClusterSpec c = cluster_of(kinds);
    c.devices_per_node = 2;
    const SearchRequest q = request_of(run, c, 4);
    const Priced p = price_layout(q, l);
    const RunSpec laid = resolve(with_layout(run, l), {.native_bf16 = true});
    const Forecast f = forecast(laid, schedule_of(laid), c, 1);
    EXPECT_EQ(f.fits, f.device_bytes() <= f.allowed_bytes());
    const double base = p.memory.base;
    EXPECT_EQ(f.fits, p.memory.used() - base <= q.figures.memory);
    EXPECT_NEAR(double(f.device_bytes()) / (p.memory.total - base), 1, 0.1);
    return f.fits;
  };
  EXPECT_TRUE(fits({large, small}));
  EXPECT_FALSE(fits({small, large}));
  large.memory_bytes = small.memory_bytes;
  EXPECT_FALSE(fits({large, small}));
}

}  // namespace
}  // namespace trireme
