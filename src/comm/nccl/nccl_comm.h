// The communicator of ranks with a GPU each: tensors of the device by NCCL, tensors of the host as the world
// beneath moves them.
//
// Some streams have the device's own order (Device::orders: compute, and streams without tasks of the host).
// There a collective of device memory follows the stream by events, and the host continues. Failures are
// reported where the host waits for the device (Device::guard). On other streams the stream's thread waits.
//
// Collectives of a group are one channel's, in the order of their calls on every rank, whatever their
// streams: NCCL asks for that. Messages from one rank to another have a channel of their own for each
// direction, made by the first of them, so that they wait for nobody but each other, as the contract of p2p
// says.
#pragma once
#include <array>
#include <map>
#include <mutex>

#include "comm/nccl/channel.h"
#include "comm/queued.h"

namespace trireme::nccl {

class NcclCommunicator final : public QueuedCommunicator {
 public:
  // key: the group's, the same on its ranks. ranks: in the world, ascending; rank: in the group. by_host: a
  // communicator of the same ranks for memory of the host, used by one thread at a time.
  NcclCommunicator(Shared&, uint64_t key, std::string_view name, std::span<const int> ranks, int rank,
                   Device&, std::shared_ptr<Channel>, std::unique_ptr<Communicator> by_host);
  ~NcclCommunicator() override;
  // Who adds what in which order is NCCL's choice: by NCCL_ALGO and NCCL_PROTO, size and topology.
  std::string_view algorithm(Collective, int64_t payload) const override;
  // Of work that is done, what the calls' front said: NCCL does not tell what it sends.
  int64_t moved_bytes() const override { return moved_.load(); }

 private:
  void execute(QueuedOp&) override;
  bool in_order(QueuedOp&) override;
  void settle();  // tells the observer of what the device is through with
  void abandon() override;
  bool of_host(const QueuedOp&) const;
  void by_host(QueuedOp&);
  Result start(QueuedOp&, const Api&, Comm, CudaStream);
  Result exchange_rows(QueuedOp&, const Api&, Comm, CudaStream);
  void p2p(QueuedOp&);
  void mail(const P2pNumbered&);
  Channel& pair(int from, int to);
  void count(int64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }

  Shared& shared_;
  const uint64_t key_;
  const std::vector<int> ranks_;
  Device& device_;
  std::shared_ptr<Channel> all_;
  std::unique_ptr<Communicator> by_host_;
  struct Pair {
    std::mutex mutex;  // while it is made, which waits for the other end
    std::unique_ptr<Channel> channel;
  };
  std::mutex pairs_mutex_;
  std::map<std::pair<int, int>, std::unique_ptr<Pair>> pairs_;  // by places in the group: from, to
  std::atomic<int64_t> moved_ = 0;
  // Work that the device has in its own order, oldest first. At most kMostLeft: the host waits before it is
  // further ahead.
  struct Left {
    CommCall call;
    int64_t begin_ns = 0, mark = 0;
  };
  static constexpr int64_t kMostLeft = 64;
  std::mutex left_mutex_;
  std::array<Left, size_t(kMostLeft)> left_;
  int64_t left_begin_ = 0, left_end_ = 0;
  int64_t reported_ns_ = 0;  // time of the last report that the oldest one waits
};

// Waits for a note of a rank of the world; who keeps us waiting longer is named, and what
// for.
std::string await_note(Shared&, int from, uint64_t key, std::string_view what, double seconds);

}  // namespace trireme::nccl
