#include "comm/nccl/nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/file.h"
#include "comm/waiting.h"
#include "device/cpu/sum_pieces.h"

namespace trireme::nccl {
namespace {

struct Elements {
  DataType type;
  int64_t each;  // of NCCL's for one of ours
};
// What only moves may go as bytes.
Elements elements_of(DType t) {
  switch (t) {
    case DType::f64:
      return {kFloat64, 1};
    case DType::f32:
      return {kFloat32, 1};
    case DType::bf16:
      return {kBfloat16, 1};
    case DType::f16:
      return {kFloat16, 1};
    case DType::i64:
      return {kInt64, 1};
    case DType::i32:
      return {kInt32, 1};
    default:
      return {kUint8, size_of(t)};
  }
}
RedOp op_of(Reduce op) {
  return op == Reduce::max ? kMax : kSum;
}
uint64_t mixed(uint64_t key, uint64_t more) {
  return hash64(&more, sizeof more, key);
}

}  // namespace

std::string await_note(Shared& s, int from, uint64_t key, std::string_view what, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  Patience patience;
  while (true) {
    if (std::optional<std::string> note = s.host.fetch(from, key)) return *note;
    if (s.host.news().is_set()) s.host.news().raise();
    if (Clock::now() > end) run_failed("{}: rank {} has not come to it for {:.0f} s", what, from, seconds);
    patience.rest();
  }
}

NcclCommunicator::NcclCommunicator(Shared& shared, uint64_t key, std::string_view name,
                                   std::span<const int> ranks, int rank, Device& device,
                                   std::shared_ptr<Channel> all, std::unique_ptr<Communicator> by_host)
    : QueuedCommunicator(name, rank, int(ranks.size()), &device),
      shared_(shared),
      key_(key),
      ranks_(ranks.begin(), ranks.end()),
      device_(device),
      all_(std::move(all)),
      by_host_(std::move(by_host)) {
  device_.guard(this, [this] {
    settle();
    all_->look_after();
  });
}

NcclCommunicator::~NcclCommunicator() {
  finish();
  device_.guard(this, {});
}

std::string_view NcclCommunicator::algorithm(Collective c, int64_t) const {
  const bool adds = c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
  return adds ? "nccl" : "direct";
}

void NcclCommunicator::abandon() {
  shared_.host.fail("it ended while others could still wait for it", false);
}

void NcclCommunicator::execute(QueuedOp& op) {
  if (op.call.kind == Collective::p2p && op.p2p.empty()) return;
  if (shared_.host.news().is_set()) shared_.host.news().raise();
  if (op.call.kind == Collective::p2p) return p2p(op);
  if (of_host(op)) {
    all_->in_turn(op.number, [&] { by_host(op); });
    op.met_ns = comm_now_ns();
    return count(op.call.wire);
  }
  all_->use(op.a.data), all_->use(op.b.data);
  const int64_t mark = all_->issue(
      op.number, [&](const Api& api, Comm comm, CudaStream stream) { return start(op, api, comm, stream); });
  all_->wait(mark);
  count(op.call.wire);
}

void NcclCommunicator::settle() {
  std::lock_guard lock(left_mutex_);
  for (; left_begin_ < left_end_; left_begin_++) {
    const Left& l = left_[size_t(left_begin_ % kMostLeft)];
    if (!all_->passed(l.mark)) {
      if (observer_ && comm_now_ns() - reported_ns_ > std::chrono::nanoseconds(kWaitReport).count() / 2) {
        observer_->waiting(l.call);
        reported_ns_ = comm_now_ns();
      }
      return;
    }
    if (observer_) observer_->done(l.call, l.begin_ns, l.begin_ns, comm_now_ns());
  }
}

bool NcclCommunicator::in_order(QueuedOp& op) {
  const Stream stream = op.call.stream;
  if (op.call.kind == Collective::p2p || !device_.orders(stream) || of_host(op)) return false;
  if (shared_.host.news().is_set()) shared_.host.news().raise();
  Patience patience;
  for (; left_end_ - left_begin_ == kMostLeft; settle()) all_->look_after(), patience.rest();
  all_->use(op.a.data), all_->use(op.b.data);
  const int64_t begin_ns = comm_now_ns();
  const int64_t mark = all_->issue(op.number, [&](const Api& api, Comm comm, CudaStream queue) {
    device_.queue_after(all_->queue(), stream);
    return start(op, api, comm, queue);
  });
  {
    std::lock_guard lock(left_mutex_);
    left_[size_t(left_end_++ % kMostLeft)] = {op.call, begin_ns, mark};
  }
  all_->leave_to_device(mark);
  device_.stream_after(stream, all_->queue(), mark);
  count(op.call.wire);
  settle();
  return true;
}

// A barrier is the host's too: all that stood before it on its stream is done. So is what has no elements,
// for nobody can tell whose memory that is.
bool NcclCommunicator::of_host(const QueuedOp& op) const {
  if (op.call.kind == Collective::barrier) return true;
  const std::byte* p = op.a.numel() > 0 ? op.a.data : op.b.numel() > 0 ? op.b.data : nullptr;
  // A rank without rows goes with the others, which it cannot ask: so theirs are on the device.
  if (op.call.kind == Collective::all_to_all) {
    if (p && !all_->owns(p))
      run_failed(
          "all_to_all of group {}: rows in the host's memory; with train.comm = \"nccl\" they must be "
          "on the device",
          group());
    return false;
  }
  return !p || !all_->owns(p);
}

void NcclCommunicator::by_host(QueuedOp& op) {
  switch (op.call.kind) {
    case Collective::all_reduce:
      return by_host_->all_reduce({.buf = op.a, .op = op.op}, {});
    case Collective::all_gather:
      return by_host_->all_gather({.shard = op.a, .full = op.b}, {});
    case Collective::reduce_scatter:
      return by_host_->reduce_scatter({.full = op.a, .shard = op.b, .op = op.op}, {});
    case Collective::broadcast:
      return by_host_->broadcast({.buf = op.a, .root = op.root}, {});
    case Collective::reduce:
      return by_host_->reduce({.buf = op.a, .root = op.root, .op = op.op}, {});
    default:
      return by_host_->barrier({});
  }
}

Result NcclCommunicator::start(QueuedOp& op, const Api& api, Comm comm, CudaStream stream) {
  const Elements e = elements_of(op.call.dtype);
  auto count_of = [&](const Tensor& t) { return size_t(t.numel() * e.each); };
  switch (op.call.kind) {
    case Collective::all_reduce:
      return api.AllReduce(op.a.data, op.a.data, count_of(op.a), e.type, op_of(op.op), comm, stream);
    case Collective::all_gather:
      return api.AllGather(op.a.data, op.b.data, count_of(op.a), e.type, comm, stream);
    case Collective::reduce_scatter:
      return api.ReduceScatter(op.a.data, op.b.data, count_of(op.b), e.type, op_of(op.op), comm, stream);
    case Collective::broadcast:
      return api.Broadcast(op.a.data, op.a.data, count_of(op.a), e.type, op.root, comm, stream);
    case Collective::reduce:
      return api.Reduce(op.a.data, op.a.data, count_of(op.a), e.type, op_of(op.op), op.root, comm, stream);
    default:
      return exchange_rows(op, api, comm, stream);
  }
}

// Every rank's rows, its own too, in one group of calls: none waits for another there.
Result NcclCommunicator::exchange_rows(QueuedOp& op, const Api& api, Comm comm, CudaStream stream) {
  const Elements e = elements_of(op.call.dtype);
  const int64_t width = op.a.numel() > 0 ? op.a.cols() : op.b.numel() > 0 ? op.b.cols() : 0;
  const int64_t row = width * size_of(op.call.dtype);
  Result r = api.GroupStart();
  const std::byte* from = op.a.data;
  std::byte* to = op.b.data;
  for (int peer = 0; peer < size() && r == kSuccess; peer++) {
    const int64_t out = op.send_rows[size_t(peer)], in = op.recv_rows[size_t(peer)];
    auto fine = [&](Result x) { r = x == kInProgress ? kSuccess : x; };
    if (out > 0) fine(api.Send(from, size_t(out * width * e.each), e.type, peer, comm, stream));
    if (in > 0 && r == kSuccess) fine(api.Recv(to, size_t(in * width * e.each), e.type, peer, comm, stream));
    from += out * row, to += in * row;
  }
  const Result end = api.GroupEnd();  // also where a call failed: a group is ended once begun
  return r == kSuccess ? end : r;
}

// ---- messages ----

// The first message of a direction makes its channel: both ends are at it. Who sends gives the id.
Channel& NcclCommunicator::pair(int from, int to) {
  Pair* slot = nullptr;
  {
    std::lock_guard lock(pairs_mutex_);
    std::unique_ptr<Pair>& made = pairs_[{from, to}];
    if (!made) made = std::make_unique<Pair>();
    slot = made.get();
  }
  std::lock_guard lock(slot->mutex);
  std::unique_ptr<Channel>& c = slot->channel;
  if (c) return *c;
  const int a = ranks_[size_t(from)], b = ranks_[size_t(to)];
  const uint64_t key = mixed(mixed(key_, uint64_t(a) + 1), uint64_t(b) + 1);
  const std::string what = fmt::format("messages of group {} from rank {} to rank {}", group(), a, b);
  UniqueId id;
  if (from == rank()) {
    if (const Result r = shared_.api.GetUniqueId(&id); r != kSuccess)
      run_failed("{}: NCCL's GetUniqueId failed: {}", what, shared_.api.GetErrorString(r));
    shared_.host.post(b, key, {id.internal, sizeof id.internal});
  } else {
    const std::string note = await_note(shared_, a, key, what, shared_.meet_s);
    if (note.size() != sizeof id.internal) run_failed("{}: an id of {} bytes", what, note.size());
    std::memcpy(id.internal, note.data(), sizeof id.internal);
  }
  c = std::make_unique<Channel>(shared_, what, device_.queue(), id, 2, from == rank() ? 0 : 1);
  return *c;
}

// Of the host's memory: a note beside NCCL.
void NcclCommunicator::mail(const P2pNumbered& p) {
  const int peer = ranks_[size_t(p.op.peer)], me = ranks_[size_t(rank())];
  const uint64_t key = mixed(mixed(key_, 77), uint64_t(p.number));
  const Tensor& t = p.op.buf;
  if (t.bytes() > int64_t(ProcessWorld::kMostNote))
    run_failed("p2p of group {}: a message of {} bytes of the host's memory; at most {} go beside NCCL",
               group(), t.bytes(), ProcessWorld::kMostNote);
  if (p.op.send)
    return shared_.host.post(peer, key, {reinterpret_cast<const char*>(t.data), size_t(t.bytes())});
  const std::string note =
      await_note(shared_, peer, key, fmt::format("a message of group {}", group()), shared_.meet_s);
  if (int64_t(note.size()) != t.bytes())
    run_failed("p2p of group {}: rank {} sends {} bytes to rank {}, which expects {}", group(), peer,
               note.size(), me, t.bytes());
  std::memcpy(t.data, note.data(), note.size());
}

void NcclCommunicator::p2p(QueuedOp& op) {
  const std::vector<P2pNumbered>& all = op.p2p;
  auto beside = [&](size_t i) { return all[i].op.buf.numel() == 0 || !all_->owns(all[i].op.buf.data); };
  std::vector<Channel*> channels(all.size());
  // All channels first, and those to send by before the others, whose other ends wait for nobody then.
  for (bool send : {true, false})
    for (size_t i = 0; i < all.size(); i++)
      if (const P2p& p = all[i].op; p.send == send)
        channels[i] = &(send ? pair(rank(), p.peer) : pair(p.peer, rank()));
  std::vector<Channel::Share> shares;  // a channel's messages of a batch have numbers one after another
  for (size_t i = 0; i < all.size(); i++) {
    channels[i]->ready();
    if (beside(i) && all[i].op.send) mail(all[i]);  // for which nobody waits: its number is its own
    if (!beside(i)) channels[i]->use(all[i].op.buf.data);
    const auto s = std::find_if(shares.begin(), shares.end(),
                                [&](const Channel::Share& x) { return x.channel == channels[i]; });
    s == shares.end() ? shares.push_back({channels[i], all[i].number, 1}) : void(s->count++);
  }
  std::sort(shares.begin(), shares.end(), [](const Channel::Share& a, const Channel::Share& b) {
    return std::less<Channel*>()(a.channel, b.channel);
  });
  Channel::issue_together(shares, [&](size_t share, Comm comm, CudaStream stream) {
    Result r = kSuccess;
    for (size_t i = 0; i < all.size() && r == kSuccess; i++) {
      if (channels[i] != shares[share].channel || beside(i)) continue;
      const Tensor& t = all[i].op.buf;
      const Elements e = elements_of(t.dtype);
      const size_t n = size_t(t.numel() * e.each);
      r = all[i].op.send ? shared_.api.Send(t.data, n, e.type, 1, comm, stream)
                         : shared_.api.Recv(t.data, n, e.type, 0, comm, stream);
      if (r == kInProgress) r = kSuccess;
    }
    return r;
  });
  for (size_t i = 0; i < all.size(); i++)
    if (beside(i) && !all[i].op.send) mail(all[i]);
  for (const Channel::Share& s : shares) s.channel->wait(s.mark);
  for (const P2pNumbered& p : all)
    if (p.op.send) count(p.op.buf.bytes());
}

}  // namespace trireme::nccl
