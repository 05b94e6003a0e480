// A run of Muon that changes its layout at every resume ends as one that never did, to the bit; so do the
// means of the noise scale.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/store.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

RunSpec spec(const fs::path& folder, const char* compute, int dp, int zero) {
  RunSpec r = tiny_run(folder, 12);
  r.optimizer.name = "muon", r.optimizer.adamw_lr = 3e-3;
  r.precision.compute = compute;
  r.layout.dp = dp, r.layout.zero = zero;
  r.batch.micro = 2, r.batch.global = 2 * dp;  // one microbatch: every stage is bit-identical
  r.train.async_save = true, r.train.noise_scale = 2, r.train.keep = 9;
  return r;
}

std::vector<std::string> column(const fs::path& run, const char* key) {
  std::vector<std::string> out;
  for (const std::string& line : lines_of(read_text(run / "metrics.jsonl")))
    if (auto m = nlohmann::json::parse(line); m.contains(key)) out.push_back(m[key].dump());
  return out;
}

TEST(MuonResume, AcrossLayouts) {
  for (const char* compute : {"f32", "bf16"})
    for (int dp : {2, 3}) {
      TempFolder whole, broken;
      train_here(spec(whole.path(), compute, dp, 0));
      // Leaves after steps 3, 6, 9: what is newer is taken away.
      for (int64_t zero : {1, 3, 0, 2}) {
        TrainHooks hooks;
        std::string notes;
        hooks.note = [&](const std::string& line) { notes += line + "\n"; };
        const int64_t stop = zero == 1 ? 3 : zero == 3 ? 6 : zero == 0 ? 9 : 12;
        hooks.step = [&](const StepMetrics& m) {
          if (m.step == stop && stop < 12) request_interrupt();
        };
        TrainSummary s = train_here(spec(broken.path(), compute, dp, int(zero)), hooks);
        clear_interrupt();
        EXPECT_EQ(s.last_step, stop);
        const bool told =
            notes.find(fmt::format("divided otherwise than it was saved: layout.zero: {} -> {}\n",
                                   zero == 3   ? 1
                                   : zero == 0 ? 3
                                               : 0,
                                   zero)) != std::string::npos;
        EXPECT_EQ(told, zero != 1) << notes;
      }
      Outcome got = outcome_of(broken / "run"), want = outcome_of(whole / "run");
      EXPECT_EQ(got.step, 12);
      EXPECT_EQ(got.numbers, want.numbers);  // the state of the noise scale among them, where stages agree
      EXPECT_TRUE(got.tensors == want.tensors) << compute << " dp " << dp;
      EXPECT_EQ(column(broken / "run", "loss"), column(whole / "run", "loss"));
      EXPECT_EQ(column(broken / "run", "noise_scale").size(), 6u);
      EXPECT_EQ(column(broken / "run", "noise_scale"), column(whole / "run", "noise_scale"));
      // Hidden matrices have one moment.
      EXPECT_TRUE(got.tensors.count("blocks.0.attn.q.weight/exp_avg"));
      EXPECT_FALSE(got.tensors.count("blocks.0.attn.q.weight/exp_avg_sq"));
      EXPECT_TRUE(got.tensors.count("embed.tokens.weight/exp_avg_sq"));
    }
}

// What a manifest claims of the noise scale is judged before it is believed.
TEST(MuonResume, ABrokenNoiseScaleIsRefused) {
  TempFolder tmp;
  RunSpec run = spec(tmp.path(), "f32", 2, 1);
  train_here(run);
  Found found = find_newest(fs::path(run.train.dir) / "checkpoints");
  Manifest m = found.newest.value().manifest();
  ASSERT_TRUE(m.state.contains("noise_scale"));
  for (const char* broken :
       {R"({"noise_scale": 3})", R"({"noise_scale": {"squared": 1, "trace": "x", "weight": 1}})"}) {
    m.state = nlohmann::json::parse(broken);
    write_text_atomic(found.newest->folder() / "manifest.json", to_text(m));
    try {
      train_here(run);
      ADD_FAILURE() << "accepted: " << broken;
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      EXPECT_NE(std::string(e.what()).find("no noise scale that this run can go on with"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace trireme::test
