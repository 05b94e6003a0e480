// Tensor parallelism against one rank: what it rests on is that a product is a sum over its inner dim.
#include "checks.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

// Losses over all steps, every gradient at equal weights: bounded, beside dp and every ZeRO stage; key/value
// heads divided, shared by some ranks and by all; vocabularies that tp does not divide; dropout numbered by
// global indices.
class TensorParallel : public testing::TestWithParam<const char*> {};

TEST_P(TensorParallel, TrainsTheModelOfOneRank) {
  SCOPED_TRACE(GetParam());
  expect_learned(expect_bounded(from_text(GetParam())).one);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TensorParallel,
    testing::Values("tp=2 heads=6 kv_heads=2", "tp=3 arch=gpt2 tied=1 vocab=67 dropout=0.2",
                    "tp=4 heads=4 kv_heads=2 hidden=40 vocab=127 arch=qwen2 micro=1 seq=17",
                    "tp=2 dp=2 heads=2 hidden=36 zero=1 microbatches=2 arch=qwen3 tied=1",
                    "tp=3 dp=2 heads=3 kv_heads=3 zero=3 microbatches=2",
                    "tp=2 dp=2 arch=gpt2 heads=2 zero=2 vocab=509 seq=5 micro=3",
                    "tp=3 dp=2 chunks=4 zero=3 arch=gpt2"));

// Drawn by the fuzzer: its key biases' gradients, 0 but for noise, are 1.2e-4 apart in units of 1e-6 of the
// global norm.
TEST(TensorParallelKeyBias, ItsGradientIsTheNoiseOfItsTerms) {
  expect_bounded_gradients(
      from_text("arch=gpt2 dp=2 zero=3 tp=4 chunks=5 heads=8 kv_heads=8 layers=1 hidden=80 vocab=509 seq=5"));
}

// Such a gradient that is not 0 in both runs is a fault, however near the two are; that of a model with
// rotary embedding has a value of its own.
TEST(TensorParallelKeyBias, WhatIsZeroIsHeldAgainstItsTerms) {
  Ran one;
  one.state[""] = {{"b.norm1.weight", {1, 1, 1, 1}}, {"b.norm1.bias", {0, 0, 0, 0}}};
  one.gradients = {{{"embed.positions.weight", {3000}},
                    {"b.attn.k.weight", Values(16, 0.5f)},  // so its terms sum up to 2 / sqrt(4) at least
                    {"b.attn.k.bias", {0, 3e-5f, -4e-5f, 0}}}};
  EXPECT_NEAR(gradient_difference(one, one), 5e-5, 1e-11);
  Ran layout = one;
  layout.gradients[0]["b.attn.k.bias"] = {0, -6e-5f, 8e-5f, 0};
  EXPECT_NEAR(gradient_difference(layout, one), 1e-4, 1e-11);
  EXPECT_NEAR(gradient_difference(one, layout), 1e-4, 1e-11);
  for (Ran* run : {&one, &layout})
    run->gradients[0]["embed.rotary"] = {3000}, run->gradients[0].erase("embed.positions.weight");
  EXPECT_NEAR(gradient_difference(layout, one), 1.5e-4 / 3e-3, 1e-6);
}

// Matrices in parts: put together, made orthogonal by one rank, taken apart again.
INSTANTIATE_TEST_SUITE_P(Muon, TensorParallel,
                         testing::Values("tp=2 heads=6 kv_heads=2 optimizer=muon",
                                         "tp=3 arch=gpt2 tied=1 vocab=67 optimizer=muon",
                                         "tp=4 heads=4 kv_heads=2 hidden=40 optimizer=muon",
                                         "tp=2 dp=2 heads=2 zero=1 microbatches=2 arch=qwen3 optimizer=muon",
                                         "tp=2 dp=4 heads=2 zero=2 group=2 optimizer=muon",
                                         "tp=2 latent=2 heads=4 optimizer=muon"));

