// train.sum_order in a forecast: what each kind of collective will use, and what "auto" needs.
#include <gtest/gtest.h>

#include "base/json.h"
#include "comm/options.h"
#include "forecast/forecast.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec tiny(const char* order) {
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = 61, r.model.layers = 2, r.model.hidden = 36, r.model.heads = 3, r.model.kv_heads = 1;
  r.model.ffn = 52;
  r.data.seq_len = 23;
  r.batch.micro = 2, r.batch.global = 8;
  r.precision.compute = "f32", r.precision.grads = "f32", r.precision.reduce = "f32";
  r.layout.dp = 4, r.layout.zero = 1;
  r.train.steps = 20, r.train.threads = 1, r.train.sum_order = order;
  r.model.finish(r.data.seq_len);
  return r;
}

// Two machines of two ranks, tied by a link that is slower by far.
ClusterSpec two_nodes() {
  ClusterSpec c;
  c.nodes = 2, c.devices_per_node = 2;
  c.peak = {.f32 = 1e11, .bf16 = 2e11}, c.memory_bandwidth = 1e11;
  c.intra_node = {.latency = 1e-6, .bandwidth = 1e10}, c.inter_node = {.latency = 5e-5, .bandwidth = 1e8};
  return c;
}

std::string shown(const RunSpec& run, const ClusterSpec& cluster) {
  const Forecast f = forecast(run, schedule_of(run), cluster, 1);
  const auto wire = nlohmann::json::parse(to_json(run, f))["best"]["wire"];
  const auto algorithms = wire["reduce_scatter"]["algorithms"];
  EXPECT_EQ(algorithms.size(), 1u);
  const std::string name = algorithms[0];
  const std::string text = to_text(run, f, cluster);
  const size_t line = text.find("  reduce_scatter ");
  EXPECT_NE(line, std::string::npos) << text;
  EXPECT_NE(text.substr(line, text.find('\n', line) - line).find("  " + name), std::string::npos) << text;
  return name;
}

TEST(SumOrder, IsShownByThePlan) {
  for (const char* order : {"ordered", "ring", "halving"}) EXPECT_EQ(shown(tiny(order), two_nodes()), order);
  EXPECT_EQ(shown(tiny("hierarchical"), two_nodes()), "halving") << "rank threads are on one machine";
  RunSpec run = tiny("hierarchical");
  run.train.comm = "mpi";
  EXPECT_EQ(shown(run, two_nodes()), "hierarchical");
}

// Across machines what crosses the slow link counts: hierarchical sends a half of ring's there in far fewer
// rounds; on one machine halving has the fewest.
TEST(SumOrder, AutoFollowsTheLinks) {
  RunSpec run = tiny("auto");
  EXPECT_EQ(shown(run, two_nodes()), "halving");
  run.train.comm = "mpi";
  EXPECT_EQ(shown(run, two_nodes()), "hierarchical");
}

TEST(SumOrder, AutoWithoutLinksIsRefused) {
  RunSpec run = tiny("auto");
  ClusterSpec none = two_nodes();
  none.intra_node = {};
  try {
    forecast(run, schedule_of(run), none, 1);
    ADD_FAILURE() << "nothing is known to choose by";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("train.sum_order"), std::string::npos) << e.what();
  }
  run.layout.dp = 1;
  EXPECT_EQ(forecast(run, schedule_of(run), none, 1).booking.comm[0].calls, 0) << "one rank adds nothing";
}

// What `bench` measured by rank threads (such a file says with how many) is not the processes' link.
TEST(SumOrder, ProcessesDoNotTakeTheLinksOfRankThreads) {
  RunSpec run = tiny("auto");
  ClusterSpec measured = two_nodes();
  measured.nodes = 1, measured.threads = 2;
  EXPECT_EQ(shown(run, measured), "halving");
  run.train.comm = "mpi";
  try {
    forecast(run, schedule_of(run), measured, 1);
    ADD_FAILURE() << "the link of rank threads was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("`mpirun -n 2 trireme bench`"), std::string::npos) << e.what();
  }
  measured.intra_node_mpi = {.latency = 1e-3, .bandwidth = 1e9};
  EXPECT_EQ(shown(run, measured), "halving");
  EXPECT_DOUBLE_EQ(options_of(run, measured).inside.alpha, 1e-3);
  run.train.comm = "thread";
  EXPECT_DOUBLE_EQ(options_of(run, measured).inside.alpha, 1e-6);
  // One rank a machine: nothing is inside.
  run.train.comm = "mpi", measured.intra_node_mpi = {}, measured.nodes = 4, measured.devices_per_node = 1;
  EXPECT_EQ(shown(run, measured), "halving");
  measured.nodes = 2;
  EXPECT_THROW(forecast(run, schedule_of(run), measured, 1), Error);
}

}  // namespace
}  // namespace trireme
