#include "comm/communicator.h"

#include <algorithm>

namespace trireme {
namespace {

constexpr std::array<std::string_view, kCollectives> kNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p", "barrier"};

// What every check knows: whose call it is. A failed check is a bug in trireme, so it says all it can.
struct Check {
  const Communicator& comm;
  Collective kind;

  template <class... A>
  [[noreturn]] void wrong(fmt::format_string<A...> f, A&&... a) const {
    run_failed("{} of group {}, rank {} of {}: {}", name_of(kind), comm.group(), comm.rank(), comm.size(),
               fmt::format(f, std::forward<A>(a)...));
  }
  void tensor(std::string_view what, const Tensor& t) const {
    if (!t.contiguous()) wrong("{} {} is not contiguous", what, to_string(t.shape));
    if (!t && t.numel() > 0) wrong("{} {} has no memory", what, to_string(t.shape));
  }
  void added(const Tensor& t) const {
    if (t.dtype == DType::u8 || t.dtype == DType::u16)
      wrong("values of {} are not added; right are f64, f32, bf16, f16, i64 and i32", name_of(t.dtype));
  }
  void same_type(const Tensor& a, const Tensor& b) const {
    if (a.dtype != b.dtype)
      wrong("its tensors are {} and {}, and must be of one type", name_of(a.dtype), name_of(b.dtype));
  }
  void shards(const Tensor& full, const Tensor& shard) const {
    same_type(full, shard);
    if (full.numel() != shard.numel() * comm.size())
      wrong("full has {} elements, and must have {} x {}", full.numel(), comm.size(), shard.numel());
  }
  void peer(std::string_view what, int r) const {
    if (r < 0 || r >= comm.size()) wrong("{} is {}, and must be from 0 to {}", what, r, comm.size() - 1);
  }
  void rows(std::string_view what, const Tensor& t, std::span<const int64_t> counts) const {
    if (counts.size() != size_t(comm.size()))
      wrong("{} has counts for {} ranks, and must have {}", what, counts.size(), comm.size());
    int64_t sum = 0;
    for (int64_t c : counts) {
      if (c < 0) wrong("{} has a count of {} rows", what, c);
      sum += c;
    }
    if (t.shape.rank < 1 || sum != t.rows())
      wrong("{} is {}, and its counts add up to {} rows", what, to_string(t.shape), sum);
  }
};

int64_t row_bytes(const Tensor& t) {
  return t.cols() * size_of(t.dtype);
}

}  // namespace

std::string_view name_of(Collective c) {
  return kNames[size_t(c)];
}

Range piece_of(int64_t numel, int size, int rank) {
  int64_t least = numel / size, longer = numel % size;
  int64_t begin = least * rank + std::min<int64_t>(rank, longer);
  return {begin, begin + least + (rank < longer ? 1 : 0)};
}

int64_t wire_bytes(const AllReduceArgs& a, int size, int rank) {
  return 2 * (a.buf.numel() - piece_of(a.buf.numel(), size, rank).size()) * size_of(a.buf.dtype);
}
int64_t wire_bytes(const AllGatherArgs& a, int size, int) {
  return (size - 1) * a.shard.bytes();
}
int64_t wire_bytes(const ReduceScatterArgs& a, int size, int) {
  return (size - 1) * a.shard.bytes();
}
int64_t wire_bytes(const AllToAllArgs& a, int size, int rank) {
  int64_t rows = 0;
  for (int r = 0; r < size; r++)
    if (r != rank) rows += a.send_rows[size_t(r)];
  return rows * row_bytes(a.send);
}
int64_t wire_bytes(const BroadcastArgs& a, int size, int rank) {
  return rank == a.root ? (size - 1) * a.buf.bytes() : 0;
}
int64_t wire_bytes(const ReduceArgs& a, int, int rank) {
  return rank == a.root ? 0 : a.buf.bytes();
}
int64_t wire_bytes(const P2pArgs& a, int, int) {
  int64_t bytes = 0;
  for (const P2p& p : a.ops) bytes += p.send ? p.buf.bytes() : 0;
  return bytes;
}

CommCall Communicator::issue(Collective kind, DType dtype, int64_t numel, int64_t payload, int64_t wire,
                             Stream stream, int root, Reduce op, const P2p* only) {
  CommCall call{kind, group(), algorithm(kind, payload), dtype, numel, payload, wire, sequence_++, stream,
                root, op};
  if (only) call.peer = only->peer, call.send = only->send;
  CommCount& c = counts_[size_t(kind)];
  c.calls++, c.payload += payload, c.wire += wire;
  if (observer_) observer_->issued(call);
  return call;
}

CommObserver* Communicator::observe(CommObserver* o) {
  return std::exchange(observer_, o);
}

void Communicator::all_reduce(const AllReduceArgs& a, Stream s) {
  Check check{*this, Collective::all_reduce};
  check.tensor("buf", a.buf), check.added(a.buf);
  do_all_reduce(a, s,
                issue(check.kind, a.buf.dtype, a.buf.numel(), a.buf.bytes(), wire_bytes(a, size(), rank()), s,
                      0, a.op));
}

void Communicator::all_gather(const AllGatherArgs& a, Stream s) {
  Check check{*this, Collective::all_gather};
  check.tensor("shard", a.shard), check.tensor("full", a.full), check.shards(a.full, a.shard);
  do_all_gather(
      a, s,
      issue(check.kind, a.full.dtype, a.full.numel(), a.full.bytes(), wire_bytes(a, size(), rank()), s));
}

void Communicator::reduce_scatter(const ReduceScatterArgs& a, Stream s) {
  Check check{*this, Collective::reduce_scatter};
  check.tensor("full", a.full), check.tensor("shard", a.shard), check.shards(a.full, a.shard);
  check.added(a.full);
  do_reduce_scatter(a, s,
                    issue(check.kind, a.full.dtype, a.full.numel(), a.full.bytes(),
                          wire_bytes(a, size(), rank()), s, 0, a.op));
}

void Communicator::all_to_all(const AllToAllArgs& a, Stream s) {
  Check check{*this, Collective::all_to_all};
  check.tensor("send", a.send), check.tensor("recv", a.recv), check.same_type(a.send, a.recv);
  check.rows("send", a.send, a.send_rows), check.rows("recv", a.recv, a.recv_rows);
  if (a.send.rows() > 0 && a.recv.rows() > 0 && a.send.cols() != a.recv.cols())
    check.wrong("rows of send have {} elements, those of recv {}", a.send.cols(), a.recv.cols());
  do_all_to_all(
      a, s,
      issue(check.kind, a.send.dtype, a.send.numel(), a.send.bytes(), wire_bytes(a, size(), rank()), s));
}

void Communicator::broadcast(const BroadcastArgs& a, Stream s) {
  Check check{*this, Collective::broadcast};
  check.tensor("buf", a.buf), check.peer("root", a.root);
  do_broadcast(
      a, s,
      issue(check.kind, a.buf.dtype, a.buf.numel(), a.buf.bytes(), wire_bytes(a, size(), rank()), s, a.root));
}

void Communicator::reduce(const ReduceArgs& a, Stream s) {
  Check check{*this, Collective::reduce};
  check.tensor("buf", a.buf), check.added(a.buf), check.peer("root", a.root);
  do_reduce(a, s,
            issue(check.kind, a.buf.dtype, a.buf.numel(), a.buf.bytes(), wire_bytes(a, size(), rank()), s,
                  a.root, a.op));
}

void Communicator::p2p(const P2pArgs& a, Stream s) {
  Check check{*this, Collective::p2p};
  int64_t numel = 0, payload = 0;
  for (const P2p& p : a.ops) {
    check.tensor("buf", p.buf), check.peer("peer", p.peer);
    if (p.peer == rank()) check.wrong("a rank sends nothing to itself");
    numel += p.buf.numel(), payload += p.buf.bytes();
  }
  DType dtype = a.ops.empty() ? DType::u8 : a.ops[0].buf.dtype;
  do_p2p(a, s,
         issue(check.kind, dtype, numel, payload, wire_bytes(a, size(), rank()), s, 0, Reduce::sum,
               a.ops.size() == 1 ? &a.ops[0] : nullptr));
}

void Communicator::barrier(Stream s) {
  do_barrier(s, issue(Collective::barrier, DType::u8, 0, 0, 0, s));
}

}  // namespace trireme
