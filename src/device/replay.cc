#include "device/replay.h"

#include <fmt/format.h>

#include <map>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "device/graphs.h"
#include "device/operands.h"

namespace trireme {

// An op as it was launched.
class KeptCall {
 public:
  virtual ~KeptCall() = default;
  virtual std::string_view name() const = 0;  // of the op; its data() tells ops apart
  virtual bool equals(const KeptCall&) const = 0;
  virtual uint64_t hash(uint64_t seed) const = 0;
  virtual void launch(Kernels&) const = 0;
};

template <class A>
class KeptCallOf final : public KeptCall {
 public:
  KeptCallOf(const A& args, const Tensor& scratch) : args_(args), scratch_(scratch) {}
  bool is(const A& args, const Tensor& scratch) const { return args == args_ && scratch == scratch_; }
  std::string_view name() const override { return A::kName; }
  bool equals(const KeptCall& o) const override {
    if (o.name().data() != A::kName.data()) return false;
    const auto& other = static_cast<const KeptCallOf&>(o);
    return is(other.args_, other.scratch_);
  }
  uint64_t hash(uint64_t seed) const override {
    for (Tensor A::*operand : kOperands<A>) {
      const std::byte* at = (args_.*operand).data;
      seed = hash64(&at, sizeof at, seed);
    }
    return hash64(A::kName.data(), A::kName.size(), seed);
  }
  void launch(Kernels&) const override;

 private:
  A args_;
  Tensor scratch_;
};

class ReplayKernels final : public Kernels {
 public:
  ReplayKernels(Kernels& inner, GraphMaker& maker) : inner_(inner), maker_(maker) {}

  // Ops of an observer are looked at one by one.
  void begin(const void* of, int64_t action) {
    drop();
    if (observed() || !refused_.empty()) return;
    Sequence& s = sequences_[{of, action}];
    if (s.changes > kMostChanges) return;
    now_ = &s, at_ = waiting_ = 0, changed_ = false;
  }
  void end() {
    if (!now_) return;
    pass_meetings();
    launch_waiting();
    Sequence& s = *now_;
    if (at_ < s.entries.size()) cut_off(at_);
    now_ = nullptr;
    if (changed_ && ++s.changes > kMostChanges) return s.give_up();
    if (!changed_ && s.stale) make_pieces(s);
  }
  // What waits is launched, and a piece ends here: something other than a launch comes next on compute.
  // Whether it comes may depend on the time (a gather that has arrived is not waited for), so what was met
  // once is a place where pieces end from then on, whether it is met or not.
  void interrupt() {
    if (!now_) return;
    launch_waiting();
    Sequence& s = *now_;
    if (at_ == s.entries.size() || s.entries[at_].call) {
      if (at_ > 0 && s.entries[at_ - 1].piece && s.entries[at_ - 1].last > at_) break_piece(s, at_ - 1);
      for (size_t i = at_; i < s.entries.size(); i++) s.entries[i].last++;
      s.entries.emplace(s.entries.begin() + std::ptrdiff_t(at_));
      s.stale = true;
    }
    waiting_ = ++at_;
  }
  bool gelu_in_products(DType t) const override { return inner_.gelu_in_products(t); }
  bool orthogonalises(int64_t rows, int64_t cols) const override { return inner_.orthogonalises(rows, cols); }
  std::string_view last_kernel() const override { return inner_.last_kernel(); }
  std::span<const KernelCount> kernels_taken() const override { return inner_.kernels_taken(); }
  // Of an action that an error ended: what was not launched is not.
  void drop() { now_ = nullptr; }
  void forget(const void* of) {
    drop();
    for (auto at = sequences_.begin(); at != sequences_.end();)
      at = at->first.first == of ? sequences_.erase(at) : std::next(at);
  }
  ReplayCounts counts() const;

  template <class A>
  static void launch_on(Kernels& to, const A& args, const Tensor& scratch) {
    to.launch(args, scratch, Stream());
  }

