// What compute waits for in closed form (cost/own_overlap.h) against the steps that the runtime records on
// meta, replayed with prices that are drawn: the same collectives in the same places, to the nanosecond.
#include "cost/own_overlap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "plan/price.h"
#include "runtime/recording.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec llama_of(int64_t layers) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = 61, r.model.layers = layers, r.model.hidden = 32, r.model.heads = 4, r.model.kv_heads = 2;
  r.model.ffn = 52, r.data.seq_len = 48;
  r.batch.micro = 2;
  r.precision.compute = "f32", r.precision.grads = "f32", r.precision.reduce = "f32";
  r.layout.bucket_mb = 0, r.train.steps = 20, r.train.threads = 1;
  r.model.finish(r.data.seq_len);
  return r;
}

// "blocks.3" of "blocks.3.attn"
std::string_view layer_of(std::string_view part) {
  return part.substr(0, part.find('.', part.find('.') + 1));
}

// The whole of a layer's pass on its first op; collectives among replicas by what they do.
std::vector<Price> priced(const Tape& t, const OwnStage& s) {
  std::vector<Price> prices;
  std::string_view layer, action;
  for (const Piece& p : t.pieces) {
    Price price;
    const bool dp = p.kind == PieceKind::call && t.groups[size_t(p.group)].name != "control" &&
                    t.streams[size_t(p.stream)] == "dp";
    if (dp) price.time = int64_t(p.name == "all_gather" ? s.block.gather : s.block.reduce);
    if (p.launched && (p.action == "F" || p.action == "B")) {
      const std::string_view here = layer_of(p.layer);
      const OwnUnit& u = here == "embed" ? s.embedding : here == "head" ? s.head : s.block;
      if (here != layer || p.action != action)
        price.time = int64_t(p.action == "F" ? u.forward : u.input + u.weight);
      layer = here, action = p.action;
    }
    prices.push_back(price);
  }
  return prices;
}

TEST(OwnWaits, AreThoseOfRecordedSteps) {
  std::mt19937_64 random(7);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  int waited = 0, off = 0;
  double worst = 0;
  for (int i = 0; i < 240; i++) {
    OwnStage s;
    s.zero = int(i % 4), s.blocks = double(3 + up_to(5)), s.has_embedding = s.has_head = true;
    const int64_t m = 1 + up_to(4);
    const auto unit = [&](int64_t forward) {
      OwnUnit u;
      u.forward = double(100 + up_to(forward)), u.input = double(100 + up_to(2 * forward));
      return u;
    };
    s.block = unit(400), s.embedding = unit(100), s.head = unit(400);
    s.block.gather = double(up_to(i % 3 == 0 ? 1200 : 300)), s.block.reduce = double(up_to(900));
    s.embedding.gather = s.head.gather = s.block.gather, s.embedding.reduce = s.head.reduce = s.block.reduce;
    RunSpec run = llama_of(int64_t(s.blocks));
    run.layout.dp = 3, run.layout.zero = s.zero, run.batch.global = 2 * 3 * m;
    if (i % 8 >= 4) run.precision.reduce = "bf16";
    s.cast = run.precision.reduce != run.precision.grads;
    const Tape tape = record_training(run, schedule_of(run), 1);
    const std::vector<Price> prices = priced(tape, s);
    const RankTape rank{0, &tape, prices};
    const double replayed = double(replay({&rank, 1}).makespan);
    const OwnWaits w = own_waits(s, m);
    const double passes = s.blocks * s.block.passes() + s.embedding.passes() + s.head.passes();
    const double closed = double(m) * (passes + w.turn) + w.ends + own_update(s);
    waited += replayed > double(m) * passes;
    // To the nanosecond, but for ZeRO 2 and 3 of several microbatches: three of these are followed.
    const bool exact = s.zero < 2 || m == 1;
    worst = std::max(worst, std::abs(closed / replayed - 1));
    off += std::abs(closed / replayed - 1) > 1e-9;
    EXPECT_NEAR(closed / replayed, 1, exact ? 1e-9 : 0.05)
        << "zero " << s.zero << ", " << s.blocks << " blocks, " << m << " microbatches, cast " << s.cast
        << ": block " << s.block.forward << " " << s.block.input << ", gather " << s.block.gather
        << ", reduce " << s.block.reduce << ", head " << s.head.forward << " " << s.head.input
        << ", embedding " << s.embedding.forward << " " << s.embedding.input << ": " << closed << " for "
        << replayed;
  }
  EXPECT_GT(waited, 200);
  EXPECT_LE(off, 8) << "worst " << worst;
}

// Every round of attention takes `core`, every message by its bytes.
TEST(OwnWaits, RingsAreThoseOfRecordedSteps) {
  for (const int64_t n : {2, 3, 4, 6})
    for (const double core : {0.0, 500.0, 3000.0, 20000.0})
      for (const int64_t byte : {1, 3, 20}) {
        RunSpec run = llama_of(1);
        run.data.seq_len = 48, run.layout.cp = n, run.batch.global = run.batch.micro = 2;
        run.layout.cp_method = "ring", run.layout.cp_placement = "zigzag";
        const Tape tape = record_training(run, schedule_of(run), 1);
        std::vector<Price> prices;
        int64_t hop = 0;
        for (const Piece& p : tape.pieces) {
          Price price;
          if (p.kind == PieceKind::op && p.name.starts_with("attention")) price.time = int64_t(core);
          if (p.kind == PieceKind::call && tape.streams[size_t(p.stream)] == "cp")
            price.time = p.payload * byte, hop = price.time;
          prices.push_back(price);
        }
        ASSERT_GT(hop, 0);
        const RankTape rank{0, &tape, prices};
        const double replayed = double(replay({&rank, 1}).makespan);
        const double all = double(n) * core;  // in f32 sums are as long as keys and values
        const double closed = 2 * all + ring_forward_waits(n, all, double(hop)) +
                              ring_backward_waits(n, all, double(hop), double(hop));
        EXPECT_NEAR(closed, replayed, 1e-6 * replayed) << n << " ranks, core " << core << ", hop " << hop;
      }
}

}  // namespace
}  // namespace trireme
