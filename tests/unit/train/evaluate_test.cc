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
    m.runner->evaluator().logits(std::span(ids).first(ids.size() - 1), logits);
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

// Puts one value into a weight, or into the gain of a norm.
void damage_weight(Model& m, std::string_view name, float value) {
  const Param* p = m.runner->params().find(name);
  ASSERT_NE(p, nullptr) << name;
  std::vector<float> host(size_t(m.runner->memory().owned(*p).size()));
  m.runner->memory().read_param(*p, "", host);
  host[host.size() / 2] = value;
  m.runner->memory().write_param(*p, "", host);
  m.runner->weights_from_master();
}

// Whatever weight, value and type: no loss is returned, and the weight is named.
TEST(Evaluate, AWeightThatIsNotFiniteIsNamed) {
  TempFolder tmp;
  for (const char* compute : {"f32", "bf16", "f16"})
    for (const char* weight :
         {"blocks.1.mlp.up.weight", "blocks.0.attn.q.weight", "head.weight", "norm.weight"})
      for (const float value : {NAN, INFINITY, -INFINITY}) {
        RunSpec run = f32_run(tmp.path());
        run.precision.compute = compute;
        Model m(run);
        damage_weight(m, weight, value);
        try {
          evaluate_shard(*m.runner, run, run.data.valid.first());
          ADD_FAILURE() << compute << " " << weight << " " << value;
        } catch (const Error& e) {
          EXPECT_EQ(e.fault, Fault::run);
          EXPECT_EQ(std::string(e.what()).find(std::string("evaluation: 1 of ")), 0u) << e.what();
          EXPECT_NE(std::string(e.what()).find(weight), std::string::npos) << e.what();
        }
      }
}

// Weights that are finite, and products of them that are not: the layer and op are named.
TEST(Evaluate, AnOverflowIsNamedByLayerAndOp) {
  TempFolder tmp;
  RunSpec run = f32_run(tmp.path());
  Model m(run);
  for (const char* weight : {"blocks.0.mlp.up.weight", "blocks.0.mlp.gate.weight"}) {
    const Param* p = m.runner->params().find(weight);
    ASSERT_NE(p, nullptr);
    m.runner->memory().write_param(*p, "",
                                   std::vector<float>(size_t(m.runner->memory().owned(*p).size()), 1e30f));
  }
  try {
    evaluate_shard(*m.runner, run, run.data.valid.first());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("evaluation: "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("first in the output of"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("blocks.0.mlp"), std::string::npos) << e.what();
  }
}

// The losses of all targets but one stay finite where a logit is -inf.
TEST(Evaluate, ALogitThatIsNotFiniteIsAnError) {
  TempFolder tmp;
  RunSpec run = f32_run(tmp.path());
  Model m(run);
  const int64_t windows = (TokenShard::open(run.data.valid.first()).tokens() - 1) / run.data.seq_len;
  const double sound = by_hand(m, run, run.data.valid.first(), windows).loss;
  EXPECT_TRUE(std::isfinite(sound));
  const Param* head = m.runner->params().find("head.weight");
  std::vector<float> host(size_t(m.runner->memory().owned(*head).size()));
  m.runner->memory().read_param(*head, "", host);
  // The row of the last token, which the shard may not have as a target: products beyond the range of f32.
  for (size_t i = host.size() - size_t(run.model.hidden); i < host.size(); i++) host[i] = 3e38f;
  m.runner->memory().write_param(*head, "", host);
  m.runner->weights_from_master();
  try {
    evaluate_shard(*m.runner, run, run.data.valid.first());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("first in the output of matmul in layer head"), std::string::npos)
        << e.what();
  }
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
