// A collective is a meeting and then its messages. In the meeting every rank greets every other one with what
// it is about to do: so all come to the same verdict where calls do not fit together, they know when the last
// had come, and what a failing rank breaks are meetings that are not complete. A rank may fail right after it
// has greeted; who waits for it then gives up a second later (World::wait).
//
// Ordered sums: the owner of a piece receives it from every rank, slice by slice into scratch memory, adds
// them in rank order with the kernel of rank threads and rounds once; the next slice is on its way meanwhile.
#include "comm/mpi/mpi_comm.h"

#include <algorithm>

#include "device/cpu/sum_pieces.h"

namespace trireme::mpi {
namespace {

void fold(const QueuedOp& op, std::byte* dst, std::span<std::byte* const> src, int64_t n) {
  (op.op == Reduce::max ? cpu::max_pieces : cpu::sum_pieces)({&dst, 1}, {src.data(), src.size()}, n,
                                                             op.a.dtype);
}

}  // namespace

// A call on its way, with memory of its own for as long as it is executed.
struct MpiCommunicator::Executing {
  Executing(MpiCommunicator& c, QueuedOp& o)
      : world(c.world_),
        op(o),
        inline_call(o.call.stream.id == 0),
        // Collectives and messages count apart. At most 64 calls are under way, so numbers may return.
        tag(2 * int(o.number % 8192)),
        w(world.take()) {}
  ~Executing() {
    if (!w) return;
    bool settled = w->greetings.settled();
    for (int i : {0, 1})
      settled = settled && w->in[i].settled() && w->out[i].settled() && w->results[i].settled();
    if (settled) {
      world.give_back(std::move(w));
      return;
    }
    w->greetings.give_up();
    for (int i : {0, 1}) w->in[i].give_up(), w->out[i].give_up(), w->results[i].give_up();
    world.keep(std::move(w));
  }
  World& world;
  QueuedOp& op;
  const bool inline_call;
  const int tag;
  std::unique_ptr<Workspace> w;
};

MpiCommunicator::MpiCommunicator(World& world, const CommOptions& options, MPI_Comm comm,
                                 std::string_view name, std::span<const int> ranks, int rank, Device* device)
    : QueuedCommunicator(name, rank, int(ranks.size()), device),
      world_(world),
      options_(options),
      comm_(comm),
      ranks_(ranks.begin(), ranks.end()),
      shape_(shape_of(ranks, options)) {}

std::string_view MpiCommunicator::algorithm(Collective c, int64_t payload) const {
  return algorithm_name(c, payload, shape_, options_);
}

void MpiCommunicator::abandon() {
  world_.fail("it ended while others could still wait for it", false, 0);
}

void MpiCommunicator::send(Executing& x, Messages& m, const std::byte* data, int64_t bytes, int to) {
  m.send(comm_, data, bytes, to, x.tag, world_.limits().message);
}
void MpiCommunicator::receive(Executing& x, Messages& m, std::byte* data, int64_t bytes, int from) {
  m.receive(comm_, data, bytes, from, x.tag, world_.limits().message);
}
void MpiCommunicator::wait(Executing& x, Messages& m) {
  world_.wait(m, x.inline_call);
}

void MpiCommunicator::execute(QueuedOp& op) {
  Executing x(*this, op);
  if (op.call.kind == Collective::p2p) return p2p(x);
  meet(x);
  agree(x);
  share_of(x);
}

void MpiCommunicator::meet(Executing& x) {
  if (world_.failure.is_set()) world_.failure.raise();
  const QueuedOp& op = x.op;
  Workspace& w = *x.w;
  w.to.assign(
      size_t(size()),
      {.numel = op.call.numel, .root = op.root, .kind = op.call.kind, .dtype = op.call.dtype, .op = op.op});
  w.from = w.to;
  for (int i = 1; i < size(); i++) {
    const size_t r = size_t(peer(i));
    if (op.call.kind == Collective::all_to_all) {
      w.to[r].send_rows = op.send_rows[r], w.to[r].recv_rows = op.recv_rows[r];
      w.to[r].cols = op.a.cols(), w.to[r].recv_cols = op.b.cols();
    }
    receive(x, w.greetings, reinterpret_cast<std::byte*>(&w.from[r]), sizeof(Greeting), int(r));
    send(x, w.greetings, reinterpret_cast<const std::byte*>(&w.to[r]), sizeof(Greeting), int(r));
  }
  world_.wait(w.greetings, x.inline_call);
  x.op.met_ns = comm_now_ns();
}

// The same verdict on every rank: each is held against rank 0.
void MpiCommunicator::agree(const Executing& x) const {
  const std::vector<Greeting>& all = x.w->from;
  for (size_t r = 1; r < all.size(); r++) {
    const Greeting &a = all[0], &b = all[r];
    const bool counts_differ = a.numel != b.numel && a.kind != Collective::all_to_all;
    if (a.kind != b.kind || a.dtype != b.dtype || counts_differ)
      run_failed("group {}: rank {} calls {} of {} {}, rank {} {} of {} {}; they must be equal", group(),
                 ranks_[0], name_of(a.kind), a.numel, name_of(a.dtype), ranks_[r], name_of(b.kind), b.numel,
                 name_of(b.dtype));
    if (a.root != b.root || a.op != b.op)
      run_failed("group {}: rank {} calls {} with another root or reduction than rank {}", group(), ranks_[0],
                 name_of(a.kind), ranks_[r]);
  }
}

void MpiCommunicator::share_of(Executing& x) {
  const Algorithm a = choose(shape_, x.op.call.payload, options_);
  const bool is_fast = a != Algorithm::ordered && size() > 1;
  switch (x.op.call.kind) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      return is_fast ? fast(x, a) : reduce_pieces(x);
    case Collective::all_gather:
      return is_fast ? fast(x, a) : all_gather(x);
    case Collective::reduce:
      return reduce_pieces(x);
    case Collective::all_to_all:
      return all_to_all(x);
    case Collective::broadcast:
      return broadcast(x);
    default:
      return;  // a barrier is the meeting itself
  }
}

