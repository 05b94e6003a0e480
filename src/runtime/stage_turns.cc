// A forward and a backward pass of different microbatches that run by turns (Op::by_turns).
#include "base/timed.h"
#include "runtime/microbatch.h"

namespace trireme {

// The launches of two passes change with the collectives between them, so a device keeps none of them
// (Device::begin_action).
void StageRunner::run_interleaved(const ActionOps& forward, const Action& backward, const FillBatch& fill) {
  ctx_.reset();
  turns_.ctx.reset();
  turns_.mb = backward.mb;
  turns_.backward = &backward;
  turns_.fill = &fill;
  struct End {
    StageRunner& runner;
    ~End() {
      runner.end_turn();
      runner.turns_.mb = -1;
    }
  } end{*this};
  const std::span<const Op> ops = program_->of(forward);
  for (size_t i = 0; i < ops.size(); i++) {
    if (ops[i].mb >= 0) take_turn(ops[i].mb == backward.mb ? backward : forward.action);
    if (ops[i].by_turns == 0) {
      run_op(ops[i], fill);
      continue;
    }
    turns_.ops = ops.subspan(i, 1 + size_t(ops[i].by_turns));
    const auto first = [](void* of) {
      auto& runner = *static_cast<StageRunner*>(of);
      runner.run_op(runner.turns_.ops.front(), *runner.turns_.fill);
    };
    const auto second = [](void* of) {
      auto& runner = *static_cast<StageRunner*>(of);
      runner.take_turn(*runner.turns_.backward);
      for (const Op& op : runner.turns_.ops.subspan(1)) runner.run_op(op, *runner.turns_.fill);
    };
    turns_.passes.run(first, second, this);
    i += size_t(ops[i].by_turns);
  }
}

// Spans and times are those of the pass whose turn it is.
void StageRunner::take_turn(const Action& a) {
  if (turns_.action == &a) return;
  end_turn();
  turns_.action = &a;
  turns_.began = now_s();
  turns_.span.emplace(tracer_.get(), SpanKind::action, name_of(a.kind), a.mb);
  if (control_.turn) control_.turn(a);
}

void StageRunner::end_turn() {
  if (!turns_.action) return;
  (turns_.action->kind == Act::F ? result_.forward_s : result_.backward_s) += now_s() - turns_.began;
  turns_.span.reset();
  turns_.action = nullptr;
}

// Called on the stack of the pass that waits.
void StageRunner::let_other_pass_run() {
  const std::string_view layer = layer_;
  const Action* mine = turns_.action;
  const std::string_view action = tracer_ ? tracer_->action() : std::string_view();
  turns_.passes.pause();
  if (turns_.action != mine && mine) take_turn(*mine);
  layer_ = layer;
  if (tracer_) tracer_->set_action(action);
}

}  // namespace trireme
