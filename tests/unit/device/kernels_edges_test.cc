// Kernels at their edges: ids out of range, ignored targets, values that are not finite, nothing to do.
#include "kernels_testing.h"

namespace trireme::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Embedding, AnIdOutOfRangeStopsTheRunWithTheIdAndItsPlace) {
  Array<float> table({10, 4}), y({3, 4}, 7);
  Array<int32_t> ids({3});
  ids.v = {0, 9, 10}, ids.t.data = reinterpret_cast<std::byte*>(ids.v.data());
  const EmbeddingArgs forward{.ids = ids.t, .table = table.t, .y = y.t};
  const EmbeddingBackwardArgs backward{.ids = ids.t, .dy = y.t, .dtable = table.t};
  EXPECT_EQ(error_of([&] { run(forward); }),
            "embedding: id 10 at place 2 is out of range: the table has ids [0, 10)");
  EXPECT_EQ(error_of([&] { run(backward, 2); }),
            "embedding_backward: id 10 at place 2 is out of range: the table has ids [0, 10)");
  ids[2] = 1, ids[1] = -1;
  EXPECT_NE(error_of([&] { run(forward, 2); }).find("id -1 at place 1"), std::string::npos);
  for (float v : y.v) EXPECT_EQ(v, 7) << "written before the check";
  ids[1] = 9;
  EXPECT_EQ(error_of([&] { run(forward); }), "");
}

// 1 + 1e8 - 1e8 is 0 in f32, and 1 in any other order: the contract says ascending places, each sum in f32,
// then one addition to what was there.
TEST(EmbeddingBackward, AddsInAscendingOrder) {
  for_each_target([&] {
    Array<float> dy({4, 33}), table({3, 33}, 0.5);
    Array<int32_t> ids({4}, 2);
    ids[1] = 0;
    for (int64_t c = 0; c < 33; c++) dy[c] = 1, dy[33 + c] = 7, dy[66 + c] = 1e8f, dy[99 + c] = -1e8f;
    run(EmbeddingBackwardArgs{.ids = ids.t, .dy = dy.t, .dtable = table.t, .accumulate = true}, 2);
    for (int64_t c = 0; c < 33; c++) {
      EXPECT_EQ(table[c], 7.5f);
      EXPECT_EQ(table[33 + c], 0.5f);
      EXPECT_EQ(table[66 + c], 0.5f);
    }
  });
}

TEST(Rope, APositionBeyondTheTableStopsTheRun) {
  Array<float> x({2, 1, 4}), cos({5, 2}), sin({5, 2});
  Array<int32_t> positions({2}, 4);
  const RopeArgs args{.x = x.t, .cos = cos.t, .sin = sin.t, .positions = positions.t};
  EXPECT_EQ(error_of([&] { run(args); }), "");
  positions[1] = 5;
  EXPECT_EQ(error_of([&] { run(args); }),
            "rope: position 5 at place 1 is out of range: the table has positions [0, 5)");
}

struct Logits {
  Array<float> logits, loss;
  Array<int32_t> targets;
  Logits(int64_t n, int64_t v) : logits({n, v}), loss({n}, 99), targets({n}) { logits.normal("logits"); }
  CrossEntropyArgs args(int64_t vocab = 0) {
    return {.logits = logits.t,
            .targets = targets.t,
            .loss = loss.t,
            .vocab = vocab ? vocab : logits.t.shape[1],
            .grad_scale = 0.5f};
  }
};

TEST(CrossEntropy, ATargetOutOfRangeStopsTheRunAndLeavesTheLogits) {
  Logits c(3, 8);
  std::vector<float> before = c.logits.v;
  c.targets[2] = 6;
  EXPECT_EQ(
      error_of([&] { run(c.args(6)); }),
      "cross_entropy: target 6 at place 2 is out of range: targets are -1 (ignored) or ids, in [-1, 6)");
  c.targets[2] = -2;
  EXPECT_NE(error_of([&] { run(c.args(6), 2); }).find("target -2 at place 2"), std::string::npos);
  EXPECT_EQ(c.logits.v, before);
}

TEST(CrossEntropy, AnIgnoredRowHasNoLossAndNoGradientWhateverItsLogits) {
  for_each_target([&] {
    Logits c(2, 40);
    c.targets[0] = -1, c.targets[1] = 3;
    for (int64_t i = 0; i < 40; i++) c.logits[i] = i % 2 ? kNan : kInf;
    run(c.args());
    EXPECT_EQ(c.loss[0], 0);
    for (int64_t i = 0; i < 40; i++) EXPECT_EQ(c.logits[i], 0);
    EXPECT_TRUE(std::isfinite(c.loss[1]));
    EXPECT_LT(c.logits[40 + 3], 0);
  });
}

