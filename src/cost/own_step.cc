#include "cost/own_step.h"

#include <algorithm>

#include "cost/own_overlap.h"
#include "cost/pipeline_layers.h"
#include "cost/stage_time.h"

namespace trireme {
namespace {

class OwnStep {
 public:
  OwnStep(const StepCase& c, const DeviceFigures& d, const FitValues& f, const StepParts& all)
      : c_(c), d_(d), f_(f), all_(all), blocks_(c) {
    replicas_ = c.dp * c.cp > 1 || c.dp * c.cp * c.tp > c.ep * c.expert_tp;
    const double n = double(c.model.layers);
    stage_.zero = replicas_ ? c.zero : 0, stage_.cast = c.cast;
    stage_.prefetch = c.prefetch;
    stage_.reshard_after_forward = c.reshard_after_forward;
    stage_.reshard_last = c.reshard_last;
    stage_.split = splits(c.order), stage_.forwards_first = c.order == PipelineOrder::gpipe && c.pp > 1;
    const HeldParameters block = {all.block_dense, all.block_experts}, table = {table_held(c), 0};
    stage_.block =
        unit(block, 1, all.forward / n, (all.total - all.forward - all.weight) / n, all.weight / n);
    show_experts(block);
    stage_.embedding = unit(table, 0, 0, 0, 0);
    // A tied table on one stage is there once.
    const bool tied_here = c.model.tied && c.pp * c.chunks == 1;
    stage_.head = unit(tied_here ? HeldParameters{} : table, 0, all.head_forward,
                       all.head - all.head_forward - all.head_weight, all.head_weight);
  }

  StepSeconds run() {
    const double p = double(c_.pp), m = double(c_.microbatches), chunks = double(c_.chunks);
    const bool v = is_v(c_.order);
    const int64_t first = 0, last = v ? 0 : c_.pp - 1;
    // The busiest: one with the most blocks, or the one with the head. The embedding takes nothing.
    const double most =
        std::max(blocks_.own(v ? c_.pp - 1 : 0), blocks_.own(std::min<int64_t>(1, c_.pp - 1)));
    const double head_blocks = c_.pp > 1 ? blocks_.own(last) : double(c_.model.layers);
    const Rank full = c_.pp > 1 ? rank(most, !v, false) : rank(head_blocks, true, true);
    const Rank ends = c_.pp > 1 ? rank(head_blocks, v, true) : full;
    const Rank& busy = full.turn() >= ends.turn() ? full : ends;
    const double busiest = busy.compute, all = all_.total + all_.head;
    StepSeconds s;
    const double share = m * busiest / all;
    s.products = share * all_.products, s.attention = share * all_.attention;
    s.elementwise = share * all_.elementwise, s.host = share * all_.host;
    s.tp = share * all_.tp, s.cp = share * all_.cp, s.ep = share * all_.ep, s.head = share * all_.head;
    // A microbatch goes once through all other stages, which wait for their weights and sums too.
    const double through = all_.total + all_.head + full.passing + (c_.pp == 1 ? 0 : ends.passing) +
                           between(double(c_.model.layers) - full.blocks - ends.blocks);
    const double own = busiest + busy.passing;
    s.bubble = std::max(0.0, through - own) * c_.bubble / chunks;
    // A first stage that is slower than all others finds their gradients there when the pipeline drains, and
    // has no forward passes left to wait between them.
    if (c_.pp > 1 && !busy.head && c_.chunks == 1) {
      const double others =
          std::max(ends.turn(), most * (all_.total / double(c_.model.layers) +
                                        (stage_.zero < 2 ? 0 : own_block_waits(stage_) + shown_)));
      const double forward =
          most * std::max(stage_.block.forward, gathered(stage_.block)) + gathered(stage_.embedding);
      s.bubble -= std::clamp((p - 1) * std::min(forward, busy.turn() - others), 0.0, s.bubble);
    }
    // Stages that are quicker than the busiest have messages to spare.
    if (c_.pp > 1)
      s.messages = std::max(2 * (p - 1) * message_seconds(c_, d_, f_),
                            c_.message_waits - m * std::max(0.0, busy.turn() - through / p));
    s.gradients = m * busy.waits;
    OwnStage tail = stage(c_.pp > 1 ? blocks_.own(first) : double(c_.model.layers), true, c_.pp == 1 || v);
    double optimizer = updates(tail), done = own_update(tail);
    if (c_.pp > 1 && !v) {
      const OwnStage other = stage(head_blocks, false, true);
      if (const double t = own_update(other); t > done) done = t, optimizer = updates(other);
    }
    const double sums = tail.blocks * stage_.block.reduce;
    tail.blocks /= chunks, tail.has_head = c_.pp * c_.chunks == 1;
    if (stage_.zero >= 2) {
      s.gradients += own_waits(tail, c_.microbatches).ends;
    } else if (replicas_) {
      // Sums of earlier chunks travel during the last backward passes of later ones, and those that are left
      // follow.
      const double pass = tail.blocks * (stage_.block.input + stage_.block.weight);
      const double before = 1 + (chunks - 1) * std::min(p, m);
      s.gradients += std::max(own_waits(tail, c_.microbatches).ends, sums - before * pass);
      // Backward passes that are longer by what they wait for come one behind another.
      const double passes = stage_.split ? chunks : p + chunks - 1;
      if (passes > 1) s.gradients += (passes - 1) * own_waits(stage(most / chunks, false, false), 1).last;
    }
    s.gradients += done - optimizer;
    s.optimizer = optimizer + step_seconds(c_, d_, f_);
    s.offload = offload_seconds(c_, d_, f_, {all_.dense, all_.experts});
    const double sum = m * busiest + s.bubble + s.messages + s.gradients + s.optimizer + s.offload;
    s.jitter = sum * (slowness(c_, d_, f_) - 1);
    s.total = sum + s.jitter;
    return s;
  }

