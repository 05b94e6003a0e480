// Training on several ranks: what stays equal, under which layout a checkpoint goes on.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "device/device.h"
#include "ranks_run.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "sanitized.h"
#include "spec/run_schedule.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

TrainHooks interrupt_ranks_at(std::string phase, int n) {
  TrainHooks hooks;
  hooks.phase = [phase, n, count = 0](std::string_view p) mutable {
    if (p == phase && ++count == n) request_interrupt();
  };
  return hooks;
}

// One microbatch a step: every stage of ZeRO ends with the same bits, evaluations and files' contents
// included.
TEST(Ranks, ZeroStagesLeaveTheSameRun) {
  for (const char* compute : {"f32", "bf16"}) {
    TempFolder first;
    train_here(ranks_run(first.path(), {.dp = 3}, 6, compute));
    const Outcome want = numbers_of(first / "run");
    ASSERT_EQ(want.step, 6);
    for (int64_t zero : {1, 2, 3}) {
      SCOPED_TRACE(zero);
      TempFolder tmp;
      train_here(ranks_run(tmp.path(), {.dp = 3, .zero = zero}, 6, compute));
      expect_same(numbers_of(tmp / "run"), want);
    }
  }
}

// Interrupted in a microbatch, between steps, in an evaluation, in a save, and gone on under another stage of
// ZeRO each time: the uninterrupted run's bits. global = 6, micro = 1: dp = 3 makes two microbatches, dp = 6
// one.
TEST(Ranks, AnInterruptedRunEndsTheSameUnderOtherStages) {
  for (int64_t dp : {3, 6}) {
    TempFolder whole;
    train_here(ranks_run(whole.path(), {.dp = dp, .micro = 1}));
    const Outcome want = numbers_of(whole / "run");
    const std::vector<int64_t> zeros =
        dp == 6 ? std::vector<int64_t>{3, 1, 2, 0} : std::vector<int64_t>{1, 0, 1, 0};
    TempFolder tmp;
    int i = 0;
    for (auto [phase, n] : {std::pair("B", 3), std::pair("update", 2), std::pair("eval", 1)}) {
      RunSpec run = ranks_run(tmp.path(), {.dp = dp, .zero = zeros[size_t(i++)], .micro = 1});
      EXPECT_EQ(train_here(run, interrupt_ranks_at(phase, n)).ending, Ending::interrupted) << phase;
      clear_interrupt();
    }
    EXPECT_EQ(train_here(ranks_run(tmp.path(), {.dp = dp, .zero = zeros[3], .micro = 1})).ending,
              Ending::done);
    Outcome got = numbers_of(tmp / "run");
    got.checkpoints = want.checkpoints;  // pauses save at steps of their own
    expect_same(got, want);
  }
}

// Steps whose result comes in the midst of the next one: saves, evaluations, traces and resumes see the run
// of steps that all ranks meet for, clipped ones among them, whole or interrupted.
TEST(Ranks, PostValidationLeavesTheSameRun) {
  double clip = 0;
  const auto run_in = [&](const fs::path& folder, const char* how, bool beside = false) {
    RunSpec r = ranks_run(folder, {.micro = 1, .pp = 2}, 14);
    r.layout.schedule = "zb-h2";
    r.optimizer.clip_norm = clip, r.optimizer.post_validation = how;
    r.train.eval_every = 5, r.train.check_every = 7, r.train.checkpoint_every.count = 4;
    r.train.trace_steps = "3-4", r.train.async_save = beside;
    return r;
  };
  TempFolder free, whole;
  train_here(run_in(free.path(), "off"));
  std::vector<double> norms;
  for (const std::string& line : numbers_of(free / "run").metrics)
    norms.push_back(nlohmann::json::parse(line).at("grad_norm").get<double>());
  std::nth_element(norms.begin(), norms.begin() + 7, norms.end());
  clip = norms[7];
  train_here(run_in(whole.path(), "off"));
  const Outcome want = numbers_of(whole / "run");
  ASSERT_EQ(want.step, 14);
  for (const char* how : {"always", "calm"})
    for (bool beside : {false, true}) {
      SCOPED_TRACE(how);
      TempFolder tmp;
      std::vector<int64_t> told;
      TrainHooks hooks;
      hooks.step = [&](const StepMetrics& m) { told.push_back(m.step); };
      train_here(run_in(tmp.path(), how, beside), hooks);
      ASSERT_EQ(told.size(), 14u);
      EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
      expect_same(numbers_of(tmp / "run"), want);
    }
  TempFolder tmp;
  const char* hows[] = {"always", "off", "calm", "always"};
  int i = 0;
  for (auto [phase, n] : {std::pair("W", 3), std::pair("update", 2), std::pair("F", 20)}) {
    EXPECT_EQ(train_here(run_in(tmp.path(), hows[i++]), interrupt_ranks_at(phase, n)).ending,
              Ending::interrupted)
        << phase;
    clear_interrupt();
  }
  EXPECT_EQ(train_here(run_in(tmp.path(), hows[i])).ending, Ending::done);
  Outcome got = numbers_of(tmp / "run");
  got.checkpoints = want.checkpoints;  // pauses save at steps of their own
  expect_same(got, want);
}

