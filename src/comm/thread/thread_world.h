// Ranks as threads of one process: they meet in shared memory, and every byte is copied once.
#pragma once
#include <memory>

#include "comm/comm_set.h"
#include "comm/options.h"

namespace trireme {

namespace thread {
class World;
}

// Outlives its factories and their communicators.
class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks, const CommOptions& = {});
  ~ThreadWorld();
  // Of one rank, to be used on that rank's thread. device: whose streams run its collectives; null = calls
  // are done when they return. Tensors are host memory.
  std::unique_ptr<CommFactory> factory(int rank, Device* device);

 private:
  std::unique_ptr<thread::World> world_;
};

}  // namespace trireme
