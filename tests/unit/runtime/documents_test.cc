// Packed documents kept apart: each has the losses that it has alone.
#include <gtest/gtest.h>

#include "tiny.h"

namespace trireme {
namespace {

TEST(Documents, HaveTheLossesTheyHaveAlone) {
  constexpr int64_t kLengths[] = {7, 1, 11, 4};
  for (const char* arch : {"llama", "gpt2"}) {
    SCOPED_TRACE(arch);
    RunSpec run = test::tiny_run(arch, "f32", 1);
    run.model.init_std = 0.2;
    run.data.documents = "separate";
    test::Rig rig(run);
    const int64_t seq = run.data.seq_len;  // 23 = 7 + 1 + 11 + 4
    auto token = [&](int64_t row, int64_t i) {
      return int32_t(below(rng_key(7, uint64_t(row), "documents"), uint64_t(i), uint64_t(run.model.vocab)));
    };
    // Documents of two samples, in another order in the second.
    auto fill = [&](int64_t, int64_t, const HostBatch& b) {
      for (int64_t row = 0; row < 2; row++)
        for (int64_t d = 0, at = 0; d < 4; d++)
          for (int64_t i = 0; i < kLengths[row ? 3 - d : d]; i++, at++) {
            const auto k = size_t(row * seq + at);
            b.tokens[k] = token(row, at), b.targets[k] = token(row, at + 1), b.positions[k] = int32_t(i);
          }
    };
    std::vector<double> packed(2);
    rig.runner->evaluator().evaluate(2, seq, fill, packed);
    for (int64_t row = 0; row < 2; row++) {
      double alone = 0;
      for (int64_t d = 0, at = 0; d < 4; at += kLengths[row ? 3 - d : d], d++) {
        const int64_t n = kLengths[row ? 3 - d : d];
        alone += rig.runner->evaluator()
                     .evaluate(1, n,
                               [&](int64_t, int64_t, const HostBatch& b) {
                                 for (int64_t i = 0; i < n; i++) {
                                   const auto k = size_t(i);
                                   b.tokens[k] = token(row, at + i), b.targets[k] = token(row, at + i + 1);
                                   b.positions[k] = int32_t(i);
                                 }
                               })
                     .sum;
      }
      EXPECT_NEAR(packed[size_t(row)] / alone, 1, 1e-6);
    }
  }
}

}  // namespace
}  // namespace trireme