// ---- ordered sums ----

// A reduction as pieces: whose is what.
struct MpiCommunicator::Sum {
  std::byte* data;   // of all pieces
  std::byte* dst;    // where this rank's sum goes
  int64_t numel;     // of data
  int size, root;    // root: of a reduce, who owns everything; else -1
  int64_t slice;     // elements
  int64_t elements;  // bytes of one
  bool shared;       // sums go back to everybody

  Range piece(int r) const {
    if (root >= 0) return {0, r == root ? numel : 0};
    return piece_of(numel, size, r);
  }
  // Elements of slice k of a piece, in data.
  Range of(int r, int64_t k) const {
    const Range p = piece(r);
    return {std::min(p.end, p.begin + k * slice), std::min(p.end, p.begin + (k + 1) * slice)};
  }
  int64_t slices() const {
    const int64_t longest = root >= 0 ? numel : piece(0).size();
    return (longest + slice - 1) / slice;
  }
  std::byte* at(const Range& r) const { return data + r.begin * elements; }
};

int64_t MpiCommunicator::slice_bytes() const {
  const int64_t each = world_.limits().scratch / (2 * std::max(1, size() - 1));
  return std::clamp<int64_t>(each, std::min<int64_t>(world_.limits().slice, 64 << 10), world_.limits().slice);
}

void MpiCommunicator::reduce_pieces(Executing& x) {
  QueuedOp& op = x.op;
  const Collective kind = op.call.kind;
  const Range mine = piece_of(op.a.numel(), size(), rank());
  const int64_t bytes = size_of(op.a.dtype);
  std::byte* dst = op.a.data;
  if (kind == Collective::all_reduce) dst += mine.begin * bytes;
  if (kind == Collective::reduce_scatter) dst = op.b.data;
  if (size() == 1)
    return kind == Collective::reduce_scatter ? cpu::copy_piece(dst, op.a.data, op.b.bytes()) : void();
  const Sum sum{.data = op.a.data,
                .dst = dst,
                .numel = op.a.numel(),
                .size = size(),
                .root = kind == Collective::reduce ? op.root : -1,
                .slice = std::max<int64_t>(1, slice_bytes() / bytes),
                .elements = bytes,
                .shared = kind == Collective::all_reduce};
  Workspace& w = *x.w;
  w.at.resize(size_t(size()));
  const int64_t longest = std::min(sum.slice, sum.piece(rank()).size());
  if (const size_t need = size_t(2 * size() * longest * bytes); w.pieces.size() < need) w.pieces.resize(need);
  const int64_t slices = sum.slices();
  exchange_slice(x, sum, 0);
  for (int64_t k = 0; k < slices; k++) {
    if (k + 1 < slices) exchange_slice(x, sum, k + 1);
    wait(x, w.in[k % 2]);
    add_slice(x, sum, k);
    wait(x, w.out[k % 2]);
    if (!sum.shared) continue;
    wait(x, w.results[k % 2]);
    share_slice(x, sum, k);
  }
  wait(x, w.results[0]), wait(x, w.results[1]);
}

// Slice k of everybody's piece to its owner. Scratch of slice k - 2 is free again.
void MpiCommunicator::exchange_slice(Executing& x, const Sum& sum, int64_t k) {
  Workspace& w = *x.w;
  const int64_t mine = sum.of(rank(), k).size() * sum.elements;
  const int64_t stride = std::min(sum.slice, sum.piece(rank()).size()) * sum.elements;
  for (int i = 1; i < size(); i++) {
    const int r = peer(i), back = peer(size() - i);
    if (mine > 0) receive(x, w.in[k % 2], w.pieces.data() + (k % 2 * size() + back) * stride, mine, back);
    const Range theirs = sum.of(r, k);
    if (theirs.size() == 0) continue;
    send(x, w.out[k % 2], sum.at(theirs), theirs.size() * sum.elements, r);
    count(theirs.size() * sum.elements);
  }
}

