// The communicator of rank threads: ordered sums and direct copies in shared memory.
#pragma once
#include "comm/queued.h"
#include "comm/thread/group.h"

namespace trireme::thread {

// rank: in the group.
class ThreadCommunicator final : public QueuedCommunicator {
 public:
  ThreadCommunicator(World&, Group&, int rank, Device*);
  ~ThreadCommunicator() override { finish(); }
  std::string_view algorithm(Collective, int64_t payload) const override;
  int64_t moved_bytes() const override { return group_.moved[me_].load(); }

 private:
  using Ops = std::span<const QueuedOp* const>;

  void execute(QueuedOp&) override;
  void abandon() override;
  void meet(QueuedOp&);
  void agree(Ops) const;
  void share_of(QueuedOp&, Ops);
  void all_reduce(QueuedOp&, Ops);
  void all_gather(QueuedOp&, Ops);
  void reduce_scatter(QueuedOp&, Ops);
  void all_to_all(QueuedOp&, Ops);
  void broadcast(QueuedOp&, Ops);
  void reduce(QueuedOp&, Ops);
  void p2p(QueuedOp&);
  void receive(QueuedOp&, const P2pNumbered&, int looks);
  void count(size_t rank, int64_t bytes) { group_.moved[rank].fetch_add(bytes, std::memory_order_relaxed); }

  class Link;
  void all_reduce_fast(QueuedOp&, Algorithm);
  void reduce_scatter_fast(QueuedOp&, Algorithm);
  void all_gather_fast(QueuedOp&, Algorithm);

  World& world_;
  Group& group_;
  size_t me_;
  GroupShape shape_;
};

}  // namespace trireme::thread