// Any layout goes on where any other was: the state is read to the bit, and losses stay those of one rank.
TEST(Ranks, ACheckpointGoesOnUnderAnyOtherLayout) {
  const RanksLayout layouts[] = {{.dp = 1},
                                 {.dp = 3, .zero = 3},
                                 {.dp = 2, .zero = 1, .micro = 1},
                                 {.dp = 6, .zero = 2, .group = 3, .micro = 1},
                                 {.dp = 1, .micro = 3},
                                 {.dp = 6, .zero = 3, .group = 2, .micro = 1},
                                 {.dp = 3, .zero = 0, .micro = 1},
                                 {.tp = 4},
                                 {.dp = 2, .zero = 3, .micro = 1, .tp = 3},
                                 {.dp = 3, .zero = 1, .micro = 1, .tp = 2},
                                 {.dp = 2, .zero = 3, .micro = 3, .cp = 3},
                                 {.zero = 1, .group = 2, .micro = 2, .tp = 2, .cp = 2},
                                 {.micro = 1, .pp = 2},
                                 {.dp = 3, .zero = 2, .micro = 1, .pp = 2},
                                 {.zero = 1, .micro = 3, .cp = 2, .pp = 2},
                                 {.dp = 1}};
  constexpr int64_t kSteps = 2 * std::size(layouts);
  auto of_parts = [](const fs::path& folder, const RanksLayout& l) {
    RunSpec r = ranks_run(folder, l, kSteps);
    r.data.seq_len = 12;
    r.model.max_positions = 0;
    r.model.finish(r.data.seq_len);
    return r;
  };
  TempFolder one;
  train_here(of_parts(one.path(), {}));
  const Outcome want = numbers_of(one / "run");
  TempFolder tmp;
  int64_t done = 0;
  for (const RanksLayout& l : layouts) {
    TrainHooks hooks;
    int64_t start = -1;
    hooks.start = [&](int64_t s) { start = s; };
    hooks.step = [&](const StepMetrics& m) {
      if (m.step == done + 2) request_interrupt();
    };
    train_here(of_parts(tmp.path(), l), hooks);
    clear_interrupt();
    EXPECT_EQ(start, done);
    done += 2;
  }
  const Outcome got = numbers_of(tmp / "run");
  EXPECT_EQ(got.step, kSteps);
  ASSERT_EQ(got.metrics.size(), want.metrics.size());
  for (size_t i = 0; i < got.metrics.size(); i++) {
    auto a = nlohmann::json::parse(got.metrics[i]), b = nlohmann::json::parse(want.metrics[i]);
    EXPECT_NEAR(a["loss"].get<double>() / b["loss"].get<double>(), 1, 1e-5) << i;
  }
}

std::vector<float> master_of(const Checkpoint& c, const std::string& name) {
  const int64_t n = c.find(name)->global.numel();
  std::vector<float> x(static_cast<size_t>(n));
  c.read(name, whole(c.find(name)->global).box, {0, n}, Tensor(x.data(), {n}, DType::f32));
  return x;
}

// The checkpoint read under another layout and saved again, as of another step, holds the same to the bit.
void expect_same_bits_saved_under(const RunSpec& asked, const Checkpoint& saved, const fs::path& dir) {
  const RunSpec run = resolve(asked, {});
  const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
  run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    load_checkpoint(r, saved, Load::resume);
    RunSpec again = run;
    again.train.dir = dir.string();
    const fs::path folder = save_checkpoint(r, again, 5, {});
    if (factory.rank() > 0) return;
    const Checkpoint back = Checkpoint::open(folder);
    EXPECT_EQ(back.names(), saved.names());
    for (const std::string& name : saved.names())
      EXPECT_EQ(master_of(back, name), master_of(saved, name)) << name;
  });
  fs::remove_all(dir);
}

