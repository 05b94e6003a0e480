// Bytes, three ways: booked on meta, counted in the run, and in closed form.
#include <algorithm>

#include "compare.h"
#include "cost/flops.h"
#include "cost/wire.h"
#include "layout_case.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

const char* const kLayouts[] = {
    "dp=2",
    "dp=3 microbatches=2 vocab=509",
    "dp=4 zero=1 compute=bf16 vocab=509",
    "dp=3 zero=1 compute=bf16 grads=bf16 microbatches=2",  // 4 Psi + 12 Psi / N
    "dp=2 zero=1 microbatches=3",
    "dp=3 zero=2 compute=bf16 grads=bf16 microbatches=2 vocab=509",
    "dp=4 zero=2 arch=gpt2 tied=1",
    "dp=2 zero=3 compute=bf16 microbatches=2 arch=gpt2 tied=1",
    "dp=3 zero=3 vocab=509 layers=4 moments=bf16",
    "dp=3 zero=3 reshard=0 microbatches=2 compute=bf16 grads=bf16",
    "dp=2 zero=3 reshard=0 microbatches=3 schedule=gpipe",
    "dp=3 zero=3 last=0 microbatches=3 vocab=509",
    "dp=4 zero=3 group=2 last=0 compute=bf16 microbatches=2 arch=gpt2 tied=1",
    "dp=2 zero=3 last=0 microbatches=3 schedule=gpipe",
    "dp=4 zero=3 group=2 compute=bf16 microbatches=2",
    "dp=4 zero=1 group=2",
    "dp=4 zero=1 compute=bf16 grads=bf16 moments=bf16",  // 4 Psi + 8 Psi / N
    "dp=4 zero=2 group=2 compute=bf16 reduce=f32",
    "dp=4 zero=3 group=1",
    "dp=3 compute=bf16 bucket_mb=0.001 layers=5",
    "tp=2 heads=2 vocab=61",
    "tp=3 dp=2 zero=3 arch=gpt2 tied=1 microbatches=2 compute=bf16 vocab=67",
    "tp=4 heads=4 kv_heads=2 hidden=40 arch=qwen3 vocab=509 compute=bf16 grads=bf16",
    "tp=2 dp=2 zero=1 heads=4 kv_heads=1 arch=qwen2 microbatches=2 hidden=40",
    "tp=2 sequence=1 heads=2 seq=22 microbatches=2",
    "tp=3 dp=2 zero=3 sequence=1 seq=24 arch=gpt2 compute=bf16 vocab=67",
    "tp=3 latent=2 microbatches=2 compute=bf16 moments=bf16",
    "tp=2 dp=2 zero=3 latent=1 heads=2 sequence=1 seq=22"};

Division division_of(const RunSpec& run) {
  const int zero = effective_zero(run.layout);
  const int64_t group = run.layout.shard_group > 0 ? run.layout.shard_group : run.layout.dp;
  return {.zero = zero, .shards = zero > 0 ? group : 1, .tp = run.layout.tp};
}

// gpipe's last forward alone is followed by a backward.
int64_t last_kept(const Case& c) {
  return c.last ? 0 : c.schedule == "gpipe" ? 1 : c.microbatches;
}

BucketBytes state_of(const RunSpec& run) {
  const PrecisionSpec& p = run.precision;
  return state_bytes(run.model, p.compute, p.grads, division_of(run), p.moments);
}

int64_t bytes_of(std::string_view dtype) {
  return size_of(dtype_from_name(dtype));
}

class Bytes : public testing::TestWithParam<const char*> {};

// Persistent: closed form = meta = each rank's ledger. Of a step: meta = ledger, bucket by bucket, and the
// arena is never larger than booked.
TEST_P(Bytes, MemoryIsWhatMetaAndTheClosedFormSay) {
  const RunSpec run = run_of(from_text(GetParam()));
  const Ran ran = train_layout(run, {.steps = 2});
  const BucketBytes state = state_of(run);
  EXPECT_EQ(ran.booking.state, state);
  for (const RankFacts& r : ran.ranks) {
    EXPECT_EQ(r.state, state);
    EXPECT_EQ(r.peaks, ran.booking.peak);
    EXPECT_EQ(r.at_peak, ran.booking.at_peak);
    EXPECT_EQ(r.peak_total, ran.booking.peak_total);
    EXPECT_LE(r.high_water, ran.booking.arena_bytes);
    EXPECT_EQ(r.left_over, 0);
  }
}

