#include "runtime/stage_runner.h"

#include <chrono>
#include <cmath>

#include "runtime/microbatch.h"
#include "runtime/nonfinite.h"

namespace trireme {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the life of the object to a number of seconds.
struct Timed {
  explicit Timed(double& s) : seconds(s), begin(now_s()) {}
  ~Timed() { seconds += now_s() - begin; }
  double& seconds;
  double begin;
};

LrSchedule lr_of(const RunSpec& r) {
  return {.lr = r.optimizer.lr,
          .min_lr = r.optimizer.min_lr,
          .warmup = r.optimizer.warmup,
          .steps = r.train.steps,
          .shape = lr_shape_from_name(r.optimizer.schedule)};
}

LossScale loss_scale_of(const PrecisionSpec& p) {
  if (p.compute != "f16") return {};
  return LossScale({.dynamic = p.loss_scale.dynamic,
                    .initial = p.loss_scale.dynamic ? p.initial_scale : p.loss_scale.number,
                    .backoff = p.backoff_factor,
                    .growth_interval = p.growth_interval,
                    .least = p.min_scale});
}

}  // namespace

StageRunner::StageRunner(const RunSpec& run, RunMode mode, Device& device, int64_t arena_bytes)
    : run_(run),
      mode_(mode),
      device_(device),
      compute_(device.stream("compute")),
      dtype_(dtype_from_name(run.precision.compute)),
      grad_dtype_(dtype_from_name(run.precision.grads)),
      memory_(device.reserve(arena_bytes)),
      memory_bytes_(arena_bytes),
      arena_(std::make_unique<Arena>(memory_, arena_bytes)),
      stage_(build_stage(run.model, {.first = 0, .last = run.model.layers})),
      lr_(lr_of(run)),
      loss_scale_(loss_scale_of(run.precision)) {
  std::vector<ParamDecl> decls = stage_.declare();
  params_ = lay_out(decls, Mesh(), 0);
  optimizer_ = make_adamw({.beta1 = run.optimizer.betas[0],
                           .beta2 = run.optimizer.betas[1],
                           .eps = run.optimizer.eps,
                           .weight_decay = run.optimizer.weight_decay});
  if (mode == RunMode::train) state_decls_ = optimizer_->state();
  device_.kernels().attach(arena_.get());
  bind_memory();
  bind_rope();
  stage_.bind(params_);
  microbatches_.resize(size_t(run.microbatches()));
  for (Microbatch& m : microbatches_) m.resize(stage_.layers.size());
  sequence_loss_.resize(size_t(run.batch.global));
  size_t rows = size_t(run.batch.micro * run.data.seq_len);
  token_loss_host_.resize(rows);
  staging_.resize(3 * rows);
}

StageRunner::~StageRunner() {
  microbatches_.clear();
  cache_.reset();
  grad_norm_.reset();
  persistent_.clear();
  device_.kernels().detach(arena_.get());
  device_.release(memory_, memory_bytes_);
}

void StageRunner::bind_memory() {
  int64_t n = params_.numel;
  auto hold = [&](Bucket b, const Shape& s, DType t) {
    persistent_.emplace_back(*arena_, b, s, t);
    return *persistent_.back();
  };
  flat_.weights = hold(Bucket::weights, {n}, dtype_);
  flat_.master = flat_.weights;
  if (mode_ == RunMode::train) {
    flat_.grads = hold(Bucket::grads, {n}, grad_dtype_);
    if (dtype_ != DType::f32) flat_.master = hold(Bucket::optimizer, {n}, DType::f32);
    for (const StateDecl& s : state_decls_) flat_.state.push_back(hold(Bucket::optimizer, {n}, s.dtype));
    grad_norm_ = std::make_unique<GradNorm>(params_, *arena_);
    nonfinite_count_ = hold(Bucket::scratch, {1}, DType::i64);
  }
  for (Param& p : params_.params) {
    p.weight = flat_.weights.narrow(0, p.offset, p.numel()).view(p.box.extent);
    if (mode_ == RunMode::train) p.grad = flat_.grads.narrow(0, p.offset, p.numel()).view(p.box.extent);
  }
}

