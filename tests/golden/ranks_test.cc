// Experts, heads and sequences over two, three and four ranks against autograd in double over all experts:
// every gradient, routers' too. Goldens have two sequences: where there are more replicas, the batch is that
// one several times over, which changes no gradient; nor do tokens without a target at the end of sequences
// that ranks do not divide.
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
  bool balanced = false;
  int64_t tp = 1, cp = 1, seq = 0;  // seq: tokens of a sequence; 0: the golden's
  bool sequence = false;
  const char *method = "ring", *placement = "zigzag";
};

// f(its number in the whole parameter, in the rank's part) of each element of that part.
template <class F>
void each_element(const Param& p, const F& f) {
  const Slice& box = p.box;
  const bool matrix = p.decl.global.rank == 2;
  const int64_t columns = matrix ? box.extent[1] : 1, stride = matrix ? p.decl.global[1] : 1;
  for (int64_t i = 0; i < box.extent.numel(); i++)
    f(size_t((box.offset[0] + i / columns) * stride + (matrix ? box.offset[1] + i % columns : 0)), size_t(i));
}

void load(StageRunner& r, const GoldenCase& golden) {
  HfFolder weights(golden.folder(), golden.model());
  for (const Param* held : r.params().held()) {
    const Param& p = *held;
    std::vector<float> whole(size_t(p.decl.global.numel())), part(size_t(p.numel()));
    weights.read(p.decl.name, Tensor(whole.data(), p.decl.global, DType::f32));
    each_element(p, [&](size_t all, size_t own) { part[own] = whole[all]; });
    r.memory().write_param(p, "", part);
  }
  r.weights_from_master();
}

// Gradients, put together from the parts that ranks have.
void bring(StageRunner& r, std::mutex& mutex, ByName& all) {
  std::lock_guard lock(mutex);
  for (const Param& p : r.params().params) {
    Values& whole = all[p.decl.name];
    whole.resize(size_t(p.decl.global.numel()), std::nan(""));
    const Values own_part = values_of(r.device(), p.grad);
    each_element(p, [&](size_t in_all, size_t own) { whole[in_all] = own_part[own]; });
  }
}

// Sequences of the golden's first batch from `first` on, each with tokens behind it that nothing is asked of.
void fill_longer(const GoldenCase& golden, int64_t first, int64_t seq, const HostBatch& b) {
  const auto rows = b.tokens.size() / size_t(seq), had = size_t(golden.seq());
  std::vector<int32_t> tokens(rows * had), targets(tokens.size()), positions(tokens.size());
  golden.fill(0, int64_t(rows))(1, first / int64_t(rows), {tokens, targets, positions});
  for (size_t i = 0; i < b.tokens.size(); i++) {
    const size_t row = i / size_t(seq), at = i % size_t(seq), from = row * had + at;
    const bool longer = at >= had;
    b.tokens[i] = longer ? 1 : tokens[from], b.targets[i] = longer ? -1 : targets[from];
    b.positions[i] = int32_t(at);
  }
}

class OverRanks : public testing::TestWithParam<Layout> {};

TEST_P(OverRanks, EveryGradient) {
  const Layout l = GetParam();
  const GoldenCase golden(l.folder);
  MoeSpec moe;
  if (l.balanced) moe = {.aux_loss = 0.5, .z_loss = 0.05};
  RunSpec run = run_of(golden, "f32", "f32", l.micro, moe);
  run.batch.global = l.dp * l.micro;
  run.layout.dp = l.dp, run.layout.ep = l.ep, run.layout.ep_buffer = 1;
  run.layout.tp = l.tp, run.layout.sequence = l.sequence;
  run.layout.cp = l.cp, run.layout.cp_method = l.method, run.layout.cp_placement = l.placement;
  if (l.seq > 0) run.data.seq_len = l.seq;
  run = resolve(run, {});
  const Schedule schedule = schedule_of(run);
  const int64_t arena = book_training(run, schedule, 1).arena_bytes;
  std::mutex mutex;
  ByName got;
  run_rank_threads(
      int(run.world()), [&] { return golden_device(run); },
      [&](Device& device, CommFactory& factory) {
        CommSet comms(factory, mesh_of(run.layout));
        StageRunner r(run, RunMode::train, device, arena, &comms);
        r.init_weights();
        load(r, golden);
        const int64_t part = r.sharing().dp_rank % (golden.sequences() / l.micro);
        const int64_t times = l.dp * l.micro / golden.sequences();
        r.step(schedule.ranks[0], 1, golden.target_tokens(0) * times,
               [&](int64_t, int64_t, const HostBatch& b) {
                 fill_longer(golden, part * l.micro, run.data.seq_len, b);
               });
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
    Experts, OverRanks,
    testing::Values(Layout{"qwen2_moe", 2, 2, 1, false}, Layout{"qwen2_moe", 2, 2, 1, true},
                    Layout{"qwen2_moe", 1, 1, 2, true}, Layout{"qwen2_moe", 3, 3, 2, false},
                    Layout{"qwen2_moe", 3, 3, 2, true}, Layout{"qwen2_moe", 6, 3, 1, true},
                    Layout{"deepseek_v2", 3, 3, 2, false}, Layout{"deepseek_v3", 4, 4, 1, false},
                    Layout{"deepseek_v3", 2, 2, 1, false}));

// DeepSeek's heads over ranks, what is compressed on each of them; and its sequences.
INSTANTIATE_TEST_SUITE_P(
    Latent, OverRanks,
    testing::Values(
        Layout{.folder = "deepseek_v3", .dp = 1, .ep = 1, .micro = 2, .tp = 2, .seq = 38},
        Layout{.folder = "deepseek_v3", .dp = 2, .ep = 4, .micro = 1, .tp = 2, .seq = 38},
        Layout{.folder = "deepseek_v3", .dp = 1, .ep = 2, .micro = 2, .tp = 2, .seq = 40, .sequence = true},
        Layout{.folder = "deepseek_v3", .dp = 1, .ep = 2, .micro = 2, .cp = 2, .seq = 40},
        Layout{.folder = "deepseek_v2",
               .dp = 1,
               .ep = 1,
               .micro = 2,
               .cp = 3,
               .seq = 39,
               .placement = "striped"},
        Layout{
            .folder = "deepseek_yarn", .dp = 1, .ep = 3, .micro = 2, .cp = 3, .seq = 39, .method = "ulysses"},
        Layout{
            .folder = "deepseek_v3", .dp = 1, .ep = 1, .micro = 2, .cp = 4, .seq = 40, .method = "ulysses"},
        Layout{.folder = "deepseek_v3",
               .dp = 1,
               .ep = 4,
               .micro = 2,
               .tp = 2,
               .cp = 2,
               .seq = 40,
               .sequence = true}));

}  // namespace
}  // namespace trireme::golden
