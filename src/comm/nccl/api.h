// NCCL's C interface, as much of it as is used, declared here: trireme is built where there is no nccl.h, and
// opens the library when a run asks for it. Names, values and layouts are those of nccl.h 2.18 and later (a
// test compares them where that header is).
#pragma once
#include <climits>
#include <cstddef>
#include <string>
#include <string_view>

struct ncclComm;
struct CUstream_st;

namespace trireme::nccl {

using Comm = ncclComm*;
using CudaStream = CUstream_st*;

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7
};
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum RedOp : int { kSum = 0, kMax = 2 };
inline constexpr int kSplitNoColor = -1;

struct UniqueId {
  char internal[128];
};

// As of 2.18. Later ones append members: the library takes what `size` says and fills in the rest.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;  // INT_MIN: the library's choice
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// The functions that there must be (type, name as in nccl.h behind "nccl", arguments), and those that are
// used where they are.
#define TRIREME_NCCL_FUNCTIONS(X)                                                                      \
  X(Result, GetUniqueId, (UniqueId*))                                                                  \
  X(Result, CommInitRankConfig, (Comm*, int ranks, UniqueId, int rank, Config*))                       \
  X(Result, CommSplit, (Comm, int color, int key, Comm*, Config*))                                     \
  X(Result, CommFinalize, (Comm))                                                                      \
  X(Result, CommDestroy, (Comm))                                                                       \
  X(Result, CommAbort, (Comm))                                                                         \
  X(Result, CommGetAsyncError, (Comm, Result*))                                                        \
  X(const char*, GetErrorString, (Result))                                                             \
  X(const char*, GetLastError, (Comm))                                                                 \
  X(Result, AllReduce, (const void*, void*, size_t, DataType, RedOp, Comm, CudaStream))                \
  X(Result, Reduce, (const void*, void*, size_t, DataType, RedOp, int root, Comm, CudaStream))         \
  X(Result, Broadcast, (const void*, void*, size_t, DataType, int root, Comm, CudaStream))             \
  X(Result, AllGather, (const void*, void*, size_t send_count, DataType, Comm, CudaStream))            \
  X(Result, ReduceScatter, (const void*, void*, size_t recv_count, DataType, RedOp, Comm, CudaStream)) \
  X(Result, Send, (const void*, size_t, DataType, int peer, Comm, CudaStream))                         \
  X(Result, Recv, (void*, size_t, DataType, int peer, Comm, CudaStream))                               \
  X(Result, GroupStart, ())                                                                            \
  X(Result, GroupEnd, ())
#define TRIREME_NCCL_OPTIONAL(X)                                \
  X(Result, CommRegister, (Comm, void*, size_t, void** handle)) \
  X(Result, CommDeregister, (Comm, void* handle))

struct Api {
#define TRIREME_NCCL_POINTER(type, name, arguments) type(*name) arguments = nullptr;
  TRIREME_NCCL_FUNCTIONS(TRIREME_NCCL_POINTER)
  TRIREME_NCCL_OPTIONAL(TRIREME_NCCL_POINTER)
#undef TRIREME_NCCL_POINTER
  int version = 0;   // 22809 is 2.28.9
  std::string path;  // the file, as the system says
};

inline constexpr int kOldest = 21800;  // CommSplit; non-blocking communicators
inline constexpr std::string_view kLibrary = "libnccl.so.2";

// Opens it, once a process and name. A bad request that says which file, which version or which function is
// wrong.
const Api& open_library(const std::string& name = std::string(kLibrary));
std::string version_text(int version);  // "2.28.9"

}  // namespace trireme::nccl