// Transient: at most two units' full gradients (stages 2 and 3) and two of full weights (3); tied tables one
// more.
TEST_P(Bytes, AtMostTwoUnitsAreWhole) {
  const Case c = from_text(GetParam());
  const RunSpec run = run_of(c);
  if (effective_zero(run.layout) < 2 || !c.reshard) return;
  const Ran ran = train_layout(run, {.steps = 2});
  const Division d = division_of(run);
  std::vector<int64_t> units = {embedding_parameters(run.model, d.tp), head_parameters(run.model, d.tp)};
  units.resize(units.size() + size_t(run.model.layers), block_parameters(run.model, d.tp));
  for (int64_t& u : units) u = (u + 4096 * d.shards - 1) / (4096 * d.shards) * (4096 * d.shards);
  std::sort(units.rbegin(), units.rend());
  const int64_t two = units[0] + units[1] + (c.tied ? units[2] : 0);
  const BucketBytes state = state_of(run);
  const BucketBytes& peak = ran.booking.peak;
  EXPECT_LE(peak[size_t(Bucket::grads)] - state[size_t(Bucket::grads)], two * bytes_of(run.precision.grads));
  const int64_t stats = d.tp > 1 ? 3 * d.tp * run.batch.micro * run.data.seq_len * 4 : 0;
  EXPECT_LE(peak[size_t(Bucket::comm)], two * bytes_of(run.precision.reduce) + stats);
  const int64_t gathered = peak[size_t(Bucket::weights)] - state[size_t(Bucket::weights)];
  EXPECT_LE(gathered, d.zero == 3 ? two * bytes_of(run.precision.compute) : 0);
  EXPECT_EQ(gathered > 0, d.zero == 3);
}

// Wire: meta = the front = what the backend copied = the closed form.
TEST_P(Bytes, TheWireCarriesWhatTheClosedFormSays) {
  const Case c = from_text(GetParam());
  const RunSpec run = run_of(c);
  const Ran ran = train_layout(run, {.steps = 2});
  const Division d = division_of(run);
  const int64_t want = wire_bytes_per_step(run.model, {.division = d,
                                                       .groups = run.layout.dp / d.shards,
                                                       .microbatches = run.microbatches(),
                                                       .reshard_after_forward = c.reshard,
                                                       .last_kept = last_kept(c),
                                                       .weight_bytes = bytes_of(run.precision.compute),
                                                       .reduce_bytes = bytes_of(run.precision.reduce)});
  const int64_t layers =
      layer_wire_bytes_per_step(run.model, {.tp = d.tp,
                                            .rows = run.batch.micro * run.data.seq_len,
                                            .microbatches = run.microbatches(),
                                            .activation_bytes = bytes_of(run.precision.compute),
                                            .grad_bytes = bytes_of(run.precision.grads),
                                            .reductions = d.zero >= 2 ? run.microbatches() : 1,
                                            .sequence = run.layout.sequence,
                                            .f32 = run.precision.compute == "f32"});
  int64_t all = 0;
  for (const RankFacts& r : ran.ranks) {
    for (const CommCount& k : r.comm) all += k.wire;
    EXPECT_EQ(r.moved, r.counted);
    EXPECT_EQ(r.calls, ran.ranks[0].calls);
  }
  EXPECT_EQ(all, d.tp * want + run.layout.dp * layers);
  EXPECT_EQ(ran.ranks[0].comm, ran.booking.comm);
}

// A shard's all-gather is issued before the reduce-scatter of the unit behind it.
TEST(Order, GatherOfTheNextBeforeTheReductionOfThis) {
  const Ran ran = train_layout(run_of(from_text("dp=2 zero=3 layers=4")), {.steps = 1});
  const std::vector<std::string>& calls = ran.ranks[0].calls;
  const size_t units = 6;
  auto is = [&](size_t i, std::string_view kind) { return calls.at(i).starts_with(kind); };
  // Forward: every unit gathered. Backward: two gathers, then reduction and gather in turn, one ahead.
  ASSERT_EQ(calls.size(), 3 * units);
  for (size_t i = 0; i < units; i++) EXPECT_TRUE(is(i, "all_gather")) << i;
  EXPECT_TRUE(is(units, "all_gather"));
  for (size_t i = 0; i + 1 < units; i++) {
    EXPECT_TRUE(is(units + 1 + 2 * i, "all_gather")) << i;
    EXPECT_TRUE(is(units + 2 + 2 * i, "reduce_scatter")) << i;
  }
  EXPECT_TRUE(is(3 * units - 1, "reduce_scatter"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Bytes, testing::ValuesIn(kLayouts));

}  // namespace
}  // namespace trireme::parity
