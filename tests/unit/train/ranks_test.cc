// Training on several ranks: what stays equal, what is refused, who is named.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "comm/wrap/wrapped.h"
#include "device/device.h"
#include "far_device.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "sanitized.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "trace/chrome_trace.h"
#include "train/checkpointing.h"
#include "train/replicas.h"

namespace trireme::test {
namespace {

struct Layout {
  int64_t dp = 1, zero = 0, group = 0, micro = 2, tp = 1, cp = 1, pp = 1;
  std::string placement = "zigzag", method = "ring";  // of cp
  std::string schedule = "1f1b";
  int64_t chunks = 1;  // of each pipeline rank
};

RunSpec ranks_run(const fs::path& folder, const Layout& l, int64_t steps = 8, const char* compute = "f32") {
  RunSpec r = tiny_run(folder, steps);
  r.batch.micro = l.micro;
  r.layout.dp = l.dp, r.layout.zero = l.zero, r.layout.shard_group = l.group, r.layout.tp = l.tp;
  r.layout.cp = l.cp, r.layout.cp_placement = l.placement, r.layout.cp_method = l.method;
  r.layout.pp = l.pp, r.layout.schedule = l.schedule, r.layout.chunks = l.chunks;
  r.model.heads = 12, r.model.kv_heads = 1, r.model.head_dim = 4, r.model.ffn = 60;
  r.precision.compute = compute, r.precision.grads = "f32";
  r.precision.reduce = r.precision.compute == "bf16" ? "bf16" : "f32";
  r.train.check_every = 3;
  return r;
}

TrainHooks interrupt_ranks_at(std::string phase, int n) {
  TrainHooks hooks;
  hooks.phase = [phase, n, count = 0](std::string_view p) mutable {
    if (p == phase && ++count == n) request_interrupt();
  };
  return hooks;
}

// Metrics hold bytes, which differ between layouts: numbers alone.
Outcome numbers_of(const fs::path& run_dir) {
  Outcome o = outcome_of(run_dir);
  for (std::string& line : o.metrics) {
    auto m = nlohmann::json::parse(line);
    m.erase("peak_bytes"), m.erase("at_peak_bytes");
    line = m.dump();
  }
  return o;
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
  const Layout layouts[] = {{.dp = 1},
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
  auto of_parts = [](const fs::path& folder, const Layout& l) {
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
  for (const Layout& l : layouts) {
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
    load_checkpoint(r, saved, true);
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
    auto run_of = [&](const Layout& l, int64_t steps) {
      RunSpec r = ranks_run(tmp.path(), l, 4);
      r.model.kv_heads = kv_heads;
      r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
      r.train.checkpoint_every.count = 1, r.train.keep = 9, r.train.steps = steps;
      return r;
    };
    train_here(run_of({.dp = 2, .zero = 2, .micro = 1, .tp = 4}, 4));
    const fs::path root = checkpoint_root(run_of({}, 4).train.dir);
    const Checkpoint saved = Checkpoint::open(root / "step-00000004");
    for (const Layout& l : {Layout{.tp = 2}, Layout{.dp = 3, .zero = 3, .micro = 1, .tp = 4},
                            Layout{.dp = 3, .zero = 2, .micro = 1, .tp = 2, .pp = 2}, Layout{}}) {
      SCOPED_TRACE(l.tp);
      expect_same_bits_saved_under(run_of(l, 4), saved, tmp / "again");
    }
    RunSpec alone = resolve(run_of({}, 4), {});
    auto device = make_device("cpu", {.threads = 1});
    StageRunner r(alone, RunMode::infer, *device, book_inference(alone, 1));
    EXPECT_EQ(load_newest(r, alone.train.dir), 4);
    for (const Param& p : r.params().params) {
      std::vector<float> x(size_t(p.numel()));
      r.read_param(p, "", x);
      EXPECT_EQ(x, master_of(saved, p.decl.name + "/master")) << p.decl.name;
    }
  }
}

// What context parallelism saves knows nothing of it: any placement and method reads any other's, and tp's,
// and one rank's, in both directions, to the bit.
TEST(Ranks, ReshardingOverContextParallelMovesNoBit) {
  const Layout layouts[] = {{.cp = 2},
                            {.zero = 3, .cp = 3, .placement = "contiguous"},
                            {.dp = 2, .zero = 1, .micro = 1, .cp = 2, .method = "ulysses"},
                            {.tp = 2},
                            {.dp = 3, .zero = 2, .micro = 1, .tp = 2, .cp = 2, .placement = "striped"},
                            {}};
  for (const Layout& from : layouts) {
    TempFolder tmp;
    auto run_of = [&](const Layout& l) {
      RunSpec r = ranks_run(tmp.path(), l, 3);
      r.model.kv_heads = 4, r.data.seq_len = 12, r.model.max_positions = 0;
      r.model.finish(r.data.seq_len);
      r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
      return r;
    };
    const Checkpoint saved = Checkpoint::open(train_here(run_of(from)).checkpoint);
    for (const Layout& to : layouts) {
      SCOPED_TRACE(fmt::format("from cp={} tp={} to cp={} tp={}", from.cp, from.tp, to.cp, to.tp));
      expect_same_bits_saved_under(run_of(to), saved, tmp / "again");
    }
  }
}

// Nor do stages: any number of them, of one rank or several, in any schedule's placement.
TEST(Ranks, ReshardingOverStagesMovesNoBit) {
  const Layout layouts[] = {{.micro = 1, .pp = 2},
                            {.zero = 1, .micro = 1, .tp = 2, .pp = 3, .schedule = "zb-h1"},
                            {.micro = 1, .pp = 2, .schedule = "interleaved", .chunks = 3},
                            {.dp = 3, .zero = 2, .micro = 1, .pp = 2, .schedule = "zb-v", .chunks = 2},
                            {.dp = 3, .zero = 1, .micro = 1, .pp = 4, .schedule = "dualpipe"},
                            {}};
  for (bool tied : {false, true})
    for (const Layout& from : layouts) {
      TempFolder tmp;
      auto run_of = [&](const Layout& l) {
        RunSpec r = ranks_run(tmp.path(), l, 3);
        r.model.layers = 6, r.model.tied = tied;
        r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
        return r;
      };
      const Checkpoint saved = Checkpoint::open(train_here(run_of(from)).checkpoint);
      for (const Layout& to : layouts) {
        SCOPED_TRACE(fmt::format("tied {} from pp={} {} to pp={} {}", tied, from.pp, from.schedule, to.pp,
                                 to.schedule));
        expect_same_bits_saved_under(run_of(to), saved, tmp / "again");
      }
    }
}

// And a run goes on to the bit, interrupted and gone on under other stages: all of these are of one class
// with the run of one rank.
TEST(Ranks, AnInterruptedRunOfStagesEndsTheSame) {
  auto run_of = [](const fs::path& folder, const Layout& l) {
    RunSpec r = ranks_run(folder, l);
    r.model.layers = 6, r.model.tied = false;
    return r;
  };
  TempFolder whole, tmp;
  train_here(run_of(whole.path(), {.micro = 1}));
  const Outcome want = numbers_of(whole / "run");
  const Layout layouts[] = {{.micro = 1, .pp = 2},
                            {.micro = 1, .pp = 2, .schedule = "interleaved", .chunks = 3},
                            {.micro = 1, .pp = 3, .schedule = "zb-h1"},
                            {.micro = 1},
                            {.micro = 1, .pp = 2, .schedule = "zb-v", .chunks = 2},
                            {.micro = 1, .pp = 3, .schedule = "gpipe"}};
  int64_t done = 0;
  for (const Layout& l : layouts) {
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
  for (const Layout& l : {Layout{.cp = 2}, Layout{.dp = 3, .cp = 3, .placement = "striped"}}) {
    auto run_of = [&](const fs::path& folder, int64_t zero) {
      Layout at = l;
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
class EveryElementOnce : public testing::TestWithParam<Layout> {};

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
    testing::Values(Layout{.dp = 6, .zero = 1, .group = 2, .micro = 1}, Layout{.tp = 3},
                    Layout{.dp = 2, .zero = 3, .micro = 1, .tp = 4},
                    Layout{.micro = 1, .pp = 2, .schedule = "dualpipe"},
                    Layout{.dp = 3, .zero = 2, .micro = 1, .pp = 2, .schedule = "dualpipe"}));

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
  for (Layout l : {Layout{}, Layout{.dp = 3}, Layout{.dp = 3, .zero = 3}, Layout{.dp = 1, .micro = 2},
                   Layout{.dp = 3, .tp = 2}, Layout{.tp = 4}, Layout{.pp = 2, .schedule = "dualpipe"},
                   Layout{.dp = 3, .zero = 3, .micro = 1, .pp = 2, .schedule = "dualpipe"}}) {
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

std::string error_of(int ranks, const RankBody& body, Fault fault = Fault::run, bool far = false) {
  const DeviceOptions alone{.threads = 1};
  try {
    run_rank_threads(
        ranks, [&] { return far ? make_far_device(alone) : make_device("cpu", alone); }, body);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, fault);
    return e.what();
  }
  return "no error";
}

// Whoever fails first is named, whether the others wait for it in a collective or on a stream, and its fault
// stays.
TEST(Ranks, TheFirstErrorIsTheOneThatIsTold) {
  for (int guilty : {0, 2}) {
    const std::string told = error_of(
        3,
        [&](Device&, CommFactory& f) {
          if (f.rank() == guilty) bad_request("the moon is full");
          agree_max(f.control(), 1);
          ADD_FAILURE() << "an agreement without everybody";
        },
        Fault::request);
    EXPECT_EQ(told, fmt::format("rank {}: the moon is full", guilty));
  }
  EXPECT_EQ(error_of(1, [](Device&, CommFactory&) { run_failed("alone"); }), "alone");
  EXPECT_EQ(error_of(4, [](Device&, CommFactory& f) { agree_max(f.control(), f.rank()); }), "no error");
}

// What is wrong with the request is rank 0's to say, once.
TEST(Ranks, AMissingShardIsToldOnce) {
  TempFolder tmp;
  RunSpec run = ranks_run(tmp.path(), {.dp = 3});
  run.data.train = (tmp / "nothing").string();
  try {
    train_here(run);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("nothing"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

// A value that is not finite: found by running the step again, on one rank at least, and told once.
TEST(Ranks, ANonfiniteValueIsNamed) {
  for (int64_t zero : {0, 3}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = zero});
    const Schedule schedule = schedule_of(run);
    const int64_t arena = book_training(run, schedule, 1).arena_bytes;
    const std::string told = error_of(3, [&](Device& device, CommFactory& factory) {
      CommSet comms(factory, mesh_of(run.layout));
      StageRunner r(run, RunMode::train, device, arena, &comms);
      r.init_weights();
      const Param& p = *r.params().find("blocks.1.mlp.down.weight");
      Tensor t = r.state_tensor(p, "");
      if (t.numel() > 0) t.as<float>()[0] = std::numeric_limits<float>::infinity();
      r.weights_from_master();
      try {
        r.step(schedule.ranks[0], 2, run.tokens_per_step(), [](int64_t, int64_t, const HostBatch& b) {
          std::fill(b.tokens.begin(), b.tokens.end(), 1), std::fill(b.targets.begin(), b.targets.end(), 2);
          std::fill(b.positions.begin(), b.positions.end(), 0);
        });
        ADD_FAILURE() << "an infinite weight went unseen";
      } catch (const std::exception& e) {
        factory.fail(e.what());
        throw;
      }
    });
    EXPECT_NE(told.find("step 2: "), std::string::npos) << told;
    EXPECT_NE(told.find("matmul in layer blocks.1.mlp"), std::string::npos) << told;
    EXPECT_EQ(told.find("rank "), 0u) << told;
  }
}

class SentToAll : public CommObserver {
 public:
  void issued(const CommCall& c) override { payloads.push_back(c.payload); }
  std::vector<int64_t> payloads;
};

struct Spoilt {
  Layout layout;
  int rank;
  const char *parameter, *what, *named;
  int64_t kv_heads = 1, sets = 1;  // of ranks that hold the same, at most of one rank
  bool far = false;                // of devices with memory of their own
};

// Compares, spoils one float of one rank, and compares again.
std::string spoil(const Spoilt& s) {
  TempFolder tmp;
  RunSpec run = ranks_run(tmp.path(), s.layout);
  run.model.kv_heads = s.kv_heads;
  const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
  const RankBody body = [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    r.init_weights();
    const Replicas replicas(r);
    SentToAll sent;
    CommObserver* before = factory.control().observe(&sent);
    replicas.compare(7);
    factory.control().observe(before);
    EXPECT_EQ(sent.payloads, std::vector<int64_t>{8 * s.sets * run.world()});
    const Param& p = *r.params().find(s.parameter);
    if (factory.rank() == s.rank) {
      Tensor t = s.what[0] || s.layout.zero == 0 ? r.state_tensor(p, s.what) : p.weight;
      if (t.numel() == 0) run_failed("rank {} has nothing of {}", s.rank, s.parameter);
      const Tensor first = t.view({t.numel()}).narrow(0, 0, 1);
      float x = 0;
      device.download(&x, first);
      x += 0x1p-10f;
      device.upload(first, &x);
    }
    replicas.compare(9);
  };
  return error_of(int(run.world()), body, Fault::run, s.far);
}

// One bit of what several ranks hold: found, and named with rank, tensor and step.
TEST(Replicas, ADifferenceIsNamed) {
  for (const Spoilt& s :
       {Spoilt{{.dp = 3, .zero = 0}, 1, "blocks.1.mlp.up.weight", "exp_avg", "/exp_avg"},
        Spoilt{{.dp = 3, .zero = 0}, 0, "norm.weight", "", "weight"},
        Spoilt{{.dp = 3, .zero = 2}, 2, "embed.tokens.weight", "", "weight"},
        Spoilt{{.dp = 6, .zero = 3, .group = 2, .micro = 1}, 4, "head.weight", "exp_avg_sq", "/exp_avg_sq"},
        // All six hold the weights, three the same part of the state.
        Spoilt{{.dp = 6, .zero = 1, .group = 2, .micro = 1}, 3, "blocks.0.attn.o.weight", "", "weight", 1, 2},
        // Copies of stages: all of them, or what ZeRO leaves each of two.
        Spoilt{{.pp = 2, .schedule = "dualpipe"}, 1, "blocks.0.mlp.up.weight", "exp_avg", "/exp_avg"},
        Spoilt{{.dp = 3, .zero = 3, .micro = 1, .pp = 2, .schedule = "dualpipe"},
               3,
               "head.weight",
               "exp_avg",
               "/exp_avg differs from that of rank 0"},
        // Along tp: norms, and keys and values of heads that several ranks hold.
        Spoilt{{.tp = 3}, 0, "norm.weight", "", "weight"},
        Spoilt{{.tp = 4}, 2, "blocks.1.attn.k.weight", "exp_avg", "/exp_avg differs from that of rank 0"},
        Spoilt{{.tp = 4}, 3, "blocks.1.attn.v.weight", "", "differs from that of rank 0", 2},
        Spoilt{{.dp = 3, .zero = 0, .tp = 2}, 3, "blocks.0.norm1.weight", "", "weight", 2, 2},
        Spoilt{{.dp = 3, .zero = 0, .tp = 2}, 4, "blocks.0.attn.q.weight", "", "rank 0", 2, 2},
        Spoilt{{.dp = 3, .zero = 1}, 1, "blocks.1.mlp.up.weight", "", "weight", 1, 1, true},
        Spoilt{{.dp = 3, .zero = 0}, 2, "norm.weight", "exp_avg", "/exp_avg", 1, 1, true}}) {
    SCOPED_TRACE(
        fmt::format("rank {} of dp={} tp={}{}", s.rank, s.layout.dp, s.layout.tp, s.far ? " far" : ""));
    const std::string told = spoil(s);
    EXPECT_EQ(told.find(fmt::format("rank {}: step 9: its {}", s.rank, s.parameter)), 0u) << told;
    EXPECT_NE(told.find(s.named), std::string::npos) << told;
  }
}

// What one rank alone holds is compared with nothing.
TEST(Replicas, ADividedTensorHasNoCopy) {
  EXPECT_EQ(spoil({{.tp = 2}, 1, "blocks.0.attn.q.weight", "", "", 2, 1}), "no error");
}

// Sums over ranks, of which this rank gets one bit wrong where it is the spoilt one.
class SpoiltSums final : public WrappedFactory {
 public:
  SpoiltSums(CommFactory& inner, Device& device, bool spoilt)
      : WrappedFactory(inner), device_(device), spoilt_(spoilt) {}

 private:
  class Comm final : public WrappedCommunicator {
   public:
    Comm(std::unique_ptr<Communicator> c, SpoiltSums& all)
        : WrappedCommunicator(std::move(c), &all.device_), all_(all) {}
    ~Comm() override { finish(); }

   private:
    void do_all_reduce(const AllReduceArgs& a, Stream s, const CommCall&) override {
      quietly([&](Communicator& inner) { inner.all_reduce(a, s); });
      if (!all_.spoilt_) return;
      then(
          s, [](void*, int64_t at) { reinterpret_cast<uint8_t*>(at)[2] ^= 1; },
          reinterpret_cast<int64_t>(a.buf.data));
    }
    SpoiltSums& all_;
  };
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return std::make_unique<Comm>(std::move(c), *this);
  }
  Device& device_;
  bool spoilt_;
};

// A run compares its copies every check_every steps by itself, and ends at the first that differ.
TEST(Replicas, ARunComparesThemEveryCheckEverySteps) {
  for (int64_t every : {3, 4, 0}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3}, 7);
    run.train.check_every = every;
    run = resolve(run, {.native_bf16 = make_device("cpu")->native(DType::bf16)});
    const Schedule schedule = schedule_of(run);
    const TrainOptions options{.arena_bytes = book_training(run, schedule, 1).arena_bytes};
    const std::string told = error_of(3, [&](Device& device, CommFactory& ranks) {
      SpoiltSums spoilt(ranks, device, ranks.rank() == 1);
      train(run, schedule, device, spoilt, options, {});
    });
    if (every == 0)
      EXPECT_EQ(told, "no error");
    else
      EXPECT_NE(told.find(fmt::format("rank 1: step {}: its ", every)), std::string::npos) << told;
  }
}

// Ranks that compare every call with each other leave the same run.
TEST(Ranks, CheckedCollectivesChangeNothing) {
  for (Layout l : {Layout{.dp = 3, .zero = 3}, Layout{.dp = 2, .zero = 1, .micro = 1, .tp = 2, .pp = 2}}) {
    TempFolder plain, checked;
    train_here(ranks_run(plain.path(), l, 4));
    RunSpec run = ranks_run(checked.path(), l, 4);
    run.train.check_comm = true;
    train_here(run);
    expect_same(outcome_of(checked / "run"), outcome_of(plain / "run"));
  }
}

// Each order of sums is taken, shown in the trace, and no further from the default than rounding; the
// default's own bits are others.
TEST(Ranks, AnOrderOfSumsIsTakenAndShown) {
  const int64_t kSteps = test::kSanitized ? 2 : 6;
  for (Layout l :
       {Layout{.dp = 3}, Layout{.dp = 3, .zero = 3, .micro = 1}, Layout{.dp = 3, .zero = 2, .tp = 3}}) {
    Outcome want;
    for (const char* order : {"ordered", "ring", "halving", "hierarchical", "auto"}) {
      SCOPED_TRACE(fmt::format("{} zero={} tp={}", order, l.zero, l.tp));
      TempFolder tmp;
      RunSpec run = ranks_run(tmp.path(), l, kSteps);
      run.train.trace_steps = "2", run.train.sum_order = order;
      TrainOptions options;
      options.cluster.intra_node = {.latency = 1e-6, .bandwidth = 1e9};
      train_here(run, {}, options);
      std::set<std::string> shown, by;
      for (const Span& s : read_chrome_trace(fs::path(run.train.dir) / "trace.json").spans)
        if (s.kind == SpanKind::comm && s.name != "all_gather") shown.insert(std::string(s.algorithm));
      // Rank threads are one machine, where hierarchical is halving; halving has fewer rounds than ring.
      const bool halves = order == std::string("hierarchical") || order == std::string("auto");
      EXPECT_EQ(shown, std::set<std::string>{halves ? "halving" : order});
      const Outcome got = numbers_of(tmp / "run");
      if (order == std::string("ordered")) {
        want = got;
        continue;
      }
      EXPECT_NE(got.tensors, want.tensors) << "it adds up as ordered does";
      ASSERT_EQ(got.metrics.size(), want.metrics.size());
      for (size_t i = 0; i < got.metrics.size(); i++) {
        auto a = nlohmann::json::parse(got.metrics[i]), b = nlohmann::json::parse(want.metrics[i]);
        EXPECT_NEAR(a["loss"].get<double>() / b["loss"].get<double>(), 1, 1e-5) << i;
      }
    }
  }
}

// The trace of a step has every rank's ops and its collectives on the lane of their stream, told by action:
// as many bytes as the metrics say.
TEST(Ranks, TraceShowsEveryRankAndTheirCollectives) {
  for (int64_t zero : {0, 3}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = zero}, 3);
    run.train.trace_steps = "2";
    train_here(run);
    using ByName = std::map<std::string, int64_t>;
    std::map<int, ByName> traced, calls, ops;  // by rank
    ByName counted;
    const Timeline trace = read_chrome_trace(fs::path(run.train.dir) / "trace.json");
    for (const Span& s : trace.spans) {
      EXPECT_EQ(s.step, 2);
      if (s.kind == SpanKind::op) ops[s.rank][std::string(s.name)]++;
      if (s.kind == SpanKind::op) {
        EXPECT_GT(s.memory[size_t(Bucket::weights)], 0);
      }
      if (s.kind != SpanKind::comm) continue;
      EXPECT_EQ(s.lane, "dp");
      EXPECT_LE(s.begin_ns, s.met_ns);
      EXPECT_LE(s.met_ns, s.end_ns);
      EXPECT_NE(s.action, "") << s.name << " of rank " << s.rank;
      if (s.action == "B") {
        EXPECT_GE(s.microbatch, 0);
      }
      traced[s.rank][std::string(s.name)] += s.wire_bytes, calls[s.rank][std::string(s.name)]++;
    }
    for (const std::string& line : lines_of(read_text(fs::path(run.train.dir) / "metrics.jsonl"))) {
      auto m = nlohmann::json::parse(line);
      if (m["step"] == 2)
        for (const auto& [kind, bytes] : m["comm_bytes"].items()) counted[kind] = bytes;
    }
    ASSERT_EQ(traced.size(), 3u);
    ASSERT_EQ(ops.size(), 3u);
    for (int rank = 0; rank < 3; rank++) {
      EXPECT_GT(ops[rank]["matmul"], 0);
      EXPECT_EQ(ops[rank]["matmul"], ops[0]["matmul"]);
      EXPECT_EQ(calls[rank], calls[0]);
      EXPECT_EQ(traced[rank].size(), zero == 0 ? 1u : 2u);
      // Metrics have the rank with the most: two elements a call, each way.
      for (const auto& [kind, bytes] : traced[rank])
        EXPECT_NEAR(double(bytes), double(counted[kind]), zero == 0 ? double(8 * calls[rank][kind]) : 0)
            << kind;
    }
  }
}

// In the written trace of ZeRO 3 each rank's lane of collectives has, in every backward pass, the gather of
// the layer after next before the reduction of this one: behind those of the forward pass, reduction i (from
// 0) comes after i + 2 gathers.
TEST(Ranks, TraceShowsGathersBeforeTheReductionsTheyMustNotWaitFor) {
  for (int dp : {2, 3}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = dp, .zero = 3, .micro = 1}, 3);
    run.model.layers = 4, run.batch.global = 2 * dp;
    run.train.trace_steps = "2";
    train_here(run);
    const int units = int(run.model.layers) + 2;
    std::map<int, std::vector<Span>> calls;  // by rank, as they began
    const Timeline trace = read_chrome_trace(fs::path(run.train.dir) / "trace.json");
    for (const Span& s : trace.spans)
      if (s.kind == SpanKind::comm && s.lane == "dp") calls[s.rank].push_back(s);
    ASSERT_EQ(calls.size(), size_t(dp));
    for (auto& [rank, spans] : calls) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, dp));
      std::stable_sort(spans.begin(), spans.end(),
                       [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
      int gathers = 0, reductions = 0;
      for (const Span& s : spans) {
        gathers += s.name == "all_gather";
        if (s.name != "reduce_scatter") continue;
        const int microbatch = reductions / units, i = reductions % units;
        EXPECT_GE(gathers, (2 * microbatch + 1) * units + std::min(i + 2, units))
            << "reduction " << reductions;
        reductions++;
      }
      EXPECT_EQ(reductions, int(run.microbatches()) * units);
      EXPECT_EQ(gathers, 2 * reductions);
    }
  }
}

}  // namespace
}  // namespace trireme::test
