// A forward and a backward pass of different microbatches that run by turns (Op::by_turns).
#include "base/timed.h"
#include "runtime/stage_passes.h"

namespace trireme {

// The launches of two passes change with the collectives between them, so a device keeps none of them
// (Device::begin_action).
void StagePasses::run_interleaved(const Program& program, const ActionOps& forward, const Action& backward,
                                  const FillBatch& fill) {
  ctx_.reset();
  turns_.ctx.reset();
  turns_.mb = backward.mb;
  turns_.backward = &backward;
  turns_.fill = &fill;
  struct End {
    StagePasses& passes;
    ~End() {
      passes.end_turn();
      passes.turns_.mb = -1;
    }
  } end{*this};
  program_ = &program;
  const std::span<const Op> ops = program.of(forward);
  for (size_t i = 0; i < ops.size(); i++) {
    if (ops[i].mb >= 0) take_turn(ops[i].mb == backward.mb ? backward : forward.action);
    if (ops[i].by_turns == 0) {
      run(ops[i], fill);
      continue;
    }
    turns_.ops = ops.subspan(i, 1 + size_t(ops[i].by_turns));
    const auto first = [](void* of) {
      auto& passes = *static_cast<StagePasses*>(of);
      passes.run(passes.turns_.ops.front(), *passes.turns_.fill);
    };
    const auto second = [](void* of) {
      auto& passes = *static_cast<StagePasses*>(of);
      passes.take_turn(*passes.turns_.backward);
      for (const Op& op : passes.turns_.ops.subspan(1)) passes.run(op, *passes.turns_.fill);
    };
    turns_.passes.run(first, second, this);
    i += size_t(ops[i].by_turns);
  }
}

// Spans and times are those of the pass whose turn it is.
void StagePasses::take_turn(const Action& a) {
  if (turns_.action == &a) return;
  end_turn();
  turns_.action = &a;
  turns_.began = now_s();
  turns_.span.emplace(watch_.tracer.get(), SpanKind::action, name_of(a.kind), a.mb);
  if (watch_.control.turn) watch_.control.turn(a);
}

void StagePasses::end_turn() {
  if (!turns_.action) return;
  (turns_.action->kind == Act::F ? times_.forward_s : times_.backward_s) += now_s() - turns_.began;
  turns_.span.reset();
  turns_.action = nullptr;
}

// Called on the stack of the pass that waits.
void StagePasses::let_other_pass_run() {
  const std::string_view layer = watch_.layer;
  const Action* mine = turns_.action;
  const std::string_view action = watch_.tracer ? watch_.tracer->action() : std::string_view();
  turns_.passes.pause();
  if (turns_.action != mine && mine) take_turn(*mine);
  watch_.layer = layer;
  if (watch_.tracer) watch_.tracer->set_action(action);
}

}  // namespace trireme
