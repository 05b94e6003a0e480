// Compares the search's form of a layout's memory (forecast/rank_bytes.h) with what meta books of the step.
// Both are bytes of the most loaded rank, without holes of placement.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "catalog/catalog.h"
#include "forecast/layer_bytes.h"
#include "runtime/composed_booking.h"
#include "sanitized.h"
#include "search/search.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr std::string_view kDrawnOrders[] = {"1f1b", "gpipe",  "interleaved", "zb-h1",     "zb-h2",
                                             "zb-v", "v-half", "v-min",       "dualpipe-v"};

class DrawnMemory {
 public:
  explicit DrawnMemory(uint64_t seed) : random_(seed) {}
  int64_t one_of(std::initializer_list<int64_t> all) {
    return *(all.begin() + std::ptrdiff_t(std::uniform_int_distribution<size_t>(0, all.size() - 1)(random_)));
  }
  SearchRequest request(bool experts, bool tied = false) {
    SearchRequest q;
    q.model = shipped_catalog().shape_named(experts ? "mixtral-8x7B" : "llama3-8B")->model;
    q.model.layers = one_of({16, 24, 32, 48}), q.model.vocab = one_of({16384, 32000, 128256});
    q.model.tied = tied;
    q.seq = one_of({2048, 4096, 8192}), q.model.finish(q.seq);
    q.figures = shipped_catalog().device_named("H100")->figures;
    q.software = kTrireme, q.fits.fill(1), q.fits[size_t(Fit::base)] = 0;
    return q;
  }
  SearchLayout layout(const SearchRequest& q, std::string_view kind) {
    SearchLayout l;
    const auto has = [&](std::string_view axis) { return kind.find(axis) != std::string_view::npos; };
    if (has("tp")) l.tp = one_of({2, 4, 8});
    if (has("cp")) l.cp = one_of({2, 4, 8});
    if (has("dp")) l.dp = one_of({2, 8, 16, 64});
    if (has("ep")) l.ep = std::min<int64_t>(l.dp, one_of({2, 4, 8}));
    for (int zero = 0; zero <= 3; zero++)
      if (has("zero " + std::to_string(zero))) l.zero = zero;
    if (has("pp")) {
      l.pp = one_of({2, 4, 8});
      l.schedule = kDrawnOrders[size_t(has("v ") ? one_of({5, 6, 7, 8}) : one_of({0, 1, 2, 3, 4}))];
      if (l.schedule == "interleaved")
        l.chunks = std::max<int64_t>(2, one_of({2, q.model.layers / l.pp / 2, q.model.layers / l.pp}));
      if (l.schedule.starts_with("zb-v") || l.schedule.starts_with("v-") || l.schedule == "dualpipe-v")
        l.chunks = 2;
    }
    if (l.zero == 3 && l.dp >= 8) l.shards = one_of({0, 0, 4, l.dp / 2});
    l.offload = has("offload");
    l.again = Again(one_of({0, 0, 1, 2}));
    l.micro = one_of({1, 1, 2, 4});
    const int64_t m = l.pp > 1 ? l.pp * one_of({1, 2, 4}) : one_of({1, 2, 3});
    l.global = l.dp * l.micro * m;
    l.gpus = l.tp * l.pp * l.cp * l.dp;
    return l;
  }

 private:
  std::mt19937_64 random_;
};