 private:
  // Longer pieces would leave the device idle for longer until they are there.
  static constexpr size_t kLongest = 64;
  static constexpr int kMostChanges = 32;  // of an action's sequence of ops, or of its pieces
  // Differences of an op's arguments from the last time's, before it is launched alone: what changes once
  // differs twice, there and back.
  static constexpr int kMostStrikes = 2;

  struct Piece {
    std::vector<std::shared_ptr<const KeptCall>> calls;
    std::unique_ptr<Graph> graph;
  };
  struct Entry {
    std::shared_ptr<const KeptCall> call;  // null: something other than a launch
    std::shared_ptr<Piece> piece;          // null: launched alone
    size_t last = 0;                       // behind the piece's last
    int strikes = 0;
    bool differed = false;
    bool alone() const { return !call || strikes > kMostStrikes; }
  };
  struct Sequence {
    std::vector<Entry> entries;
    int changes = -1;  // the first time is none
    bool stale = true;
    void give_up() { entries.clear(), entries.shrink_to_fit(); }
  };

  template <class A>
  void take(const A& args, const Tensor& scratch, Stream stream) {
    require(stream.id == 0, "kernels run on the compute stream");
    if (!now_) return launch_on(inner_, args, scratch);
    Sequence& s = *now_;
    pass_meetings();
    if (at_ < s.entries.size() && s.entries[at_].call->name().data() != A::kName.data()) cut_off(at_);
    if (at_ == s.entries.size()) {
      launch_waiting();
      s.entries.push_back({.call = std::make_shared<KeptCallOf<A>>(args, scratch)});
      s.stale = changed_ = true;
      waiting_ = ++at_;
      return launch_on(inner_, args, scratch);
    }
    Entry& e = s.entries[at_];
    if (e.alone()) {  // whose arguments are not even compared
      launch_waiting();
      waiting_ = ++at_;
      return launch_on(inner_, args, scratch);
    }
    e.differed = !static_cast<const KeptCallOf<A>&>(*e.call).is(args, scratch);
    if (e.differed) {
      launch_waiting();
      e.strikes++, s.stale = true;
      if (e.piece) break_piece(s, at_);
      e.call = std::make_shared<KeptCallOf<A>>(args, scratch);
    }
    at_++;
    if (!e.piece) {
      waiting_ = at_;
      return launch_on(inner_, args, scratch);
    }
    if (at_ < e.last) return;
    e.piece->graph->launch();
    waiting_ = at_;
  }

  // Places where pieces end, which nothing is met at this time.
  void pass_meetings() {
    while (at_ < now_->entries.size() && !now_->entries[at_].call) waiting_ = ++at_;
  }
  // Of a piece that does not come to its end.
  void launch_waiting() {
    while (waiting_ < at_) now_->entries[waiting_++].call->launch(inner_);
  }
  void break_piece(Sequence& s, size_t i) {
    const std::shared_ptr<Piece> piece = s.entries[i].piece;
    for (Entry& e : s.entries)
      if (e.piece == piece) e.piece.reset();
  }
  // The rest is another one than the last time.
  void cut_off(size_t at) {
    launch_waiting();
    Sequence& s = *now_;
    for (size_t i = at; i < s.entries.size(); i++)
      if (s.entries[i].piece) break_piece(s, i);
    s.entries.resize(at);
    s.stale = changed_ = true;
  }

