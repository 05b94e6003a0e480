// Costs that decide: prices by region, energy, mixed devices, adapters, service, and plan's answer on one
// screen. Values are worked out by hand.
#include "forecast/run_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "catalog/catalog.h"
#include "catalog/price_list.h"
#include "estimate/serving.h"
#include "forecast/alternatives.h"
#include "forecast/scaled_run.h"
#include "forecast/searched_step.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

std::string refused(const std::string& region, std::string_view device) {
  try {
    listed_price("", region, device);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PriceList, IsByDeviceAndRegion) {
  EXPECT_DOUBLE_EQ(listed_price("", "US-East-1", "h100").per_hour, 12.29);
  EXPECT_DOUBLE_EQ(listed_price("", "eu-west-1", "A100-40GB").per_hour, 4.42);
  EXPECT_EQ(listed_price("", "", "H100").per_hour, 0);
  EXPECT_NE(refused("mars", "A100-40GB").find("it has us-east-1, eu-west-1"), std::string::npos);
  EXPECT_NE(refused("us-east-1", "Z80").find("no price of Z80"), std::string::npos);
  const PriceList own =
      parse_prices("[[price]]\ndevice = \"X\"\nregion = \"here\"\nper_hour = 2\n", "own.toml");
  ASSERT_EQ(own.rows.size(), 1u);
  EXPECT_EQ(own.rows[0].per_hour, 2);
  EXPECT_THROW(parse_prices("[[price]]\ndevice = \"X\"\nper_huor = 2\n", "own.toml"), Error);
}

TEST(RunCosts, EnergyIsPowerTimesTime) {
  ClusterSpec c{.devices_per_node = 8};
  c.power = {.device = 700, .node = 4600, .pue = 1.2};
  EXPECT_DOUBLE_EQ(run_watts(c, 16), 1.2 * (16 * 700 + 2 * 4600));
  // 24.48 kW x 10 s = 68 Wh; of 4e6 tokens, 17 kWh per 1e9.
  EXPECT_EQ(energy_text(c, 16, 10, 4e6), "24.5 kW; 68 Wh per step, 17.0 kWh per billion tokens");
  c.power.node = 0;
  EXPECT_EQ(power_text(c, 16), "13.4 kW of the devices alone (power.node is not stated)");
}

TEST(RunCosts, MixedDevicesWaitForTheSlowest) {
  ClusterSpec c{.nodes = 3, .devices_per_node = 8};
  EXPECT_EQ(kinds_text(c), "");
  c.kinds = {{.name = "H100", .nodes = 1, .peak = {.bf16 = 989e12}, .memory_bytes = 85899345920},
             {.name = "A100-40GB", .nodes = 2, .peak = {.bf16 = 312e12}, .memory_bytes = 42949672960}};
  // One node of H100s alone: 989 against 3 x 312 = 936.
  EXPECT_EQ(kinds_text(c),
            "8 x H100, 16 x A100-40GB: steps wait for A100-40GB (312 TFLOP/s), memory is of A100-40GB "
            "(42.9 GB); H100 alone have 1.06 x the peak of all");
}

// Llama 3 8B on one H100, a cache of 8,192 tokens: decode reads weights and caches once for each token.
TEST(Serving, DecodesAtTheBandwidthOfMemory) {
  const KnownShape* shape = shipped_catalog().shape_named("llama3-8B");
  ASSERT_TRUE(shape);
  RooflineCase c{.model = shape->model, .figures = shipped_catalog().device_called("H100")->figures};
  c.model.finish(8192);
  const std::optional<Serving> s = serving_of(c, 8192, 0);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->tp, 1);
  // 0.9 x 85.9 GB - 16.1 GB of weights hold 57 texts of 1.07 GB: a power of two is 32.
  EXPECT_EQ(s->batch, 32);
  const double bytes = 2 * 7.5e9 + 32 * 8192 * 131072.0;  // the input table is not read
  EXPECT_NEAR(s->token_s, bytes / 3.35e12, 0.03 * s->token_s);
  // 2 x 7.5e9 FLOPs per token and attention's, at the peak: 0.14 s and more.
  EXPECT_GT(s->first_token_s, 2 * 7e9 * 8192 / 989e12);
  EXPECT_LT(s->first_token_s, 1.3 * 2 * 7.5e9 * 8192 / 989e12);
  c.tp = 8;
  EXPECT_LT(serving_of(c, 8192, 0)->first_token_s, s->first_token_s / 3);
}

RunSpec gpu_run() {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.layers = 8;
  run.model.hidden = 2048;
  run.model.heads = run.model.kv_heads = 16;
  run.model.ffn = 8192;
  run.model.vocab = 32000;
  run.data.seq_len = 1024;
  run.model.finish(run.data.seq_len);
  run.batch.global = 16;
  run.batch.micro = 2;
  run.layout.dp = 8;
  run.layout.zero = 1;
  run.train.device = "cuda";
  run.train.comm = "nccl";
  run.train.sum_order = "auto";
  run.cluster.file = "h100-sxm-8";
  return resolve(run, {.native_bf16 = true});
}