// A checkpoint of one tp read under another, and saved again by a step that moves nothing; then as one rank
// reads it to generate or export: the same elements to the bit, each box cut anew.
TEST(Ranks, ReshardingMovesNoBit) {
  for (int64_t kv_heads : {1, 2, 12}) {
    TempFolder tmp;
    auto run_of = [&](const RanksLayout& l, int64_t steps) {
      RunSpec r = ranks_run(tmp.path(), l, 4);
      r.model.kv_heads = kv_heads;
      r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
      r.train.checkpoint_every.count = 1, r.train.keep = 9, r.train.steps = steps;
      return r;
    };
    train_here(run_of({.dp = 2, .zero = 2, .micro = 1, .tp = 4}, 4));
    const fs::path root = checkpoint_root(run_of({}, 4).train.dir);
    const Checkpoint saved = Checkpoint::open(root / "step-00000004");
    for (const RanksLayout& l :
         {RanksLayout{.tp = 2}, RanksLayout{.dp = 3, .zero = 3, .micro = 1, .tp = 4},
          RanksLayout{.dp = 3, .zero = 2, .micro = 1, .tp = 2, .pp = 2}, RanksLayout{}}) {
      SCOPED_TRACE(l.tp);
      expect_same_bits_saved_under(run_of(l, 4), saved, tmp / "again");
    }
    RunSpec alone = resolve(run_of({}, 4), {});
    auto device = make_device("cpu", {.threads = 1});
    StageRunner r(alone, RunMode::infer, *device, book_inference(alone, 1));
    EXPECT_EQ(load_newest(r, alone.train.dir), 4);
    for (const Param& p : r.params().params) {
      std::vector<float> x(size_t(p.numel()));
      r.memory().read_param(p, "", x);
      EXPECT_EQ(x, master_of(saved, p.decl.name + "/master")) << p.decl.name;
    }
  }
}

// What context parallelism saves knows nothing of it: any placement and method reads any other's, and tp's,
// and one rank's, in both directions, to the bit.
TEST(Ranks, ReshardingOverContextParallelMovesNoBit) {
  const RanksLayout layouts[] = {{.cp = 2},
                                 {.zero = 3, .cp = 3, .placement = "contiguous"},
                                 {.dp = 2, .zero = 1, .micro = 1, .cp = 2, .method = "ulysses"},
                                 {.tp = 2},
                                 {.dp = 3, .zero = 2, .micro = 1, .tp = 2, .cp = 2, .placement = "striped"},
                                 {}};
  for (const RanksLayout& from : layouts) {
    TempFolder tmp;
    auto run_of = [&](const RanksLayout& l) {
      RunSpec r = ranks_run(tmp.path(), l, 3);
      r.model.kv_heads = 4, r.data.seq_len = 12, r.model.max_positions = 0;
      r.model.finish(r.data.seq_len);
      r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
      return r;
    };
    const Checkpoint saved = Checkpoint::open(train_here(run_of(from)).checkpoint);
    for (const RanksLayout& to : layouts) {
      SCOPED_TRACE(fmt::format("from cp={} tp={} to cp={} tp={}", from.cp, from.tp, to.cp, to.tp));
      expect_same_bits_saved_under(run_of(to), saved, tmp / "again");
    }
  }
}

// Nor do stages: any number of them, of one rank or several, in any schedule's placement.
TEST(Ranks, ReshardingOverStagesMovesNoBit) {
  const RanksLayout layouts[] = {{.micro = 1, .pp = 2},
                                 {.zero = 1, .micro = 1, .tp = 2, .pp = 3, .schedule = "zb-h1"},
                                 {.micro = 1, .pp = 2, .schedule = "interleaved", .chunks = 3},
                                 {.dp = 3, .zero = 2, .micro = 1, .pp = 2, .schedule = "zb-v", .chunks = 2},
                                 {.dp = 3, .zero = 1, .micro = 1, .pp = 4, .schedule = "dualpipe"},
                                 {}};
  for (bool tied : {false, true})
    for (const RanksLayout& from : layouts) {
      TempFolder tmp;
      auto run_of = [&](const RanksLayout& l) {
        RunSpec r = ranks_run(tmp.path(), l, 3);
        r.model.layers = 6, r.model.tied = tied;
        r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
        return r;
      };
      const Checkpoint saved = Checkpoint::open(train_here(run_of(from)).checkpoint);
      for (const RanksLayout& to : layouts) {
        SCOPED_TRACE(fmt::format("tied {} from pp={} {} to pp={} {}", tied, from.pp, from.schedule, to.pp,
                                 to.schedule));
        expect_same_bits_saved_under(run_of(to), saved, tmp / "again");
      }
    }
}

