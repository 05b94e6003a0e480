// Optimizer post-validation against steps that all ranks meet for: the same numbers to the bit, whatever was
// foreseen wrongly.
#include <algorithm>

#include "base/error.h"
#include "checks.h"
#include "comm/meta/meta_comm.h"
#include "sanitized.h"
#include "spec/run_schedule.h"

namespace trireme::parity {
namespace {

const int64_t kStepsPosted = test::kSanitized ? 4 : 12;
const Plan kPlan{.steps = kStepsPosted};

RunSpec posted(RunSpec run, const char* how = "always") {
  run.optimizer.post_validation = how;
  return run;
}

double median_norm(const Ran& r) {
  std::vector<double> norms = r.norms;
  std::nth_element(norms.begin(), norms.begin() + std::ptrdiff_t(norms.size() / 2), norms.end());
  return norms[norms.size() / 2];
}

void expect_as_booked(const RunSpec& run, const Ran& ran) {
  for (size_t r = 0; r < ran.ranks.size(); r++) {
    const RankFacts& f = ran.ranks[r];
    EXPECT_EQ(f.left_over, 0) << r;
    EXPECT_EQ(f.moved, f.counted) << r;
    EXPECT_LE(f.high_water, ran.booking.arena_bytes) << r;
    const Booking b = book_stage(run, schedule_of(run), 1, {}, mesh_of(run.layout).coord(int(r), Axis::pp));
    EXPECT_EQ(f.state, b.state) << r;
    EXPECT_EQ(f.peaks, b.peak) << r;
    EXPECT_EQ(f.peak_total, b.peak_total) << r;
  }
}

// Elements of the second pipeline rank's shard, padding included: from its parameters alone.
int64_t elements_of_shard(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  const int64_t shards = effective_zero(l) == 0 ? 1 : l.shard_group > 0 ? l.shard_group : replicas_of(l);
  int64_t n = 0;
  auto device = make_device("meta", {.threads = 1});
  const Mesh mesh = mesh_of(l);
  int rank = 0;
  while (mesh.coord(rank, Axis::pp) != 1) rank++;
  auto factory = make_meta_comm(rank, mesh.world(), options_of(run));
  CommSet comms(*factory, mesh);
  const StageRunner r(run, RunMode::train, *device, int64_t(1) << 52, &comms);
  for (const Unit& u : r.params().units) {
    int64_t numel = 0;
    for (size_t i = u.first; i < u.last; i++) numel += r.params().params[i].stored.numel();
    n += padded_unit(numel, int(shards)) / shards;
  }
  return n;
}

// Master copy and two moments of the rank's shard once more: 12 bytes per element, 8 with bf16 moments. In
// f32 too, where the weights are the master copy.
void expect_kept_state(const RunSpec& run, const RunSpec& plain) {
  const Booking with = book_stage(run, schedule_of(run), 1, {}, 1),
                without = book_stage(plain, schedule_of(plain), 1, {}, 1);
  const int64_t element = 4 + 2 * size_of(dtype_from_name(run.precision.moments));
  EXPECT_EQ(with.rollback_bytes, element * elements_of_shard(run));
  EXPECT_EQ(without.rollback_bytes, 0);
  const size_t optimizer = size_t(Bucket::optimizer);
  EXPECT_EQ(with.state[optimizer], without.state[optimizer] + with.rollback_bytes);
}

class PostValidation : public testing::TestWithParam<const char*> {};

TEST_P(PostValidation, EqualsTheSynchronousStepToTheBit) {
  SCOPED_TRACE(GetParam());
  RunSpec run = run_of(from_text(GetParam()));
  run.optimizer.clip_norm = 0;
  const Ran calm = train_layout(run, kPlan), calm_posted = train_layout(posted(run), kPlan);
  expect_identical(calm_posted, calm);
  EXPECT_EQ(calm_posted.taken_back, 0);
  expect_kept_state(posted(run), run);

  run.optimizer.clip_norm = median_norm(calm);
  const Ran some = train_layout(run, kPlan), some_posted = train_layout(posted(run), kPlan);
  expect_identical(some_posted, some);
  EXPECT_EQ(some_posted.taken_back, std::count_if(some.norms.begin(), some.norms.end(), [&](double n) {
              return run.optimizer.clip_norm < n + 1e-6;
            }));
  EXPECT_GT(some_posted.taken_back, 0);
  EXPECT_LT(some_posted.taken_back, kStepsPosted);
  expect_as_booked(posted(run), some_posted);
  const Ran after_calm = train_layout(posted(run, "calm"), kPlan);
  expect_identical(after_calm, some);
  EXPECT_GT(after_calm.taken_back, 0);
  EXPECT_LE(after_calm.taken_back, some_posted.taken_back);

  run.optimizer.clip_norm = 1e-3;
  const Ran all = train_layout(posted(run), kPlan);
  expect_identical(all, train_layout(run, kPlan));
  EXPECT_EQ(all.taken_back, kStepsPosted);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PostValidation,
    testing::Values("pp=2 microbatches=4", "pp=3 layers=5 microbatches=4 arch=gpt2",
                    "pp=4 layers=4 microbatches=5 schedule=gpipe micro=1", "pp=2 microbatches=1 compute=bf16",
                    "pp=3 layers=3 microbatches=5 schedule=zb-h1",
                    "pp=3 layers=3 microbatches=7 schedule=zb-h2 compute=bf16 moments=bf16",
                    "pp=4 layers=4 microbatches=9 schedule=zb-h2 micro=1",
                    "pp=3 stages=2 layers=6 microbatches=7 schedule=zb-v",
                    "pp=2 stages=2 layers=5 microbatches=5 schedule=v-half dp=2 zero=2",
                    "pp=3 stages=2 layers=6 microbatches=6 schedule=v-min",
                    "pp=4 stages=2 layers=8 microbatches=8 schedule=v-min micro=1",
                    "pp=2 stages=2 layers=4 microbatches=6 schedule=dualpipe-v",
                    "pp=2 microbatches=4 schedule=dualpipe",
                    "pp=2 stages=3 layers=6 microbatches=4 schedule=interleaved dp=2 zero=3",
                    "pp=3 layers=5 microbatches=6 schedule=auto",
                    "pp=2 dp=2 zero=1 microbatches=3 compute=bf16 grads=bf16 arch=qwen3 dropout=0.2",
                    "pp=2 dp=2 zero=3 microbatches=4 schedule=zb-h1 compute=bf16",
                    "pp=2 tp=2 sequence=1 heads=4 kv_heads=2 hidden=32 microbatches=3 seq=24",
                    "pp=2 cp=2 seq=24 microbatches=2", "pp=2 tied=1 dp=2 zero=1 microbatches=3",
                    "pp=3 layers=3 arch=mixtral microbatches=3 aux=0.01",
                    "pp=2 layers=4 microbatches=3 recompute=full offload=1"));

// The second rank settles before a forward pass of the second microbatch: the first one has not begun it.
TEST(PostValidationRuns, SettlesBeforeWhatLiesBeyondAnothersPoint) {
  RunSpec run = run_of(from_text("pp=2 stages=2 layers=4 microbatches=2"));
  run.layout.schedule = "file", run.layout.schedule_file = "own.txt";
  set_own_schedule(run, parse_schedule("0F0 3F0 3B0 0F1 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1\n"),
                   "own.txt");
  for (double clip : {0.0, 1e-3}) {
    run.optimizer.clip_norm = clip;
    const Ran got = train_layout(posted(run), kPlan);
    expect_identical(got, train_layout(run, kPlan));
    EXPECT_EQ(got.taken_back, clip > 0 ? kStepsPosted : 0);
    expect_as_booked(posted(run), got);
  }
}

// A scale that gradients overflow at, then one that grows until they do again.
TEST(PostValidationRuns, TakesBackWhatF16Skips) {
  for (const char* text :
       {"pp=2 compute=f16 microbatches=3", "pp=3 layers=3 compute=f16 microbatches=6 schedule=zb-h2",
        "pp=2 dp=2 zero=1 compute=f16 microbatches=2"}) {
    if (test::kSanitized && from_text(text).layers == 3) continue;
    SCOPED_TRACE(text);
    RunSpec run = run_of(from_text(text));
    run.precision.initial_scale = 0x1p40, run.precision.growth_interval = 2;
    const Plan plan{.steps = 40};
    const Ran want = train_layout(run, plan), got = train_layout(posted(run), plan);
    expect_identical(got, want);
    const auto skipped =
        std::count_if(want.norms.begin(), want.norms.end(), [](double n) { return std::isnan(n); });
    EXPECT_GT(skipped, 10);
    EXPECT_LT(skipped, 35);
    EXPECT_GE(got.taken_back, skipped);
    expect_identical(train_layout(posted(run, "calm"), plan), want);
  }
}

std::string failure_of(const RunSpec& run, int64_t steps) {
  try {
    train_layout(run, {.steps = steps});
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// What is not finite is named as ever, whether another step follows or not.
TEST(PostValidationRuns, NamesWhatIsNotFinite) {
  for (const char* text : {"pp=2 microbatches=3", "pp=3 layers=3 microbatches=5 schedule=zb-h2"}) {
    SCOPED_TRACE(text);
    RunSpec run = run_of(from_text(text));
    run.optimizer.lr = 1e25, run.optimizer.warmup = 0, run.optimizer.schedule = "constant";
    const std::string want = failure_of(run, 9);
    EXPECT_NE(want.find("not finite"), std::string::npos) << want;
    const int64_t step =
        want.find("step ") == std::string::npos ? 0 : std::stoll(want.substr(want.find("step ") + 5));
    ASSERT_GT(step, 1) << want;
    EXPECT_EQ(failure_of(posted(run), 9), want);
    EXPECT_EQ(failure_of(posted(run), step), want);
    EXPECT_EQ(failure_of(posted(run, "calm"), 9), want);
  }
}

}  // namespace
}  // namespace trireme::parity