void MpiCommunicator::add_slice(Executing& x, const Sum& sum, int64_t k) {
  Workspace& w = *x.w;
  const Range mine = sum.of(rank(), k);
  if (mine.size() == 0) return;
  const int64_t stride = std::min(sum.slice, sum.piece(rank()).size()) * sum.elements;
  for (int r = 0; r < size(); r++)
    w.at[size_t(r)] = r == rank() ? sum.at(mine) : w.pieces.data() + (k % 2 * size() + r) * stride;
  fold(x.op, sum.dst + (mine.begin - sum.piece(rank()).begin) * sum.elements, w.at, mine.size());
}

// The sum of slice k to everybody. What is received comes to where we sent from, and that was taken up.
void MpiCommunicator::share_slice(Executing& x, const Sum& sum, int64_t k) {
  Messages& results = x.w->results[k % 2];
  const Range mine = sum.of(rank(), k);
  for (int i = 1; i < size(); i++) {
    const int r = peer(i), back = peer(size() - i);
    if (const Range theirs = sum.of(back, k); theirs.size() > 0) {
      receive(x, results, sum.at(theirs), theirs.size() * sum.elements, back);
      count(theirs.size() * sum.elements);
    }
    if (mine.size() > 0) send(x, results, sum.at(mine), mine.size() * sum.elements, r);
  }
}

// ---- copies ----

void MpiCommunicator::all_gather(Executing& x) {
  QueuedOp& op = x.op;
  const int64_t bytes = op.a.bytes();
  Messages& m = x.w->in[0];
  for (int i = 1; i < size() && bytes > 0; i++) {
    receive(x, m, op.b.data + peer(size() - i) * bytes, bytes, peer(size() - i));
    send(x, m, op.a.data, bytes, peer(i));
    count(bytes);
  }
  cpu::copy_piece(op.b.data + rank() * bytes, op.a.data, bytes);
  wait(x, m);
}

// Two ranks that do not fit together exchange nothing, but both go on with the others: nobody waits in vain.
void MpiCommunicator::all_to_all(Executing& x) {
  QueuedOp& op = x.op;
  const int64_t size_of_one = size_of(op.call.dtype);
  Messages& m = x.w->in[0];
  std::string wrong;
  int64_t from = 0;
  std::vector<int64_t>& to = x.w->rows;
  to.assign(size_t(size()) + 1, 0);
  for (size_t r = 0; r < size_t(size()); r++) to[r + 1] = to[r] + op.send_rows[r];
  const int64_t row = op.a.cols() * size_of_one, row_in = op.b.cols() * size_of_one;
  auto differ = [&](int sender, int receiver, int64_t rows, int64_t cols, int64_t expected, int64_t cols_in) {
    if (rows == expected && (rows == 0 || cols == cols_in)) return false;
    wrong =
        fmt::format("all_to_all of group {}: rank {} sends {} rows of {} to rank {}, which expects {} of {}",
                    group(), ranks_[size_t(sender)], rows, cols, ranks_[size_t(receiver)], expected, cols_in);
    return true;
  };
  for (int r = 0; r < size(); r++) {
    const Greeting& g = x.w->from[size_t(r)];
    std::byte* in = op.b.data + from * row_in;
    from += op.recv_rows[size_t(r)];
    const int64_t out_rows = op.send_rows[size_t(r)], in_rows = op.recv_rows[size_t(r)];
    if (r == rank()) {
      if (!differ(r, r, out_rows, op.a.cols(), in_rows, op.b.cols()))
        cpu::copy_piece(in, op.a.data + to[size_t(r)] * row, out_rows * row);
      continue;
    }
    const bool not_in = differ(r, rank(), g.send_rows, g.cols, in_rows, op.b.cols());
    const bool not_out = differ(rank(), r, out_rows, op.a.cols(), g.recv_rows, g.recv_cols);
    if (!not_in && in_rows > 0) receive(x, m, in, in_rows * row_in, r);
    if (not_out || out_rows == 0) continue;
    send(x, m, op.a.data + to[size_t(r)] * row, out_rows * row, r);
    count(out_rows * row);
  }
  wait(x, m);
  if (!wrong.empty()) throw Error(wrong);
}

void MpiCommunicator::broadcast(Executing& x) {
  QueuedOp& op = x.op;
  const int64_t bytes = op.a.bytes();
  if (bytes == 0) return;
  Messages& m = x.w->in[0];
  if (rank() != op.root) receive(x, m, op.a.data, bytes, op.root);
  for (int i = 1; i < size() && rank() == op.root; i++) send(x, m, op.a.data, bytes, peer(i)), count(bytes);
  wait(x, m);
}

