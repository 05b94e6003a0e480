// What the communicators of one process share: how they wait, their scratch memory, and the news of a
// failure.
//
// OpenMPI moves messages only while somebody calls it. So each call is executed by the thread of its stream,
// which looks at its messages until they are done, and sleeps in between where cores have other work; nobody
// blocks inside MPI, and everybody hears of a failure while waiting.
#pragma once
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/mpi/messages.h"
#include "comm/options.h"

namespace trireme::mpi {

// What each rank says of a collective to each other one before anything moves.
struct Greeting {
  int64_t numel = 0;
  int64_t send_rows = 0, recv_rows = 0, cols = 0, recv_cols = 0;  // all_to_all: between the two
  int32_t root = 0;
  Collective kind = Collective::barrier;
  DType dtype = DType::u8;
  Reduce op = Reduce::sum;
};

// Memory and messages of one call that is being executed.
struct Workspace {
  std::vector<Greeting> to, from;  // by rank of the group
  std::vector<std::byte> pieces;
  std::vector<std::byte*> at;
  std::vector<int64_t> rows;
  Messages greetings, in[2], out[2], results[2];
};

struct Limits {
  int64_t message = int64_t(1) << 30;  // bytes of a message; MPI counts them in int
  int64_t slice = int64_t(1) << 19;    // bytes of which a rank receives every peer's at a time to add them
  int64_t scratch = int64_t(8) << 20;  // bytes of all peers' slices of a call, more for more than 64 ranks
};

class World {
 public:
  // ranks: a communicator of this world's own. local_ranks: how many processes share the machine's cores.
  World(MPI_Comm ranks, int local_ranks, const Limits&);
  ~World();
  World(const World&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm ranks() const { return ranks_; }
  const Limits& limits() const { return limits_; }

  // Blocks until they are done. When a rank has failed they have a second from then on, and it leaves with
  // the world's failure: what all ranks have begun comes to its end, and what a rank is missing in does not.
  void wait(Messages&, bool inline_call);
  std::unique_ptr<Workspace> take();
  void give_back(std::unique_ptr<Workspace>);
  void keep(std::unique_ptr<Workspace>);  // messages that nobody will take up refer to it

  // This rank has failed: all others are told. certain: as Failure::set. fault: 0 = not known yet.
  void fail(std::string_view why, bool certain, int fault);
  // Looks for news from other ranks; cheap.
  void look();
  Failure failure;
  // The lowest rank that said with which exit code it leaves, after having looked for so long; -1 = none.
  int lowest_leaving(double seconds, int below);
  int fault_of(int rank);

 private:
  struct Notice {
    int32_t rank = 0, fault = 0, certain = 1;
    char why[1012] = {};
  };
  void listen();
  void hear(const Notice&);

  MPI_Comm ranks_;
  const Limits limits_;
  int rank_ = 0, size_ = 1;
  int inline_looks_, queued_looks_;
  std::atomic<int64_t> failure_seen_ns_ = 0;  // by who waited then; 0 = not yet
  std::mutex scratch_mutex_;
  std::vector<std::unique_ptr<Workspace>> free_, kept_;
  std::mutex news_mutex_;
  std::map<int, int> faults_;  // by rank
  Notice heard_;
  MPI_Request news_ = MPI_REQUEST_NULL;
};

}  // namespace trireme::mpi