struct BookedKind {
  std::string_view name;
  bool experts;
  double median, ninth, worst;  // bounds, percent
};
constexpr BookedKind kBookedKinds[] = {
    {"dp zero 0", false, 0.001, 0.001, 0.01},
    {"dp zero 1", false, 0.001, 0.001, 0.01},
    {"dp zero 2", false, 0.001, 0.001, 0.01},
    {"dp zero 3", false, 0.001, 0.001, 0.01},
    {"tp dp zero 1", false, 0.001, 0.001, 0.01},
    {"tp dp zero 3", false, 0.001, 0.001, 0.01},
    {"cp dp zero 1", false, 0.001, 0.001, 0.01},
    {"cp dp zero 3", false, 0.001, 0.001, 0.01},
    {"pp", false, 0.001, 0.01, 1},
    {"tied pp dp zero 1", false, 0.001, 0.3, 1},
    {"tied tp dp zero 3", false, 0.001, 0.3, 1},
    {"offload dp zero 1", false, 0.001, 0.3, 1},
    {"offload pp dp zero 3", false, 0.001, 0.3, 1},
    {"pp dp zero 1", false, 0.001, 0.01, 1},
    {"pp dp zero 2", false, 0.001, 0.01, 1},
    {"pp dp zero 3", false, 0.001, 0.3, 1},
    {"tp cp pp dp zero 1", false, 0.001, 0.3, 1},
    {"tp pp dp zero 3", false, 0.001, 0.3, 1},
    {"dp zero 1", true, 0.001, 0.001, 0.01},
    {"dp zero 3", true, 0.001, 0.001, 0.01},
    {"dp ep zero 1", true, 0.001, 0.001, 0.01},
    {"dp ep zero 3", true, 0.001, 0.001, 0.01},
    {"tp dp ep zero 1", true, 0.001, 0.001, 0.01},
    {"tp dp ep zero 3", true, 0.001, 0.001, 0.01},
    {"pp dp ep zero 1", true, 0.001, 0.01, 1},
    {"tp cp pp dp ep zero 2", true, 0.001, 0.01, 1},
    {"tp cp pp dp ep zero 3", true, 0.001, 0.01, 1},
    {"v pp dp zero 1", false, 0.001, 0.3, 1},
    {"v tied pp dp zero 3", false, 0.001, 0.3, 1},
    {"v tp pp dp zero 3", false, 0.001, 0.3, 1},
    {"v pp dp ep zero 1", true, 0.001, 0.3, 1},
};

// The most of all ranks.
double booked_peak(const SearchRequest& q, const SearchLayout& l) {
  RunSpec run = with_layout(run_of(q, q.run), l);
  if (!problems_of(run).empty() || !unsupported_of(run).empty()) return 0;
  run = resolve(run, {.native_bf16 = true});
  const Schedule all = schedule_of(run);
  int64_t most = 0;
  LayerTapes tapes;
  const ComposedRun composed(run, all, 1, {}, tapes);
  for (int r = 0; r < int(l.pp); r++) most = std::max(most, composed.booked(r).peak_total);
  return double(most);
}

TEST(RankBytes, IsWhatMetaBooks) {
  constexpr int kDrawnEach = 30;
  const int one_of = test::one_of(1, 15);
  DrawnMemory draw(20261124);
  int all = 0;
  for (const BookedKind& k : kBookedKinds) {
    std::vector<double> off;
    std::string which;
    double low = 0, high = 0;
    for (int i = 0; i < kDrawnEach; i++) {
      const SearchRequest q = draw.request(k.experts, k.name.find("tied") != std::string_view::npos);
      const SearchLayout l = draw.layout(q, k.name);
      if (i % one_of != 0) continue;
      if (l.pp > 1 && q.model.layers % (l.pp * l.chunks) != 0) continue;
      if (division_refusal(q.model, q.seq, l) != Refusal::count) continue;
      const double booked = booked_peak(q, l);
      if (booked == 0) continue;
      const double form = closed_memory(q, l).total, one = 100 * (form / booked - 1);
      if (off.empty() || std::abs(one) > *std::max_element(off.begin(), off.end())) which = text_of(l);
      // Bounds, by the layout's own tapes and by those of other ranks of cp.
      EXPECT_LE(bytes_of(q)->least(l, 0).total, form * (1 + 1e-12)) << text_of(l);
      const std::shared_ptr<RankBytes> other = bytes_of(q);
      SearchLayout divided = l;
      divided.cp = l.cp > 1 ? 1 : 2;
      other->least(divided, 0);
      const StepMemory rough = other->least(l, 0, 0);
      EXPECT_EQ(rough.activations, 0) << text_of(l);
      EXPECT_LE(rough.total, form * (1 + 1e-12)) << text_of(l);
      off.push_back(std::abs(one)), low = std::min(low, one), high = std::max(high, one);
    }
    std::sort(off.begin(), off.end());
    if (one_of > 1 && off.empty()) continue;
    ASSERT_FALSE(off.empty()) << k.name;
    const auto at = [&](double share) {
      return off[std::min(off.size() - 1, size_t(share * double(off.size())))];
    };
    printf("| %s%s | %zu | %.2f, %.2f, %.2f | %+.2f to %+.2f |\n", k.experts ? "experts, " : "",
           std::string(k.name).c_str(), off.size(), at(0.5), at(0.9), at(1), low, high);
    all += int(off.size());
    if (one_of == 1) {  // a median takes many
      EXPECT_LT(at(0.5), k.median) << k.name;
      EXPECT_LT(at(0.9), k.ninth) << k.name;
    }
    EXPECT_LT(at(1), k.worst) << k.name << ": " << which;
  }
  EXPECT_GT(all, (one_of == 1 ? 500 : 300) / one_of);
}

