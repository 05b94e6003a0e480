#include "comm/wrap/checked.h"

#include "base/file.h"
#include "comm/wrap/wrapped.h"

namespace trireme {
namespace {

// What ranks compare; plain bytes.
struct Claim {
  int64_t sequence, numel;  // of the group's collectives; all_to_all: its sizes may differ, 0
  int32_t kind, dtype, root, op;
  bool operator==(const Claim&) const = default;
};

std::string to_text(const Claim& c) {
  std::string s = fmt::format("{} of {} {}", name_of(Collective(c.kind)), c.numel, name_of(DType(c.dtype)));
  if (Collective(c.kind) == Collective::broadcast || Collective(c.kind) == Collective::reduce)
    s += fmt::format(" with root {}", c.root);
  if (Reduce(c.op) == Reduce::max) s += " (max)";
  return s + fmt::format(" as call {}", c.sequence);
}

class CheckedCommunicator final : public WrappedCommunicator {
 public:
  CheckedCommunicator(std::unique_ptr<Communicator> inner, std::span<const int> ranks, Device* device)
      : WrappedCommunicator(std::move(inner), device),
        stream_device_(device),
        ranks_(ranks.begin(), ranks.end()),
        claims_(size_t(kMost)),
        all_(size_t(kMost) * ranks.size()),
        batches_(size_t(kMost)),
        exchanges_(size_t(kMost)),
        sent_(ranks.size()),
        received_(ranks.size()) {}
  ~CheckedCommunicator() override { finish(); }
  int64_t moved_bytes() const override { return WrappedCommunicator::moved_bytes() - checked_bytes_; }

 private:
  static constexpr int64_t kMost = 64;
  static_assert(sizeof(Claim) == 32);

  void before(const CommCall& call) override {
    if (call.kind == Collective::p2p || size() == 1) return;
    const int64_t n = next_++, slot = n % kMost;
    wait(ends_[size_t(slot)]);  // of the comparison that was here
    Claim& mine = claims_[size_t(slot)];
    mine = {.sequence = n,
            .numel = call.kind == Collective::all_to_all ? 0 : call.numel,
            .kind = int32_t(call.kind),
            .dtype = int32_t(call.dtype),
            .root = call.root,
            .op = int32_t(call.op)};
    const AllGatherArgs gather{.shard = Tensor(&mine, {int64_t(sizeof mine)}, DType::u8),
                               .full = Tensor(all(slot), {int64_t(sizeof mine) * size()}, DType::u8)};
    quietly([&](Communicator& c) { c.all_gather(gather, call.stream); });
    checked_bytes_ += int64_t(sizeof mine) * (size() - 1);
    then(
        call.stream, [](void* self, int64_t i) { static_cast<CheckedCommunicator*>(self)->compare(i); },
        slot);
    ends_[size_t(slot)] = mark(call.stream);
  }

  // Messages of a batch, each behind the claim that says what it is.
  struct Batch {
    std::vector<P2p> ops;
    std::vector<Claim> mine, theirs;  // of each message; theirs: of those that come here
    Event end;
  };

  // A receiver's claim never leaves it; a sender's comes before its message, in the same batch, so that
  // nothing waits that would not have waited without it.
  std::span<const P2p> messages(const P2pArgs& a, const CommCall& call) override {
    Batch& b = batches_[size_t(next_batch_ % kMost)];
    wait(b.end);
    b.ops.clear(), b.mine.resize(a.ops.size()), b.theirs.resize(a.ops.size());
    for (size_t i = 0; i < a.ops.size(); i++) {
      const P2p& op = a.ops[i];
      int64_t& number = (op.send ? sent_ : received_)[size_t(op.peer)];
      b.mine[i] = {.sequence = number++,
                   .numel = op.buf.numel(),
                   .kind = int32_t(Collective::p2p),
                   .dtype = int32_t(op.buf.dtype),
                   .root = op.peer,
                   .op = op.send};
      Claim& claim = op.send ? b.mine[i] : b.theirs[i];
      b.ops.push_back({Tensor(&claim, {int64_t(sizeof claim)}, DType::u8), op.peer, op.send});
      b.ops.push_back(op);
      checked_bytes_ += op.send ? int64_t(sizeof claim) : 0;
    }
    return b.ops;
  }
  void after(const CommCall& call) override {
    if (call.kind != Collective::p2p) return;
    const int64_t slot = next_batch_++ % kMost;
    then(
        call.stream, [](void* self, int64_t i) { static_cast<CheckedCommunicator*>(self)->compare_batch(i); },
        slot);
    batches_[size_t(slot)].end = mark(call.stream);
  }
  void compare_batch(int64_t slot) {
    const Batch& b = batches_[size_t(slot)];
    for (size_t i = 0; i < b.mine.size(); i++) {
      const Claim &mine = b.mine[i], &theirs = b.theirs[i];
      if (mine.op ||
          (mine.sequence == theirs.sequence && mine.numel == theirs.numel && mine.dtype == theirs.dtype))
        continue;
      run_failed(
          "group {} does not agree: rank {} sends {} {} as message {} to rank {}, which expects {} {} as {}",
          group(), ranks_[size_t(mine.root)], theirs.numel, name_of(DType(theirs.dtype)), theirs.sequence,
          ranks_[size_t(rank())], mine.numel, name_of(DType(mine.dtype)), mine.sequence);
    }
  }

