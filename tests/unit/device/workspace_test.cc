// Scratch of matrix products on CUDA: cuBLASLt wants its workspace at multiples of 256, arenas place scratch
// at multiples of 64.
#include <gtest/gtest.h>

#include "device/cuda/launches.h"
#include "tensor/arena.h"

namespace trireme::cuda {
namespace {

TEST(Workspace, BeginsWhereTheLibraryWantsItAndLiesInTheScratch) {
  for (int64_t m : {1, 33, 4096})
    for (int64_t begin = 0; begin < 512; begin += Arena::kAlign) {
      MatmulArgs a;
      a.c = Tensor(nullptr, {m, 64}, DType::bf16);
      const int64_t bytes = cuda_scratch(a);
      const Tensor scratch(reinterpret_cast<std::byte*>(uintptr_t(1 << 20) + uintptr_t(begin)), {bytes},
                           DType::u8);
      const Tensor at = workspace_in(scratch);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at.data) % 256, 0u);
      EXPECT_GE(at.data, scratch.data);
      EXPECT_LE(at.data + at.numel(), scratch.data + bytes);
      EXPECT_EQ(at.numel(), bytes - 256);  // whatever the place, so that plans do not follow it
    }
}

TEST(Workspace, WithoutScratchThereIsNone) {
  EXPECT_FALSE(workspace_in(Tensor()));
}

}  // namespace
}  // namespace trireme::cuda
