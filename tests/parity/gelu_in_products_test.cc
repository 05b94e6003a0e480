// Gelu in the products beside it (Kernels::gelu_in_products): the same run to the bit on a device that
// computes both as their parts, in fewer launches and never more memory.
#include "checks.h"
#include "runtime/booking.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

class GeluInProducts : public testing::TestWithParam<const char*> {};

TEST_P(GeluInProducts, EqualsItsParts) {
  SCOPED_TRACE(GetParam());
  const Case c = from_text(GetParam());
  const RunSpec run = run_of(c);
  ASSERT_TRUE(problems_of(run).empty());
  const Ran parts = train_layout(run, {.steps = 8, .far = true}),
            together = train_layout(run, {.steps = 8, .far = true, .gelu_in_products = true});
  expect_identical(together, parts);
  for (size_t r = 0; r < parts.ranks.size(); r++) {
    const RankFacts &a = together.ranks[r], &b = parts.ranks[r];
    EXPECT_EQ(a.state_hash, b.state_hash) << r;
    EXPECT_LE(a.peak_total, b.peak_total) << r;
    if (c.fp8 != "none" || c.arch != "gpt2") {
      EXPECT_EQ(a.launches, b.launches) << r;
      EXPECT_EQ(a.cost, b.cost) << r;
    } else {
      EXPECT_LT(a.launches, b.launches) << r;
      EXPECT_EQ(a.cost.flops, b.cost.flops) << r;
      EXPECT_LT(a.cost.bytes_read, b.cost.bytes_read) << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GeluInProducts,
                         testing::Values("arch=gpt2",
                                         "arch=gpt2 dropout=0.2 microbatches=3 compute=bf16 tied=1",
                                         "arch=gpt2 compute=bf16 recompute=full microbatches=2",
                                         "arch=gpt2 recompute=selective again=a microbatches=2",
                                         "arch=gpt2 recompute=selective again=u+a microbatches=2",
                                         "arch=gpt2 tp=2 heads=4 hidden=32",
                                         "arch=gpt2 tp=2 sequence=1 heads=4 hidden=32 seq=24 chunks=2",
                                         "arch=gpt2 dp=2 zero=3 microbatches=2",
                                         "arch=gpt2 pp=2 microbatches=3 schedule=zb-h1",
                                         "arch=gpt2 compute=bf16 fp8=delayed microbatches=2", "arch=qwen3"));

// f16 of a CPU is rounded where an op ends (device/cpu/f16.h), so gelu is of the sums here, as on a GPU:
// other last bits, that a block which is made anew whole has too.
TEST(GeluInProductsOfSums, AreOtherLastBits) {
  const Plan together{.steps = 8, .far = true, .gelu_in_products = true};
  const RunSpec run = run_of(from_text("arch=gpt2 compute=f16 microbatches=2")),
                again = run_of(from_text("arch=gpt2 compute=f16 microbatches=2 recompute=full"));
  const Ran parts = train_layout(run, {.steps = 8, .far = true}), sums = train_layout(run, together);
  EXPECT_NE(sums.losses, parts.losses);
  EXPECT_LE(loss_difference(sums, parts), 1e-4);
  expect_identical(train_layout(again, together), sums);
}

// What is planned for a GPU is what its kernels say: of 16 bits, where recompute need not give the same bits.
TEST(GeluInProductsOnMeta, IsPlannedAsItRuns) {
  const Case c = from_text("arch=gpt2 compute=bf16 layers=3 microbatches=2");
  RunSpec run = run_of(c);
  run.train.device = "cuda";
  auto launches = [&](bool deterministic, const char* compute, std::string_view op) {
    run.train.deterministic = deterministic, run.precision.compute = compute;
    int64_t n = 0;
    for (const OpTotal& o : book_training(run, schedule_of(run), 1).ops)
      if (o.op == op) n += o.launches;
    return n;
  };
  const int64_t blocks = c.layers * c.microbatches;
  for (const char* op : {"matmul_gelu", "matmul_gelu_backward"}) {
    EXPECT_EQ(launches(false, "bf16", op), blocks) << op;
    EXPECT_EQ(launches(true, "bf16", op), 0) << op;
    EXPECT_EQ(launches(false, "f32", op), 0) << op;
  }
  for (const char* op : {"gelu", "gelu_backward"}) {
    EXPECT_EQ(launches(false, "bf16", op), 0) << op;
    EXPECT_EQ(launches(true, "bf16", op), blocks) << op;
  }
}

}  // namespace
}  // namespace trireme::parity
