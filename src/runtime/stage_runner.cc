#include "runtime/stage_runner.h"

#include <algorithm>

#include "base/timed.h"
#include "runtime/state_offload.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

CommCounts minus(CommCounts a, const CommCounts& b) {
  for (size_t i = 0; i < kCollectives; i++) {
    a[i].calls -= b[i].calls;
    a[i].payload -= b[i].payload;
    a[i].wire -= b[i].wire;
  }
  return a;
}

// Pipelines, and steps with offloaded inputs, know their programs before the first step.
std::vector<Schedule> schedules_ahead(const RunSpec& run, RunMode mode, const CommSet* comms) {
  const bool pipeline = comms && comms->mesh().size(Axis::pp) > 1;
  if (pipeline || (mode == RunMode::train && run.layout.offloads_inputs())) return schedules_of(run);
  return {};
}

}  // namespace

StageRunner::StageRunner(const RunSpec& run, RunMode mode, Device& device, int64_t arena_bytes,
                         CommSet* comms)
    : run_(run),
      device_(device),
      comms_(comms && comms->world() > 1 ? comms : nullptr),
      schedules_(schedules_ahead(run, mode, comms_)),
      sharing_(sharing_of(run, comms_, schedules_)),
      memory_(run_, mode == RunMode::train, device, sharing_, arena_bytes),
      passes_(parts(mode), schedules_) {
  const bool trains = mode == RunMode::train;
  device_.kernels().attach(&arena());
  if (trains) {
    const DType wire = dtype_from_name(comms_ ? run.precision.reduce : run.precision.grads);
    sync_ = std::make_unique<GradSync>(params(), flat(), GradSyncOptions{.zero = sharing_.zero, .wire = wire},
                                       sharing_.replicating, sharing_.experts, comms_, device_, arena());
    end_ = std::make_unique<StepEnd>(parts(mode), *sync_);
    end_->set_repeat([this](const StepInput& in) {
      passes_.abandon();
      passes_.set_facts({in.step, in.targets, end_->loss_scale().scale()});
      run_actions(*in.program, *in.fill);
    });
  } else {
    memory_.hold_flat({});
  }
  memory_.bind();
  passes_.bind();
  const PipelineComm* const pipeline = passes_.pipeline();
  std::optional<size_t> settle_at;
  if (trains && pipeline && run.optimizer.post_validation != "off") {
    const SettlePoint point = settle_points(schedules_.back()).at(size_t(sharing_.pp.rank));
    settle_at = size_t(point.action);
    posted_ =
        std::make_unique<PostedStep>(parts(mode), *end_, point, run.optimizer.post_validation == "always",
                                     [this] { weights_from_master(); });
  }
  programs_ = std::make_unique<StagePrograms>(
      run_, trains, sharing_, schedules_, pipeline ? &pipeline->holders() : nullptr, passes_.shape(),
      sync_ ? sync_->shapes() : std::vector<UnitShape>(), params(), settle_at);
  passes_.prepare(programs_->all(), [this](const Op& op) { run_unit_op(*sync_, op, memory_.params()); });
  evaluator_.emplace(memory_, passes_, programs_->forward());
  decoder_.emplace(memory_, passes_, programs_->forward());
}

StageRunner::~StageRunner() = default;

StageParts StageRunner::parts(RunMode mode) {
  return {run_,   mode == RunMode::train,   device_, comms_, sharing_, memory_,
          watch_, device_.stream("compute")};
}

int64_t StageRunner::waiting_bytes() const {
  const StateOffload* state = memory_.state_offload();
  return passes_.waiting_bytes() + (state ? state->host_bytes() : 0);
}

Evaluator& StageRunner::evaluator() {
  require(!posted_ || !posted_->under_way(), "an evaluation wants weights that are settled");
  return *evaluator_;
}

void StageRunner::init_weights(const std::function<bool(const Param&)>& given) {
  if (!device_.has_data()) return;
  memory_.init_weights(given);
  weights_from_master();
}

void StageRunner::weights_from_master() {
  memory_.cast_masters();
  if (sync_) sync_->spread_weights();
  device_.sync(device_.stream("compute"));
}