  // ---- rows of an all_to_all ----

  // hashes [2, size]: of what this rank sends to each and of what came from each; all [size, 2, size].
  struct Exchange {
    Tensor send, recv;
    std::vector<int64_t> send_rows, recv_rows;
    std::vector<uint64_t> hashes, all;
    int64_t sequence = 0;
    Event end;
  };

  void do_all_to_all(const AllToAllArgs& a, Stream s, const CommCall& call) override {
    const bool readable = !stream_device_ || stream_device_->name() == "cpu";
    if (size() == 1 || !readable) return WrappedCommunicator::do_all_to_all(a, s, call);
    const int64_t slot = next_exchange_++ % kMost;
    Exchange& e = exchanges_[size_t(slot)];
    wait(e.end);  // of the comparison that was here
    e.send = a.send, e.recv = a.recv, e.sequence = call.sequence;
    e.send_rows.assign(a.send_rows.begin(), a.send_rows.end());
    e.recv_rows.assign(a.recv_rows.begin(), a.recv_rows.end());
    const size_t n = size_t(size());
    e.hashes.resize(2 * n), e.all.resize(2 * n * n);
    const auto hash = [&](bool sent) {
      then(
          s, [](void* self, int64_t i) { static_cast<CheckedCommunicator*>(self)->hash_rows(i / 2, i % 2); },
          2 * slot + sent);
    };
    hash(true);
    WrappedCommunicator::do_all_to_all(a, s, call);
    hash(false);
    const int64_t mine = int64_t(e.hashes.size() * sizeof(uint64_t));
    quietly([&](Communicator& c) {
      c.all_gather({.shard = Tensor(e.hashes.data(), {mine}, DType::u8),
                    .full = Tensor(e.all.data(), {mine * size()}, DType::u8)},
                   s);
    });
    checked_bytes_ += mine * (size() - 1);
    then(
        s, [](void* self, int64_t i) { static_cast<CheckedCommunicator*>(self)->compare_rows(i); }, slot);
    e.end = mark(s);
  }

  // Each segment is hashed whole, so that a row's place counts.
  void hash_rows(int64_t slot, bool sent) {
    Exchange& e = exchanges_[size_t(slot)];
    const Tensor& t = sent ? e.send : e.recv;
    const int64_t row = t.rows() == 0 ? 0 : t.bytes() / t.rows();
    const std::byte* at = t.data;
    for (int r = 0; r < size(); r++) {
      const int64_t bytes = (sent ? e.send_rows : e.recv_rows)[size_t(r)] * row;
      e.hashes[size_t(sent ? r : size() + r)] = bytes == 0 ? 0 : hash64(at, size_t(bytes), 0);
      at += bytes;
    }
  }

  // The same verdict on every rank.
  void compare_rows(int64_t slot) {
    const Exchange& e = exchanges_[size_t(slot)];
    const auto of = [&](int rank, bool sent, int peer) {
      return e.all[size_t((2 * rank + !sent) * size() + peer)];
    };
    for (int from = 0; from < size(); from++)
      for (int to = 0; to < size(); to++)
        if (of(from, true, to) != of(to, false, from))
          run_failed(
              "group {}: rows that rank {} sent to rank {} are not those that arrived, in all_to_all {}",
              group(), ranks_[size_t(from)], ranks_[size_t(to)], e.sequence);
  }

  Claim* all(int64_t slot) { return all_.data() + slot * size(); }

  // The same verdict on every rank.
  void compare(int64_t slot) {
    const Claim* c = all(slot);
    bool equal = true;
    for (int r = 1; r < size(); r++) equal = equal && c[r] == c[0];
    if (equal) return;
    std::string text;
    for (int r = 0; r < size(); r++) {  // ranks that call the same are named together
      bool known = false;
      for (int i = 0; i < r; i++) known = known || c[i] == c[r];
      if (known) continue;
      std::string who;
      for (int i = r; i < size(); i++)
        if (c[i] == c[r]) who += fmt::format("{}{}", who.empty() ? "" : ", ", ranks_[size_t(i)]);
      text += fmt::format("{}rank {} calls {}", text.empty() ? "" : "; ", who, to_text(c[r]));
    }
    run_failed("group {} does not agree: {}", group(), text);
  }

  Device* stream_device_;
  std::vector<int> ranks_;
  std::vector<Claim> claims_, all_;
  std::array<Event, size_t(kMost)> ends_{};
  std::vector<Batch> batches_;
  std::vector<Exchange> exchanges_;
  std::vector<int64_t> sent_, received_;  // messages to and from each rank of the group
  int64_t next_ = 0, next_batch_ = 0, next_exchange_ = 0, checked_bytes_ = 0;
};

class CheckedFactory final : public WrappedFactory {
 public:
  CheckedFactory(std::unique_ptr<CommFactory> inner, Device* device)
      : WrappedFactory(std::move(inner)), device_(device) {}

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int> ranks) override {
    return std::make_unique<CheckedCommunicator>(std::move(c), ranks, device_);
  }
  Device* device_;
};

}  // namespace

std::unique_ptr<CommFactory> make_checked(std::unique_ptr<CommFactory> inner, Device* device) {
  return std::make_unique<CheckedFactory>(std::move(inner), device);
}

}  // namespace trireme
