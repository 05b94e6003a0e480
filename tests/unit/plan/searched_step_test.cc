// One layout has one step time: what a search prints as a run file is priced as the search priced it, and a
// plan's bound of it is not above that.
#include "forecast/searched_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "catalog/catalog.h"
#include "cost/stated_links.h"
#include "forecast/forecast.h"
#include "forecast/scaled_run.h"
#include "search/search.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

// A device by name, whose links have a bandwidth alone; files that state everything of collectives; one that
// states latencies; tiers; a torus.
constexpr std::string_view kClusters[] = {"H100",        "h100-p5",  "h100-sxm-8", "h200-sxm-8",
                                          "gb200-nvl72", "mi300x-8", "tpu-v5p"};

ModelSpec model_of(std::string_view arch) {
  ModelSpec m = ModelSpec::of(arch == "deepseek" ? "deepseek_v3" : arch);
  m.layers = 4, m.hidden = 1024, m.heads = 16, m.kv_heads = 8, m.ffn = 4096, m.vocab = 32000;
  if (arch == "gpt2") m.kv_heads = 16;
  if (arch == "mixtral") m.experts = 8, m.experts_per_token = 2, m.moe_ffn = 2048;
  if (arch == "deepseek") {
    m.kv_heads = 16, m.experts = 16, m.experts_per_token = 2, m.moe_ffn = 512, m.shared_ffn = 512,
    m.dense_layers = 1;
    m.q_rank = 256, m.kv_rank = 128, m.nope_head_dim = 64, m.rope_head_dim = 32, m.v_head_dim = 64;
  }
  return m;
}

RunSpec run_on(std::string_view cluster, std::string_view arch) {
  RunSpec run;
  run.model = model_of(arch);
  run.data.seq_len = 1024;
  run.model.finish(run.data.seq_len);
  run.batch.global = 16;
  run.train.device = "cuda", run.train.comm = "nccl", run.train.sum_order = "auto";
  run.cluster.file = cluster;
  return run;
}

SearchRequest request_on(const RunSpec& run, int64_t gpus) {
  SubjectDevice d = device_of(cluster_called(run.cluster.file, gpus), "bf16", gpus);
  complete_figures(d, gpus, "test");
  SearchRequest q;
  static_cast<LayoutCase&>(q) = layout_case_of(run, d);
  q.gpus = {gpus}, q.globals = {run.batch.global};
  q.best = 4;
  q.run = run;
  return q;
}

RunSpec resolved(const RunSpec& run) {
  return resolve(run, {.native_bf16 = true});
}

// Some of the best layouts, and of all divisions some, drawn.
std::vector<SearchLayout> some_layouts(const SearchRequest& q, uint64_t key, size_t drawn) {
  const SearchResult r = search(q);
  std::vector<SearchLayout> all;
  for (const Priced& p : r.best) all.push_back(p.layout);
  for (size_t i = 0; i < drawn && !r.divisions.empty(); i++)
    all.push_back(r.divisions[below(key, i, r.divisions.size())].layout);
  std::erase_if(all, [&](const SearchLayout& l) {
    const RunSpec run = with_layout(*q.run, l, q.disk_each_way);
    return !problems_of(run).empty() || !unsupported_of(run).empty();
  });
  return all;
}

TEST(SearchedStep, ARunFileOfASearchHasItsStep) {
  int seen = 0;
  for (const std::string_view cluster : kClusters)
    for (const char* arch :
         {cluster == "h200-sxm-8" ? "gpt2" : "llama", cluster == "h100-p5" ? "mixtral" : "deepseek"}) {
      const SearchRequest q = request_on(run_on(cluster, arch), 8);
      for (const SearchLayout& l : some_layouts(q, rng_key(7, 0, arch), 6)) {
        const RunSpec run = with_layout(*q.run, l, q.disk_each_way);
        const RunSpec read = resolved(parse_run(save_changed(run), "printed"));
        const std::optional<SearchedStep> step =
            searched_step(read, cluster_called(read.cluster.file, read.world()));
        ASSERT_TRUE(step) << cluster << " " << arch << " " << text_of(l);
        EXPECT_DOUBLE_EQ(step->closed_s, price_layout(q, l).time.total)
            << cluster << " " << arch << " " << text_of(l);
        const StepTotals replayed = replayed_step(q, {.device = q.device}, resolved(run));
        EXPECT_DOUBLE_EQ(step->step_s, double(replayed.makespan) * 1e-9) << text_of(l);
        EXPECT_LE(step->roof_s, step->step_s);
        EXPECT_LE(step->interval.low, step->step_s);
        EXPECT_GE(step->interval.high, step->step_s);
        seen++;
      }
    }
  EXPECT_GT(seen, 80);
}

