// What axes say inside a layer, recorded from the real layers, against closed forms.
#include "forecast/axes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {

constexpr int64_t kHidden = 48, kHeads = 12, kKvHeads = 6, kHeadDim = 4, kChoices = 2, kExperts = 6;

RunSpec run_of(const char* arch) {
  RunSpec r;
  r.model = ModelSpec::of(arch);
  r.model.vocab = 61, r.model.layers = 3, r.model.hidden = kHidden, r.model.heads = kHeads;
  r.model.kv_heads = kKvHeads, r.model.head_dim = kHeadDim, r.model.ffn = 72;
  if (std::string_view(arch) == "mixtral")
    r.model.experts = kExperts, r.model.experts_per_token = kChoices, r.model.moe_ffn = 36;
  r.data.seq_len = 24;
  r.precision.compute = "bf16", r.precision.grads = "f32", r.precision.reduce = "f32";
  r.train.threads = 1;
  r.layout.bucket_mb = 0;  // gradients are on their way during the backward pass, and are not counted
  r.model.finish(r.data.seq_len);
  return r;
}

ClusterSpec machine(double latency, double bandwidth) {
  ClusterSpec c;
  c.name = "planted", c.peak.f32 = 1e12, c.peak.bf16 = 2e12, c.memory_bandwidth = 1e11;
  c.intra_node = {latency, bandwidth};
  return c;
}

const AxisCost& row(const AxisTable& t, std::string_view way, int64_t ranks, int64_t seq_len) {
  for (const AxisCost& r : t.rows)
    if (r.way == way && r.ranks == ranks && r.seq_len == seq_len) return r;
  throw std::out_of_range(std::string(way));
}

TEST(Axes, BytesAreThoseOfTheClosedForms) {
  const AxisTable dense = compare_axes(run_of("llama"), machine(1e-6, 1e9), 1, {2, 3}, 100),
                  experts = compare_axes(run_of("mixtral"), machine(1e-6, 1e9), 1, {2, 3}, 100);
  for (int64_t p : {2, 3})
    for (int64_t s : {24, 96}) {
      const int64_t rows = p * s, a = rows * kHidden * 2;
      // 4 all_reduces forward and backward; as reduce_scatters and all_gathers 10 halves
      // (docs/tensor_parallel.md).
      EXPECT_EQ(row(dense, "tp", p, s).wire_bytes, 4 * 2 * (p - 1) * a / p);
      EXPECT_EQ(row(dense, "tp sequence", p, s).wire_bytes, 10 * (p - 1) * a / p);
      // k and v of rows / p tokens p - 1 times round in either pass, their gradients in f32 p times.
      const int64_t kv = rows / p * 2 * kKvHeads * kHeadDim;
      EXPECT_EQ(row(dense, "cp ring", p, s).wire_bytes, 2 * (p - 1) * kv * 2 + p * kv * 4);
      // q, k, v and o change places, and their gradients.
      const int64_t qkvo = rows / p * (2 * kHeads + 2 * kKvHeads) * kHeadDim * 2;
      EXPECT_EQ(row(dense, "cp ulysses", p, s).wire_bytes, 2 * qkvo * (p - 1) / p);
      EXPECT_EQ(row(dense, "ep", p, s).refused, "the model has no experts");
      // A row there and back, in either pass, of k choices of rows / p tokens; and where each rank's begin.
      const int64_t moved = 4 * rows / p * kChoices * kHidden * 2 * (p - 1) / p;
      EXPECT_EQ(row(experts, "ep", p, s).wire_bytes, moved + (p - 1) * (kExperts + 1) * 4);
    }
}

TEST(Axes, SecondsGrowWithAlphaAndBeta) {
  const AxisTable slow = compare_axes(run_of("llama"), machine(0, 1e6), 1, {3}, 24);
  for (const char* way : {"tp", "cp ring"}) {
    const AxisCost& r = row(slow, way, 3, 24);
    EXPECT_NEAR(r.comm_s, double(r.wire_bytes) / 1e6, 1e-3 * r.comm_s) << way;
  }
  const AxisCost& waits = row(slow, "tp", 3, 24);
  EXPECT_DOUBLE_EQ(waits.exposed_s, waits.comm_s);  // without chunks nothing hides an all_reduce
  EXPECT_LT(row(slow, "cp ring", 3, 24).exposed_s, row(slow, "cp ring", 3, 24).comm_s);
}