Forecast planned(const RunSpec& run) {
  const ClusterSpec c = cluster_called(run.cluster.file, run.world());
  Forecast f = forecast(run, schedule_of(run), c, 1);
  find_alternatives(f, run, c);
  return f;
}

// Sums among the two machines of a leaf take as long as without oversubscription, larger groups longer.
TEST(RunCosts, OversubscriptionSlowsWhatLeavesALeaf) {
  ClusterSpec flat = cluster_called("h100-sxm-8", 8);
  flat.nodes = 4;
  flat.inter_node = {.latency = 1e-5, .bandwidth = 400e9};
  ClusterSpec leaves = flat;
  leaves.leaf_nodes = 2;
  leaves.oversubscription = 4;
  RunSpec run = gpu_run();
  run.batch.micro = 1;
  for (const int64_t dp : {16, 32}) {
    run.layout.dp = run.batch.global = dp;
    const std::optional<SearchedStep> a = searched_step(run, flat);
    const std::optional<SearchedStep> b = searched_step(run, leaves);
    ASSERT_TRUE(a && b);
    if (dp == 16) {
      EXPECT_DOUBLE_EQ(a->closed_s, b->closed_s);
      EXPECT_DOUBLE_EQ(a->step_s, b->step_s);
    } else {
      EXPECT_GT(b->closed_s, 1.1 * a->closed_s);
      EXPECT_GT(b->step_s, 1.1 * a->step_s);
    }
  }
}

TEST(RunCosts, AdaptersTakeFewerFlopsAndLessState) {
  RunSpec run = gpu_run();
  const Forecast all = planned(run);
  run.lora.rank = 8;
  const Forecast few = planned(run);
  ASSERT_TRUE(few.expected);
  // 2 x forward instead of 3: weight gradients of frozen matrices are not computed.
  EXPECT_NEAR(few.model_flops / all.model_flops, 2.0 / 3, 0.05);
  EXPECT_LT(few.step_s, 0.9 * all.step_s);
  EXPECT_LE(few.roof_s, few.step_s);
  EXPECT_LT(few.low_s, few.step_s);
  EXPECT_GT(few.high_s, few.step_s);
  const auto state = [](const Forecast& f) {
    return f.booking.state[size_t(Bucket::grads)] + f.booking.state[size_t(Bucket::optimizer)];
  };
  EXPECT_LT(state(few), state(all) / 20);
  EXPECT_LT(few.checkpoint.bytes, all.checkpoint.bytes / 20);
  EXPECT_DOUBLE_EQ(few.checkpoint.bytes, 12.0 * double(few.booking.trained));
}

TEST(Answer, OfAPlanFitsAScreen) {
  RunSpec run = gpu_run();
  const ClusterSpec c = cluster_called(run.cluster.file, run.world());
  for (const bool lora : {false, true}) {
    if (lora) run.lora.rank = 8;
    const Forecast f = planned(run);
    const std::string text = answer_text(run, f, c);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 25) << text;
    for (const char* part : {" expected, ", "[bound ", " of 85.9 GB (80 GiB): fits", "  binds ", "products ",
                             "  checkpoint ", "kWh per billion tokens"})
      EXPECT_NE(text.find(part), std::string::npos) << part << text;
    EXPECT_EQ(f.alternatives.size(), lora ? 0u : 2u);
  }
}

// "layout.tp = 2 with layout.dp = 4 and layout.sequence = true", as overrides of a run file.
Texts overrides_of(std::string change) {
  Texts all;
  for (const std::string& joint : {std::string(" with "), std::string(" and ")})
    for (size_t at; (at = change.find(joint)) != change.npos;) change.replace(at, joint.size(), "\n");
  std::istringstream lines(change);
  for (std::string line; std::getline(lines, line);) {
    line.replace(line.find(" = "), 3, "=");
    all.list.push_back(line);
  }
  return all;
}

// An alternative has the step and the bytes that `plan` prints of the changed run, and fits.
TEST(Answer, AlternativesAreOtherRuns) {
  const RunSpec run = gpu_run();
  const Forecast f = planned(run);
  ASSERT_EQ(f.alternatives.size(), 2u);
  EXPECT_LE(f.alternatives[0].step_s, f.alternatives[1].step_s);
  for (const Alternative& a : f.alternatives) {
    EXPECT_GT(a.step_s, 0.5 * f.step_s) << a.change;
    EXPECT_LE(a.bytes, double(f.memory_bytes)) << a.change;
    const RunSpec changed =
        resolve(parse_run(save_run(run), "test", overrides_of(a.change).list), {.native_bf16 = true});
    const Forecast own = planned(changed);
    EXPECT_NEAR(a.step_s / own.step_s, 1, 1e-9) << a.change;
    EXPECT_EQ(a.bytes, double(own.device_bytes()) + beside_bytes(changed)) << a.change;
  }
}

}  // namespace
}  // namespace trireme