// Heads divided, what is compressed made whole by every rank; dropout of probabilities by global heads.
INSTANTIATE_TEST_SUITE_P(Latent, TensorParallel,
                         testing::Values("tp=2 latent=2 heads=4", "tp=3 latent=1 dropout=0.2 tied=1 vocab=67",
                                         "tp=4 latent=2 heads=4 chunks=3 micro=1 seq=17",
                                         "tp=2 dp=2 latent=1 heads=2 zero=3 microbatches=2",
                                         "tp=3 latent=2 dp=2 zero=1"));

// The class of DESIGN section 4 holds at any tp: ZeRO stages are bit-identical beside it.
TEST(TensorParallelZero, StagesAreBitIdentical) {
  for (const char* text : {"tp=2 dp=2 heads=2 vocab=61", "tp=2 dp=2 heads=4 kv_heads=1 hidden=40 arch=qwen3",
                           "tp=2 dp=2 heads=2 latent=2", "tp=2 dp=2 heads=2 optimizer=muon"}) {
    SCOPED_TRACE(text);
    expect_zero_stages_identical(from_text(text));
  }
}

// Low precision: how far gradients are from f32's on the same weights, next to one rank in that precision.
TEST(TensorParallelLow, NoFurtherFromF32ThanOneRankByHalf) {
  for (const char* text : {"tp=2 heads=2 compute=bf16 grads=bf16", "tp=3 compute=bf16 arch=gpt2 vocab=67",
                           "tp=4 heads=4 hidden=40 compute=f16", "tp=3 latent=2 compute=bf16"}) {
    SCOPED_TRACE(text);
    expect_low_bounded(from_text(text));
  }
}

// Four all_reduces of the activations a block and microbatch, one behind the embedding, one in front of the
// head; three numbers a row of logits; and what parameters declare.
TEST(TensorParallelCalls, FourAllReducesALayerAndMicrobatch) {
  const Case c = from_text("tp=2 heads=2 layers=3 microbatches=2");
  const Ran ran = train_layout(run_of(c), {.steps = 1});
  const int64_t rows = c.micro * c.seq;
  EXPECT_EQ(calls_of(ran, fmt::format("all_reduce {}", rows * c.hidden)),
            c.microbatches * (4 * c.layers + 2));
  EXPECT_EQ(calls_of(ran, fmt::format("all_gather {}", 2 * 3 * rows)), c.microbatches);
  // k and v of one head, kept by both ranks: one sum a block of both.
  EXPECT_EQ(calls_of(ran, fmt::format("all_reduce {}", 2 * 18 * c.hidden)), c.layers);
  EXPECT_EQ(int64_t(ran.ranks[0].calls.size()), c.microbatches * (4 * c.layers + 3) + c.layers);
}

// Latent attention makes four as well; what compresses, and its norms, every rank has whole.
TEST(TensorParallelCalls, LatentAttentionHasFourAsWell) {
  const Case c = from_text("tp=3 latent=2 layers=3 microbatches=2");
  const Ran ran = train_layout(run_of(c), {.steps = 1});
  EXPECT_EQ(calls_of(ran, fmt::format("all_reduce {}", c.micro * c.seq * c.hidden)),
            c.microbatches * (4 * c.layers + 2));
  // q_a, kv_a and q's norm are neighbours; that of keys and values stands behind q_b.
  EXPECT_EQ(calls_of(ran, fmt::format("all_reduce {}", (14 + 10 + 4) * c.hidden + 14)), c.layers);
  EXPECT_EQ(calls_of(ran, "all_reduce 10"), c.layers);
  EXPECT_EQ(int64_t(ran.ranks[0].calls.size()), c.microbatches * (4 * c.layers + 3) + 2 * c.layers);
}

// Cut into chunks they carry the same bytes, in as many more calls.
TEST(TensorParallelCalls, ChunksCarryTheSameBytes) {
  Case c = from_text("tp=2 heads=2 microbatches=2");
  const Ran whole = train_layout(run_of(c), {.steps = 1});
  c.chunks = 4;
  const Ran cut = train_layout(run_of(c), {.steps = 1});
  auto wire = [](const Ran& r) { return r.ranks[1].comm[size_t(Collective::all_reduce)].wire; };
  auto calls = [](const Ran& r) { return r.ranks[1].comm[size_t(Collective::all_reduce)].calls; };
  EXPECT_EQ(wire(cut), wire(whole));
  EXPECT_EQ(calls(cut) - calls(whole), 3 * c.microbatches * 4 * c.layers);
  EXPECT_EQ(cut.ranks[1].comm, cut.booking.comm);
}

