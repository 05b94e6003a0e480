#include "cost/pipeline_layers.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"

namespace trireme {
namespace {

// The head in blocks.
double head_cost(const StepCase& c) {
  const ModelSpec& m = c.model;
  const double with = double(m.expert_blocks()) / double(m.layers);
  double block = 0;
  if (with > 0) block += with * block_flops_per_token(m, c.seq, true);
  if (with < 1) block += (1 - with) * block_flops_per_token(m, c.seq, false);
  return 2 * double(m.vocab) * double(m.hidden) / block;
}

// The same by the numbers of their matrices, as nanotron counts costs.
double head_matrices(const StepCase& c) {
  const ModelSpec& m = c.model;
  const double with = double(m.expert_blocks()) / double(m.layers), norms = 2 * double(m.hidden);
  double block = 0;
  if (with > 0) block += with * (double(block_parameters(m, 1, true)) - norms);
  if (with < 1) block += (1 - with) * (double(block_parameters(m, 1, false)) - norms);
  return double(m.vocab) * double(m.hidden) / block;
}

// Blocks of the last of `stages`: those that make the dearest stage cheapest, and of such all stages most
// alike.
int64_t last_blocks(int64_t layers, int64_t stages, double head) {
  int64_t best = 1;
  double dearest = 0, squares = 0;
  for (int64_t n = 1; n <= (layers + stages - 1) / stages; n++) {
    const int64_t left = layers - n, each = left / (stages - 1), more = left % (stages - 1);
    const double last = double(n) + head, most = std::max(double(each + (more > 0)), last);
    const double all = last * last + double(more) * double((each + 1) * (each + 1)) +
                       double(stages - 1 - more) * double(each * each);
    constexpr double kSame = 1e-12;
    const bool cheaper = most < dearest * (1 - kSame), same = most <= dearest * (1 + kSame);
    if (n == 1 || cheaper || (same && all < squares)) best = n, dearest = most, squares = all;
  }
  return best;
}

// Blocks of a stage where a stage ends behind the block that brings the blocks so far, a head of `head`
// blocks behind them, above its share of all.
int64_t share_blocks(int64_t layers, int64_t stages, double head, int64_t stage) {
  int64_t at = 0, blocks = 0;
  for (int64_t i = 1; i <= layers; i++) {
    blocks += at == stage;
    if (at < stages - 1 && double(i) > (double(layers) + head) * double(at + 1) / double(stages)) at++;
  }
  return blocks;
}

double even_layers(int64_t layers, int64_t pp, bool v, int64_t rank) {
  const int64_t each = (layers + pp - 1) / pp, fewer = each * pp - layers;
  const bool first = rank == 0, last = rank == pp - 1;
  if (v) return double(each - (first && fewer > 0));
  return double(each - ((first && fewer > 1) || (last && fewer > 0)));
}

}  // namespace

PipelineBlocks::PipelineBlocks(const StepCase& c)
    : v_(is_v(c.order)),
      next_group_(c.microbatches > c.pp),
      pp_(c.pp),
      chunks_(c.chunks),
      layers_(c.model.layers) {
  const int64_t stages = c.pp * c.chunks;
  even_ = c.cut == StageCut::even || stages > c.model.layers;
  if (even_ || c.pp == 1) return;
  by_share_ = c.cut == StageCut::by_share, head_ = by_share_ ? head_matrices(c) : 0;
  if (by_share_) return;
  last_ = last_blocks(c.model.layers, stages, head_cost(c));
  each_ = (c.model.layers - last_) / (stages - 1), more_ = (c.model.layers - last_) % (stages - 1);
}

double PipelineBlocks::of(int64_t rank, bool held) const {
  if (pp_ == 1) return double(layers_);
  if (even_) return even_layers(layers_, pp_, v_, rank);
  const int64_t stages = pp_ * chunks_;
  if (by_share_) {
    int64_t all = 0;
    for (int64_t i = 0; i < chunks_; i++)
      all += share_blocks(layers_, stages, head_, v_ && i % 2 == 1 ? stages - 1 - rank : i * pp_ + rank);
    return double(all);
  }
  if (held && v_ && rank == 0) return double(2 * (each_ + (more_ > 0)));
  int64_t all = 0;
  for (int64_t i = 0; i < chunks_; i++) {
    const int64_t stage = v_ && i % 2 == 1 ? stages - 1 - rank : i * pp_ + rank;
    all += stage == stages - 1 ? last_ : each_ + (stage < more_);
  }
  return double(all);
}

// Forward passes go through chunks in groups of pp microbatches, backward passes behind them the other way.
// The first `large` chunks have a block more: most of them are in flight when a group has just been through.
double PipelineBlocks::in_flight(int64_t rank, double chunks) const {
  if (even_ || by_share_ || v_ || pp_ == 1 || chunks_ == 1) return of(rank, true) * chunks / double(chunks_);
  const double p = double(pp_), large = double(more_ / pp_ + (rank < more_ % pp_));
  const double group = next_group_ ? std::min(large * p, std::max(0.0, chunks - large * p)) : 0;
  return double(each_) * chunks + std::min(chunks, large * p + group);
}

int64_t PipelineBlocks::last_fullest() const {
  const double last = own(pp_ - 1);
  if (by_share_) {
    int64_t most = pp_ - 1;
    for (int64_t rank = pp_ - 1; rank >= 0; rank--)
      if (own(rank) > own(most)) most = rank;
    return most;
  }
  if (pp_ == 1 || last >= std::max(own(0), own(pp_ - 2))) return pp_ - 1;
  // Of a cut by cost the first `more_` have one more than those behind them.
  return !even_ && more_ > 0 ? more_ - 1 : pp_ - 2;
}

double rank_layers(const StepCase& c, int64_t rank) {
  return PipelineBlocks(c).own(rank);
}
double held_layers(const StepCase& c, int64_t rank) {
  return PipelineBlocks(c).held(rank);
}

}  // namespace trireme
