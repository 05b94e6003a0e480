#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "program/program.h"

namespace trireme {
namespace {

// The blocks that one rank's operations have made and not yet freed.
class Held {
 public:
  Held(const Program& p, const RankShape& shape) : p_(p), shape_(shape), gathered_(shape.units.size()) {}

  void run() {
    for (at_ = 0; at_ < p_.ops.size(); at_++) add(p_.ops[at_]);
    for (const auto& [op, kind] : open_) fail(size_t(op), "is never freed or waited for");
  }

 private:
  enum State : char { none, in_flight, here };

  [[noreturn]] void fail(size_t op, std::string_view what) const {
    run_failed("program: operation {} ({}) {}", op, to_text(p_, p_.ops[op]), what);
  }
  void begin() { open_[int32_t(at_)] = p_.ops[at_].kind; }
  // `op` waits for, or frees, what an operation of that kind began.
  void end(const Op& op, OpKind begun) {
    const auto it = open_.find(op.after);
    if (it == open_.end() || it->second != begun || op.after >= int32_t(at_))
      fail(at_, "waits for nothing that is in flight");
    open_.erase(it);
  }
  void uses_weights(const Op& op) const {
    for (const uint32_t u : shape_.layers[size_t(op.layer)].units)
      if (shape_.units[u].gathers && gathered_[u] != here) fail(at_, "uses weights that are not there");
  }
  void change(int32_t unit, State from, State to, std::string_view fault) {
    char& s = gathered_[size_t(unit)];
    if (s != from) fail(at_, fault);
    s = to;
  }

  void add(const Op& op) {
    switch (op.kind) {
      case OpKind::forward:
        for (int32_t i = 1; i <= op.by_turns; i++) {
          const size_t other = at_ + size_t(i);
          const OpKind kind = other < p_.ops.size() ? p_.ops[other].kind : OpKind::forward;
          if ((kind != OpKind::again && kind != OpKind::input && kind != OpKind::weight) ||
              p_.ops[other].mb == op.mb)
            fail(at_,
                 "runs by turns with an operation that does not belong to a backward pass of another "
                 "microbatch");
        }
        return uses_weights(op);
      case OpKind::again:
      case OpKind::input:
        return uses_weights(op);
      case OpKind::gather:
        change(op.unit, none, in_flight, "gathers weights that are gathered");
        return begin();
      case OpKind::arrive:
        change(op.unit, in_flight, here, "waits for weights that are not gathered");
        return end(op, OpKind::gather);
      case OpKind::release:
        return change(op.unit, here, none, "releases weights that are not there");
      case OpKind::open:
        if (!slots_.emplace(op.unit, at_).second) fail(at_, "opens a gradient that is open");
        return;
      case OpKind::reduce:
        for (int32_t u = op.unit; u < op.last; u++)
          if (shape_.units[size_t(u)].slots && slots_.erase(u) == 0) fail(at_, "reduces no gradient");
        return begin();
      case OpKind::retire:
        return end(op, OpKind::reduce);
      case OpKind::post:
      case OpKind::send:
        return begin();
      case OpKind::receive:
        return end(op, OpKind::post);
      case OpKind::free:
        return end(op, OpKind::send);
      case OpKind::settle:
        for (size_t u = 0; u < gathered_.size(); u++)
          if (gathered_[u] != none) fail(at_, fmt::format("comes while {} is gathered", p_.units[u]));
        if (!slots_.empty()) fail(slots_.begin()->second, "is never reduced");
        return;
      default:
        return;
    }
  }

  const Program& p_;
  const RankShape& shape_;
  size_t at_ = 0;
  std::map<int32_t, OpKind> open_;   // operations that another one waits for later
  std::vector<char> gathered_;       // by unit: State
  std::map<int32_t, size_t> slots_;  // units whose gradient is open: its operation
};

// From, to, and whether it is a gradient.
using Lane = std::tuple<int, int, bool>;
struct Message {
  int16_t mb, stage;  // where it is read
  bool operator==(const Message&) const = default;
};

class Messages {
 public:
  explicit Messages(std::span<const Program> all) : all_(all), at_(all.size()) {
    for (size_t r = 0; r < all.size(); r++) {
      number_.emplace_back(all[r].ops.size(), 0);
      for (size_t i = 0; i < all[r].ops.size(); i++) list(int(r), i);
    }
  }

  void run() {
    for (const auto& [lane, messages] : sent_) compare(lane, messages, posted_[lane]);
    for (const auto& [lane, messages] : posted_) compare(lane, sent_[lane], messages);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < all_.size(); r++)
        for (; at_[r] < all_[r].ops.size() && can_run(r); at_[r]++) moved = true;
    }
    for (size_t r = 0; r < all_.size(); r++)
      if (at_[r] < all_[r].ops.size())
        run_failed("program: rank {} waits for ever at operation {} ({})", r, at_[r],
                   to_text(all_[r], all_[r].ops[at_[r]]));
  }

 private:
  static bool sends(const Op& op) { return op.kind == OpKind::send || op.kind == OpKind::free; }
  static Lane lane_of(int rank, const Op& op) {
    return sends(op) ? Lane{rank, op.peer, op.back} : Lane{op.peer, rank, op.back};
  }
  void list(int rank, size_t i) {
    const Op& op = all_[size_t(rank)].ops[i];
    if (op.kind != OpKind::send && op.kind != OpKind::post) return;
    const auto to = int16_t(op.kind == OpKind::post ? op.stage : op.stage + (op.back ? -1 : 1));
    std::vector<Message>& messages = (op.kind == OpKind::send ? sent_ : posted_)[lane_of(rank, op)];
    number_[size_t(rank)][i] = int32_t(messages.size());
    messages.push_back({op.mb, to});
  }
  static void compare(const Lane& lane, const std::vector<Message>& sent,
                      const std::vector<Message>& posted) {
    const auto [from, to, back] = lane;
    for (size_t i = 0; i < std::max(sent.size(), posted.size()); i++) {
      if (i < sent.size() && i < posted.size() && sent[i] == posted[i]) continue;
      const auto name = [&](const std::vector<Message>& all) {
        return i < all.size() ? fmt::format("microbatch {} for stage {}", all[i].mb, all[i].stage)
                              : "nothing";
      };
      run_failed("program: message {} of {}s from rank {} to {}: one sends {}, the other one receives {}", i,
                 back ? "gradient" : "activation", from, to, name(sent), name(posted));
    }
  }
  // Counts what has left and what has been posted.
  bool can_run(size_t r) {
    const Op& op = all_[r].ops[at_[r]];
    const Lane lane = lane_of(int(r), op);
    if (op.kind == OpKind::send) left_[lane]++;
    if (op.kind == OpKind::post) awaited_[lane]++;
    if (op.kind == OpKind::receive) return left_[lane] > number_[r][size_t(op.after)];
    if (op.kind == OpKind::free) return awaited_[lane] > number_[r][size_t(op.after)];
    return true;
  }

  std::span<const Program> all_;
  std::vector<size_t> at_;                    // by rank: the next operation
  std::vector<std::vector<int32_t>> number_;  // by rank and operation: the place in its lane
  std::map<Lane, std::vector<Message>> sent_, posted_;
  std::map<Lane, int32_t> left_, awaited_;
};

}  // namespace

void check_program(const Program& p, const RankShape& shape) {
  Held(p, shape).run();
}

void check_messages(std::span<const Program> all) {
  Messages(all).run();
}

}  // namespace trireme
