// The communicator of ranks that are processes: ordered sums and direct copies by messages.
#pragma once
#include "comm/mpi/world.h"
#include "comm/queued.h"

namespace trireme::mpi {

class MpiCommunicator final : public QueuedCommunicator {
 public:
  // comm: of this group alone. ranks: in the world, ascending; rank: in the group. The world outlives it.
  MpiCommunicator(World&, const CommOptions&, MPI_Comm comm, std::string_view name,
                  std::span<const int> ranks, int rank, Device*);
  ~MpiCommunicator() override { finish(); }
  std::string_view algorithm(Collective, int64_t payload) const override;
  int64_t moved_bytes() const override { return moved_.load(); }

 private:
  class Link;
  struct Executing;

  void execute(QueuedOp&) override;
  void abandon() override;
  void meet(Executing&);
  void agree(const Executing&) const;
  void share_of(Executing&);
  void reduce_pieces(Executing&);
  void all_gather(Executing&);
  void all_to_all(Executing&);
  void broadcast(Executing&);
  void fast(Executing&, Algorithm);
  void p2p(Executing&);

  // One slice of an ordered reduction.
  struct Sum;
  void exchange_slice(Executing&, const Sum&, int64_t k);
  void add_slice(Executing&, const Sum&, int64_t k);
  void share_slice(Executing&, const Sum&, int64_t k);

  void send(Executing&, Messages&, const std::byte*, int64_t bytes, int to);
  void receive(Executing&, Messages&, std::byte*, int64_t bytes, int from);
  void wait(Executing&, Messages&);
  void count(int64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t slice_bytes() const;
  int peer(int i) const { return (rank() + i) % size(); }  // i from 1: not all begin with the same one

  World& world_;
  const CommOptions options_;
  MPI_Comm comm_;
  std::vector<int> ranks_;
  GroupShape shape_;
  std::atomic<int64_t> moved_ = 0;
};

}  // namespace trireme::mpi