// The closed form has no step for settings that it does not price.
TEST(SearchedStep, OtherRunsHaveNone) {
  const ClusterSpec cluster = cluster_called("h100-p5", 16);
  RunSpec run = run_on("h100-p5", "llama");
  run.layout.dp = 16, run.batch.micro = 1;
  EXPECT_TRUE(searched_step(resolved(run), cluster));
  const auto none = [&](auto change) {
    RunSpec other = run;
    change(other);
    return !searched_step(resolved(other), cluster);
  };
  const auto priced = [&](const std::vector<std::string>& sets) {
    return searched_step(resolved(parse_run(save_run(run), "test", sets)), cluster).has_value();
  };
  EXPECT_TRUE(priced({"layout.dp=8", "layout.tp=2", "batch.micro=1"}));  // without layout.sequence
  EXPECT_TRUE(priced({"layout.zero=3", "layout.prefetch=3", "batch.micro=1"}));
  EXPECT_TRUE(none([](RunSpec& r) { r.optimizer.name = "muon"; }));
  EXPECT_TRUE(none([](RunSpec& r) { r.precision.compute = "f32"; }));
  EXPECT_TRUE(none([](RunSpec& r) { r.layout.dp = 8, r.layout.pp = 2, r.layout.schedule = "dualpipe"; }));
  ClusterSpec without = cluster;
  without.memory_bandwidth = 0;
  EXPECT_FALSE(searched_step(resolved(run), without));
}

// Stages that share a node share its port. In the first order a node has 8 / ep replicas of one stage's
// experts. In the second it has one for each of eight stages, so their sums take 8 / ep times as long. Other
// parts of the step do not grow. If experts were priced as near ones, the step would take 2.7 times as long.
TEST(SearchedStep, StagesOfANodeShareItsPort) {
  for (const int64_t ep : {1, 2}) {
    RunSpec run = run_on("h100-ethernet", "mixtral");
    run.model.layers = 8;
    run.batch.global = 512;
    const SearchRequest q = request_on(run, 512);
    SearchLayout l{.gpus = 512, .global = 512, .pp = 8, .dp = 64, .micro = 1, .schedule = "1f1b"};
    l.ep = ep;
    l.zero = 2;
    const double near = price_layout(q, l).time.total;
    l.nearest = Nearest::stages;
    const double far = price_layout(q, l).time.total;
    EXPECT_GT(far, 3.5 * near) << "ep " << ep;
    EXPECT_LT(far, 8 * near) << "ep " << ep;
  }
}

// The bound is priced from the run's own step on meta, the step in closed form: both by the constants of the
// file.
TEST(SearchedStep, ABoundIsNeverAboveIt) {
  int seen = 0;
  for (const std::string_view cluster : kClusters)
    for (const char* arch : {cluster == "h100-p5" || cluster == "gb200-nvl72" ? "mixtral" : "llama"}) {
      const SearchRequest q = request_on(run_on(cluster, arch), 16);
      for (const SearchLayout& l : some_layouts(q, rng_key(11, 0, cluster), 3)) {
        RunSpec run = with_layout(*q.run, l, q.disk_each_way);
        run = resolved(run);
        const Forecast f = forecast(run, schedule_of(run), cluster_called(run.cluster.file, 16), 1);
        ASSERT_TRUE(f.closed_form) << text_of(l);
        EXPECT_DOUBLE_EQ(f.step_s, double(replayed_step(q, {.device = q.device}, run).makespan) * 1e-9);
        EXPECT_LE(f.low_s, f.step_s);
        EXPECT_GE(f.high_s, f.step_s);
        EXPECT_GT(f.roof_s, 0);
        EXPECT_LE(f.roof_s, f.step_s) << cluster << " " << arch << " " << text_of(l);
        seen++;
      }
    }
  EXPECT_GT(seen, 30);
}

// An interleaved layout whose gradients fill the link between nodes: messages queue behind sums. The replay
// and the bound follow the same program, so the bound that plan computes from the runner's tapes is below the
// replayed step without being cut to it.
TEST(SearchedStep, ABoundIsNotAboveItWhereSumsFillTheLink) {
  RunSpec run = run_on("h100-ethernet", "mixtral");
  run.model = ModelSpec::of("llama");
  run.model.vocab = 32000;
  run.model.layers = 32;
  run.model.hidden = 4096;
  run.model.ffn = 14336;
  run.model.heads = 32;
  run.model.kv_heads = 8;
  run.model.experts = 8;
  run.model.experts_per_token = 2;
  run.model.moe_ffn = 14336;
  run.data.seq_len = 8192;
  run.model.finish(run.data.seq_len);
  run.batch.global = 64;
  const SearchRequest q = request_on(run, 512);
  SearchLayout l{.gpus = 512, .global = 64, .pp = 4, .dp = 32, .micro = 1, .chunks = 4};
  l.cp = 4;
  l.ep = 4;
  l.schedule = "interleaved";
  l.nearest = Nearest::stages;
  run = resolved(with_layout(*q.run, l, q.disk_each_way));
  const ClusterSpec cluster = cluster_called(run.cluster.file, 512);
  const Forecast f = forecast(run, schedule_of(run), cluster, 1);
  ASSERT_TRUE(f.closed_form);
  EXPECT_LE(f.time.step_s, f.step_s);
  EXPECT_GT(f.time.step_s, 0.8 * f.step_s);
  EXPECT_LE(f.roof_s, f.step_s);
  EXPECT_GT(f.roof_s, 0.2 * f.step_s);
}

