// What is computed again is what was: the same run to the bit, in less memory, whose bytes are those booked
// (docs/recompute.md).
#include "runtime/recompute.h"

#include <fmt/ranges.h>

#include "checks.h"
#include "forecast/recompute.h"
#include "spec/recompute.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

class Recomputed : public testing::TestWithParam<const char*> {};

TEST_P(Recomputed, EqualsWhatWasKeptToTheBit) {
  Case c = from_text(GetParam());
  SCOPED_TRACE(GetParam());
  const RunSpec run = run_of(c);
  ASSERT_TRUE(problems_of(run).empty());
  const Ran again = train_layout(run, {});
  expect_learned(again);
  const Mesh mesh = mesh_of(run.layout);
  for (size_t r = 0; r < again.ranks.size(); r++) {
    const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh.coord(int(r), Axis::pp));
    EXPECT_EQ(again.ranks[r].peaks, b.peak) << r;
    if (c.ep == 1) {  // rows go where routers send them; on meta they are balanced
      EXPECT_EQ(again.ranks[r].comm, b.comm) << r;
    }
    EXPECT_EQ(again.ranks[r].left_over, 0) << r;
    EXPECT_EQ(again.ranks[r].moved, again.ranks[r].counted) << r;
  }
  c.recompute = "none", c.shard = c.offload = false, c.blocks = 0;
  const Ran kept = train_layout(run_of(c), {});
  expect_identical(again, kept);
  ASSERT_EQ(again.routed.size(), kept.routed.size());
  for (size_t l = 0; l < again.routed.size(); l++) EXPECT_EQ(again.routed[l].load, kept.routed[l].load) << l;
  if (kept.ranks[0].saved > 0) {  // else there is no B to look at it
    EXPECT_LT(again.ranks[0].saved, kept.ranks[0].saved);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Full, Recomputed,
    testing::Values(
        "recompute=full layers=3", "recompute=full blocks=1 layers=3 arch=gpt2 dropout=0.2",
        "recompute=full compute=bf16 arch=qwen3 microbatches=2", "recompute=full compute=f16 tied=1",
        "recompute=full dp=3 zero=1 microbatches=2", "recompute=full dp=2 zero=2 microbatches=2",
        "recompute=full dp=4 zero=3 microbatches=2 compute=bf16 micro=1",
        "recompute=full dp=2 zero=3 reshard=0 dropout=0.1", "recompute=full tp=3 heads=3 kv_heads=3",
        "recompute=full tp=2 heads=4 hidden=32 shard=1 chunks=2",
        "recompute=full tp=4 dp=2 heads=4 kv_heads=2 hidden=32 seq=20 shard=1 zero=3",
        "recompute=full tp=2 sequence=1 heads=4 kv_heads=2 hidden=32 seq=24 dropout=0.1",
        "recompute=full cp=3 seq=24",
        "recompute=full cp=2 method=ulysses heads=4 kv_heads=4 seq=22 hidden=32",
        "recompute=full arch=mixtral aux=0.1 microbatches=2 unit=global",
        "recompute=full arch=mixtral capacity=0.7 dp=2 zero=3",
        "recompute=full dp=2 ep=2 arch=qwen3_moe experts=4 zero=2 microbatches=2 aux=0.01 buffer=0.4",
        "recompute=full arch=deepseek_v3 layers=3", "recompute=full pp=2 layers=4 microbatches=4",
        "recompute=full pp=3 layers=4 microbatches=4 schedule=gpipe",
        "recompute=full pp=2 dp=2 zero=3 layers=3 microbatches=3 schedule=zb-h1",
        "recompute=full pp=2 stages=2 layers=5 microbatches=4 schedule=zb-v blocks=1",
        "recompute=full pp=2 tp=2 heads=4 kv_heads=2 hidden=32 microbatches=2 shard=1 seq=24"));

