// Waits of a ring of context parallelism in closed form, compared with steps that the runtime records on meta
// and that are replayed with other prices.
#include "cost/ring_waits.h"

#include <gtest/gtest.h>

#include "measure/price.h"
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

// Every round of attention takes `core`, every message by its bytes.
TEST(RingWaits, AreThoseOfRecordedSteps) {
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