// A ring over many nodes takes a round for each rank, however short the message.
TEST(SearchedStep, CollectivesTakeTheFilesConstants) {
  ClusterSpec c = cluster_called("h100-p5", 128);
  const StatedLinks links(c);
  const Placement p = place(c, 16, 8);
  for (const CollectiveKind k :
       {CollectiveKind::all_gather, CollectiveKind::all_reduce, CollectiveKind::all_to_all})
    for (const double bytes : {1.0, 1e6, 1e9})
      EXPECT_NEAR(links.seconds(k, bytes, 16, 8) / collective_time(k, bytes, p, c).seconds, 1, 1e-12);
  EXPECT_EQ(links.seconds(CollectiveKind::all_gather, 1e9, 1, 1), 0);
  // More ranks than the file has devices are on more nodes.
  EXPECT_GT(links.seconds(CollectiveKind::all_gather, 1, 1024, 1),
            7 * links.seconds(CollectiveKind::all_gather, 1, 128, 1));
  const double whole = links.seconds(CollectiveKind::all_gather, 1e12, 16, 8);
  EXPECT_NEAR(links.scaled(1, 2)->seconds(CollectiveKind::all_gather, 1e12, 16, 8) / whole, 0.5, 1e-3);
  EXPECT_EQ(links.scaled(2, 1)->seconds(CollectiveKind::all_gather, 1e12, 16, 8), whole);

  // A step of many replicas grows with the file's rounds, and not with one that states none.
  RunSpec run = run_on("h100-p5", "llama");
  run.batch.global = 64;
  SearchRequest q = request_on(run, 64);
  const SearchLayout l{.gpus = 64, .global = 64, .dp = 64, .zero = 3};
  const double stated = price_layout(q, l).time.total;
  c.inter_node.round *= 10;
  q.figures = device_of(c, "bf16", 64).figures;
  EXPECT_GT(price_layout(q, l).time.total, 1.5 * stated);
  q.figures.links = nullptr;
  EXPECT_LT(price_layout(q, l).time.total, stated);
}

// The interval holds the forecast and the simulated step, whichever is the larger.
TEST(SearchedStep, AnIntervalHoldsItsForecasts) {
  SearchRequest q = request_on(run_on("h100-p5", "llama"), 16);
  set_interval(q, false);
  const Priced p = price_layout(q, some_layouts(q, 1, 0).front());
  const double step = p.time.total;
  const auto [low, high] = unseen_ratios(false, false);
  EXPECT_DOUBLE_EQ(interval_of(q, p, 0).low, low * step);
  EXPECT_DOUBLE_EQ(interval_of(q, p, 0).high, high * step);
  // The closed form of trireme's own runs is a bound of the replay, which alone is the forecast.
  for (const double simulated : {1.01 * step, 1.05 * step, 3 * step}) {
    const StepInterval i = interval_of(q, p, simulated);
    EXPECT_DOUBLE_EQ(i.low, std::min(step, low * simulated));
    EXPECT_DOUBLE_EQ(i.high, high * simulated);
  }
  SearchRequest other = q;
  other.software = kElsewhere;
  ASSERT_FALSE(other.software.ordered());
  for (const double simulated : {step / 2, 3 * step}) {
    const StepInterval i = interval_of(other, p, simulated);
    EXPECT_DOUBLE_EQ(i.low, std::max(low * std::min(step, simulated), bound_s(other, p.layout, simulated)));
    EXPECT_DOUBLE_EQ(i.high, high * std::max(step, simulated));
  }
  // No run is faster than the bound.
  q.low = 0.01;
  const StepInterval wide = interval_of(q, p, 0);
  EXPECT_DOUBLE_EQ(wide.low, bound_s(q, p.layout, step));
  EXPECT_GT(wide.low, 2 * q.low * step);
}

// A device of the catalog is a cluster by its name, and closed forms read of that what the catalog says.
TEST(SearchedStep, EveryDeviceOfTheCatalogIsACluster) {
  for (const KnownDevice& k : shipped_catalog().devices) {
    const ClusterSpec c = cluster_called(k.name, 1000);
    EXPECT_GE(c.devices(), 1000);
    EXPECT_EQ(parse_cluster(save_cluster(c), k.name), c);
    const SubjectDevice d = device_of(c, "bf16", 1000);
    const DeviceFigures &a = d.figures, &b = k.figures;
    EXPECT_EQ(d.name, k.name);
    EXPECT_EQ(d.note, "");
    EXPECT_FALSE(a.links);
    for (double DeviceFigures::*f :
         {&DeviceFigures::bf16, &DeviceFigures::fp8, &DeviceFigures::memory, &DeviceFigures::bandwidth,
          &DeviceFigures::bus, &DeviceFigures::near, &DeviceFigures::nic, &DeviceFigures::attention,
          &DeviceFigures::attention2, &DeviceFigures::k0, &DeviceFigures::units})
      EXPECT_DOUBLE_EQ(a.*f, b.*f) << k.name;
  }
  EXPECT_EQ(cluster_called("h100-p5", 4).name, "h100-p5");
  EXPECT_THROW(cluster_called("H1000", 4), Error);
}

}  // namespace
}  // namespace trireme
