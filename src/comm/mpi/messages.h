// Messages between processes: what stands between the backend and MPI's own calls.
#pragma once
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::mpi {

// Throws what MPI says of its error code.
void check(int code, std::string_view call);

// Messages under way on one communicator. MPI counts in int, so a message is cut into chunks of `most` bytes;
// the last chunk is shorter than that (empty, where needed), so that a receiver of another size sees it.
class Messages {
 public:
  Messages() = default;
  Messages(const Messages&) = delete;
  // The bytes belong to the messages until they are done().
  void send(MPI_Comm, const std::byte*, int64_t bytes, int to, int tag, int64_t most);
  void receive(MPI_Comm, std::byte*, int64_t bytes, int from, int tag, int64_t most);
  // None of them is under way, nor was given up: memory may be used again.
  bool settled() const { return requests_.empty() && !given_up_; }
  // One look, which also moves what is under way. Once true, none are left.
  bool done();
  // Receives that did not begin are taken back, so that nothing arrives in memory that is not theirs any
  // more; what has begun stays MPI's for as long as the process lives.
  void give_up();

  // A receive that was done() and whose message had another size: bytes of its chunk, and -1 where all fit.
  int64_t wrong_bytes() const { return wrong_bytes_; }
  int wrong_from() const { return wrong_from_; }

 private:
  void look_at(size_t i, const MPI_Status&);
  struct Kind {
    int from;  // -1: a send
    int64_t bytes;
  };
  std::vector<MPI_Request> requests_;
  std::vector<Kind> kinds_;
  std::vector<MPI_Status> statuses_;
  int64_t wrong_bytes_ = -1;
  int wrong_from_ = -1;
  bool given_up_ = false;
};

}  // namespace trireme::mpi
