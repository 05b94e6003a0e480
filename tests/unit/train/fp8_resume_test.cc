// A run of delayed scaling that changes its layout at every resume ends as one that never did, to the bit:
// the magnitudes that its scales follow from are in checkpoints.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/store.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

RunSpec fp8_spec(const fs::path& folder, int pp, int dp, int zero) {
  RunSpec r = tiny_run(folder, 12);
  r.precision.compute = "bf16", r.precision.fp8 = "delayed", r.precision.fp8_history = 5;
  r.layout.pp = pp, r.layout.dp = dp, r.layout.zero = zero;
  r.batch.micro = 2, r.batch.global = 2 * dp;
  r.train.keep = 9;
  return r;
}

TEST(Fp8Resume, AcrossLayouts) {
  TempFolder whole, broken;
  train_here(fp8_spec(whole.path(), 1, 2, 0));
  struct Stage {
    int pp, zero;
    int64_t stop;
  };
  for (const Stage s : {Stage{1, 1, 3}, {2, 3, 6}, {2, 0, 9}, {1, 2, 12}}) {
    TrainHooks hooks;
    hooks.step = [&](const StepMetrics& m) {
      if (m.step == s.stop && s.stop < 12) request_interrupt();
    };
    const TrainSummary summary = train_here(fp8_spec(broken.path(), s.pp, 2, s.zero), hooks);
    clear_interrupt();
    EXPECT_EQ(summary.last_step, s.stop);
  }
  const Outcome got = outcome_of(broken / "run"), want = outcome_of(whole / "run");
  EXPECT_EQ(got.step, 12);
  EXPECT_EQ(got.numbers, want.numbers);  // the magnitudes among them
  EXPECT_NE(got.numbers.find("\"fp8\""), std::string::npos);
  EXPECT_TRUE(got.tensors == want.tensors);
}

// What a manifest claims of them is judged before it is believed.
TEST(Fp8Resume, BrokenMagnitudesAreRefused) {
  TempFolder tmp;
  const RunSpec run = fp8_spec(tmp.path(), 1, 1, 0);
  train_here(run);
  Found found = find_newest(fs::path(run.train.dir) / "checkpoints");
  Manifest m = found.newest.value().manifest();
  const nlohmann::json good = m.state;
  ASSERT_TRUE(good.contains("fp8"));
  EXPECT_EQ(good["fp8"]["blocks.0.attn.q"]["dy"].size(), 5u);
  for (const char* broken :
       {R"({"fp8": 3})", R"({})", R"({"fp8": {"blocks.0.attn.q": {"x": [1], "w": [1], "dy": ["a"]}}})",
        R"({"fp8": [1, 2]})"}) {
    m.state = nlohmann::json::parse(broken);
    write_text_atomic(found.newest->folder() / "manifest.json", to_text(m));
    try {
      train_here(run);
      ADD_FAILURE() << "accepted: " << broken;
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      EXPECT_NE(std::string(e.what()).find("no magnitudes of 8-bit layers"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace trireme::test
