// One layout key is changed: the step times that the search's closed form and the simulator give for the
// layout change alike.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "catalog/catalog.h"
#include "forecast/scaled_run.h"
#include "forecast/searched_step.h"

namespace trireme {
namespace {

using Sets = std::vector<std::string>;

struct Times {
  double searched = 0, simulated = 0;  // 0: refused
};

Times times_of(const char* model, Sets sets) {
  RunSpec base;
  base.model = shipped_catalog().shape_named(model)->model;
  base.model.finish(4096), base.model.max_positions = 0;
  sets.insert(sets.begin(), {"data.seq_len=4096", "train.device=cuda", "train.comm=nccl"});
  const RunSpec run = resolve(parse_run(save_run(base), "test", sets), {.native_bf16 = true});
  const auto* known = shipped_catalog().device_named("H100");
  SubjectDevice device;
  device.name = known->name;
  device.figures = known->figures;
  device.host = 50e9;
  LayoutCase q = layout_case_of(run, device);
  const ScaledRun scaled{.run = run,
                         .figures = device.figures,
                         .by = {.device = device.name},
                         .software = kTrireme,
                         .offload = q.disk,
                         .offload_each_way = q.disk_each_way};
  Times t;
  try {
    t.simulated = double(replay_world(world_of(scaled)).replay.makespan) * 1e-9;
  } catch (const Error& e) {
    if (e.fault != Fault::request) throw;
    return t;  // refused by name, as searched_step() refuses it
  }
  q.keys = run.layout;
  if (const auto l = layout_of(run)) t.searched = price_layout(q, *l).time.total;
  return t;
}

struct Layout {
  const char* model;
  Sets sets;
};
const Layout kLayouts[] = {
    {"llama3-8B", {"layout.dp=8", "layout.zero=3", "batch.global=32", "batch.micro=1"}},
    {"llama3-8B", {"layout.dp=8", "layout.zero=0", "batch.global=32", "batch.micro=1"}},
    {"llama3-8B",
     {"layout.tp=4", "layout.dp=16", "layout.sequence=true", "layout.zero=1", "batch.global=64",
      "batch.micro=1"}},
    {"llama3-8B", {"layout.pp=4", "layout.dp=4", "layout.zero=1", "batch.global=64", "batch.micro=1"}},
    {"llama3-8B", {"layout.cp=2", "layout.dp=4", "layout.zero=1", "batch.global=16", "batch.micro=1"}},
    {"mixtral-8x7B", {"layout.dp=16", "layout.ep=8", "layout.zero=1", "batch.global=64", "batch.micro=1"}},
};
// A value that is not the default's.
const std::map<std::string, std::string> kChanges = {{"layout.sequence", "false"},
                                                     {"layout.cp_method", "ulysses"},
                                                     {"layout.cp_placement", "striped"},
                                                     {"layout.cp_overlap", "false"},
                                                     {"layout.zero", "2"},
                                                     {"layout.shard_group", "4"},
                                                     {"layout.prefetch", "3"},
                                                     {"layout.reshard_after_forward", "false"},
                                                     {"layout.reshard_last", "false"},
                                                     {"layout.bucket_mb", "2000"},
                                                     {"layout.tp_chunks", "4"},
                                                     {"layout.ep_buffer", "4"},
                                                     {"layout.ep_load", "2"},
                                                     {"layout.recompute", "full"},
                                                     {"layout.recompute_blocks", "4"},
                                                     {"layout.recompute_shard", "true"},
                                                     {"layout.offload", "state"},
                                                     {"layout.cut", "even"},
                                                     {"layout.stage_layers", "[11, 9, 7, 5]"},
                                                     {"precision.reduce", "f32"},
                                                     {"precision.grads", "f32"},
                                                     {"precision.moments", "bf16"},
                                                     {"optimizer.name", "muon"},
                                                     {"batch.micro", "2"},
                                                     {"layout.order", "pp tp cp dp"}};

TEST(Keys, MoveSearchAndSimulatorAlike) {
  std::set<std::string> one_sided;
  for (const Layout& l : kLayouts) {
    const Times before = times_of(l.model, l.sets);
    ASSERT_GT(before.searched, 0);
    ASSERT_NEAR(before.searched / before.simulated, 1, 0.01) << l.sets[0];
    for (const auto& [key, value] : kChanges) {
      Sets sets = l.sets;
      sets.push_back(key + "=" + value);
      Times after;
      try {
        after = times_of(l.model, sets);
      } catch (const Error& e) {
        if (e.fault != Fault::request) throw;
        continue;  // not of this layout
      }
      if (after.searched == 0 && after.simulated == 0) continue;
      const bool alike =
          after.searched > 0 && after.simulated > 0 && std::abs(after.searched / after.simulated - 1) < 0.01;
      if (!alike) {
        one_sided.insert(key);
        fmt::print("{} = {}: search {:.4f} -> {:.4f} s, simulator {:.4f} -> {:.4f} s ({} {})\n", key, value,
                   before.searched, after.searched, before.simulated, after.simulated, l.sets[0], l.sets[1]);
      }
    }
  }
  EXPECT_EQ(one_sided, std::set<std::string>{});
}

}  // namespace
}  // namespace trireme
