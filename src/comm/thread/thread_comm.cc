#include "comm/thread/thread_comm.h"

#include <algorithm>

#include "device/cpu/sum_pieces.h"

namespace trireme::thread {
namespace {

void fold(const QueuedOp& op, std::span<std::byte* const> dst, std::span<std::byte* const> src, int64_t n) {
  (op.op == Reduce::max ? cpu::max_pieces : cpu::sum_pieces)(dst, {src.data(), src.size()}, n, op.a.dtype);
}

// Where element `begin` of every rank's first tensor is.
std::span<std::byte* const> pointers(QueuedOp& op, std::span<const QueuedOp* const> ops, int64_t begin) {
  for (size_t r = 0; r < ops.size(); r++) op.at[r] = ops[r]->a.data + begin * size_of(op.a.dtype);
  return op.at;
}

}  // namespace

ThreadCommunicator::ThreadCommunicator(World& world, Group& group, int rank, Device* device)
    : QueuedCommunicator(group.name, rank, int(group.ranks.size()), device),
      world_(world),
      group_(group),
      me_(size_t(rank)),
      shape_(shape_of(group.ranks, world.options())) {}

std::string_view ThreadCommunicator::algorithm(Collective c, int64_t payload) const {
  return algorithm_name(c, payload, shape_, world_.options());
}

void ThreadCommunicator::abandon() {
  world_.fail(group_.ranks[me_], "it ended while others could still wait for it", false);
}

void ThreadCommunicator::execute(QueuedOp& op) {
  op.call.kind == Collective::p2p ? p2p(op) : meet(op);
}

void ThreadCommunicator::meet(QueuedOp& op) {
  const int looks = world_.looks(op.call.stream.id == 0);
  const int64_t use = op.number / Group::kMeetings;
  Meeting& meeting = group_.meetings[size_t(op.number % Group::kMeetings)];
  meeting.arrive(rank(), op, use, looks, world_.failure);
  struct Finish {
    Meeting& meeting;
    int64_t use;
    int looks;
    ~Finish() { meeting.finish(use, looks); }
  } finish{meeting, use, looks};
  op.met_ns = comm_now_ns();
  agree(meeting.ops());
  share_of(op, meeting.ops());
}

// The same verdict on every rank: each is held against rank 0.
void ThreadCommunicator::agree(Ops ops) const {
  for (size_t r = 1; r < ops.size(); r++) {
    const CommCall &a = ops[0]->call, &b = ops[r]->call;
    const bool counts_differ = a.numel != b.numel && a.kind != Collective::all_to_all;
    if (a.kind != b.kind || a.dtype != b.dtype || counts_differ)
      run_failed("group {}: rank {} calls {} of {} {}, rank {} {} of {} {}; they must be equal", group_.name,
                 group_.ranks[0], name_of(a.kind), a.numel, name_of(a.dtype), group_.ranks[r],
                 name_of(b.kind), b.numel, name_of(b.dtype));
    if (ops[0]->root != ops[r]->root || ops[0]->op != ops[r]->op)
      run_failed("group {}: rank {} calls {} with another root or reduction than rank {}", group_.name,
                 group_.ranks[0], name_of(a.kind), group_.ranks[r]);
  }
}

void ThreadCommunicator::share_of(QueuedOp& op, Ops ops) {
  const Algorithm a = choose(shape_, op.call.payload, world_.options());
  const bool fast = a != Algorithm::ordered && size() > 1;
  switch (op.call.kind) {
    case Collective::all_reduce:
      return fast ? all_reduce_fast(op, a) : all_reduce(op, ops);
    case Collective::all_gather:
      return fast ? all_gather_fast(op, a) : all_gather(op, ops);
    case Collective::reduce_scatter:
      return fast ? reduce_scatter_fast(op, a) : reduce_scatter(op, ops);
    case Collective::all_to_all:
      return all_to_all(op, ops);
    case Collective::broadcast:
      return broadcast(op, ops);
    case Collective::reduce:
      return reduce(op, ops);
    default:
      return;  // a barrier is the meeting itself
  }
}

// The owner of a piece reads it from every rank, adds, and writes the sum to every rank: one pass.
void ThreadCommunicator::all_reduce(QueuedOp& op, Ops ops) {
  const Range piece = piece_of(op.a.numel(), size(), rank());
  if (size() == 1 || piece.size() == 0) return;
  auto at = pointers(op, ops, piece.begin);
  fold(op, at, at, piece.size());
  for (size_t r = 0; r < ops.size(); r++)
    if (r != me_) count(r, 2 * piece.size() * size_of(op.a.dtype));
}

void ThreadCommunicator::reduce_scatter(QueuedOp& op, Ops ops) {
  const int64_t n = op.b.numel();
  auto at = pointers(op, ops, n * rank());
  if (size() == 1) return cpu::copy_piece(op.b.data, op.a.data, op.b.bytes());
  fold(op, {&op.b.data, 1}, at, n);
  for (size_t r = 0; r < ops.size(); r++)
    if (r != me_) count(r, op.b.bytes());
}

// Everybody reads; whose shard is part of full already has it there.
void ThreadCommunicator::all_gather(QueuedOp& op, Ops ops) {
  const int64_t bytes = op.a.bytes();
  for (size_t i = 0; i < ops.size(); i++) {
    const size_t r = (me_ + i) % ops.size();  // not all from the same rank at once
    cpu::copy_piece(op.b.data + int64_t(r) * bytes, ops[r]->a.data, bytes);
  }
  count(me_, (size() - 1) * bytes);
}

// Rows for this rank stand behind those for lower ranks in every sender's tensor.
void ThreadCommunicator::all_to_all(QueuedOp& op, Ops ops) {
  std::byte* to = op.b.data;
  for (size_t r = 0; r < ops.size(); r++) {
    const QueuedOp& from = *ops[r];
    const int64_t rows = from.send_rows[me_], expected = op.recv_rows[r];
    const int64_t row = (rows > 0 ? from.a.cols() : 0) * size_of(from.a.dtype);
    if (rows != expected || (rows > 0 && from.a.cols() != op.b.cols()))
      run_failed("all_to_all of group {}: rank {} sends {} rows of {} to rank {}, which expects {} of {}",
                 group_.name, group_.ranks[r], rows, from.a.cols(), group_.ranks[me_], expected, op.b.cols());
    int64_t before = 0;
    for (size_t i = 0; i < me_; i++) before += from.send_rows[i];
    cpu::copy_piece(to, from.a.data + before * row, rows * row);
    to += rows * row;
    if (r != me_) count(r, rows * row);
  }
}

void ThreadCommunicator::broadcast(QueuedOp& op, Ops ops) {
  if (rank() == op.root) return;
  cpu::copy_piece(op.a.data, ops[size_t(op.root)]->a.data, op.a.bytes());
  count(size_t(op.root), op.a.bytes());
}

// Each rank adds a piece, in the root's buffer.
void ThreadCommunicator::reduce(QueuedOp& op, Ops ops) {
  const Range piece = piece_of(op.a.numel(), size(), rank());
  if (size() == 1 || piece.size() == 0) return;
  auto at = pointers(op, ops, piece.begin);
  fold(op, {&at[size_t(op.root)], 1}, at, piece.size());
  for (size_t r = 0; r < ops.size(); r++)
    if (int(r) != op.root) count(r, piece.size() * size_of(op.a.dtype));
}

// All that the batch sends is posted before it waits for anything.
void ThreadCommunicator::p2p(QueuedOp& op) {
  const int looks = world_.looks(op.call.stream.id == 0);
  op.untaken = 0;
  for (const P2pNumbered& m : op.p2p)
    if (m.op.send) {
      op.untaken.fetch_add(1);
      group_.inboxes[size_t(m.op.peer)].put({rank(), m.number, m.op.buf.data, m.op.buf.bytes(), &op.untaken});
    }
  struct Leave {  // no earlier than everybody is done with our buffers
    ThreadCommunicator& c;
    QueuedOp& op;
    int looks;
    bool& withdrawn;
    ~Leave() {
      Gate& gate = c.group_.taken[c.me_];
      wait_at(gate, looks, [&] { return op.untaken.load() == 0 || c.world_.failure.is_set(); });
      if (op.untaken.load() == 0) return;
      for (const P2pNumbered& m : op.p2p)
        if (m.op.send && c.group_.inboxes[size_t(m.op.peer)].withdraw(c.rank(), m.number))
          op.untaken.fetch_sub(1), withdrawn = true;
      wait_at(gate, looks, [&] { return op.untaken.load() == 0; });
    }
  };
  bool withdrawn = false;
  {
    Leave leave{*this, op, looks, withdrawn};
    for (const P2pNumbered& m : op.p2p)
      if (!m.op.send) receive(op, m, looks);
  }
  if (withdrawn) world_.failure.raise();
}

void ThreadCommunicator::receive(QueuedOp& op, const P2pNumbered& m, int looks) {
  const Post post = group_.inboxes[me_].take(m.op.peer, m.number, looks, world_.failure);
  op.met_ns = comm_now_ns();
  const bool fits = post.bytes == m.op.buf.bytes();
  if (fits) cpu::copy_piece(m.op.buf.data, post.data, post.bytes);
  if (fits) count(size_t(m.op.peer), post.bytes);
  post.untaken->fetch_sub(1);
  group_.taken[size_t(m.op.peer)].wake();
  if (!fits)
    run_failed("p2p of group {}: rank {} sends {} bytes to rank {}, which expects {}", group_.name,
               group_.ranks[size_t(m.op.peer)], post.bytes, group_.ranks[me_], m.op.buf.bytes());
}

// ---- fast orders ----

// Messages of one collective. Its ranks have all arrived, so each comes to every message: nothing here waits
// for a rank that may have failed.
class ThreadCommunicator::Link final : public PeerLink {
 public:
  Link(ThreadCommunicator& c, QueuedOp& op)
      : c_(c), op_(op), looks_(c.world_.looks(op.call.stream.id == 0)) {}

