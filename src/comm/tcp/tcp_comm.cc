#include "comm/tcp/tcp_comm.h"

#include <algorithm>
#include <cstring>

#include "device/cpu/sum_pieces.h"

namespace trireme::tcp {
namespace {

// What a rank sends or is sent in one frame.
void check_size(std::string_view call, std::string_view group, int64_t bytes) {
  if (bytes > kMostBody)
    run_failed("{} of group {}: {} bytes in one call; over TCP at most {} go", call, group, bytes, kMostBody);
}

std::span<const std::byte> bytes_in(const Tensor& t) {
  return {t.data, size_t(t.bytes())};
}

}  // namespace

TcpCommunicator::TcpCommunicator(Client& client, uint64_t key, std::string_view name,
                                 std::span<const int> ranks, int rank, Device* device)
    : QueuedCommunicator(name, rank, int(ranks.size()), device),
      client_(client),
      key_(key),
      ranks_(ranks.begin(), ranks.end()) {}

std::string_view TcpCommunicator::algorithm(Collective c, int64_t) const {
  const bool adds = c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
  return adds ? "ordered" : "direct";
}

void TcpCommunicator::abandon() {
  client_.fail(client_.rank(), "it ended while others could still wait for it", false, 0);
}

void TcpCommunicator::execute(QueuedOp& op) {
  op.call.kind == Collective::p2p ? p2p(op) : collective(op);
}

void TcpCommunicator::collective(QueuedOp& op) {
  if (client_.failure().is_set()) client_.failure().raise();
  const Collective kind = op.call.kind;
  CallHead h{.numel = op.a.numel(),
             .size = size(),
             .place = rank(),
             .root = op.root,
             .kind = kind,
             .dtype = op.call.dtype,
             .op = op.op};
  std::string(group()).copy(h.group.data(), h.group.size() - 1);
  if (kind == Collective::barrier) h.numel = 0;
  if (kind == Collective::all_to_all) h.cols = op.a.cols(), h.recv_cols = op.b.cols();
  const bool tables = kind == Collective::all_to_all;
  const bool brings = kind != Collective::barrier && (kind != Collective::broadcast || rank() == op.root);
  const std::span<const int64_t> none;
  const int64_t rows = tables ? 16 * int64_t(size()) : 0;  // bytes of the tables
  check_size(name_of(kind), group(), int64_t(sizeof h) + rows + std::max(op.a.bytes(), op.b.bytes()));
  client_.send({.kind = FrameKind::call, .from = client_.rank(), .key = key_, .number = op.number},
               body_of(h, tables ? op.send_rows : none, tables ? op.recv_rows : none,
                       brings ? bytes_in(op.a) : std::span<const std::byte>()));
  const std::vector<std::byte> result = client_.result(key_, op.number);
  op.met_ns = comm_now_ns();
  const bool apart = kind == Collective::all_gather || kind == Collective::reduce_scatter || tables;
  const Tensor& to = apart ? op.b : op.a;
  const bool gets = kind != Collective::barrier && (kind != Collective::reduce || rank() == op.root);
  if (gets && int64_t(result.size()) != to.bytes())
    run_failed("{} of group {}: rank 0 sends {} bytes back, and they must be {}", name_of(kind), group(),
               result.size(), to.bytes());
  if (gets) cpu::copy_piece(to.data, result.data(), to.bytes());
  moved_.fetch_add(op.call.wire, std::memory_order_relaxed);
}

// Mail under a key of the group and direction: the hub keeps its order.
void TcpCommunicator::p2p(QueuedOp& op) {
  if (op.p2p.empty()) return;  // it waits for nobody, so nobody's failure is its own
  if (client_.failure().is_set()) client_.failure().raise();
  constexpr uint64_t kMessages = 0x9e3779b97f4a7c15;  // apart from what backends post
  for (const P2pNumbered& p : op.p2p)
    if (p.op.send) {
      check_size("p2p", group(), p.op.buf.bytes());
      const uint64_t key = (key_ + uint64_t(p.number)) * kMessages;
      client_.send({.kind = FrameKind::mail,
                    .from = client_.rank(),
                    .to = ranks_[size_t(p.op.peer)],
                    .key = key,
                    .number = p.number},
                   bytes_in(p.op.buf));
      moved_.fetch_add(p.op.buf.bytes(), std::memory_order_relaxed);
    }
  for (const P2pNumbered& p : op.p2p) {
    if (p.op.send) continue;
    const int from = ranks_[size_t(p.op.peer)];
    const auto body = client_.mail(from, (key_ + uint64_t(p.number)) * kMessages, true);
    op.met_ns = comm_now_ns();
    if (int64_t(body->size()) != p.op.buf.bytes())
      run_failed("p2p of group {}: rank {} sends {} bytes to rank {}, which expects {}", group(), from,
                 body->size(), client_.rank(), p.op.buf.bytes());
    cpu::copy_piece(p.op.buf.data, body->data(), p.op.buf.bytes());
  }
}

}  // namespace trireme::tcp
