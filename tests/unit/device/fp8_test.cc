// What one large number does to the others' products (PAPERS: per-tensor scales lose what blocks keep, and
// only beyond the range that 8-bit floats have themselves), and how far 8 bits are from f32 at all.
#include <cmath>
#include <memory>

#include "kernels_testing.h"

namespace trireme::testing {
namespace {

constexpr int64_t kRows = 33, kDepth = 384, kOuts = 70;

struct EightBits {
  Array<uint8_t> codes;
  Array<float> scale;
  Fp8Blocks blocks;
  EightBits(Array<float>& x, Fp8Blocks b)
      : codes(x.t.shape), scale(b.scales(x.t.shape[0], x.t.shape[1])), blocks(b) {
    run(QuantiseArgs{.x = x.t, .codes = codes.t, .scale = scale.t, .blocks = b});
  }
};

// With scratch as arenas give it.
void run_product(const Fp8MatmulArgs& args) {
  check(args);
  const cpu::Context ctx{.threads = 1};
  const int64_t bytes = cpu::scratch_bytes(args, ctx);
  size_t room = size_t(bytes) + 64;
  std::vector<std::byte> memory(room);
  void* at = memory.data();
  cpu::launch(args, Tensor(std::align(64, size_t(bytes), at, room), {bytes}, DType::u8), ctx);
}

// Relative error of rows 1.. of x w^T, element (0, 5) of x being `outlier`.
double error_of_other_rows(double outlier, bool blocks) {
  Array<float> x({kRows, kDepth}), w({kOuts, kDepth}), y({kRows, kOuts});
  x.normal("x"), w.normal("w");
  x[5] = float(outlier);
  EightBits a(x, blocks ? Fp8Blocks{1, 128} : Fp8Blocks{}), b(w, blocks ? Fp8Blocks{128, 128} : Fp8Blocks{});
  run_product({.a = a.codes.t,
               .scale_a = a.scale.t,
               .b = b.codes.t,
               .scale_b = b.scale.t,
               .c = y.t,
               .blocks_a = a.blocks,
               .blocks_b = b.blocks,
               .trans_b = true});
  double error = 0, size = 0;
  for (int64_t i = 1; i < kRows; i++)
    for (int64_t j = 0; j < kOuts; j++) {
      double want = 0;
      for (int64_t k = 0; k < kDepth; k++) want += x.at(i * kDepth + k) * w.at(j * kDepth + k);
      error += std::pow(y.at(i * kOuts + j) - want, 2), size += want * want;
    }
  return std::sqrt(error / size);
}

TEST(Fp8, OneOutlierTakesTheRangeOfItsOwnBlockAlone) {
  const double usual = error_of_other_rows(1, false);
  EXPECT_GT(usual, 0.02);
  EXPECT_LT(usual, 0.05);
  for (double outlier : {1e2, 1e4, 1e5, 1e6}) {
    const double whole = error_of_other_rows(outlier, false), blocks = error_of_other_rows(outlier, true);
    std::printf("outlier %g: other rows' error %.1f %% with one scale, %.1f %% with blocks\n", outlier,
                100 * whole, 100 * blocks);
    EXPECT_LT(blocks, 1.1 * usual) << outlier;
    if (outlier <= 1e4) {
      EXPECT_LT(whole, 1.2 * usual) << outlier;
    } else {
      EXPECT_GT(whole, 2 * usual) << outlier;
    }
  }
}

// Maxima and codes do not depend on the number of threads, nor on where rows are cut.
TEST(Fp8, ThreadsChangeNothing) {
  Array<float> x({513, 131});
  x.normal("x");
  for (Fp8Blocks b : {Fp8Blocks{}, Fp8Blocks{1, 128}, Fp8Blocks{128, 1}, Fp8Blocks{128, 128}}) {
    EightBits one(x, b), other(x, b);
    run(QuantiseArgs{.x = x.t, .codes = other.codes.t, .scale = other.scale.t, .blocks = b}, 4);
    EXPECT_TRUE(one.codes.same_bits(other.codes));
    EXPECT_TRUE(one.scale.same_bits(other.scale));
  }
}

}  // namespace
}  // namespace trireme::testing
