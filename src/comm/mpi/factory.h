// What a world of MPI processes is made of; tests make smaller ones of it.
#pragma once
#include "comm/comm_set.h"
#include "comm/mpi/world.h"
#include "device/device.h"

namespace trireme::mpi {

// MPI of this process, from its start to its end.
class Process {
 public:
  Process();  // MPI_Init_thread
  ~Process();
  Process(const Process&) = delete;
  // A rank has failed, and others may never come to the end: leave without waiting for them.
  void leave_alone() { alone_ = true; }
  int local_ranks() const { return local_ranks_; }  // see ProcessWorld
  int local_rank() const { return local_rank_; }
  // A communicator of the first n processes, for one World; collective over these.
  MPI_Comm first(int n) const;

 private:
  bool alone_ = false;
  int local_ranks_ = 1, local_rank_ = 0;
};

// Collective over the ranks of the world, which outlives it.
std::unique_ptr<CommFactory> make_factory(World&, const CommOptions&, Device*);

}  // namespace trireme::mpi
