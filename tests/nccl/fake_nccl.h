// What tests and the fake libnccl share beyond NCCL's own interface.
#pragma once
#include <atomic>
#include <cstdint>

// Stands for a cudaStream_t: how much work was put there, and how much of it is done.
struct FakeStream {
  std::atomic<int64_t> issued = 0, done = 0;
};

// In the library. Break: communicators of this process in which it has this rank report this error from now
// on, and their work stands still; -1: all. Registered: ranges that are now. Made: communicators so far.
extern "C" {
void fakeNcclBreak(int rank, int result);
int fakeNcclRegistered();
void fakeNcclMade(int* by_init, int* by_split);
int fakeNcclAborted();
int fakeNcclMisused();      // calls on communicators in progress or gone, or with memory that is forbidden
void fakeNcclLooks(int n);  // ranks above 0: how often each call is seen in progress (default: 30)
void fakeNcclForbid(const void* begin, int64_t bytes);
}
