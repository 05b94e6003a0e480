// The communicator of ranks that meet at a hub: host memory, sums in rank order.
#pragma once
#include "comm/queued.h"
#include "comm/tcp/client.h"

namespace trireme::tcp {

class TcpCommunicator final : public QueuedCommunicator {
 public:
  // key: the group's, the same on its ranks. ranks: in the world. The client outlives it.
  TcpCommunicator(Client&, uint64_t key, std::string_view name, std::span<const int> ranks, int rank,
                  Device*);
  ~TcpCommunicator() override { finish(); }
  std::string_view algorithm(Collective, int64_t payload) const override;
  // What goes between ranks; through the hub each byte goes twice, and of rank 0 none over the network.
  int64_t moved_bytes() const override { return moved_.load(); }

 private:
  void execute(QueuedOp&) override;
  void abandon() override;
  void collective(QueuedOp&);
  void p2p(QueuedOp&);

  Client& client_;
  const uint64_t key_;
  const std::vector<int> ranks_;
  std::atomic<int64_t> moved_ = 0;
};

}  // namespace trireme::tcp