Ctx StageRunner::context(const Microbatch& m, bool backward) {
  device_.kernels().attach(arena_.get());  // several runners may share a device
  return Ctx{.device = device_,
             .k = device_.kernels(),
             .arena = *arena_,
             .compute = compute_,
             .dtype = dtype_,
             .batch = m.view,
             .backward = backward,
             .training = backward,
             .seed = uint64_t(run_.train.seed),
             .step = step_,
             .grad_scale = float(loss_scale_.scale() / double(std::max<int64_t>(1, targets_))),
             .token_loss = m.token_loss ? *m.token_loss : Tensor(),
             .logits = {},
             .layer = layer_};
}

void StageRunner::load_batch(Microbatch& m, int64_t sequences, int64_t seq, int64_t step, int64_t mb,
                             const FillBatch& fill) {
  size_t rows = size_t(sequences * seq);
  if (staging_.size() < 3 * rows) staging_.resize(3 * rows);
  HostBatch host{.tokens = {staging_.data(), rows},
                 .targets = {staging_.data() + rows, rows},
                 .positions = {staging_.data() + 2 * rows, rows}};
  {
    Timed t(result_.data_s);
    TraceScope traced(tracer_.get(), SpanKind::wait, "data", mb);
    if (device_.has_data()) fill(step, mb, host);
  }
  m.allocate_batch(*arena_, sequences, seq);
  device_.upload(m.view.tokens, host.tokens.data());
  device_.upload(m.view.targets, host.targets.data());
  device_.upload(m.view.positions, host.positions.data());
}

void StageRunner::forward(Microbatch& m, int64_t mb, const FillBatch& fill) {
  load_batch(m, run_.batch.micro, run_.data.seq_len, step_, mb, fill);
  m.view.first_sequence = mb * run_.batch.micro;
  Timed t(result_.forward_s);
  Ctx ctx = context(m, true);
  for (size_t l = 0; l < stage_.layers.size(); l++) {
    m.x[l + 1] = stage_.layers[l]->forward(ctx, *m.x[l], m.saved[l]);
  }
  read_losses(m, mb);
}

// Token losses are added in double, per sequence; step() adds sequences in order of global index.
void StageRunner::read_losses(const Microbatch& m, int64_t mb) {
  device_.download(token_loss_host_.data(), *m.token_loss);
  if (!device_.has_data()) return;
  int64_t seq = m.view.seq;
  for (int64_t s = 0; s < m.view.sequences; s++) {
    double sum = 0;
    for (int64_t t = 0; t < seq; t++) sum += token_loss_host_[size_t(s * seq + t)];
    sequence_loss_[size_t(mb * run_.batch.micro + s)] = sum;
  }
  const int32_t* targets = staging_.data() + m.view.rows();
  for (int64_t i = 0; i < m.view.rows(); i++) targets_seen_ += targets[i] >= 0;
}

// I and W of each layer in turn when both are asked for, so a layer's memory is free before the next begins.
void StageRunner::backward(Microbatch& m, bool input, bool weight) {
  Timed t(result_.backward_s);
  Ctx ctx = context(m, true);
  for (size_t l = stage_.layers.size(); l-- > 0;) {
    if (input) m.dx[l] = stage_.layers[l]->backward_input(ctx, *m.dx[l + 1], m.saved[l]);
    if (!weight) continue;
    stage_.layers[l]->backward_weight(ctx, m.saved[l]);
    require(m.saved[l].empty(), "a layer kept something beyond its backward pass");
    m.dx[l + 1].reset();
    m.x[l].reset();
  }
  if (weight) m.release();
}