// Bytes are linear in the rows of a microbatch, and two context ranks stand for more. A product of few rows
// has less scratch.
TEST(RankBytes, GrowWithRows) {
  for (const char* name : {"llama3-8B", "mixtral-8x7B", "DeepSeekV2"})
    for (const int again : {0, 1, 2})
      for (const int64_t tp : {1, 4})
        for (const int64_t cp : {1, 2, 8}) {
          SearchRequest q = DrawnMemory(1).request(false);
          q.model = shipped_catalog().shape_named(name)->model;
          q.seq = 2048, q.model.finish(q.seq);
          SearchLayout l{.gpus = tp * cp, .global = 8};
          l.tp = tp;
          l.cp = cp;
          l.again = Again(again);
          if (q.model.moe()) l.ep = l.dp = 2;
          l.gpus *= l.dp;
          const auto run = [&](SearchLayout of, int64_t micro, int64_t ranks) {
            of.micro = micro;
            of.global = 2 * micro * of.dp;
            of.cp = ranks;
            return resolve(with_layout(run_of(q, {}), of), {.native_bf16 = true});
          };
          constexpr int64_t kMicro = 4;
          const int64_t few = std::min<int64_t>(cp, 2);
          const RecordedLayers grown =
              LayersByRows(run(l, 1, few), false).at(double(kMicro) * double(few) / double(cp), l.again);
          const RecordedLayers recorded = record_layers(run(l, kMicro, cp), false);
          for (size_t k = 0; k < size_t(kWorkLayers); k++)
            for (size_t p = 0; p < kLayerPasses; p++) {
              const PassBytes &a = grown.kinds[k].passes[p], &b = recorded.kinds[k].passes[p];
              EXPECT_NEAR(a.net, b.net, 64) << name << " " << text_of(l) << " " << k << " " << p;
              EXPECT_NEAR(a.high, b.high, 0.02 * b.high) << name << " " << text_of(l) << " " << k << " " << p;
            }
          EXPECT_EQ(grown.boundary, recorded.boundary);
        }
}

TEST(RankBytes, RecordsEveryWayOfRecomputeAtOnce) {
  for (const char* name : {"llama3-8B", "mixtral-8x7B", "DeepSeekV2"})
    for (const char* fp8 : {"none", "current"}) {
      SearchRequest q = DrawnMemory(1).request(false);
      q.model = shipped_catalog().shape_named(name)->model;
      q.seq = 2048, q.model.finish(q.seq);
      RunSpec run = resolve(with_layout(run_of(q, {}), {.gpus = 1, .global = 2}), {.native_bf16 = true});
      run.precision.fp8 = fp8;
      const std::vector<RecordedLayers> all = record_ways(run, false);
      ASSERT_EQ(all.size(), 3u);
      for (const Again a : {Again::none, Again::selective, Again::full}) {
        run.layout.recompute = name_of(a);
        const RecordedLayers one = record_layers(run, false);
        const RecordedLayers& same = all[size_t(a)];
        for (size_t k = 0; k < size_t(kWorkLayers); k++)
          for (size_t p = 0; p < kLayerPasses; p++) {
            EXPECT_EQ(same.kinds[k].passes[p].totals, one.kinds[k].passes[p].totals) << name << fp8 << k << p;
            EXPECT_EQ(same.kinds[k].passes[p].high, one.kinds[k].passes[p].high) << name << fp8 << k << p;
          }
        EXPECT_EQ(same.rest, one.rest);
        EXPECT_EQ(same.between, one.between);
      }
      EXPECT_LT(all[2].kinds[kDenseLayer + (run.model.moe() ? 1 : 0)].passes[kPassDrop].net, 0);
    }
}