// A bad value must reach the loss: it is how a run finds out.
TEST(CrossEntropy, NanAndInfinityReachTheLossAndTheGradient) {
  for_each_target([&] {
    for (float bad : {kNan, -kNan, kInf})
      for (int64_t place : {int64_t(0), int64_t(17), int64_t(32)}) {
        Logits c(1, 33);
        c.logits[place] = bad;
        run(c.args());
        EXPECT_TRUE(std::isnan(c.loss[0])) << bad << " at " << place;
        EXPECT_TRUE(std::isnan(c.logits[1])) << bad << " at " << place;
      }
    Logits c(1, 33);
    c.logits[5] = -kInf;
    run(c.args());
    EXPECT_TRUE(std::isfinite(c.loss[0]));
    EXPECT_EQ(c.logits[5], 0);
  });
}

// exp(x - max) of far smaller logits is zero, not a wrapped exponent.
TEST(CrossEntropy, FarLogitsUnderflowToZero) {
  for_each_target([&] {
    Logits c(1, 50);
    for (int64_t i = 0; i < 50; i++) c.logits[i] = -80.0f - 5 * float(i);
    c.logits[49] = 0, c.targets[0] = 49;
    run(c.args());
    EXPECT_NEAR(c.loss[0], 0, 1e-6);
    for (int64_t i = 2; i < 49; i++) EXPECT_EQ(c.logits[i], 0) << i;
    EXPECT_GT(c.logits[0], 0);
  });
}

TEST(Activations, TailsAndNanBehave) {
  for_each_target([&] {
    for (bool tanh_approx : {true, false}) {
      Array<float> x({1, 40}), y({1, 40}), dy({1, 40}, 1), dx({1, 40});
      const float ends[] = {-3e38f, -200, -90, -30, 30, 90, 200, 3e38f, kNan, 0};
      for (int64_t i = 0; i < 40; i++) x[i] = ends[i % 10];
      run(GeluArgs{.x = x.t, .y = y.t, .tanh_approx = tanh_approx});
      run(GeluBackwardArgs{.x = x.t, .dy = dy.t, .dx = dx.t, .tanh_approx = tanh_approx});
      for (int64_t i = 0; i < 40; i++) {
        if (std::isnan(x[i])) {
          EXPECT_TRUE(std::isnan(y[i]) && std::isnan(dx[i]));
          continue;
        }
        if (std::fabs(x[i]) > 1e30f) continue;  // x^2 overflows; no activation is ever near
        EXPECT_NEAR(y[i], x[i] > 0 ? x[i] : 0, 1e-30) << x[i];
        EXPECT_NEAR(dx[i], x[i] == 0 ? 0.5 : x[i] > 0, 1e-30) << x[i];
      }
    }
    Array<float> gate({1, 40}), up({1, 40}, 2), dy({1, 40}, 1), y({1, 40}), dgate({1, 40}), dup({1, 40});
    const float ends[] = {-3e38f, -1000, -100, 100, 1000, 3e38f, kNan, 0};
    for (int64_t i = 0; i < 40; i++) gate[i] = ends[i % 8];
    run(SwigluArgs{.gate = gate.t, .up = up.t, .y = y.t});
    run(SwigluBackwardArgs{.gate = gate.t, .up = up.t, .dy = dy.t, .dgate = dgate.t, .dup = dup.t});
    for (int64_t i = 0; i < 40; i++) {
      if (std::isnan(gate[i])) {
        EXPECT_TRUE(std::isnan(y[i]) && std::isnan(dgate[i]) && std::isnan(dup[i]));
        continue;
      }
      if (gate[i] > 1e30f) continue;  // 2 x overflows
      EXPECT_NEAR(dup[i], gate[i] > 0 ? gate[i] : 0, 1e-30) << gate[i];
      EXPECT_NEAR(y[i], 2 * dup[i], 1e-30) << gate[i];
      EXPECT_NEAR(dgate[i], gate[i] == 0 ? 1.0 : gate[i] > 0 ? 2.0 : 0.0, 1e-5) << gate[i];
    }
  });
}

