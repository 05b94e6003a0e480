// Context parallelism against one rank: what it rests on is that attention over blocks of keys merges by
// logsumexp.
#include "model/context_parallel.h"

#include <algorithm>

#include "checks.h"
#include "mesh/context.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

// Losses over all steps, every gradient at equal weights: bounded, at 2, 3 and 4 ranks, in every placement,
// beside dp, tp, sequence parallelism and ZeRO; documents that begin and end in any rank's part.
class ContextParallel : public testing::TestWithParam<const char*> {};

TEST_P(ContextParallel, TrainsTheModelOfOneRank) {
  SCOPED_TRACE(GetParam());
  const Ran ran = expect_bounded(from_text(GetParam())).layout;
  for (const RankFacts& r : ran.ranks) {
    EXPECT_EQ(r.peaks, ran.booking.peak);
    EXPECT_EQ(r.moved, r.counted);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ContextParallel,
                         testing::Values("cp=2 seq=20 placement=zigzag",
                                         "cp=3 seq=21 placement=contiguous arch=gpt2 separate=1",
                                         "cp=4 seq=20 placement=striped arch=qwen3 micro=1 separate=1",
                                         "cp=3 seq=18 dp=2 zero=3 microbatches=2 separate=1",
                                         "cp=4 seq=24 zero=1 microbatches=2 arch=qwen2 tied=1 separate=1",
                                         "cp=2 seq=28 tp=2 heads=2 sequence=1 arch=llama separate=1",
                                         "cp=2 seq=14 method=ulysses heads=4 kv_heads=2 hidden=40",
                                         "cp=3 seq=21 method=ulysses arch=gpt2 separate=1 zero=2 dp=2",
                                         "cp=2 seq=10 method=ulysses tp=2 heads=4 kv_heads=4 hidden=40",
                                         // Whole matrices of ranks that divide them over dp and cp.
                                         "cp=3 seq=18 optimizer=muon zero=2 dp=2",
                                         "cp=2 seq=20 optimizer=muon placement=striped"));

// Keys and values of unequal widths, in both methods.
INSTANTIATE_TEST_SUITE_P(Latent, ContextParallel,
                         testing::Values("cp=2 seq=20 latent=2 separate=1",
                                         "cp=3 seq=21 latent=1 placement=contiguous dropout=0.2",
                                         "cp=4 seq=20 latent=2 placement=striped micro=1 separate=1 zero=3",
                                         "cp=3 seq=21 latent=2 method=ulysses separate=1 dp=2 zero=2",
                                         "cp=2 seq=20 latent=1 method=ulysses tp=2 heads=8 dropout=0.2",
                                         "cp=2 seq=28 tp=2 latent=2 heads=4 sequence=1 separate=1"));

// The masks of one rank: drawn by places in whole sequences, of rows, heads and keys.
INSTANTIATE_TEST_SUITE_P(
    Dropout, ContextParallel,
    testing::Values("cp=2 seq=20 dropout=0.2 arch=gpt2 microbatches=2",
                    "cp=3 seq=21 placement=contiguous dropout=0.3 separate=1",
                    "cp=4 seq=20 placement=striped dropout=0.2 dp=2 zero=3",
                    "cp=2 seq=28 tp=2 heads=4 kv_heads=2 hidden=40 sequence=1 dropout=0.2",
                    "cp=3 seq=18 tp=2 heads=2 sequence=1 dropout=0.2 arch=gpt2",
                    "cp=2 seq=14 method=ulysses dropout=0.3 arch=gpt2 heads=4 hidden=40",
                    "cp=2 seq=10 method=ulysses tp=2 heads=4 kv_heads=4 hidden=40 "
                    "dropout=0.2"));

// The class of DESIGN section 4 holds at any cp: ZeRO stages are bit-identical over dp and cp together.
TEST(ContextParallelZero, StagesAreBitIdentical) {
  for (const char* text : {"cp=2 dp=2 seq=20", "cp=3 seq=21 method=ulysses arch=gpt2"}) {
    SCOPED_TRACE(text);
    expect_zero_stages_identical(from_text(text));
  }
}

// Low precision: how far gradients are from f32's on the same weights, next to one rank in that precision.
TEST(ContextParallelLow, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text :
       {"cp=3 seq=42 compute=bf16 grads=bf16 separate=1", "cp=2 seq=26 compute=f16 placement=striped",
        "cp=2 seq=26 compute=bf16 method=ulysses arch=gpt2 heads=2",
        "cp=3 seq=42 compute=bf16 dropout=0.2 placement=striped", "cp=2 seq=28 compute=bf16 latent=2"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

// Keys and values of P - 1 hops in each pass and their gradients of P, in every block and microbatch; of
// Ulysses the shares of others.
TEST(ContextParallelBytes, AreTheClosedForm) {
  for (const char* text : {"cp=3 seq=18 microbatches=2", "cp=4 seq=16 placement=striped compute=bf16",
                           "cp=3 seq=21 method=ulysses arch=gpt2 layers=3", "cp=3 seq=18 latent=2",
                           "cp=3 seq=21 method=ulysses latent=1 compute=bf16"}) {
    const Case c = from_text(text);
    SCOPED_TRACE(text);
    const RunSpec run = run_of(c);
    const Ran ran = train_layout(run, {.steps = 1});
    const ContextBytes each = context_bytes(
        c.method == "ulysses", int(c.cp), c.micro * c.seq / c.cp, run.model.heads, run.model.kv_heads,
        run.model.head_dim, run.model.value_dim(), c.compute == "f32" ? DType::f32 : DType::bf16);
    for (const RankFacts& r : ran.ranks) {
      EXPECT_EQ(r.comm[size_t(Collective::p2p)].wire, each.p2p * c.layers * c.microbatches);
      EXPECT_EQ(r.comm[size_t(Collective::all_to_all)].wire, each.all_to_all * c.layers * c.microbatches);
      EXPECT_EQ(r.moved, r.counted);
    }
    EXPECT_EQ(ran.ranks[0].comm, ran.booking.comm);
  }
}

// In line the exchange waits for each block, and no bit of what is computed changes.
TEST(ContextParallelOverlap, ChangesNoBit) {
  for (const char* text :
       {"cp=3 seq=18 separate=1 microbatches=2", "cp=2 seq=20 placement=striped dropout=0.2",
        "cp=4 seq=20 placement=contiguous compute=bf16 dp=2 zero=3"}) {
    SCOPED_TRACE(text);
    Case c = from_text(text);
    const Ran beside = train_layout(run_of(c), {.steps = 4});
    c.overlap = false;
    const Ran in_line = train_layout(run_of(c), {.steps = 4});
    expect_identical(in_line, beside);
    for (size_t r = 0; r < beside.ranks.size(); r++) {
      EXPECT_EQ(in_line.ranks[r].comm, beside.ranks[r].comm);
      EXPECT_EQ(in_line.ranks[r].peaks, beside.ranks[r].peaks);
    }
    auto messages = [](const Ran& ran, bool on_compute) {
      const Tape& t = ran.booking.tape;
      return std::count_if(t.pieces.begin(), t.pieces.end(), [&](const Piece& p) {
        return p.kind == PieceKind::call && p.name == "p2p" && (p.stream == 0) == on_compute;
      });
    };
    EXPECT_EQ(messages(beside, true), 0);
    EXPECT_EQ(messages(in_line, false), 0);
    EXPECT_EQ(messages(in_line, true), messages(beside, false));
    EXPECT_GT(messages(in_line, true), 0);
  }
}

// What ranks really compute: matrix products are equal, so they differ by attention's pairs, 14 D FLOPs a
// pair and head (4 forward, 10 backward), by the gradients of keys and values that they add to those that
// travel, once for each block of another rank that they see, and by their shares of norm and update, which no
// placement changes: so differences of two ranks are compared between placements.
TEST(ContextParallelWork, DiffersByThePairsOfThePlacement) {
  const auto differences = [](const char* placement_name) {
    const Case c = from_text(std::string("cp=3 seq=24 placement=") + placement_name);
    const RunSpec run = run_of(c);
    const Ran ran = train_layout(run, {.steps = 1});
    const ContextPlacement placement = context_placement(c.placement);
    auto flops = [&](int r) {  // of a block and sequence
      const ContextPlace at{.size = 3, .rank = r, .placement = placement};
      int64_t seen = 0;
      for (int other = 0; other < 3; other++) seen += other != r && block_of(at, c.seq, other);
      return pairs_of(at, c.seq) * 14 * run.model.head_dim * run.model.heads +
             seen * c.seq / 3 * run.model.kv_heads * 2 * run.model.head_dim;
    };
    std::vector<std::pair<double, double>> out;  // counted, wanted: of ranks 1 and 2 beyond rank 0
    for (int r : {1, 2})
      out.push_back({ran.ranks[size_t(r)].cost.flops - ran.ranks[0].cost.flops,
                     double((flops(r) - flops(0)) * c.layers * c.micro)});
    return out;
  };
  const auto zigzag = differences("zigzag");
  for (const char* placement : {"contiguous", "striped"}) {
    const auto other = differences(placement);
    for (size_t r : {0u, 1u}) {
      EXPECT_EQ(other[r].first - zigzag[r].first, other[r].second - zigzag[r].second)
          << placement << " rank " << r + 1;
      EXPECT_NE(other[r].second, zigzag[r].second);
    }
  }
}

// Activations are of S / P tokens: with twice the ranks and twice the sequence a rank keeps as much, and has
// as much at its peak. But for where documents begin: i32 for each of the rank's rows and each rank's keys,
// or of whole sequences, 4 B S bytes of a microbatch in both methods.
TEST(ContextParallelMemory, ActivationsAreOfTheRanksTokens) {
  for (const char* text : {"placement=zigzag", "placement=contiguous", "placement=striped compute=bf16",
                           "method=ulysses", "method=ulysses compute=bf16"})
    for (bool separate : {false, true}) {
      SCOPED_TRACE(fmt::format("{} separate={}", text, separate));
      Case c = from_text(std::string("micro=1 heads=4 kv_heads=4 hidden=64 ") + text);
      c.separate = separate;
      c.cp = 2, c.seq = 64;
      const Ran two = train_layout(run_of(c), {.steps = 1});
      c.cp = 4, c.seq = 128;
      const Ran four = train_layout(run_of(c), {.steps = 1});
      const int64_t documents = separate ? 4 * c.micro * (128 - 64) : 0;
      for (size_t r = 0; r < two.ranks.size(); r++) {
        EXPECT_EQ(four.ranks[r].saved - two.ranks[r].saved, documents);
        EXPECT_EQ(four.ranks[r].peaks[size_t(Bucket::activations)] -
                      two.ranks[r].peaks[size_t(Bucket::activations)],
                  documents);
      }
    }
}

// Bytes that block 0 holds at its pieces of that name in a pass of the first microbatch, beyond those at its
// first op: kernels' scratch with ops, none with collectives.
std::vector<int64_t> held_at(const Case& c, std::string_view action, std::string_view name) {
  const RunSpec run = run_of(c);
  const Tape tape = book_training(run, schedule_of(run), 1).tape;
  int64_t begin = -1;
  std::vector<int64_t> held;
  for (const Piece& p : tape.pieces) {
    if (p.action != action || p.microbatch != 0 || !p.layer.starts_with("blocks.0.")) continue;
    if (begin < 0) begin = p.held;
    if (p.name.starts_with(name)) held.push_back(p.held - begin);
  }
  return held;
}

// The page's table of what a rank holds more than one rank of as many tokens does, to the byte: for the
// backward pass; while the ring's blocks are computed; and of Ulysses how its two exchanges of a pass differ.
TEST(ContextParallelMemory, OfAttentionIsTheTables) {
  for (const char* text :
       {"cp=2", "cp=4 compute=bf16", "cp=3 placement=striped compute=bf16 kv_heads=1", "cp=2 method=ulysses",
        "cp=4 method=ulysses compute=bf16", "cp=2 method=ulysses compute=bf16 kv_heads=2"}) {
    SCOPED_TRACE(text);
    Case c = from_text(std::string("micro=1 heads=4 kv_heads=4 hidden=64 layers=2 ") + text);
    c.seq = 64 * c.cp;
    Case one = c;
    one.cp = 1, one.seq = 64;
    const bool ulysses = c.method == "ulysses", f32 = c.compute == "f32";
    const int64_t type = f32 ? 4 : 2, n = 64, h = 64, kv = c.kv_heads * 16, a = n * kv;
    const int64_t kept = ulysses ? 2 * n * (h + kv) * type : 0;
    const Ran ran = train_layout(run_of(c), {.steps = 1}), alone = train_layout(run_of(one), {.steps = 1});
    for (const RankFacts& r : ran.ranks) EXPECT_EQ(r.saved - alone.ranks[0].saved, c.layers * kept);
    if (ulysses) {  // N (h + 2 KV D) T and N h T; 2 N h T and N (2 h + 4 KV D) T
      const auto forward = held_at(c, "F", "all_to_all"), backward = held_at(c, "B", "all_to_all");
      ASSERT_EQ(forward.size(), 2u);
      ASSERT_EQ(backward.size(), 2u);
      EXPECT_EQ(forward[0] - forward[1], 2 * n * kv * type);
      EXPECT_EQ(backward[1] - backward[0], 4 * n * kv * type);
      continue;
    }
    const int64_t sums = f32 ? 0 : n * h * 4;  // o, or dq
    auto most = [](const std::vector<int64_t>& held) { return *std::max_element(held.begin(), held.end()); };
    EXPECT_EQ(most(held_at(c, "F", "attention")) - most(held_at(one, "F", "attention")), 4 * a * type + sums);
    EXPECT_EQ(most(held_at(c, "B", "attention")) - most(held_at(one, "B", "attention")),
              4 * a * type + 6 * a * 4 + sums);
  }
}

}  // namespace
}  // namespace trireme::parity
