#include "report/step_comb.h"

#include <algorithm>

#include "report/clocks.h"

namespace trireme {
namespace {

// A transfer that ends so shortly after the pause still ended it: the two clocks are read one after the
// other.
constexpr int64_t kSlack = 2'000;  // ns

bool on_compute(const Span& s) {
  return s.lane.empty();
}

Use transfer_use(const Span& s) {
  return sender_of(s.lane) >= 0 || receiver_of(s.lane) >= 0 ? Use::pp : use_of_group(s.group);
}

class StepWalk {
 public:
  StepWalk(std::span<const Span> spans, bool alone) : alone_(alone) {
    for (const Span& s : spans) {
      if (s.kind == SpanKind::step) step_ = &s;
      if (s.kind == SpanKind::action) actions_.push_back(&s);
      const bool call = s.kind == SpanKind::comm;
      if (call && !on_compute(s)) others_.push_back(&s);
      if (s.kind == SpanKind::op || s.kind == SpanKind::wait || (call && on_compute(s)))
        leaves_.push_back(&s);
    }
    const auto by_begin = [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; };
    std::stable_sort(actions_.begin(), actions_.end(), by_begin);
    std::stable_sort(leaves_.begin(), leaves_.end(), by_begin);
    std::stable_sort(others_.begin(), others_.end(),
                     [](const Span* a, const Span* b) { return a->end_ns < b->end_ns; });
  }

  StepUse walk() {
    if (!step_) return {};
    out_.begin = at_ = step_->begin_ns;
    out_.end = step_->end_ns;
    for (const Span* s : leaves_) {
      pause(std::min(s->begin_ns, out_.end));
      const int64_t end = std::min(s->end_ns, out_.end);
      if (s->kind == SpanKind::op) until(end, use_of_action(s->action));
      if (s->kind == SpanKind::wait) waited(*s, end);
      if (s->kind == SpanKind::comm) called(*s, end);
    }
    pause(out_.end);
    return std::move(out_);
  }

 private:
  void until(int64_t end, Use use) {
    if (end <= at_) return;
    if (!out_.stretches.empty() && out_.stretches.back().use == use)
      out_.stretches.back().end = end;
    else
      out_.stretches.push_back({use, at_, end});
    at_ = end;
  }
  void idle(int64_t end, Use use, const Span* transfer, int32_t microbatch, std::string_view action) {
    if (end <= at_) return;
    out_.pauses.push_back({at_, end, use, transfer, microbatch, action});
    until(end, use);
  }
  void waited(const Span& s, int64_t end) {
    idle(end, s.name == "data" ? Use::data : Use::agree, nullptr, s.microbatch, s.action);
  }
  void called(const Span& s, int64_t end) {
    const Use use = transfer_use(s);
    idle(std::min(s.met_ns, end), late_of(use), &s, s.microbatch, s.action);
    idle(end, use, &s, s.microbatch, s.action);
  }
  // The action that a moment is in; null: between actions.
  const Span* action_at(int64_t moment) {
    while (action_ < actions_.size() && actions_[action_]->end_ns < moment) action_++;
    return action_ < actions_.size() && actions_[action_]->begin_ns <= moment ? actions_[action_] : nullptr;
  }
  void pause(int64_t end) {
    if (end <= at_) return;
    while (other_ < others_.size() && others_[other_]->end_ns <= at_) other_++;
    for (; other_ < others_.size() && others_[other_]->end_ns <= end + kSlack; other_++) {
      const Span& s = *others_[other_];
      const Use use = transfer_use(s);
      rest(std::min(s.begin_ns, end));
      if (receiver_of(s.lane) < 0) idle(std::min(s.met_ns, end), late_of(use), &s, s.microbatch, s.action);
      idle(std::min(s.end_ns, end), use, &s, s.microbatch, s.action);
    }
    rest(end);
  }
  void rest(int64_t end) {
    if (end <= at_) return;
    // By the action in which most of it lies: an action that has just begun or ended does not count.
    const Span* a = action_at(at_ + (end - at_) / 2);
    const std::string_view name = a ? a->name : std::string_view();
    const auto is = [&](std::string_view what) { return name.starts_with(what); };
    Use use = end - at_ <= kMostLaunch ? Use::launch : Use::unknown;
    if (is("Recv")) use = Use::bubble;
    if (is("Send")) use = Use::pp;
    if (!alone_ && (is("norm") || is("Step") || (!a && out_.end == end))) use = Use::agree;
    idle(end, use, nullptr, a ? a->microbatch : -1, a ? a->action : std::string_view());
  }

  bool alone_;
  const Span* step_ = nullptr;
  std::vector<const Span*> actions_, leaves_, others_;
  size_t action_ = 0, other_ = 0;
  int64_t at_ = 0;
  StepUse out_;
};

}  // namespace

StepUse use_of_step(std::span<const Span> spans, bool alone) {
  return StepWalk(spans, alone).walk();
}

}  // namespace trireme
