// Experts over two, three and four ranks against autograd in double over all experts: every gradient,
// routers' too. Goldens have two sequences: where there are more replicas, the batch is that one several
// times over, which changes no gradient.
#include <gtest/gtest.h>

#include <mutex>

#include "checkpoint/hf.h"
#include "golden_case.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"

namespace trireme::golden {
namespace {

struct Layout {
  const char* folder;
  int64_t dp, ep, micro;  // micro: sequences of a replica
  bool balanced;
};

void load(StageRunner& r, const GoldenCase& golden) {
  HfFolder weights(golden.folder(), golden.model());
  for (const Param* held : r.params().held()) {
    const Param& p = *held;
    std::vector<float> whole(size_t(p.decl.global.numel())), part;
    weights.read(p.decl.name, Tensor(whole.data(), p.decl.global, DType::f32));
    const int64_t columns = p.decl.global.rank == 2 ? p.decl.global[1] : 1;
    const int64_t own = p.box.extent.rank == 2 ? p.box.extent[1] : 1;
    for (int64_t i = 0; i < p.box.extent[0]; i++)
      for (int64_t c = 0; c < own; c++)
        part.push_back(whole[size_t((p.box.offset[0] + i) * columns +
                                    (p.box.offset.rank == 2 ? p.box.offset[1] : 0) + c)]);
    r.write_param(p, "", part);
  }
  r.weights_from_master();
}

// Gradients of parameters that this rank has whole.
void bring(const StageRunner& r, std::mutex& mutex, ByName& all) {
  std::lock_guard lock(mutex);
  for (const Param& p : r.params().params) {
    if (p.box.extent.numel() != p.decl.global.numel()) continue;
    const float* g = p.grad.as<float>();
    all[p.decl.name] = Values(g, g + p.numel());
  }
}

class ExpertsOverRanks : public testing::TestWithParam<Layout> {};

TEST_P(ExpertsOverRanks, EveryGradient) {
  const Layout l = GetParam();
  const GoldenCase golden(l.folder);
  MoeSpec moe;
  if (l.balanced) moe = {.aux_loss = 0.5, .z_loss = 0.05};
  RunSpec run = run_of(golden, "f32", "f32", l.micro, moe);
  run.batch.global = l.dp * l.micro;
  run.layout.dp = l.dp, run.layout.ep = l.ep, run.layout.ep_buffer = 1;
  run = resolve(run, {});
  const Schedule schedule = schedule_of(run);
  const int64_t arena = book_training(run, schedule, 1).arena_bytes;
  std::mutex mutex;
  ByName got;
  run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    r.init_weights();
    load(r, golden);
    const FillBatch all = golden.fill(0, run.batch.micro);
    const int64_t part = r.sharing().dp_rank % (golden.sequences() / l.micro);
    const int64_t times = l.dp * l.micro / golden.sequences();
    r.step(schedule.ranks[0], 1, golden.target_tokens(0) * times,
           [&](int64_t step, int64_t, const HostBatch& b) { all(step, part, b); });
    bring(r, mutex, got);
    agree_max(factory.control(), 0);
  });
  const ByName want =
      l.balanced
          ? golden.by_parameter(SafetensorsFile(golden.folder() / "balance.safetensors"), "sequence.grad")
          : golden.by_parameter("oracle.grad");
  const double total = global_norm(want);
  for (const auto& [name, g] : want) {
    ASSERT_TRUE(got.contains(name)) << name << " is on no rank";
    EXPECT_LE(distance(got.at(name), g), std::max(2e-5 * norm(g), 1e-7 * total)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ExpertsOverRanks,
    testing::Values(Layout{"qwen2_moe", 2, 2, 1, false}, Layout{"qwen2_moe", 2, 2, 1, true},
                    Layout{"qwen2_moe", 1, 1, 2, true}, Layout{"qwen2_moe", 3, 3, 2, false},
                    Layout{"qwen2_moe", 3, 3, 2, true}, Layout{"qwen2_moe", 6, 3, 1, true},
                    Layout{"deepseek_v2", 3, 3, 2, false}, Layout{"deepseek_v3", 4, 4, 1, false},
                    Layout{"deepseek_v3", 2, 2, 1, false}));

}  // namespace
}  // namespace trireme::golden
