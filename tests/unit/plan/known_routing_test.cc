// Time of a step whose routing is known: each rank's experts are as full as they were, block by block.
#include <gtest/gtest.h>

#include "forecast/forecast.h"
#include "measure/speeds.h"
#include "runtime/recording.h"
#include "spec/known_routing.h"
#include "spec/run_schedule.h"

namespace trireme::test {
namespace {

// Two ranks of two experts each, 2 x 8 tokens of two choices: 32 rows a rank and microbatch.
RunSpec two_ranks() {
  RunSpec r;
  r.model = ModelSpec::of("mixtral");
  r.model.vocab = 61, r.model.layers = 2, r.model.hidden = 32, r.model.heads = r.model.kv_heads = 4;
  r.model.ffn = 64, r.model.experts = 4, r.model.experts_per_token = 2, r.model.moe_ffn = 24;
  r.data.seq_len = 8;
  r.model.finish(r.data.seq_len);
  r.batch.micro = 2, r.batch.global = 8;
  r.precision.compute = r.precision.grads = r.precision.reduce = "f32";
  r.layout.dp = r.layout.ep = 2, r.layout.ep_buffer = 1.5;  // room for 48
  return resolve(r, {});
}

// Of rows that rank 0's experts get of each rank; the rest goes to rank 1's.
void fill(StepRows& rows, int64_t block, int64_t microbatch, int32_t first) {
  for (int rank = 0; rank < 2; rank++) rows.add(rank, block, microbatch, {first, 0, 0, 32 - first});
}

TEST(KnownRouting, FillsProductsOfExpertsAsTheyWere) {
  RunSpec run = two_ranks();
  RecordedRows recorded{.shape = routing_shape_of(run), .steps = {}};
  auto rows = std::make_shared<StepRows>();
  fill(*rows, 0, 0, 20), fill(*rows, 0, 1, 16), fill(*rows, 1, 0, 10), fill(*rows, 1, 1, 28);
  recorded.steps[3] = rows;
  set_known_routing(run, recorded, 0, "routing.jsonl");
  EXPECT_EQ(run.known_routing.step, 3);
  // Fullest: 40, 32, 44 and 56 of 64 rows.
  EXPECT_DOUBLE_EQ(known_load(run), (40 + 32 + 44 + 56) / 4.0 / 32);
  std::map<std::pair<std::string, int>, std::set<int64_t>> seen;  // by layer and microbatch: rows
  for (int rank = 0; rank < 2; rank++) {
    const Tape tape = record_training(run, schedule_of(run), 1, rank);
    for (const Piece& p : tape.pieces)
      if (p.name == "grouped_matmul") {
        EXPECT_EQ(p.rows, 48);
        const Piece filled = as_filled(p, run, rank);
        EXPECT_NEAR(filled.cost.flops, p.cost.flops * double(filled.rows) / 48, 1e-6 * p.cost.flops);
        if (rank == 0) seen[{std::string(p.layer.substr(0, 8)), p.microbatch}].insert(filled.rows);
        if (rank == 1 && p.layer.starts_with("blocks.0") && p.microbatch == 0) {
          EXPECT_EQ(filled.rows, 24);
        }
      }
  }
  // In one round what came; 56 rows take two rounds of 28.
  EXPECT_EQ((seen[{"blocks.0", 0}]), std::set<int64_t>({40}));
  EXPECT_EQ((seen[{"blocks.0", 1}]), std::set<int64_t>({32}));
  EXPECT_EQ((seen[{"blocks.1", 0}]), std::set<int64_t>({20}));
  EXPECT_EQ((seen[{"blocks.1", 1}]), std::set<int64_t>({28}));
  // Room for 16 rows at once: 40 come in three rounds.
  run.layout.ep_buffer = 0.5;
  const Tape tape = record_training(run, schedule_of(run), 1, 0);
  double computed = 0;
  for (const Piece& p : tape.pieces)
    if (p.name == "grouped_matmul" && p.layer.starts_with("blocks.0") && p.microbatch == 0 && p.action == "F")
      computed += as_filled(p, run, 0).cost.flops / (p.cost.flops / double(p.rows));
  EXPECT_NEAR(computed, 2 * 40, 1e-6);  // up and down
}

}  // namespace
}  // namespace trireme::test