bool StageRunner::run_actions(std::span<const Action> actions, const FillBatch& fill) {
  for (size_t i = 0; i < actions.size(); i++) {
    const Action& a = actions[i];
    enter(name_of(a.kind));
    if (a.kind == Act::Step) continue;  // step() does it once loss and norm are known to be finite
    TraceScope traced(tracer_.get(), SpanKind::action, name_of(a.kind), a.mb);
    Microbatch* m = a.mb >= 0 ? &microbatches_.at(size_t(a.mb)) : nullptr;
    switch (a.kind) {
      case Act::F:
        forward(*m, a.mb, fill);
        break;
      case Act::B:
        backward(*m, true, true);
        break;
      case Act::I:
        backward(*m, true, false);
        break;
      case Act::W:
        backward(*m, false, true);
        break;
      case Act::ReduceGrad:
        finish_gradients();
        break;
      default:
        run_failed("this version has no runtime for action kind {} of the schedule", int(a.kind));
    }
    // Left only where more microbatches would follow: with the last one done, the step is nearly free.
    bool done = a.kind == Act::B || a.kind == Act::W;
    bool more = i + 1 < actions.size() && has_microbatch(actions[i + 1].kind);
    if (done && more && control_.stop && control_.stop()) return false;
  }
  return true;
}

// With one rank there is nobody to reduce with: what got no contribution becomes zero.
void StageRunner::finish_gradients() {
  for (Param& p : params_.params) {
    if (!p.grad_started) device_.kernels().run(ZeroArgs{.y = p.grad}, compute_);
    p.grad_started = true;
  }
}

void StageRunner::trace(SpanRecorder* spans) {
  tracer_ = spans ? std::make_unique<OpTracer>(*spans, arena_->ledger(), layer_) : nullptr;
  device_.kernels().observe(tracer_.get());
}

StepResult StageRunner::step(std::span<const Action> actions, int64_t step, int64_t targets,
                             const FillBatch& fill) {
  require(mode_ == RunMode::train, "a runner made for inference cannot train");
  device_.kernels().attach(arena_.get());
  double begin = now_s();
  if (tracer_) tracer_->set_step(step);
  TraceScope traced(tracer_.get(), SpanKind::step, "step");
  result_ = {.loss_scale = loss_scale_.scale()};
  step_ = step, targets_ = targets, targets_seen_ = 0;
  for (Param& p : params_.params) p.grad_started = false;
  if (!run_actions(actions, fill)) {
    for (Microbatch& m : microbatches_) m.abandon();
    result_.stopped = true;
    return result_;
  }
  double loss = 0;
  for (double s : sequence_loss_) loss += s;
  result_.loss = loss / double(std::max<int64_t>(1, targets));
  if (device_.has_data() && targets_seen_ != targets)
    run_failed("step {}: the batch has {} target tokens where {} were announced", step, targets_seen_,
               targets);
  {
    enter("norm");
    Timed t(result_.norm_s);
    TraceScope part(tracer_.get(), SpanKind::action, "norm");
    layer_ = "grad_norm";
    result_.grad_norm = grad_norm_->compute(device_, params_, compute_) / loss_scale_.scale();
  }
  result_.lr = lr_.at(step_);
  if (device_.has_data() && !(std::isfinite(result_.loss) && std::isfinite(result_.grad_norm))) {
    if (!skip_overflow()) find_nonfinite(actions, fill, result_.loss, result_.grad_norm);
  } else {
    update();
  }
  device_.sync(compute_);
  result_.tokens = targets;
  result_.seconds = now_s() - begin;
  return result_;
}

// A loss that is not finite is none of the scale's doing: it enters behind the loss.
bool StageRunner::skip_overflow() {
  result_.skipped = std::isfinite(result_.loss) && loss_scale_.overflow();
  return result_.skipped;
}

// The learning rate counts every step, AdamW's bias correction only those that moved its moments.
void StageRunner::update() {
  enter("update");
  Timed t(result_.update_s);
  TraceScope part(tracer_.get(), SpanKind::action, "Step");
  layer_ = "optimizer";
  double clip = run_.optimizer.clip_norm, norm = result_.grad_norm;
  // As PyTorch's clip_grad_norm_: the coefficient is clip / (norm + 1e-6), at most 1.
  double scale = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
  optimizer_->step(device_.kernels(), params_, flat_,
                   {.lr = result_.lr,
                    .step = step_ - loss_scale_.state().skipped,
                    .grad_scale = float(scale / loss_scale_.scale())},
                   compute_);
  loss_scale_.good_step();
}