// layout.cp_overlap = false: compute waits for the ring's every message.
TEST(Axes, ARingInLineIsExposed) {
  RunSpec run = run_of("llama");
  run.layout.cp_overlap = false;
  for (int64_t p : {2, 3}) {
    const AxisTable in_line = compare_axes(run, machine(1e-5, 1e8), 1, {p}, 24),
                    beside = compare_axes(run_of("llama"), machine(1e-5, 1e8), 1, {p}, 24);
    const AxisCost& r = row(in_line, "cp ring", p, 24);
    EXPECT_DOUBLE_EQ(r.exposed_s, r.comm_s);
    EXPECT_DOUBLE_EQ(r.comm_s, row(beside, "cp ring", p, 24).comm_s);
    EXPECT_LT(row(beside, "cp ring", p, 24).exposed_s, r.exposed_s);
  }
}

// Messages cost the ring more, bytes cost tp more: a length where that changes, and it is where it is said.
TEST(Axes, CrossoversAreWhereTheCheapestWayChanges) {
  const AxisTable t = compare_axes(run_of("llama"), machine(30e-6, 1e9), 1, {3}, 24 * 256);
  ASSERT_FALSE(t.crossovers.empty());
  for (const Crossover& c : t.crossovers) {
    EXPECT_LE(row(t, c.to, c.ranks, c.seq_len).comm_s, row(t, c.from, c.ranks, c.seq_len).comm_s);
    EXPECT_LE(row(t, c.from, c.ranks, c.seq_len / 4).comm_s, row(t, c.to, c.ranks, c.seq_len / 4).comm_s);
    EXPECT_NE(to_text(t, run_of("llama"), machine(30e-6, 1e9)).find(c.to + " takes less"), std::string::npos);
  }
}

// Every two ways, at each number of ranks: who is the cheaper one at each length of the table follows from
// the changes, and just below and above a change the two are recorded again, at those very lengths.
TEST(Axes, PairsChangeWhereTheirLinesMeet) {
  const RunSpec run = run_of("mixtral");
  const ClusterSpec links = machine(30e-6, 1e9);
  const AxisTable t = compare_axes(run, links, 1, {2, 3}, 24 * 256);
  EXPECT_EQ(t.pairs.size(), 2u * 5 * 4 / 2);
  int changes = 0, none = 0;
  for (const AxisPair& p : t.pairs) {
    SCOPED_TRACE(fmt::format("{} ranks: {} against {}", p.ranks, p.first, p.second));
    for (int64_t s = 24; s <= 24 * 256; s *= 4) {
      const auto passed =
          std::count_if(p.changes.begin(), p.changes.end(), [&](int64_t at) { return at <= s; });
      const double more = row(t, p.second, p.ranks, s).comm_s - row(t, p.first, p.ranks, s).comm_s;
      EXPECT_TRUE(passed % 2 == 0 ? more >= 0 : more <= 0) << s;
    }
    none += p.changes.empty();
    for (size_t i = 0; i < p.changes.size(); i++, changes++)
      for (const int64_t s : {p.changes[i] / 12 * 12 - 12, p.changes[i] / 12 * 12 + 24}) {
        RunSpec there = run;
        there.data.seq_len = s;
        const AxisTable at = compare_axes(there, links, 1, {p.ranks}, s);
        const double more = row(at, p.second, p.ranks, s).comm_s - row(at, p.first, p.ranks, s).comm_s;
        EXPECT_EQ(more < 0, (s > p.changes[i]) == (i % 2 == 0)) << s << " beside " << p.changes[i];
      }
  }
  EXPECT_GT(changes, 1);
  EXPECT_GT(none, 1);
  const AxisPair& first = t.pairs.front();
  EXPECT_NE(to_text(t, run, links).find(fmt::format("{:<12} against {:<12}", first.first, first.second)),
            std::string::npos);
}

TEST(Axes, LinksMustBeKnown) {
  EXPECT_THROW(compare_axes(run_of("llama"), machine(0, 0), 1, {2}, 24), Error);
}

}  // namespace
}  // namespace trireme
