// What a run reads from and writes to its disk, or the host's memory, in a forecast: closed forms of the
// bytes, and of the seconds where the disk is all that takes time.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cost/memory.h"
#include "forecast/forecast.h"
#include "spec/run_schedule.h"
#include "tiny_llama.h"

namespace trireme {
namespace {

RunSpec with_offload(const char* offload, const char* compute = "f32", int64_t dp = 1, int64_t zero = 0) {
  RunSpec r = test::tiny_llama(3, 2, dp);
  r.precision.compute = compute, r.layout.zero = zero, r.layout.offload = offload;
  if (r.layout.offloads_inputs()) r.layout.recompute = "full";
  if (r.layout.offloads_state()) r.layout.offload_mb = 0.05;
  return r;
}

// Compute takes next to nothing.
ClusterSpec of_disk(double bandwidth) {
  ClusterSpec c;
  c.peak = {.f32 = 1e18, .bf16 = 1e18}, c.memory_bandwidth = 1e18;
  c.intra_node = {.latency = 1e-12, .bandwidth = 1e18};
  c.disk_bandwidth = bandwidth;
  return c;
}

TEST(Disk, BytesAreThoseOfTheClosedForms) {
  for (const auto& [compute, dp, zero] : {std::tuple("f32", 1, 0), {"bf16", 1, 0}, {"bf16", 3, 1}}) {
    const RunSpec run = with_offload("all", compute, dp, zero);
    const Forecast f = forecast(run, schedule_of(run), of_disk(1e6), 1);
    const int64_t element = run.precision.compute == "f32" ? 4 : 2, kinds = element == 4 ? 2 : 3;
    const int64_t part = flat_elements(run.model, {.zero = zero, .shards = dp}) / dp;
    // Of each block and microbatch the input, once each way.
    const int64_t inputs = 3 * 2 * 2 * 23 * 36 * element, state = part * kinds * 4;
    EXPECT_EQ(f.disk_read, inputs + state) << compute << dp;
    EXPECT_EQ(f.disk_written, inputs + state) << compute << dp;
    const auto j = nlohmann::json::parse(to_json(run, f))["best"]["disk"];
    EXPECT_EQ(j["bytes_read"], f.disk_read);
    EXPECT_EQ(j["bytes_written"], f.disk_written);
  }
}

// Rank threads share the machine's disk. The first piece is read before any is updated, and the last is
// written after all are: what lies between goes both ways at once, so compute waits for half of it and a
// piece.
TEST(Disk, SecondsAreBytesByTheBandwidth) {
  for (const int64_t dp : {1, 3}) {
    const RunSpec run = with_offload("state", "f32", dp, dp > 1);
    const double bandwidth = 1e6;
    const Forecast f = forecast(run, schedule_of(run), of_disk(bandwidth), 1);
    const double all = double(f.disk_read + f.disk_written) * double(dp) / bandwidth;
    const double piece = 4096 * 8.0 * double(dp) / bandwidth;
    EXPECT_NEAR(f.time.disk_s, all, 1e-6);
    EXPECT_GT(f.time.exposed_disk_s, all / 2);
    EXPECT_LE(f.time.exposed_disk_s, all / 2 + 3 * piece);
    EXPECT_NEAR(f.step_s, f.time.exposed_disk_s, 1e-6);
    EXPECT_LT(f.time.exposed_s, 1e-6);  // none of it is the wire's
    const std::string text = to_text(run, f, of_disk(bandwidth));
    EXPECT_NE(text.find("to and from the disk in a step, each rank (layout.offload = \"state\")"),
              std::string::npos);
    EXPECT_NE(text.find(fmt::format("  of a rank: {:.3f} ms of the disk", f.time.disk_s * 1e3)),
              std::string::npos)
        << text;
  }
}

// ---- the host's memory ----

RunSpec with_host(const char* offload, const char* compute = "f32", int64_t dp = 1, int64_t zero = 0) {
  RunSpec r = with_offload(offload, compute, dp, zero);
  if (r.layout.offload != "none") r.layout.offload_to = "host";
  r.train.device = "cuda";
  return r;
}
ClusterSpec of_host(double bandwidth) {
  ClusterSpec c = of_disk(3);
  c.host_bandwidth = bandwidth;
  return c;
}

TEST(HostMemory, BytesAreThoseOfTheClosedForms) {
  for (const auto& [compute, dp, zero] : {std::tuple("f32", 1, 0), {"bf16", 1, 0}, {"bf16", 3, 1}}) {
    const RunSpec run = with_host("all", compute, dp, zero);
    const Forecast f = forecast(run, schedule_of(run), of_host(1e6), 1);
    const int64_t element = run.precision.compute == "f32" ? 4 : 2, kinds = element == 4 ? 2 : 3;
    const int64_t part = flat_elements(run.model, {.zero = zero, .shards = dp}) / dp;
    const int64_t inputs = 3 * 2 * 23 * 36 * element, state = part * kinds * 4;  // of one microbatch
    EXPECT_EQ(f.host_read, 2 * inputs + state) << compute << dp;
    EXPECT_EQ(f.host_written, 2 * inputs + state) << compute << dp;
    EXPECT_EQ(f.booking.waiting_bytes, inputs + state) << compute << dp;
    EXPECT_EQ(f.disk_read + f.disk_written, 0);
    const auto j = nlohmann::json::parse(to_json(run, f))["best"];
    EXPECT_EQ(j["host"]["bytes_read"], f.host_read);
    EXPECT_EQ(j["host"]["bytes_written"], f.host_written);
    EXPECT_EQ(j["host"]["bytes_held"], f.booking.waiting_bytes);
    EXPECT_FALSE(j.contains("disk"));
  }
}

// Each device has a link of its own, and each way the bandwidth for itself.
TEST(HostMemory, SecondsAreBytesByTheBandwidth) {
  for (const int64_t dp : {1, 3}) {
    const RunSpec run = with_host("state", "f32", dp, dp > 1);
    const double bandwidth = 1e6;
    const Forecast f = forecast(run, schedule_of(run), of_host(bandwidth), 1);
    const double all = double(f.host_read + f.host_written) / bandwidth;
    EXPECT_NEAR(f.time.host_s, all, 1e-6);
    EXPECT_GT(f.time.exposed_host_s, all / 2);
    EXPECT_LE(f.time.exposed_host_s, all / 2 + 3 * 4096 * 8.0 / bandwidth);
    EXPECT_NEAR(f.step_s, f.time.exposed_host_s, 1e-6);
    EXPECT_EQ(f.time.disk_s + f.time.exposed_disk_s, 0);
    EXPECT_LT(f.time.exposed_s, 1e-6);
    const std::string text = to_text(run, f, of_host(bandwidth));
    EXPECT_NE(text.find("to and from the host's memory in a step, each rank (layout.offload = \"state\")"),
              std::string::npos);
    EXPECT_NE(text.find(fmt::format("  of a rank: {:.3f} ms to and from the host's memory, {:.3f} ms of it",
                                    f.time.host_s * 1e3, f.time.exposed_host_s * 1e3)),
              std::string::npos)
        << text;
  }
}

TEST(HostMemory, WithoutABandwidthItIsSaidThatItTakesNoTime) {
  const RunSpec run = with_host("inputs");
  const Forecast f = forecast(run, schedule_of(run), of_host(0), 1);
  EXPECT_FALSE(f.host_priced);
  EXPECT_FALSE(f.offload_priced());
  EXPECT_EQ(f.time.host_s, 0);
  EXPECT_TRUE(nlohmann::json::parse(to_json(run, f))["best"]["host"]["seconds"].is_null());
  EXPECT_NE(to_text(run, f, of_host(0)).find("the bandwidth to it is not known"), std::string::npos);
  const RunSpec none = with_host("none");
  const Forecast g = forecast(none, schedule_of(none), of_host(0), 1);
  EXPECT_TRUE(g.offload_priced());
  EXPECT_FALSE(nlohmann::json::parse(to_json(none, g))["best"].contains("host"));
  EXPECT_EQ(to_text(none, g, of_host(0)).find("the host's"), std::string::npos);
}

TEST(Disk, WithoutABandwidthItIsSaidThatItTakesNoTime) {
  const RunSpec run = with_offload("inputs");
  const Forecast f = forecast(run, schedule_of(run), of_disk(0), 1);
  EXPECT_FALSE(f.disk_priced);
  EXPECT_EQ(f.time.disk_s, 0);
  EXPECT_TRUE(nlohmann::json::parse(to_json(run, f))["best"]["disk"]["seconds"].is_null());
  EXPECT_NE(to_text(run, f, of_disk(0)).find("the disk: its bandwidth is not known"), std::string::npos);
  const RunSpec none = with_offload("none");
  const Forecast g = forecast(none, schedule_of(none), of_disk(0), 1);
  EXPECT_TRUE(g.disk_priced);
  EXPECT_FALSE(nlohmann::json::parse(to_json(none, g))["best"].contains("disk"));
  EXPECT_EQ(to_text(none, g, of_disk(0)).find("disk"), std::string::npos);
}

}  // namespace
}  // namespace trireme