INSTANTIATE_TEST_SUITE_P(
    Selective, Recomputed,
    testing::Values(
        "recompute=selective layers=3", "recompute=selective again=n1 arch=gpt2 blocks=1",
        "recompute=selective again=qkv arch=qwen3 microbatches=2 compute=bf16",
        "recompute=selective again=o dropout=0.2 arch=gpt2", "recompute=selective again=mid dropout=0.2",
        "recompute=selective again=u+n2 dp=3 zero=3 microbatches=2",
        "recompute=selective again=n1+qkv+o+mid+n2+u+a arch=qwen3 tp=3 heads=3 kv_heads=3 separate=1",
        "recompute=selective again=n1+qkv+o+mid+n2+u+a tp=2 sequence=1 heads=4 kv_heads=1 hidden=32 "
        "seq=24 chunks=2",
        "recompute=selective again=qkv+o cp=3 seq=24 dropout=0.1",
        "recompute=selective again=o+mid cp=2 method=ulysses heads=4 kv_heads=4 seq=22 hidden=32",
        "recompute=selective arch=mixtral again=n1+o+mid+n2 dp=2 ep=2 experts=4 microbatches=2 aux=0.1",
        "recompute=selective arch=qwen3_moe again=n2+mid tp=2 heads=4 kv_heads=2 hidden=32 experts=4 "
        "seq=24 capacity=0.8",
        "recompute=selective arch=deepseek_v3 again=n1+n2+u+a layers=3",
        "recompute=selective arch=deepseek_v3 again=qkv+o+mid layers=3 dropout=0.1 microbatches=2",
        "recompute=selective arch=deepseek_v3 again=n1+qkv+o+mid+n2+u+a layers=3 dp=2 ep=2 zero=3 "
        "compute=bf16",
        "recompute=selective arch=mixtral again=u+a microbatches=2 blocks=1",
        "recompute=selective arch=qwen3_moe again=u+a dp=2 ep=2 experts=4 microbatches=2 buffer=0.4",
        "recompute=selective arch=qwen2_moe again=a+u tp=2 heads=4 kv_heads=2 hidden=32 experts=4 seq=24",
        "recompute=selective pp=2 layers=4 microbatches=4 schedule=zb-h1 again=n1+n2+a+o",
        "recompute=selective pp=3 stages=2 layers=6 microbatches=6 schedule=v-half dp=2 zero=3"));

// What is kept waits in a file.
INSTANTIATE_TEST_SUITE_P(
    Offloaded, Recomputed,
    testing::Values("recompute=full offload=1 layers=4",
                    "recompute=full offload=1 blocks=2 layers=3 compute=bf16",
                    "recompute=full offload=1 dp=2 zero=3 microbatches=3 dropout=0.1",
                    "recompute=full offload=1 tp=2 heads=4 hidden=32 shard=1",
                    "recompute=full offload=1 tp=3 sequence=1 seq=24",
                    "recompute=full offload=1 cp=2 seq=24 layers=3",
                    "recompute=full offload=1 pp=2 layers=5 microbatches=4",
                    "recompute=full offload=1 pp=2 stages=2 layers=6 microbatches=4 schedule=zb-v"));

// ---- bytes, wire and FLOPs in closed form ----

// What a block keeps between its passes, one rank of tp: Korthikanti et al.'s sum (2205.05198, section 4)
// with this model's numbers. N tokens, e bytes an element, f columns inside the feed-forward, g products
// there. Their 34 sbh + 5 a s^2 b are here (4 + 5 + g + 1) Nh-like terms and no s^2: attention keeps the
// logsumexp of each row in place of its scores, and masks are drawn again.
int64_t kept_bytes(const RunSpec& run, const Recompute& r) {
  const ModelSpec& m = run.model;
  const LayoutSpec& l = run.layout;
  const int64_t n = run.batch.micro * run.data.seq_len, e = run.precision.compute == "f32" ? 4 : 2, t = l.tp;
  const int64_t rows = l.sequence ? n / t : n;  // of what is not divided otherwise
  const int64_t kv = m.kv_heads >= t ? m.kv_size() / t : m.head_dim, q = m.q_size() / t;
  const int64_t gated = m.activation == "swiglu" ? 2 : 1, stats = m.norm == "layer" ? 2 : 1;
  const int64_t input = e * rows * m.hidden;
  if (r.full && l.offload == "inputs") return 0;
  if (r.full) return l.recompute_shard ? input / t : input;
  const auto unless = [&](const char* name, int64_t bytes) { return r.has(name) ? 0 : bytes; };
  return input + unless("n1", input) + unless("mid", input) + unless("n2", input) +
         unless("qkv", e * n * (q + 2 * kv)) + unless("o", e * n * q) +
         unless("u", e * n * gated * m.ffn / t) + unless("a", e * n * m.ffn / t) + 4 * n * m.heads / t +
         2 * stats * 4 * rows;
}

