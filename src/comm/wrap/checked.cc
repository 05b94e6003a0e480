#include "comm/wrap/checked.h"

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
        ranks_(ranks.begin(), ranks.end()),
        claims_(size_t(kMost)),
        all_(size_t(kMost) * ranks.size()),
        batches_(size_t(kMost)),
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

  std::vector<int> ranks_;
  std::vector<Claim> claims_, all_;
  std::array<Event, size_t(kMost)> ends_{};
  std::vector<Batch> batches_;
  std::vector<int64_t> sent_, received_;  // messages to and from each rank of the group
  int64_t next_ = 0, next_batch_ = 0, checked_bytes_ = 0;
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
