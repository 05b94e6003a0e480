// What tests and the fake libnccl share beyond NCCL's own interface.
#pragma once
#include <atomic>
#include <cstdint>

// Stands for a cudaStream_t: how much work was put there, and how much of it is done.
struct FakeStream {
  std::atomic<int64_t> issued = 0, done = 0;
};

// In the library. break_ranks: communicators of this process in which it has this rank report this error from
// now on, and their work stands still; -1: all. registered: ranges that are registered now. made:
// communicators made by init and by split so far. late: work that was put on a communicator which was still
// in progress (a mistake of its user).
extern "C" {
void fakeNcclBreak(int rank, int result);
int fakeNcclRegistered();
void fakeNcclMade(int* by_init, int* by_split);
int fakeNcclAborted();
int fakeNcclMisused();
}
