// What trireme declares of NCCL itself, against NVIDIA's header.
#include <nccl.h>

#include <cstddef>

#include "comm/nccl/api.h"
#include "ranks.h"

namespace trireme::nccl {
namespace {

namespace ours = trireme::nccl;

// Is a pointer of ours called as NVIDIA's function is? Enumerations and handles aside, which are ints and
// pointers.
template <class A, class B>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
    return true;
  else
    return sizeof(A) == sizeof(B) && std::is_integral_v<A> == std::is_integral_v<B> &&
           std::is_enum_v<A> == std::is_enum_v<B>;
}
template <class R, class... A, class Q, class... B>
constexpr bool same_call(R (*)(A...), Q (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B))
    return false;
  else
    return alike<R, Q>() && (alike<A, B>() && ...);
}

TEST(NcclHeader, ValuesAreNvidias) {
  EXPECT_EQ(int(ours::kSuccess), int(ncclSuccess));
  EXPECT_EQ(int(ours::kUnhandledCudaError), int(ncclUnhandledCudaError));
  EXPECT_EQ(int(ours::kSystemError), int(ncclSystemError));
  EXPECT_EQ(int(ours::kInternalError), int(ncclInternalError));
  EXPECT_EQ(int(ours::kInvalidArgument), int(ncclInvalidArgument));
  EXPECT_EQ(int(ours::kInvalidUsage), int(ncclInvalidUsage));
  EXPECT_EQ(int(ours::kRemoteError), int(ncclRemoteError));
  EXPECT_EQ(int(ours::kInProgress), int(ncclInProgress));
  EXPECT_EQ(int(ours::kInt8), int(ncclInt8));
  EXPECT_EQ(int(ours::kUint8), int(ncclUint8));
  EXPECT_EQ(int(ours::kInt32), int(ncclInt32));
  EXPECT_EQ(int(ours::kInt64), int(ncclInt64));
  EXPECT_EQ(int(ours::kFloat16), int(ncclFloat16));
  EXPECT_EQ(int(ours::kFloat32), int(ncclFloat32));
  EXPECT_EQ(int(ours::kFloat64), int(ncclFloat64));
  EXPECT_EQ(int(ours::kBfloat16), int(ncclBfloat16));
  EXPECT_EQ(int(ours::kSum), int(ncclSum));
  EXPECT_EQ(int(ours::kMax), int(ncclMax));
  EXPECT_EQ(ours::kSplitNoColor, NCCL_SPLIT_NOCOLOR);
  EXPECT_EQ(sizeof(ours::UniqueId), sizeof(ncclUniqueId));
}

TEST(NcclHeader, TheConfigurationBeginsAsNvidias) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const ours::Config mine;
  EXPECT_LE(sizeof mine, sizeof theirs);
  EXPECT_EQ(mine.magic, theirs.magic);
  EXPECT_EQ(mine.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(mine.split_share, theirs.splitShare);
  EXPECT_EQ(mine.net_name, theirs.netName);
  EXPECT_EQ(offsetof(ours::Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(ours::Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(ours::Config, net_name), offsetof(ncclConfig_t, netName));
  EXPECT_EQ(offsetof(ours::Config, split_share), offsetof(ncclConfig_t, splitShare));
}

TEST(NcclHeader, FunctionsAreCalledAsNvidias) {
#define TRIREME_NCCL_SAME(type, name, arguments)                                                       \
  EXPECT_TRUE(                                                                                         \
      same_call(static_cast<type(*) arguments>(nullptr), static_cast<decltype(&nccl##name)>(nullptr))) \
      << #name;
  TRIREME_NCCL_FUNCTIONS(TRIREME_NCCL_SAME)
  TRIREME_NCCL_OPTIONAL(TRIREME_NCCL_SAME)
#undef TRIREME_NCCL_SAME
}

}  // namespace
}  // namespace trireme::nccl
