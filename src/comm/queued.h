// What backends with host threads share: a call becomes a record that keeps its arguments, and the stream's
// thread executes it.
#pragma once
#include <atomic>
#include <vector>

#include "comm/algorithms.h"
#include "comm/communicator.h"
#include "device/device.h"

namespace trireme {

struct P2pNumbered {
  P2p op;
  int64_t number;  // of the messages from one rank to another, from 0, in the order they were issued
};

// One call with all that its execution needs. Records are used again; their lists keep their capacity, so
// steady calls allocate nothing.
struct QueuedOp {
  CommCall call;
  Tensor a, b;  // buf | shard, full | full, shard | send, recv
  Reduce op = Reduce::sum;
  int root = 0;
  std::vector<int64_t> send_rows, recv_rows;
  std::vector<P2pNumbered> p2p;
  int64_t number = 0;  // of the group's collectives, p2p not among them: the same on every rank
  int64_t met_ns = 0;  // execute() says when the last peer had arrived; 0 = at the begin
  // For execute(): a pointer for each rank; messages that their receivers have not taken up.
  std::vector<std::byte*> at;
  std::atomic<int> untaken = 0;
  AlgorithmScratch scratch;
  std::atomic<bool> busy = false;
};

int64_t comm_now_ns();  // the clock of CommObserver::done

class QueuedCommunicator : public Communicator {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view group() const override { return group_; }

 protected:
  // device: whose streams run the calls; null = each is done when it returns, on the calling thread.
  QueuedCommunicator(std::string_view group, int rank, int size, Device* device);

  // On the stream's thread; several at once for several streams. What it throws fails the stream.
  virtual void execute(QueuedOp&) = 0;

  // Puts a call's work into the order of its stream, on the rank's thread, without waiting for it, and tells
  // the observer when it is done. Returns false and does nothing if it cannot: then execute() follows.
  virtual bool in_order(QueuedOp&) { return false; }

  // For destructors of backends, while they are whole: waits for what is under way. When the rank is leaving
  // with an exception, peers may never come: abandon() must wake what waits for them.
  void finish();
  virtual void abandon() = 0;

 private:
  void do_all_reduce(const AllReduceArgs&, Stream, const CommCall&) override;
  void do_all_gather(const AllGatherArgs&, Stream, const CommCall&) override;
  void do_reduce_scatter(const ReduceScatterArgs&, Stream, const CommCall&) override;
  void do_all_to_all(const AllToAllArgs&, Stream, const CommCall&) override;
  void do_broadcast(const BroadcastArgs&, Stream, const CommCall&) override;
  void do_reduce(const ReduceArgs&, Stream, const CommCall&) override;
  void do_p2p(const P2pArgs&, Stream, const CommCall&) override;
  void do_barrier(Stream, const CommCall&) override;

  QueuedOp& take(const CommCall&);
  void enqueue(QueuedOp&);
  void run(QueuedOp&);

  static constexpr int64_t kMostUnderWay = 64;
  std::string group_;
  int rank_, size_;
  Device* device_;
  std::vector<QueuedOp> ops_;
  int64_t taken_ = 0, collectives_ = 0;
  std::vector<int64_t> sent_, received_;  // messages to and from each peer so far
};

}  // namespace trireme
