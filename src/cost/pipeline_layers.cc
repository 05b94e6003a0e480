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

double even_layers(const StepCase& c, int64_t rank) {
  const int64_t each = (c.model.layers + c.pp - 1) / c.pp, fewer = each * c.pp - c.model.layers;
  const bool first = rank == 0, last = rank == c.pp - 1;
  if (is_v(c.order)) return double(each - (first && fewer > 0));
  return double(each - ((first && fewer > 1) || (last && fewer > 0)));
}

double layers_of(const StepCase& c, int64_t rank, bool held) {
  if (c.pp == 1) return double(c.model.layers);
  const int64_t stages = c.pp * c.chunks;
  if (c.cut == StageCut::even || stages > c.model.layers) return even_layers(c, rank);
  const int64_t last = last_blocks(c.model.layers, stages, head_cost(c)), left = c.model.layers - last,
                each = left / (stages - 1), more = left % (stages - 1);
  if (held && is_v(c.order) && rank == 0) return double(2 * (each + (more > 0)));
  int64_t all = 0;
  for (int64_t i = 0; i < c.chunks; i++) {
    const int64_t stage = is_v(c.order) && i % 2 == 1 ? stages - 1 - rank : i * c.pp + rank;
    all += stage == stages - 1 ? last : each + (stage < more);
  }
  return double(all);
}

}  // namespace

double rank_layers(const StepCase& c, int64_t rank) {
  return layers_of(c, rank, false);
}
double held_layers(const StepCase& c, int64_t rank) {
  return layers_of(c, rank, true);
}

}  // namespace trireme
