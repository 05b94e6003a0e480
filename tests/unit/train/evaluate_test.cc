// evaluate_shard() against a sum by hand: logits of one window at a time, log-softmax in double.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "data/token_shard.h"
#include "runtime/booking.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

struct Model {
  std::unique_ptr<Device> device;
  std::unique_ptr<StageRunner> runner;

  explicit Model(const RunSpec& run) : device(make_device("cpu", {.threads = 1})) {
    runner = std::make_unique<StageRunner>(run, RunMode::infer, *device, book_inference(run, 1));
    runner->init_weights();
  }
};

RunSpec f32_run(const fs::path& folder) {
  RunSpec run = tiny_run(folder, 1);
  run.precision.compute = run.precision.grads = "f32";
  run.model.init_std = 0.3;  // far from uniform
  return run;
}

struct Sum {
  double loss = 0;
  int64_t tokens = 0;
};

Sum by_hand(Model& m, const RunSpec& run, const fs::path& name, int64_t windows) {
  TokenShard shard = TokenShard::open(name);
  Sum sum;
  std::vector<int32_t> ids(size_t(run.data.seq_len) + 1);
  std::vector<float> logits;
  const size_t vocab = size_t(run.model.vocab);
  for (int64_t w = 0; w < windows; w++) {
    shard.read(w * run.data.seq_len, ids, run.model.vocab);
    m.runner->logits(std::span(ids).first(ids.size() - 1), logits);
    for (size_t t = 0; t + 1 < ids.size(); t++) {
      const float* row = logits.data() + t * vocab;
      double total = 0;
      for (size_t v = 0; v < vocab; v++) total += std::exp(double(row[v]));
      sum.loss += std::log(total) - double(row[ids[t + 1]]);
      sum.tokens++;
    }
  }
  return sum;
}

TEST(Evaluate, IsTheMeanOverAllWholeWindows) {
  TempFolder tmp;
  RunSpec run = f32_run(tmp.path());
  for (int64_t micro : {1, 2, 5, 64}) {
    run.batch = {.global = micro, .micro = micro};
    Model m(run);
    for (const std::string& shard : {run.data.train.first(), run.data.valid.first()}) {
      int64_t tokens = TokenShard::open(shard).tokens(), windows = (tokens - 1) / run.data.seq_len;
      EvalResult e = evaluate_shard(*m.runner, run, shard);
      Sum want = by_hand(m, run, shard, windows);
      EXPECT_EQ(e.tokens, want.tokens) << shard << " micro " << micro;
      EXPECT_NEAR(e.loss, want.loss / double(want.tokens), 1e-6) << shard << " micro " << micro;
    }
  }
}

TEST(Evaluate, MostBatchesAreMicrobatches) {
  TempFolder tmp;
  RunSpec run = f32_run(tmp.path());
  Model m(run);
  int64_t windows = (TokenShard::open(run.data.valid.first()).tokens() - 1) / run.data.seq_len;
  ASSERT_GT(windows, 6);
  for (int64_t most : {int64_t(1), int64_t(3), int64_t(1) << 62}) {
    int64_t n = most > windows ? windows : 2 * most;
    EvalResult e = evaluate_shard(*m.runner, run, run.data.valid.first(), most);
    EXPECT_EQ(e.tokens, n * run.data.seq_len) << most;
    EXPECT_NEAR(e.loss, by_hand(m, run, run.data.valid.first(), n).loss / double(e.tokens), 1e-6) << most;
  }
}

// What the hook throws ends the evaluation, and the runner can start another.
TEST(Evaluate, TellsItsProgressAndCanBeLeft) {
  TempFolder tmp;
  RunSpec run = f32_run(tmp.path());
  Model m(run);
  int64_t windows = (TokenShard::open(run.data.valid.first()).tokens() - 1) / run.data.seq_len, last = 0;
  EvalResult whole =
      evaluate_shard(*m.runner, run, run.data.valid.first(), 0, [&](int64_t done, int64_t total) {
        EXPECT_EQ(total, windows);
        EXPECT_EQ(done, std::min(windows, last + run.batch.micro));
        last = done;
      });
  EXPECT_EQ(last, windows);
  auto leave = [](int64_t done, int64_t) {
    if (done >= 4) run_failed("left");
  };
  EXPECT_THROW(evaluate_shard(*m.runner, run, run.data.valid.first(), 0, leave), Error);
  EXPECT_EQ(evaluate_shard(*m.runner, run, run.data.valid.first()).loss, whole.loss);
}

TEST(Evaluate, RefusesAShardWithoutAWindow) {
  TempFolder tmp;
  RunSpec run = f32_run(tmp.path());
  Model m(run);
  put_file(tmp / "short.bin", std::string(2 * 13, '\0'));  // 13 tokens: a window of 13 has no last target
  try {
    evaluate_shard(*m.runner, run, tmp / "short.bin");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("short.bin"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("13"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace trireme::test