  void exchange(int to, std::span<const Segment> out, int from, std::span<const Segment> in,
                bool fold_in) override {
    const int64_t size = size_of(op_.call.dtype);
    op_.untaken = int(out.size());
    for (size_t i = 0; i < out.size(); i++)
      c_.group_.inboxes[size_t(to)].put({c_.rank(), key(i), out[i].data, out[i].numel * size, &op_.untaken});
    for (size_t i = 0; i < in.size(); i++) {
      const Post post = c_.group_.inboxes[c_.me_].take(from, key(i), looks_, never_);
      require(post.bytes == in[i].numel * size, "both sides of a message have its size");
      std::byte* const both[] = {in[i].data, post.data};
      fold_in ? fold(op_, {both, 1}, both, in[i].numel) : cpu::copy_piece(in[i].data, post.data, post.bytes);
      c_.count(fold_in ? size_t(from) : c_.me_, post.bytes);
      post.untaken->fetch_sub(1);
      c_.group_.taken[size_t(from)].wake();
    }
    wait_at(c_.group_.taken[c_.me_], looks_, [&] { return op_.untaken.load() == 0; });
    round_++;
  }

 private:
  // Below 0, where messages of p2p are not; both sides count rounds alike.
  int64_t key(size_t segment) const {
    return -1 - ((op_.number << 32) + (int64_t(round_) << 16) + int64_t(segment));
  }
  ThreadCommunicator& c_;
  QueuedOp& op_;
  int looks_, round_ = 0;
  const Failure never_;
};

void ThreadCommunicator::all_reduce_fast(QueuedOp& op, Algorithm a) {
  Link link(*this, op);
  const BlockBuffer buffer{op.a.data, op.a.numel(), op.a.dtype};
  reduce_scatter_blocks(a, shape_, rank(), buffer, link, op.scratch);
  all_gather_blocks(a, shape_, rank(), buffer, link, op.scratch);
}

void ThreadCommunicator::reduce_scatter_fast(QueuedOp& op, Algorithm a) {
  Link link(*this, op);
  const BlockBuffer buffer{op.a.data, op.a.numel(), op.a.dtype};
  reduce_scatter_blocks(a, shape_, rank(), buffer, link, op.scratch);
  cpu::copy_piece(op.b.data, buffer.block(rank(), size()).data, op.b.bytes());
}

void ThreadCommunicator::all_gather_fast(QueuedOp& op, Algorithm a) {
  Link link(*this, op);
  const BlockBuffer buffer{op.b.data, op.b.numel(), op.b.dtype};
  cpu::copy_piece(buffer.block(rank(), size()).data, op.a.data, op.a.bytes());
  all_gather_blocks(a, shape_, rank(), buffer, link, op.scratch);
}

}  // namespace trireme::thread