// ---- messages ----

void MpiCommunicator::p2p(Executing& x) {
  if (world_.failure.is_set()) world_.failure.raise();
  Messages& m = x.w->in[0];
  const int64_t most = world_.limits().message;
  int64_t sent = 0;
  for (const P2pNumbered& p : x.op.p2p) {
    const int tag = 1 + 2 * int(p.number % 8192);
    const Tensor& buf = p.op.buf;
    if (p.op.send)
      m.send(comm_, buf.data, buf.bytes(), p.op.peer, tag, most), sent += buf.bytes();
    else
      m.receive(comm_, buf.data, buf.bytes(), p.op.peer, tag, most);
  }
  world_.wait(m, x.inline_call);
  count(sent);
  if (m.wrong_bytes() < 0) return;
  int64_t expected = 0;
  for (const P2pNumbered& p : x.op.p2p)
    if (!p.op.send && p.op.peer == m.wrong_from() && p.op.buf.bytes() != m.wrong_bytes())
      expected = p.op.buf.bytes();
  run_failed("p2p of group {}: rank {} sends {} bytes to rank {}, which expects {}", group(),
             ranks_[size_t(m.wrong_from())], m.wrong_bytes(), ranks_[size_t(rank())], expected);
}

// ---- fast orders ----

// Messages of one collective, all of whose ranks have come.
class MpiCommunicator::Link final : public PeerLink {
 public:
  Link(MpiCommunicator& c, Executing& x)
      : c_(c),
        x_(x),
        bytes_(size_of(x.op.call.dtype)),
        slice_(std::max<int64_t>(1, c.slice_bytes() / bytes_)) {}

  void exchange(int to, std::span<const Segment> out, int from, std::span<const Segment> in,
                bool fold_in) override {
    Workspace& w = *x_.w;
    each_slice(out, fold_in, [&](std::byte* data, int64_t n) {
      c_.send(x_, w.out[0], data, n * bytes_, to);
      if (fold_in) c_.count(n * bytes_);
    });
    if (fold_in)
      add(from, in);
    else
      each_slice(in, false, [&](std::byte* data, int64_t n) {
        c_.receive(x_, w.in[0], data, n * bytes_, from);
        c_.count(n * bytes_);
      });
    c_.wait(x_, w.in[0]), c_.wait(x_, w.out[0]);
  }

 private:
  // Both sides cut segments alike.
  template <class F>
  void each_slice(std::span<const Segment> segments, bool cut, const F& f) {
    for (const Segment& s : segments)
      for (int64_t i = 0; i < s.numel; i += cut ? slice_ : s.numel)
        f(s.data + i * bytes_, cut ? std::min(slice_, s.numel - i) : s.numel);
  }
  // One slice is added while the next is on its way.
  void add(int from, std::span<const Segment> in) {
    Workspace& w = *x_.w;
    if (w.pieces.size() < size_t(2 * slice_ * bytes_)) w.pieces.resize(size_t(2 * slice_ * bytes_));
    std::byte* before = nullptr;
    int64_t before_n = 0, k = 0;
    auto finish = [&] {
      if (!before) return;
      const int64_t last = (k + 1) % 2;
      c_.wait(x_, w.in[last]);
      std::byte* const both[] = {before, w.pieces.data() + last * slice_ * bytes_};
      fold(x_.op, before, both, before_n);
    };
    each_slice(in, true, [&](std::byte* data, int64_t n) {
      c_.receive(x_, w.in[k % 2], w.pieces.data() + k % 2 * slice_ * bytes_, n * bytes_, from);
      finish();
      before = data, before_n = n, k++;
    });
    finish();
  }

  MpiCommunicator& c_;
  Executing& x_;
  const int64_t bytes_, slice_;
};

void MpiCommunicator::fast(Executing& x, Algorithm a) {
  Link link(*this, x);
  QueuedOp& op = x.op;
  const Collective kind = op.call.kind;
  const Tensor& full = kind == Collective::all_gather ? op.b : op.a;
  const BlockBuffer buffer{full.data, full.numel(), full.dtype};
  std::byte* mine = buffer.block(rank(), size()).data;
  if (kind == Collective::all_gather) cpu::copy_piece(mine, op.a.data, op.a.bytes());
  if (kind != Collective::all_gather) reduce_scatter_blocks(a, shape_, rank(), buffer, link, op.scratch);
  if (kind != Collective::reduce_scatter) all_gather_blocks(a, shape_, rank(), buffer, link, op.scratch);
  if (kind == Collective::reduce_scatter) cpu::copy_piece(op.b.data, mine, op.b.bytes());
}

}  // namespace trireme::mpi