  void make_pieces(Sequence& s) {
    for (const Entry& e : s.entries)
      if (!e.alone() && e.differed) return;  // it may be the same from here on
    if (++s.changes > kMostChanges) return s.give_up();
    for (size_t first = 0; first < s.entries.size();) {
      if (s.entries[first].piece) {
        first = s.entries[first].last;
        continue;
      }
      size_t last = first;
      while (last < s.entries.size() && !s.entries[last].alone() && !s.entries[last].piece &&
             last - first < kLongest)
        last++;
      if (last - first > 1 && !make_piece(s, first, last)) return;
      first = std::max(last, first + 1);
    }
    s.stale = false;  // an error on the way leaves the rest to be made
  }
  // Entries [first, last), none of them alone. False: the device makes no more.
  bool make_piece(Sequence& s, size_t first, size_t last) {
    uint64_t hash = 0;
    for (size_t i = first; i < last; i++) hash = s.entries[i].call->hash(hash);
    std::shared_ptr<Piece> piece = find(s, first, last, hash);
    if (!piece) {
      piece = std::make_shared<Piece>();
      for (size_t i = first; i < last; i++) piece->calls.push_back(s.entries[i].call);
      try {
        maker_.begin();
        for (const auto& c : piece->calls) c->launch(inner_);
        piece->graph = maker_.end();
      } catch (const Error& e) {
        maker_.abandon();
        refuse(e.what());
        return false;
      } catch (...) {  // no memory, say: the stream takes launches again, whatever becomes of the error
        maker_.abandon();
        throw;
      }
      made_++;
      pieces_.emplace(hash, piece);
    }
    for (size_t i = first; i < last; i++)
      s.entries[i].call = piece->calls[i - first], s.entries[i].piece = piece, s.entries[i].last = last;
    return true;
  }
  std::shared_ptr<Piece> find(const Sequence& s, size_t first, size_t last, uint64_t hash) {
    auto [at, end] = pieces_.equal_range(hash);
    while (at != end) {
      const std::shared_ptr<Piece> p = at->second.lock();
      if (!p) {
        at = pieces_.erase(at);
        continue;
      }
      bool same = p->calls.size() == last - first;
      for (size_t i = first; same && i < last; i++) same = s.entries[i].call->equals(*p->calls[i - first]);
      if (same) return p;
      at++;
    }
    return nullptr;
  }
  void refuse(std::string why) {
    refused_ = std::move(why);
    sequences_.clear();
    pieces_.clear();
  }

#define TRIREME_REPLAY(Args)                                                \
  void launch(const Args& args, const Tensor& scratch, Stream s) override { \
    take(args, scratch, s);                                                 \
  }                                                                         \
  int64_t scratch_bytes(const Args& args) override {                        \
    return bytes_on(inner_, args);                                          \
  }
  TRIREME_OPS(TRIREME_REPLAY)
#undef TRIREME_REPLAY
  template <class A>
  static int64_t bytes_on(Kernels& of, const A& args) {
    return of.scratch_bytes(args);
  }

  Kernels& inner_;
  GraphMaker& maker_;
  std::map<std::pair<const void*, int64_t>, Sequence> sequences_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Piece>> pieces_;
  std::string refused_;
  int64_t made_ = 0;
  // Of the action that runs: its next entry, the first that has not been launched, and whether its ops are
  // others than the last time.
  Sequence* now_ = nullptr;
  size_t at_ = 0, waiting_ = 0;
  bool changed_ = false;
};

template <class A>
void KeptCallOf<A>::launch(Kernels& to) const {
  ReplayKernels::launch_on(to, args_, scratch_);
}

ReplayCounts ReplayKernels::counts() const {
  ReplayCounts c{.made = made_, .refused = refused_};
  std::map<std::string_view, int64_t> alone;
  for (const auto& [key, s] : sequences_) {
    c.given_up += s.changes > kMostChanges;
    for (const Entry& e : s.entries) {
      if (!e.call) continue;
      c.launches++;
      if (e.piece) c.replayed++;
      if (e.alone()) alone[e.call->name()]++;
    }
  }
  for (const auto& [hash, piece] : pieces_)
    if (!piece.expired()) c.graphs++;
  for (const auto& [op, n] : alone)
    c.left_out += fmt::format("{}{} {}", c.left_out.empty() ? "" : ", ", op, n);
  return c;
}

namespace {

class ReplayDevice final : public Device {
 public:
  explicit ReplayDevice(std::unique_ptr<Device> inner)
      : inner_(std::move(inner)), kernels_(inner_->kernels(), *inner_->graphs()) {}