// One block more keeps so much more, of one microbatch.
TEST(RecomputeFormulas, BytesOfABlock) {
  for (const char* text :
       {"", "recompute=selective", "recompute=selective again=qkv+o arch=gpt2",
        "recompute=selective again=mid+n2+u tp=2 heads=4 kv_heads=2 hidden=32 compute=bf16",
        "recompute=selective again=n1+qkv+o+mid+n2+u+a tp=3 sequence=1 seq=24", "arch=gpt2", "compute=bf16",
        "recompute=full", "recompute=full arch=gpt2 compute=bf16", "tp=2 heads=4 kv_heads=2 hidden=32",
        "recompute=full tp=3", "tp=3 sequence=1 seq=24", "recompute=full tp=3 sequence=1 seq=24",
        "recompute=full tp=2 heads=4 hidden=32 shard=1", "recompute=full offload=1",
        "recompute=full tp=4 heads=4 hidden=32 shard=1 compute=bf16 seq=22"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const RunSpec run = run_of(c);
    const Ran less = train_layout(run, {.steps = 1});
    c.layers++;
    const Ran more = train_layout(run_of(c), {.steps = 1});
    for (size_t r = 0; r < more.ranks.size(); r++)
      EXPECT_EQ(more.ranks[r].saved - less.ranks[r].saved, kept_bytes(run, recompute_of(run.layout, 0)));
  }
}

// Bytes that blocks of experts and latent attention do not keep, on one rank, by the names of the tensors.
TEST(RecomputeFormulas, BytesOfExpertsAndLatentAttention) {
  for (const char* text : {"arch=mixtral again=u", "arch=mixtral again=a compute=bf16",
                           "arch=qwen2_moe again=u+a", "arch=deepseek_v3 again=qkv",
                           "arch=deepseek_v3 again=o+mid compute=bf16", "arch=deepseek_v3 again=qkv+o+u+a"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    c.layers = 3;
    c.recompute = "selective";
    const RunSpec run = run_of(c);
    const ModelSpec& m = run.model;
    const Recompute r = recompute_of(run.layout, 0);
    const Ran less = train_layout(run, {.steps = 1});
    c.recompute = "none";
    const Ran all = train_layout(run_of(c), {.steps = 1});
    const int64_t n = run.batch.micro * run.data.seq_len, e = run.precision.compute == "f32" ? 4 : 2;
    const int64_t experts = m.expert_blocks(), dense = m.layers - experts;
    const int64_t wide = experts * (m.experts_per_token * m.moe_ffn + m.shared_ffn) + dense * m.ffn;
    int64_t columns = 0;
    if (r.has("qkv")) columns += m.layers * m.heads * (m.nope_head_dim + m.v_head_dim);
    if (r.has("qkv") && m.q_rank > 0) columns += m.layers * m.q_size();
    if (r.has("o")) columns += m.layers * m.o_size();
    if (r.has("mid")) columns += m.layers * m.hidden;
    if (r.has("u")) columns += 2 * wide;
    if (r.has("a")) columns += wide;
    EXPECT_EQ(all.ranks[0].saved - less.ranks[0].saved, e * n * columns);
  }
}

// Korthikanti et al.'s table 2: bytes of a GPT's layer in 16 bits, with s tokens of b sequences, h wide, a
// heads, t ranks; without the 5 a s^2 b of the first three (/ t in the second and third).
struct SavedTerms {
  double undivided = 0, divided = 0;  // of s b h
};
struct Published {
  const char* name;
  SavedTerms (*terms)(double t);
  const char* layout;
  bool sequence, let_go_o;
};
constexpr Published kSix[] = {
    {"no parallelism",
     [](double) {
       return SavedTerms{10, 24};
     },
     "", false, false},
    {"tensor",
     [](double t) {
       return SavedTerms{10, 24 / t};
     },
     "tp=2", false, false},
    {"tensor + sequence",
     [](double t) {
       return SavedTerms{10 / t, 24 / t};
     },
     "tp=2 sequence=1", true, false},
    {"tensor + selective",
     [](double t) {
       return SavedTerms{10, 24 / t};
     },
     "tp=2 recompute=selective again=o", false, true},
    {"tensor + sequence + selective",
     [](double t) {
       return SavedTerms{10 / t, 24 / t};
     },
     "tp=2 sequence=1 recompute=selective again=o", true, true},
    {"full",
     [](double) {
       return SavedTerms{2, 0};
     },
     "recompute=full", false, false},
};

// Their constants, one by one, replaced by what our layers keep (docs/recompute.md, "Beside Korthikanti"):
// the two masks of a byte behind attention and the feed-forward are drawn again; scores, softmax and its mask
// (5 a s^2 b) are never kept, but 4 bytes a row and head of logsumexp; norms keep 8 bytes a row; and with
// selective recompute, where nothing of the scores is left to let go, `o` goes. With dropout on (theirs) as
// with none: a mask takes no byte.
TEST(RecomputeFormulas, TheSixOfKorthikanti) {
  for (const Published& row : kSix)
    for (const auto& [t, dropout] : {std::pair{2, 0.0}, {3, 0.0}, {4, 0.0}, {3, 0.1}}) {
      Case c = from_text(row.layout);
      if (c.tp == 1 && t > 2 && dropout == 0) continue;
      c.dropout = dropout;
      c.arch = "gpt2", c.compute = "bf16", c.heads = 12, c.hidden = 48, c.seq = 24;
      if (c.tp > 1) c.tp = t;
      SCOPED_TRACE(fmt::format("{}, t = {}, dropout {}", row.name, c.tp, dropout));
      const auto saved = [&](int64_t layers) {
        c.layers = layers;
        RunSpec run = run_of(c);
        run.model.ffn = 4 * run.model.hidden;  // as theirs
        return train_layout(run, {.steps = 1});
      };
      const Ran less = saved(2), more = saved(3);
      const bool full = c.recompute == "full";
      const double b = double(c.micro), s = double(c.seq), h = double(c.hidden), a = double(c.heads),
                   ranks = double(c.tp), sbh = s * b * h;
      const SavedTerms theirs = row.terms(ranks);
      const double rows = row.sequence ? ranks : 1;
      double ours = sbh * (theirs.undivided + theirs.divided);
      if (!full) {
        ours -= 2 * sbh / rows;                     // masks
        ours += 4 * a * s * b / ranks;              // logsumexp
        ours += 2 * 8 * s * b / rows;               // mean and deviation of two norms' rows
        if (row.let_go_o) ours -= 2 * sbh / ranks;  // o
      }
      for (size_t r = 0; r < more.ranks.size(); r++)
        EXPECT_EQ(double(more.ranks[r].saved - less.ranks[r].saved), ours) << r;
    }
}

CommCount difference(const CommCounts& a, const CommCounts& b, Collective k) {
  return {.calls = a[size_t(k)].calls - b[size_t(k)].calls,
          .payload = a[size_t(k)].payload - b[size_t(k)].payload,
          .wire = a[size_t(k)].wire - b[size_t(k)].wire};
}

// 4 sums over tp of a layer and microbatch become 6; an input kept in parts is gathered once.
TEST(RecomputeFormulas, WhatTravelsAgain) {
  const auto booked = [](const std::string& text) {
    const RunSpec run = run_of(from_text(text));
    return book_training(run, schedule_of(run), 1);
  };
  const std::string base = "tp=3 layers=2 microbatches=4 micro=1 seq=24";
  const int64_t passes = 2 * 4, bytes = 24 * 36 * 4;  // layers x microbatches; of an activation
  const Booking kept = booked(base), full = booked(base + " recompute=full");
  const CommCount sums = difference(full.comm, kept.comm, Collective::all_reduce);
  EXPECT_EQ(sums.calls, 2 * passes);
  EXPECT_EQ(sums.payload, 2 * passes * bytes);
  EXPECT_EQ(difference(full.comm, kept.comm, Collective::all_gather).calls, 0);
  const Booking parts = booked(base + " recompute=full shard=1");
  EXPECT_EQ(parts.comm[size_t(Collective::all_reduce)], full.comm[size_t(Collective::all_reduce)]);
  const CommCount gathers = difference(parts.comm, full.comm, Collective::all_gather);
  EXPECT_EQ(gathers.calls, passes);
  EXPECT_EQ(gathers.wire, passes * bytes * 2 / 3);
  // With sequence: gathers and reduce-scatters in their place.
  const Booking rows = booked(base + " sequence=1"), again = booked(base + " sequence=1 recompute=full");
  EXPECT_EQ(difference(again.comm, rows.comm, Collective::all_gather).calls, 2 * passes);
  EXPECT_EQ(difference(again.comm, rows.comm, Collective::reduce_scatter).calls, 2 * passes);
}

const OpTotal& total_of(const Booking& b, std::string_view op) {
  for (const OpTotal& t : b.ops)
    if (t.op == op) return t;
  throw std::runtime_error("no such op");
}

// What the products' ops do beside them: they add biases and the residual stream.
double added(const RunSpec& run, const Recompute& r) {
  const ModelSpec& m = run.model;
  const bool bias = m.arch == "gpt2";
  double n = 0;
  if (r.full || r.has("qkv")) n += bias ? double(m.q_size() + 2 * m.kv_size()) : 0;
  if (r.full || r.has("mid")) n += double(m.hidden) * (1 + bias);
  if (r.full || r.has("u")) n += bias ? double(m.ffn) : 0;
  if (r.full) n += double(m.hidden) * (1 + bias);
  return n;
}

// The model's FLOPs stay, the hardware's are those of the ops that run again.
TEST(RecomputeFormulas, FlopsAreThoseOfTheOpsThatRunAgain) {
  for (const char* text :
       {"recompute=full layers=3 microbatches=2", "recompute=full blocks=1 layers=3 arch=gpt2",
        "recompute=full pp=2 layers=5 microbatches=2", "recompute=selective again=qkv+u+mid layers=3",
        "recompute=selective again=o+a+n1 arch=gpt2"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const RunSpec run = run_of(c);
    c.recompute = "none", c.blocks = 0;
    const RunSpec plain = run_of(c);
    EXPECT_EQ(recompute_flops_per_token(plain), 0);
    double products = 0;
    int64_t attentions = 0;
    for (int stage = 0; stage < int(c.pp); stage++) {
      const Booking again = book_stage(run, schedule_of(run), 1, {}, stage),
                    kept = book_stage(plain, schedule_of(plain), 1, {}, stage);
      products += total_of(again, "matmul").cost.flops - total_of(kept, "matmul").cost.flops;
      attentions += total_of(again, "attention").launches - total_of(kept, "attention").launches;
    }
    // Of attention the closed form counts half of what lies before a token, whatever a kernel does.
    const double scores = double(attentions) / double(run.microbatches()) * 2 *
                          (double(run.data.seq_len) / 2) * 2 * double(run.model.q_size());
    const int64_t blocks = run.layout.recompute_blocks > 0 ? run.layout.recompute_blocks : c.layers;
    const double tokens = double(run.tokens_per_step());
    EXPECT_DOUBLE_EQ(recompute_flops_per_token(run) * tokens,
                     products + tokens * (scores - double(blocks) * added(run, recompute_of(run.layout, 0))));
  }
}

// What `auto` chooses within a limit, run on ranks: some blocks more than others, the bits of a run that
// keeps everything, and no rank beyond the limit.
TEST(RecomputeAuto, WhatItChoosesIsTheSameRunWithinTheLimit) {
  for (const char* text : {"layers=4 microbatches=2", "pp=2 layers=6 microbatches=3 dp=2 zero=2",
                           "pp=2 stages=2 layers=8 microbatches=4 schedule=zb-v compute=bf16"}) {
    const Case c = from_text(text);
    const Ran kept = train_layout(run_of(c), {.steps = 4});
    Case full = c;
    full.recompute = "full";
    const int64_t most = kept.booking.peak_total,
                  least = book_training(run_of(full), schedule_of(run_of(full)), 1).peak_total;
    ASSERT_LT(least, most);
    int parted = 0;
    for (int64_t quarter : {1, 2, 3}) {
      RunSpec run = run_of(c);
      run.layout.recompute = "auto", run.layout.recompute_limit = least + (most - least) * quarter / 4;
      const int64_t limit = run.layout.recompute_limit;
      run = choose_recompute(run, {}, 1);
      SCOPED_TRACE(fmt::format("{} within {} of {} to {}: {} of [{}] in {} blocks, [{}] in the rest", text,
                               limit, least, most, run.layout.recompute,
                               fmt::join(run.layout.recompute_tensors, ", "), run.layout.recompute_blocks,
                               fmt::join(run.layout.recompute_rest, ", ")));
      parted += run.layout.recompute_blocks > 0 && !run.layout.recompute_rest.list.empty();
      const Ran ran = train_layout(run, {.steps = 4});
      expect_identical(ran, kept);
      for (const RankFacts& r : ran.ranks) EXPECT_LE(r.peak_total, limit);
    }
    EXPECT_GT(parted, 0) << text;
  }
}

// GPipe (Huang et al. 2019, section 2.3): of a batch of N in M microbatches O(N + L/K N/M) activations, with
// L layers on K stages, where O(N L) are kept else. Here a block's input takes the place of a stage's, and
// its layers are made again one at a time: to the byte, a block more keeps its input of the whole batch,
// whatever M; all else is one microbatch in one layer, and messages.
TEST(RecomputeFormulas, GPipeHoldsItsBatchAtBordersAndOneMicrobatchWhole) {
  constexpr int64_t kBatch = 16, kStages = 3;
  const auto peak = [&](int64_t microbatches, const char* recompute, int64_t layers) {
    const RunSpec run =
        run_of(from_text(fmt::format("pp={} schedule=gpipe layers={} micro={} microbatches={} recompute={}",
                                     kStages, layers, kBatch / microbatches, microbatches, recompute)));
    return book_stage(run, schedule_of(run), 1, {}, 1).peak[size_t(Bucket::activations)];
  };
  const RunSpec run = run_of(from_text("pp=3 layers=6"));
  const int64_t border = kBatch * 4 * run.data.seq_len * run.model.hidden;  // of the batch, f32
  const int64_t at_once = peak(1, "full", kStages) - border;                // of the batch in one layer
  for (const int64_t m : {1, 2, 4, 8, 16}) {
    SCOPED_TRACE(m);
    const int64_t full = peak(m, "full", kStages), none = peak(m, "none", kStages);
    for (const int64_t blocks : {2, 4}) {
      EXPECT_EQ(peak(m, "full", blocks * kStages) - full, (blocks - 1) * border);
      EXPECT_EQ(peak(m, "none", blocks * kStages) - none,
                (blocks - 1) * (peak(16, "none", 2 * kStages) - peak(16, "none", kStages)));
    }
    EXPECT_LE(full - border, 2 * border + at_once / m);
  }
  EXPECT_GT(peak(16, "none", 2 * kStages) - peak(16, "none", kStages), 10 * border);
}

// R of the schedule alone, ahead of its backward pass: all of a stage at once, the same numbers.
TEST(RecomputeActions, AStageMayBeAhead) {
  for (const char* text :
       {"recompute=full layers=3 microbatches=2", "recompute=full pp=2 layers=4 microbatches=3",
        "recompute=full pp=3 layers=6 microbatches=4 schedule=zb-h1",
        "recompute=full dp=2 zero=3 microbatches=2",
        "recompute=selective again=qkv+mid dp=2 zero=3 microbatches=2"}) {
    SCOPED_TRACE(text);
    const Case c = from_text(text);
    const RunSpec run = run_of(c);
    Schedule ahead = add_step(add_transfers(
        add_recompute(make_schedule(c.schedule, int(c.pp), int(c.stages), int(c.microbatches)))));
    if (c.dp > 1) ahead = add_zero(std::move(ahead), int(c.zero), c.reshard);
    const Ran beside = train_layout(run, {.steps = 6});
    const Ran alone = train_layout(run, {.steps = 6, .schedule = &ahead});
    expect_identical(beside, alone);
    // Where weight gradients wait, what they wait with is the peak either way.
    const bool split = c.schedule == "zb-h1";
    for (size_t r = 0; r < alone.ranks.size(); r++)
      EXPECT_GE(alone.ranks[r].peaks[size_t(Bucket::activations)],
                beside.ranks[r].peaks[size_t(Bucket::activations)] + !split);
  }
}

}  // namespace
}  // namespace trireme::parity
