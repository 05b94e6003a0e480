#include "comm/queued.h"

#include <chrono>
#include <exception>

#include "comm/waiting.h"

namespace trireme {

int64_t comm_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

QueuedCommunicator::QueuedCommunicator(std::string_view group, int rank, int size, Device* device)
    : group_(group),
      rank_(rank),
      size_(size),
      device_(device),
      ops_(size_t(kMostUnderWay)),
      sent_(size_t(size)),
      received_(size_t(size)) {
  // All that a call of any kind keeps for each rank: the first of a record allocates nothing (of messages
  // one, or a hop of a ring).
  for (QueuedOp& op : ops_) {
    op.at.resize(size_t(size));
    op.send_rows.reserve(size_t(size)), op.recv_rows.reserve(size_t(size));
    op.p2p.reserve(2);
  }
}

QueuedOp& QueuedCommunicator::take(const CommCall& call) {
  QueuedOp& op = ops_[size_t(taken_++ % kMostUnderWay)];
  // Issued kMostUnderWay calls ago and still in its queue: the stream's turn comes first.
  if (op.busy.load(std::memory_order_acquire)) device_->sync(op.call.stream);
  op.call = call;
  op.a = op.b = {};
  op.op = Reduce::sum, op.root = 0, op.met_ns = 0;
  if (call.kind != Collective::p2p) op.number = collectives_++;
  return op;
}

void QueuedCommunicator::run(QueuedOp& op) {
  struct Done {
    QueuedOp& op;
    ~Done() { op.busy.store(false, std::memory_order_release); }
  } done{op};
  const int64_t begin = comm_now_ns();
  const ExecutingCall executing(observer_, op.call);
  execute(op);
  if (observer_) observer_->done(op.call, begin, op.met_ns ? op.met_ns : begin, comm_now_ns());
}

void QueuedCommunicator::enqueue(QueuedOp& op) {
  if (device_ && in_order(op)) return;
  if (device_ && op.call.stream.id == 0)
    device_->sync(op.call.stream);  // what was issued there, where it runs behind
  if (!device_ || op.call.stream.id == 0) return run(op);
  op.busy.store(true, std::memory_order_relaxed);
  auto task = [](void* self, int64_t i) {
    auto* c = static_cast<QueuedCommunicator*>(self);
    c->run(c->ops_[size_t(i)]);
  };
  try {
    device_->enqueue(op.call.stream, {task, this, &op - ops_.data()});
  } catch (...) {
    op.busy.store(false, std::memory_order_relaxed);
    throw;
  }
}

void QueuedCommunicator::finish() {
  bool abandoned = false;
  for (QueuedOp& op : ops_) {
    if (!op.busy.load(std::memory_order_acquire)) continue;
    if (!abandoned && std::uncaught_exceptions() > 0) abandon(), abandoned = true;
    try {
      device_->sync(op.call.stream);
    } catch (...) {  // the rank's thread met it, or meets it at its next call
    }
  }
}

void QueuedCommunicator::do_all_reduce(const AllReduceArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.a = a.buf, op.op = a.op;
  enqueue(op);
}
void QueuedCommunicator::do_all_gather(const AllGatherArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.a = a.shard, op.b = a.full;
  enqueue(op);
}
void QueuedCommunicator::do_reduce_scatter(const ReduceScatterArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.a = a.full, op.b = a.shard, op.op = a.op;
  enqueue(op);
}
void QueuedCommunicator::do_all_to_all(const AllToAllArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.a = a.send, op.b = a.recv;
  op.send_rows.assign(a.send_rows.begin(), a.send_rows.end());
  op.recv_rows.assign(a.recv_rows.begin(), a.recv_rows.end());
  enqueue(op);
}
void QueuedCommunicator::do_broadcast(const BroadcastArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.a = a.buf, op.root = a.root;
  enqueue(op);
}
void QueuedCommunicator::do_reduce(const ReduceArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.a = a.buf, op.root = a.root, op.op = a.op;
  enqueue(op);
}
void QueuedCommunicator::do_p2p(const P2pArgs& a, Stream, const CommCall& call) {
  QueuedOp& op = take(call);
  op.p2p.clear();
  for (const P2p& p : a.ops) op.p2p.push_back({p, (p.send ? sent_ : received_)[size_t(p.peer)]++});
  enqueue(op);
}
void QueuedCommunicator::do_barrier(Stream, const CommCall& call) {
  enqueue(take(call));
}

}  // namespace trireme
