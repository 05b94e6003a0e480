#include "cost/memory.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cost/flops.h"

namespace trireme {
namespace {

TEST(StateBytes, PerParameter) {
  auto of = [](const char* compute, const char* grads) {
    BucketBytes b = state_bytes_per_parameter(compute, grads);
    return std::array<int64_t, 4>{b[size_t(Bucket::weights)], b[size_t(Bucket::grads)],
                                  b[size_t(Bucket::optimizer)], total(b)};
  };
  EXPECT_EQ(of("bf16", "bf16"), (std::array<int64_t, 4>{2, 2, 12, 16}));
  EXPECT_EQ(of("bf16", "f32"), (std::array<int64_t, 4>{2, 4, 12, 18}));
  EXPECT_EQ(of("f16", "f32"), (std::array<int64_t, 4>{2, 4, 12, 18}));
  EXPECT_EQ(of("f32", "f32"), (std::array<int64_t, 4>{4, 4, 8, 16}));
  const auto optimizer = [](const char* compute) {
    return state_bytes_per_parameter(compute, "f32", "bf16")[size_t(Bucket::optimizer)];
  };
  EXPECT_EQ(optimizer("bf16"), 8);  // master 4, moments 2 + 2
  EXPECT_EQ(optimizer("f16"), 8);
  EXPECT_EQ(optimizer("f32"), 4);
  EXPECT_THROW(state_bytes_per_parameter("bf16", "f32", "f16"), Error);
  EXPECT_THROW(of("auto", "f32"), Error);
  EXPECT_THROW(of("bf16", "auto"), Error);
  EXPECT_THROW(of("f16", "f16"), Error);
}

TEST(StateBytes, OfAModel) {
  ModelSpec m = ModelSpec::of("gpt2");
  m.vocab = 50257, m.layers = 12, m.hidden = 768, m.heads = 12;
  m.finish(1024);
  BucketBytes b = state_bytes(parameters(m), "bf16", "f32");
  EXPECT_EQ(b[size_t(Bucket::weights)], 248879616);
  EXPECT_EQ(b[size_t(Bucket::grads)], 497759232);
  EXPECT_EQ(b[size_t(Bucket::optimizer)], 1493277696);
  EXPECT_EQ(b[size_t(Bucket::activations)], 0);
  EXPECT_EQ(total(b), 18 * 124439808ll);
  EXPECT_EQ(total(state_bytes(0, "f32", "f32")), 0);
  EXPECT_THROW(state_bytes(int64_t(1) << 62, "bf16", "bf16"), Error);
}

}  // namespace
}  // namespace trireme