// And a run goes on to the bit, interrupted and gone on under other stages: all of these are of one class
// with the run of one rank.
TEST(Ranks, AnInterruptedRunOfStagesEndsTheSame) {
  auto run_of = [](const fs::path& folder, const RanksLayout& l) {
    RunSpec r = ranks_run(folder, l);
    r.model.layers = 6, r.model.tied = false;
    return r;
  };
  TempFolder whole, tmp;
  train_here(run_of(whole.path(), {.micro = 1}));
  const Outcome want = numbers_of(whole / "run");
  const RanksLayout layouts[] = {{.micro = 1, .pp = 2},
                                 {.micro = 1, .pp = 2, .schedule = "interleaved", .chunks = 3},
                                 {.micro = 1, .pp = 3, .schedule = "zb-h1"},
                                 {.micro = 1},
                                 {.micro = 1, .pp = 2, .schedule = "zb-v", .chunks = 2},
                                 {.micro = 1, .pp = 3, .schedule = "gpipe"}};
  int64_t done = 0;
  for (const RanksLayout& l : layouts) {
    TrainHooks hooks;
    int64_t start = -1;
    hooks.start = [&](int64_t s) { start = s; };
    hooks.step = [&](const StepMetrics& m) {
      if (m.step == done + 1) request_interrupt();
    };
    train_here(run_of(tmp.path(), l), hooks);
    clear_interrupt();
    EXPECT_EQ(start, done++) << l.schedule;
  }
  EXPECT_EQ(train_here(run_of(tmp.path(), layouts[1])).ending, Ending::done);
  Outcome got = numbers_of(tmp / "run");
  got.checkpoints = want.checkpoints;  // pauses save at steps of their own
  expect_same(got, want);
}

// A run whose stages have two copies goes on to the bit, whether or not ZeRO divides their state.
TEST(Ranks, AnInterruptedRunOfCopiesEndsTheSame) {
  auto run_of = [](const fs::path& folder, int64_t zero) {
    return ranks_run(folder, {.dp = 3, .zero = zero, .micro = 1, .pp = 2, .schedule = "dualpipe"});
  };
  TempFolder whole, tmp;
  train_here(run_of(whole.path(), 0));
  const Outcome want = numbers_of(whole / "run");
  for (auto [phase, n, zero] : {std::tuple("update", 3, 1), std::tuple("eval", 1, 0)}) {
    EXPECT_EQ(train_here(run_of(tmp.path(), zero), interrupt_ranks_at(phase, n)).ending, Ending::interrupted);
    clear_interrupt();
  }
  EXPECT_EQ(train_here(run_of(tmp.path(), 1)).ending, Ending::done);
  Outcome got = numbers_of(tmp / "run");
  got.checkpoints = want.checkpoints;  // pauses save at steps of their own
  expect_same(got, want);
}

// Within a class losses and weights go on to the bit: the same cp, interrupted, and gone on under another
// stage of ZeRO, whose shards are of dp * cp ranks.
TEST(Ranks, AnInterruptedRunOfContextParallelismEndsTheSame) {
  for (const RanksLayout& l : {RanksLayout{.cp = 2}, RanksLayout{.dp = 3, .cp = 3, .placement = "striped"}}) {
    auto run_of = [&](const fs::path& folder, int64_t zero) {
      RanksLayout at = l;
      at.zero = zero;
      RunSpec r = ranks_run(folder, at);
      r.batch.global = r.batch.micro * l.dp;  // one microbatch a step: all stages are of one class
      r.data.seq_len = 12, r.model.max_positions = 0;
      r.model.finish(r.data.seq_len);
      return r;
    };
    TempFolder whole, tmp;
    train_here(run_of(whole.path(), 0));
    const Outcome want = numbers_of(whole / "run");
    int64_t zero = 3;
    for (auto [phase, n] : {std::pair("update", 3), std::pair("eval", 1)}) {
      EXPECT_EQ(train_here(run_of(tmp.path(), zero--), interrupt_ranks_at(phase, n)).ending,
                Ending::interrupted);
      clear_interrupt();
    }
    EXPECT_EQ(train_here(run_of(tmp.path(), zero)).ending, Ending::done);
    Outcome got = numbers_of(tmp / "run");
    got.checkpoints = want.checkpoints;  // pauses save at steps of their own
    expect_same(got, want);
  }
}

// A save under ten ranks' shares holds what a save under one holds.
class EveryElementOnce : public testing::TestWithParam<RanksLayout> {};