  std::string_view name() const override { return inner_->name(); }
  bool has_data() const override { return inner_->has_data(); }
  std::string pci() const override { return inner_->pci(); }
  bool native(DType t) const override { return inner_->native(t); }
  std::byte* reserve(int64_t bytes) override { return inner_->reserve(bytes); }
  void release(std::byte* p, int64_t bytes) override { inner_->release(p, bytes); }
  bool own_memory() const override { return inner_->own_memory(); }
  std::byte* reserve_host(int64_t bytes) override { return inner_->reserve_host(bytes); }
  void release_host(std::byte* p, int64_t bytes) override { inner_->release_host(p, bytes); }
  std::unique_ptr<DeviceQueue> queue() override { return inner_->queue(); }
  std::unique_ptr<Stamps> stamps() override { return inner_->stamps(); }
  bool orders(Stream s) override { return inner_->orders(s); }
  void queue_after(DeviceQueue& q, Stream s) override {
    meet(s);
    inner_->queue_after(q, s);
  }
  void stream_after(Stream s, DeviceQueue& q, int64_t mark) override {
    meet(s);
    inner_->stream_after(s, q, mark);
  }
  void guard(const void* who, std::function<void()> look) override { inner_->guard(who, std::move(look)); }
  Kernels& kernels() override { return kernels_; }
  Stream stream(std::string_view name) override { return inner_->stream(name); }

  void copy(const Tensor& dst, const Tensor& src, Stream s) override {
    meet(s);
    inner_->copy(dst, src, s);
  }
  void upload(const Tensor& dst, const void* src) override {
    kernels_.interrupt();
    inner_->upload(dst, src);
  }
  void download(void* dst, const Tensor& src) override {
    kernels_.interrupt();
    inner_->download(dst, src);
  }
  Event record(Stream s) override {
    meet(s);
    return inner_->record(s);
  }
  void wait(Stream s, Event e) override {
    meet(s);
    inner_->wait(s, e);
  }
  void sync(Stream s) override {
    meet(s);
    inner_->sync(s);
  }
  void enqueue(Stream s, HostTask task) override {
    meet(s);
    inner_->enqueue(s, task);
  }

  void begin_action(const void* of, int64_t action) override { kernels_.begin(of, action); }
  void end_action() override { kernels_.end(); }
  void forget_actions(const void* of) override { kernels_.forget(of); }
  std::string choices() const override { return inner_->choices(); }
  std::string take_choices(std::string_view text) override { return inner_->take_choices(text); }
  std::optional<ReplayCounts> replayed() const override { return kernels_.counts(); }

 private:
  // Other streams' work is what they have an event of compute for, and that was recorded.
  void meet(Stream s) {
    if (s.id == 0) kernels_.interrupt();
  }
  std::unique_ptr<Device> inner_;
  ReplayKernels kernels_;  // its graphs go before the device
};

}  // namespace

std::unique_ptr<Device> make_replay_device(std::unique_ptr<Device> inner) {
  if (!inner->graphs())
    bad_request("train.graphs = \"on\": device {} keeps no launches; give \"off\"", inner->name());
  return std::make_unique<ReplayDevice>(std::move(inner));
}

std::string graphs_refused(const ReplayCounts& c) {
  return fmt::format("train.graphs = \"on\": the device keeps no launches: {}; give \"off\"", c.refused);
}
std::string replay_text(const ReplayCounts& c) {
  if (!c.refused.empty()) return fmt::format("graphs: none, launches go one by one: {}", c.refused);
  std::string s = fmt::format("graphs: {} of {} launches of a step's actions in {} graphs", c.replayed,
                              c.launches, c.graphs);
  if (c.given_up > 0) s += fmt::format("; {} actions launch others each time", c.given_up);
  if (!c.left_out.empty()) s += fmt::format("; one by one, since their arguments change: {}", c.left_out);
  return s;
}

}  // namespace trireme