// Experts take fewer rounds if there are few rows.
TEST(RankBytes, KnowsMicrobatchesOfFewRows) {
  SearchRequest q = DrawnMemory(3).request(true);
  q.model = shipped_catalog().shape_named("DeepSeekV3")->model;
  q.model.layers = 4;
  q.seq = 4096;
  q.model.finish(q.seq);
  for (const int64_t ep : {1, 4, 16, 64, 128, 256}) {
    SearchLayout l{.gpus = 256, .global = 16};
    l.tp = 128;
    l.dp = 2;
    l.ep = ep;
    double before = 0;
    for (const int64_t micro : {1, 2, 4}) {
      l.micro = micro;
      const double bytes = closed_memory(q, l).total;
      EXPECT_GT(bytes, before) << text_of(l);
      before = bytes;
    }
  }
}

// Latent attention, dense blocks before those with experts, and a router's bias.
TEST(RankBytes, KnowEveryKindOfLayer) {
  int compared = 0;
  for (const std::string_view kind :
       {"dp ep zero 1", "tp dp ep zero 1", "pp dp ep zero 2", "cp dp zero 1", "dp ep zero 3"}) {
    DrawnMemory draw(3);
    SearchRequest q = draw.request(true);
    q.model = shipped_catalog().shape_named("DeepSeekV3")->model;
    q.model.layers = 16;
    q.model.experts = 32;
    q.model.finish(q.seq);
    const SearchLayout l = draw.layout(q, kind);
    if (division_refusal(q.model, q.seq, l) != Refusal::count) continue;
    const double booked = booked_peak(q, l);
    if (booked == 0) continue;
    compared++;
    EXPECT_NEAR(closed_memory(q, l).total / booked, 1, 0.001) << text_of(l);
  }
  EXPECT_GE(compared, 3);
}

// Optimizers keep other state, and some of them share whole matrices among ranks.
TEST(RankBytes, FollowTheOptimizer) {
  DrawnMemory draw(7);
  for (const std::string name : {"adamw", "muon"})
    for (const std::string_view kind : {"dp zero 0", "dp zero 1", "tp dp zero 2", "pp dp zero 3"})
      for (const bool experts : {false, true}) {
        SearchRequest q = draw.request(experts);
        q.run = run_of(q, {});
        q.run->optimizer.name = name;
        const SearchLayout l = draw.layout(q, kind);
        if (division_refusal(q.model, q.seq, l) != Refusal::count) continue;
        const double booked = booked_peak(q, l);
        if (booked == 0) continue;
        EXPECT_NEAR(closed_memory(q, l).total / booked, 1, 0.002) << name << ": " << text_of(l);
      }
}

// A search looks at each kind once for all of its shardings; layout by layout the same bytes.
TEST(RankBytes, OfASearchIsThatOfItsLayouts) {
  for (const bool experts : {false, true}) {
    SearchRequest q = DrawnMemory(1).request(experts);
    q.gpus = {64}, q.globals = {128}, q.best = 200;
    q.bound = bound_of(q);
    q.bytes = bytes_of(q);
    const SearchResult r = search(q);
    ASSERT_FALSE(r.best.empty());
    for (const Priced& p : r.best) {
      const StepMemory one = closed_memory(q, p.layout);
      EXPECT_EQ(p.memory.total, one.total) << text_of(p.layout);
      EXPECT_EQ(p.memory.gradients, one.gradients) << text_of(p.layout);
    }
    for (const Priced& p : r.front)
      EXPECT_EQ(p.memory.total, closed_memory(q, p.layout).total) << text_of(p.layout);
  }
}

}  // namespace
}  // namespace trireme
