// Ranks with a GPU each, one process a rank: NCCL for tensors of the device, and a world of processes (MPI,
// TCP) beneath it for all else: how they find each other, agreements, news of failures, beats.
#pragma once
#include <memory>
#include <string>

#include "comm/process_world.h"

namespace trireme {

struct NcclOptions {
  std::string library = "libnccl.so.2";
  double meet_s = 600;  // for the ranks of a group to come, when it is made, and to a call that begins
  double grace_s = 1;   // after a failure is known, for a call that all ranks have made
};

// Opens the library, and gives its version: 22809 is 2.28.9. What is wrong with it is a bad request.
int open_nccl(const NcclOptions& = {});

// Ranks whose libraries differ do not understand each other: a bad request that says both versions, on all
// ranks. Collective.
void check_same_nccl(Communicator& control, int version);

// Opens the library. Its factories, given a device with queues (cuda), make communicators over NCCL, which
// chooses the order of sums whatever the options say; without a device those of the host. A device without
// queues is a bad request.
std::unique_ptr<ProcessWorld> make_nccl_world(std::unique_ptr<ProcessWorld> host, const NcclOptions& = {});

}  // namespace trireme