TEST_P(EveryElementOnce, InACheckpointOfManyRanks) {
  TempFolder one, many;
  RunSpec a = ranks_run(one.path(), {}, 1), b = ranks_run(many.path(), GetParam(), 1);
  a.optimizer.lr = b.optimizer.lr = 0;
  train_here(a);
  const Checkpoint alone = Checkpoint::open(train_here(a).checkpoint),
                   shared = Checkpoint::open(train_here(b).checkpoint);
  EXPECT_EQ(shared.names(), alone.names());
  EXPECT_GT(shared.manifest().files.size(), 1u);
  int64_t stored = 0, bytes = 0;
  for (const std::string& name : alone.names()) {
    const int64_t n = alone.find(name)->global.numel();
    stored += n * 4;
    if (!name.ends_with("/master")) continue;
    EXPECT_EQ(master_of(alone, name), master_of(shared, name)) << name;
  }
  for (const CheckpointFile& f : shared.manifest().files) {
    const SafetensorsFile file(shared.folder() / f.name);
    for (const SafetensorsEntry& e : file.header().entries) bytes += int64_t(file.bytes(e).size());
  }
  EXPECT_EQ(bytes, stored);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, EveryElementOnce,
    testing::Values(RanksLayout{.dp = 6, .zero = 1, .group = 2, .micro = 1}, RanksLayout{.tp = 3},
                    RanksLayout{.dp = 2, .zero = 3, .micro = 1, .tp = 4},
                    RanksLayout{.micro = 1, .pp = 2, .schedule = "dualpipe"},
                    RanksLayout{.dp = 3, .zero = 2, .micro = 1, .pp = 2, .schedule = "dualpipe"}));

TEST(Ranks, MetricsTellOfAllRanks) {
  TempFolder tmp;
  RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = 3}, 3);
  const Booking b = book_training(run, schedule_of(run), 1);
  TrainHooks hooks;
  int steps = 0;
  hooks.step = [&](const StepMetrics& m) {
    steps++;
    EXPECT_EQ(m.peak, b.peak);
    EXPECT_EQ(m.at_peak, b.at_peak);
    ASSERT_EQ(m.comm_bytes.size(), 2u);
    EXPECT_EQ(m.comm_bytes[0],
              std::pair(std::string("all_gather"), b.comm[size_t(Collective::all_gather)].wire));
    EXPECT_EQ(m.comm_bytes[1],
              std::pair(std::string("reduce_scatter"), b.comm[size_t(Collective::reduce_scatter)].wire));
    EXPECT_GE(m.comm_s.value(), 0);
  };
  train_here(run, hooks);
  EXPECT_EQ(steps, 3);
}

// Sums of batches in order of batches: the same bits on any number of ranks, sharded or not, also with a last
// round that not every rank has work for.
TEST(Ranks, AnEvaluationIsTheSameNumberOnAllOfThem) {
  TempFolder tmp;
  double want = 0;
  for (RanksLayout l : {RanksLayout{}, RanksLayout{.dp = 3}, RanksLayout{.dp = 3, .zero = 3},
                        RanksLayout{.dp = 1, .micro = 2}, RanksLayout{.dp = 3, .tp = 2}, RanksLayout{.tp = 4},
                        RanksLayout{.pp = 2, .schedule = "dualpipe"},
                        RanksLayout{.dp = 3, .zero = 3, .micro = 1, .pp = 2, .schedule = "dualpipe"}}) {
    RunSpec run = ranks_run(tmp.path(), l);
    const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
    run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
      CommSet comms(factory, mesh_of(run.layout));
      StageRunner r(run, RunMode::train, device, arena, &comms);
      r.init_weights();
      for (int64_t most : {0, 4}) {
        EvalResult e = evaluate_shard(r, run, run.data.valid.first(), most);
        if (factory.rank() > 0 || most > 0) continue;
        if (want == 0) want = e.loss;
        if (l.tp == 1)
          EXPECT_EQ(e.loss, want);
        else
          EXPECT_NEAR(e.loss / want, 1, 1e-6);
      }
    });
  }
  EXPECT_GT(want, 0);
}

// Ranks that compare every call with each other leave the same run.
TEST(Ranks, CheckedCollectivesChangeNothing) {
  for (RanksLayout l :
       {RanksLayout{.dp = 3, .zero = 3}, RanksLayout{.dp = 2, .zero = 1, .micro = 1, .tp = 2, .pp = 2}}) {
    TempFolder plain, checked;
    train_here(ranks_run(plain.path(), l, 4));
    RunSpec run = ranks_run(checked.path(), l, 4);
    run.train.check_comm = true;
    train_here(run);
    expect_same(outcome_of(checked / "run"), outcome_of(plain / "run"));
  }
}

}  // namespace
}  // namespace trireme::test