void StageRunner::trace(SpanRecorder* spans, CommTracer* collectives) {
  watch_.tracer =
      spans ? std::make_unique<OpTracer>(*spans, arena().ledger(), watch_.layer, collectives) : nullptr;
  device_.kernels().observe(watch_.tracer.get());
}

StepResult StageRunner::step(std::span<const Action> actions, int64_t step, int64_t targets,
                             const FillBatch& fill, bool may_post) {
  require(end_ != nullptr, "a runner made for inference cannot train");
  const Program& program = programs_->of(actions);
  device_.kernels().attach(&arena());
  const double begin = now_s();
  if (watch_.tracer) watch_.tracer->set_step(step);
  if (watch_.pulse) watch_.pulse->step(step);
  TraceScope traced(watch_.tracer.get(), SpanKind::step, "step");
  const CommCounts before = comms_ ? comms_->counts() : CommCounts{};
  if (posted_) posted_->start_step(may_post);
  Ran ran;
  do {
    passes_.start_step({step, targets, end_->loss_scale().scale()});
    end_->start_step(step);
    ran = run_actions(program, fill);
  } while (ran == Ran::again);
  if (ran == Ran::stopped) {
    passes_.abandon();
    abandon(*sync_, memory_.params());
    return {.stopped = true, .loss_scale = end_->loss_scale().scale()};
  }
  const StepInput in{.step = step,
                     .targets = targets,
                     .program = &program,
                     .losses = passes_.sequence_losses(),
                     .routing = &passes_.routing(),
                     .fp8 = passes_.fp8(),
                     .fill = &fill};
  StepResult r = posted_ ? posted_->finish(in) : end_->finish(in);
  device_.sync(device_.stream("compute"));
  const StageSeconds times = passes_.times();
  r.data_s = times.data_s;
  r.forward_s = times.forward_s;
  r.backward_s = times.backward_s;
  r.comm_s += times.comm_s + end_->waited_s();
  if (comms_) r.comm = minus(comms_->counts(), before);
  r.seconds = now_s() - begin;
  if (r.posted) posted_->set_result(r);
  return r;
}

StageRunner::Ran StageRunner::run_actions(const Program& program, const FillBatch& fill) {
  const std::vector<ActionOps>& actions = program.actions;
  for (size_t i = 0; i < actions.size(); i++) {
    const ActionOps& first = actions[i];
    if (posted_ && i == size_t(posted_->point().action)) {
      if (!posted_->settle([this] { drop_begun(); })) return Ran::again;
      posted_->keep_state();
    }
    watch_.enter(name_of(first.action.kind), first.action.mb);
    if (first.action.kind == Act::Step) continue;  // step() does it once loss and norm are known to be finite
    if (const size_t other = i + size_t(actions[i].interleaved); other > i) {
      for (; i < other; i++) watch_.enter(name_of(actions[i + 1].action.kind), actions[i + 1].action.mb);
      passes_.run_interleaved(program, first, actions[other].action, fill);
    } else {
      passes_.run_action(program, first, fill);
    }
    const Action& a = actions[i].action;  // the last that was run
    if (a.kind != Act::B && a.kind != Act::W) continue;
    end_->noise().microbatch_done(programs_->shape(), a.stage);
    // Left only where more microbatches would follow: with the last one done, the step is nearly free.
    const bool more = std::any_of(actions.begin() + std::ptrdiff_t(i) + 1, actions.end(),
                                  [](const ActionOps& next) { return has_microbatch(next.action.kind); });
    const bool may_stop = more && !passes_.pipeline() && watch_.control.stop;
    if (may_stop && watch_.control.stop()) return Ran::stopped;
  }
  for (const Op& op : program.frees_ops()) passes_.run(op, fill);
  return Ran::done;
}

// Other ranks sent messages before their settle points. This rank reads and forgets those that it has not
// come to: every rank has sent as much, whatever the others do.
void StageRunner::drop_begun() {
  abandon(*sync_, memory_.params());
  passes_.abandon(posted_->point().unread);
}

void StageRunner::settle() {
  if (posted_) posted_->settle({});
}

}  // namespace trireme