namespace {
// What an f16 run's user needs beside step, layer and op.
std::string why_not_skipped(const LossScale& scale, double loss) {
  if (!std::isfinite(loss))
    return "; the forward pass needs more range than f16 has (65504), whatever the loss scale: give "
           "precision.compute = \"bf16\" or \"f32\"";
  if (scale.dynamic())
    return fmt::format("; the loss scale is {}, its least (precision.min_scale)", scale.scale());
  return fmt::format("; precision.loss_scale is fixed at {}: give \"dynamic\", or a smaller one",
                     scale.scale());
}
}  // namespace

// Runs the step's forward and backward passes once more (data and randomness are pure functions, and the
// weights have not moved) with every op's outputs checked.
void StageRunner::find_nonfinite(std::span<const Action> actions, const FillBatch& fill, double loss,
                                 double norm) {
  for (Microbatch& m : microbatches_) m.abandon();
  for (Param& p : params_.params) p.grad_started = false;
  NonfiniteFinder finder(device_, nonfinite_count_, step_, layer_);
  OpObserver* before = device_.kernels().observe(&finder);
  try {
    run_actions(actions, fill);
  } catch (const Error& e) {
    if (!loss_scale_.active()) throw;
    throw Error(e.what() + why_not_skipped(loss_scale_, loss), e.fault);
  }
  device_.kernels().observe(before);
  run_failed(
      "step {}: loss {} and gradient norm {} are not finite, yet no op's output shows it when run again",
      step_, loss, norm);
}

void StageRunner::forward_only(Microbatch& m, Ctx& ctx) {
  for (size_t l = 0; l < stage_.layers.size(); l++) {
    Owned y = stage_.layers[l]->forward(ctx, *m.x[0], m.saved[l]);
    m.saved[l].clear();
    m.x[0] = std::move(y);
  }
  m.x[0].reset();
}

StageRunner::TokenLoss StageRunner::evaluate(int64_t sequences, int64_t seq, const FillBatch& fill,
                                             std::span<double> each) {
  require(each.empty() || int64_t(each.size()) == sequences,
          "a sum of losses for each sequence, or for none");
  Microbatch& m = microbatches_[0];
  load_batch(m, sequences, seq, 0, 0, fill);
  Ctx ctx = context(m, false);
  forward_only(m, ctx);
  if (token_loss_host_.size() < size_t(sequences * seq)) token_loss_host_.resize(size_t(sequences * seq));
  device_.download(token_loss_host_.data(), *m.token_loss);
  TokenLoss sum;
  std::fill(each.begin(), each.end(), 0.0);
  for (int64_t i = 0; device_.has_data() && i < sequences * seq; i++)
    if (staging_[size_t(sequences * seq + i)] >= 0) {
      double loss = token_loss_host_[size_t(i)];
      sum.sum += loss, sum.tokens++;
      if (!each.empty()) each[size_t(i / seq)] += loss;
    }
  m.release();
  return sum;
}

void StageRunner::logits(std::span<const int32_t> tokens, std::vector<float>& out) {
  Microbatch& m = microbatches_[0];
  int64_t seq = int64_t(tokens.size());
  load_batch(m, 1, seq, 0, 0, [&](int64_t, int64_t, const HostBatch& b) {
    for (size_t i = 0; i < tokens.size(); i++)
      b.tokens[i] = tokens[i], b.targets[i] = -1, b.positions[i] = int32_t(i);
  });
  Ctx ctx = context(m, false);
  Owned y = ctx.activation({seq, run_.model.vocab}, DType::f32);
  ctx.logits = *y;
  forward_only(m, ctx);
  out.resize(size_t(seq * run_.model.vocab));
  device_.download(out.data(), *y);
  m.release();
}

}  // namespace trireme