TEST(CountNonfinite, CountsEveryBitPatternOfBf16) {
  Array<bf16> x({65536});
  for (uint32_t bits = 0; bits < 65536; bits++) x.v[bits].bits = uint16_t(bits);
  for_each_target([&] {
    Array<int64_t> count({1}, 3);
    run(CountNonfiniteArgs{.x = x.t, .count = count.t}, 2);
    EXPECT_EQ(count[0], 3 + 2 * 128);
  });
}

TEST(CountNonfinite, WalksFreeOuterStrides) {
  Array<float> x({4, 5, 6, 8}, kNan);
  Tensor inner = x.t.narrow(1, 1, 3).narrow(2, 2, 2).narrow(3, 1, 7);
  for (int64_t a = 0; a < 4; a++)
    for (int64_t b = 1; b < 4; b++)
      for (int64_t c = 2; c < 4; c++)
        for (int64_t d = 1; d < 8; d++) x[((a * 5 + b) * 6 + c) * 8 + d] = 1;
  Array<int64_t> count({1});
  run(CountNonfiniteArgs{.x = inner, .count = count.t}, 2);
  EXPECT_EQ(count[0], 0);
  x[((3 * 5 + 3) * 6 + 3) * 8 + 7] = kInf;
  run(CountNonfiniteArgs{.x = inner, .count = count.t}, 2);
  EXPECT_EQ(count[0], 1);
}

TEST(Kernels, NoRowsAreNoWorkAndSumsOfNothingAreZero) {
  Array<float> none({0, 5}), rows({0}), w({5}), dw({5}, 9), db({5}, 9), table({3, 5}, 9);
  Array<int32_t> ids({0});
  run(LayerNormArgs{.x = none.t, .weight = w.t, .bias = w.t, .y = none.t, .mean = rows.t, .rstd = rows.t}, 2);
  run(LayerNormBackwardArgs{.dy = none.t,
                            .x = none.t,
                            .weight = w.t,
                            .mean = rows.t,
                            .rstd = rows.t,
                            .dx = none.t,
                            .dweight = dw.t,
                            .dbias = db.t},
      2);
  EXPECT_EQ(dw.v, std::vector<float>(5, 0));
  EXPECT_EQ(db.v, std::vector<float>(5, 0));
  run(ColumnSumArgs{.dy = none.t, .db = dw.t, .accumulate = true}, 2);
  EXPECT_EQ(dw.v, std::vector<float>(5, 0));
  run(EmbeddingArgs{.ids = ids.t, .table = table.t, .y = none.t}, 2);
  run(EmbeddingBackwardArgs{.ids = ids.t, .dy = none.t, .dtable = table.t, .accumulate = true}, 2);
  EXPECT_EQ(table.v, std::vector<float>(15, 9));
  run(EmbeddingBackwardArgs{.ids = ids.t, .dy = none.t, .dtable = table.t}, 2);
  EXPECT_EQ(table.v, std::vector<float>(15, 0));
  run(CrossEntropyArgs{.logits = none.t, .targets = ids.t, .loss = rows.t, .vocab = 5}, 2);
  run(SwigluArgs{.gate = none.t, .up = none.t, .y = none.t}, 2);
  run(GeluArgs{.x = none.t, .y = none.t}, 2);
  run(AddArgs{.a = rows.t, .b = rows.t, .y = rows.t}, 2);
  run(CastArgs{.src = rows.t, .dst = rows.t}, 2);
  run(ZeroArgs{.y = rows.t}, 2);
}

// Cosine and sine rows are read at the token's own position, and the inverse undoes the rotation.
TEST(Rope, TheInverseUndoesTheRotation) {
  for_each_target([&] {
    Array<float> x({37, 3, 22}), cos({16, 11}), sin({16, 11});
    Array<int32_t> positions({37});
    x.normal("x");
    for (int64_t i = 0; i < 16 * 11; i++)
      cos[i] = float(std::cos(0.3 * double(i))), sin[i] = float(std::sin(0.3 * double(i)));
    for (int64_t i = 0; i < 37; i++) positions[i] = int32_t(7 * i % 16);
    std::vector<float> before = x.v;
    RopeArgs args{.x = x.t, .cos = cos.t, .sin = sin.t, .positions = positions.t};
    run(args, 2);
    EXPECT_GT(std::fabs(x.v[5] - before[5]), 1e-3);
    args.inverse = true;
    run(args, 2);
    for (size_t i = 0; i < before.size(); i++) ASSERT_NEAR(x.v[i], before[i], 2e-6) << i;
  });
}

}  // namespace
}  // namespace trireme::testing