// A tape's products and what tp does beside them, a letter a piece, of one action's pieces: p = a product;
// c = a collective on tp's own stream, i = one on the compute stream, that is without anything beside it; 0
// to 9 = compute waits for tp until all but so many of the collectives issued there are done.
std::string products_and_collectives(const Tape& tape, std::string_view action) {
  std::string out;
  std::vector<size_t> calls_at{0};  // on tp's stream, by pieces there
  for (const Piece& p : tape.pieces) {
    const bool beside = tape.streams[size_t(p.stream)] == "tp";
    const bool call = p.kind == PieceKind::call && tape.groups[size_t(p.group)].name == "tp";
    if (p.action == action && p.kind == PieceKind::op && p.name == "matmul") out += 'p';
    if (p.action == action && call) out += beside ? 'c' : 'i';
    if (p.action == action && p.stream == 0 && p.kind == PieceKind::wait &&
        tape.streams[size_t(p.on)] == "tp")
      out += fmt::format("{}", calls_at.back() - calls_at.at(size_t(p.mark)));
    if (beside) calls_at.push_back(calls_at.back() + call);
  }
  return out;
}

int64_t times(const std::string& text, const std::string& what) {
  int64_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) n++;
  return n;
}

Tape booked_tape(const Case& c) {
  const RunSpec run = run_of(c);
  return book_training(run, schedule_of(run), 1).tape;
}

// The collective of one chunk is on its way while the next one's product runs: each is started behind its own
// product and in front of the next, and compute waits behind the last. Attention's and the feed-forward's
// outer product forwards, their inner ones backwards.
TEST(TensorParallelOverlap, SumsRunBesideTheNextChunksProduct) {
  const Case c = from_text("tp=2 heads=4 kv_heads=4 hidden=40 layers=3 microbatches=2 chunks=4");
  const Tape tape = booked_tape(c);
  for (const char* action : {"F", "B"}) {
    const std::string text = products_and_collectives(tape, action);
    EXPECT_EQ(times(text, "pcpcpcpc0"), 2 * c.layers * c.microbatches) << action << ": " << text;
    EXPECT_EQ(times(text, "c"), 4 * 2 * c.layers * c.microbatches) << action;
  }
}

// Where rows are divided too, a chunk is a product for the rows of each rank. Gathers are all issued at once,
// and each chunk's product waits for its own alone; sums of which ranks get their rows go as above.
TEST(TensorParallelOverlap, HalvesRunBesideTheNextChunksProduct) {
  const Case c =
      from_text("tp=2 sequence=1 heads=4 kv_heads=4 hidden=40 layers=3 microbatches=2 chunks=4 seq=22");
  const Tape tape = booked_tape(c);
  const std::string forward = products_and_collectives(tape, "F"),
                    backward = products_and_collectives(tape, "B");
  EXPECT_EQ(times(forward, "cccc3pp2pp1pp0pp"), 2 * c.layers * c.microbatches) << forward;
  for (const std::string& text : {forward, backward})
    EXPECT_EQ(times(text, "ppcppcppcppc0"), 2 * c.layers * c.microbatches) << text;
}

// Not cut, nothing is beside.
TEST(TensorParallelOverlap, OneChunkIsInLine) {
  for (const char* text :
       {"tp=2 heads=4 kv_heads=4 hidden=40", "tp=2 heads=4 kv_heads=4 hidden=40 sequence=1 seq=22"}) {
    const std::string all = products_and_collectives(booked_tape(from_text(text)), "F");
    EXPECT_GE(times(all, "pi"), 4) << text << ": " << all;
    EXPECT_EQ(times(all, "c"), 0) << text;
  }
}

}  // namespace
}  // namespace trireme::parity
