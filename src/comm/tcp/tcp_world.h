// Ranks as processes that find each other at an address, without MPI: host memory, news and beats over TCP.
//
// Everything goes through rank 0's process (hub.h): made for what ranks of several GPUs say to each other
// beside NCCL, which is little. Ranks prove that they know the secret of the job; what they say afterwards is
// neither encrypted nor signed.
#pragma once
#include <memory>
#include <string>

#include "comm/process_world.h"
#include "comm/tcp/sockets.h"

namespace trireme {

struct TcpOptions {
  std::string host = "127.0.0.1";  // of rank 0
  int port = 29500;
  int rank = 0, size = 1;
  std::string listen = {};  // address that rank 0 listens at; empty: host
  uint64_t job = 0;         // the same on all ranks, another in other jobs
  std::string secret = {};  // the same on all ranks; empty: every connection is trusted (tests)
  double timeout_s = 300;   // for all ranks to come
  double linger_s = 10;     // rank 0 waits so long for the others to leave
};

// Collective over all processes; an Error names the ranks that did not come. listener: rank 0's, where it is
// open already.
std::unique_ptr<ProcessWorld> join_tcp_world(const TcpOptions&, tcp::Socket listener = {});

}  // namespace trireme