 private:
  struct Rank {
    double blocks = 0, compute = 0;  // a microbatch
    bool embedding = false, head = false;
    double waits = 0, passing = 0;
    double turn() const { return compute + waits; }
  };
  static bool splits(PipelineOrder o) {
    return o != PipelineOrder::one_f_one_b && o != PipelineOrder::gpipe && o != PipelineOrder::dualpipe_v;
  }
  OwnUnit unit(const HeldParameters& held, double layers, double forward, double input, double weight) const {
    OwnUnit u{.forward = forward, .input = input, .weight = weight};
    const StateSeconds t = replicas_ ? state_seconds(c_, d_, f_, held, layers) : StateSeconds{};
    u.gather = t.gather + t.gather_experts, u.reduce = t.reduce + t.reduce_experts;
    u.update = update_seconds(c_, d_, f_, held) - offload_seconds(c_, d_, f_, held);
    return u;
  }
  // ZeRO 3 gathers one unit ahead, and a block of experts has two. The experts are gathered when the block
  // begins, after the sums of the previous block; compute waits for both.
  void show_experts(const HeldParameters& block) {
    if (!replicas_ || c_.zero < 3) return;
    const StateSeconds t = state_seconds(c_, d_, f_, block, 1);
    if (t.gather_experts <= 0) return;
    shown_ = (c_.reshard_after_forward ? 2 : 1) * t.gather_experts + stage_.block.reduce;
    stage_.block.gather -= t.gather_experts;
    stage_.block.reduce = 0;
  }
  OwnStage stage(double blocks, bool embedding, bool head) const {
    OwnStage s = stage_;
    s.blocks = blocks, s.has_embedding = embedding, s.has_head = head;
    // Of several chunks a rank's passes take turns, but for those of the last stage.
    s.turns_back = c_.chunks == 1 || head, s.turns_on = c_.chunks == 1;
    return s;
  }
  double updates(const OwnStage& s) const {
    return s.blocks * s.block.update + (s.has_embedding ? s.embedding.update : 0) +
           (s.has_head ? s.head.update : 0);
  }
  Rank rank(double blocks, bool embedding, bool head) const {
    Rank r{.blocks = blocks, .embedding = embedding, .head = head};
    r.compute = blocks / double(c_.model.layers) * all_.total + (head ? all_.head : 0);
    if (stage_.zero < 2) return r;
    // Chunk by chunk, a forward pass and a backward pass in turn; tables are in one of them.
    const double chunks = double(c_.chunks);
    OwnStage s = stage(blocks / chunks, embedding, head);
    r.waits = turn(s) + blocks * shown_;
    if (c_.pp == 1) return r;
    OwnStage plain = s;
    plain.has_embedding = plain.has_head = plain.turns_back = plain.turns_on = false;
    const double others = chunks > 1 ? (chunks - 1) * turn(plain) : 0;
    r.waits += others;
    // Where its stage does not turn.
    s.turns_back = s.turns_on = false;
    r.passing = turn(s) + others + blocks * shown_;
    // The first one turns but where the pipeline fills and drains.
    const double m = double(c_.microbatches);
    if (!head) r.waits = r.passing + (r.waits - r.passing) * std::max(0.0, m - double(c_.pp - 1)) / m;
    return r;
  }

  double turn(const OwnStage& s) const { return own_waits(s, c_.microbatches).turn; }
  double gathered(const OwnUnit& u) const { return stage_.zero == 3 ? u.gather : 0; }
  // What a microbatch waits for in blocks of ranks between.
  double between(double blocks) const {
    return stage_.zero < 2 ? 0 : blocks * (own_block_waits(stage_) + shown_);
  }

  const StepCase& c_;
  const DeviceFigures& d_;
  const FitValues& f_;
  const StepParts& all_;
  PipelineBlocks blocks_;
  bool replicas_ = false;
  OwnStage stage_;
  double shown_ = 0;  // seconds per block and microbatch that compute waits for experts' weights
};

}  // namespace

StepSeconds own_step_time(const StepCase& c, const DeviceFigures& d, const FitValues& f,
                          const StepParts& all) {
  return OwnStep(c, d, f, all).run();
}

}  // namespace trireme
