#include "forecast/routed_rows.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "device/ops.h"
#include "mesh/mesh.h"
#include "model/row_plan.h"
#include "model/stages.h"

namespace trireme {
namespace {

// One exchange of one rank: rows of its own that go to others, those that come from others, and of the
// former what goes in further rounds (RowPlan).
struct Leaving {
  int64_t out = 0, in = 0, further = 0;
};

struct RowExchange {
  int64_t ep, experts, own, choices, tokens, capacity;  // of a rank; choices: of a token
  int64_t rows() const { return tokens * choices; }
  // A token's choices are different experts, so an owner gets as many of a token's as it has at most.
  int64_t to_one() const { return tokens * std::min(choices, own); }
  // The fewest and the most, of an owner whose line is the longest: at least the mean, where none is dropped.
  int64_t least_rounds(bool drops) const { return drops ? 1 : (rows() + capacity - 1) / capacity; }
  int64_t most_rounds() const { return (ep * to_one() + capacity - 1) / capacity; }
  Leaving balanced(int rank, int64_t& rounds) const {
    const RowPlan plan(RowPlan::balanced(rows(), int(ep), experts), int(ep), rank, capacity);
    Leaving r;
    rounds = plan.rounds();
    for (int64_t t = 0; t < plan.rounds(); t++) {
      const RowPlan::Round round = plan.round(t);
      const int64_t out = round.sent() - round.send[size_t(rank)];
      r.out += out, r.in += round.received() - round.receive[size_t(rank)];
      if (t > 0) r.further += out;
    }
    return r;
  }
  // Rows of other ranks come here or make the lines of other owners longer, beyond whose first `capacity`
  // rows those of this rank go in further rounds: the more come, the fewer of these. The bytes are linear
  // between where no more go in further rounds, where the first does, and where the most rows come.
  std::array<Leaving, 3> most() const {
    const int64_t out = tokens * std::min(choices, experts - own), in = (ep - 1) * to_one();
    const int64_t further =
        std::min(out, (ep - 1) * std::min(to_one(), std::max<int64_t>(0, ep * to_one() - capacity)));
    const int64_t first =
        out + (ep - 1) * rows() - capacity;  // so many come, and none goes in further rounds
    std::array<Leaving, 3> ends;
    const std::array<int64_t, 3> come = {first - further, first, in};
    for (size_t i = 0; i < ends.size(); i++) {
      const int64_t n = std::clamp<int64_t>(come[i], 0, in);
      ends[i] = {.out = out, .in = n, .further = std::clamp<int64_t>(first - n, 0, further)};
    }
    return ends;
  }
  // Rows that leave each rank whatever is chosen: where owners have fewer experts than a token chooses.
  // Dropped rows go nowhere.
  int64_t leaving(bool drops) const { return drops ? 0 : tokens * std::max<int64_t>(0, choices - own); }
};

RowExchange exchange_of(const RunSpec& run) {
  const LayoutSpec& l = run.layout;
  RowExchange e{.ep = l.ep,
                .experts = run.model.experts,
                .own = run.model.experts / l.ep,
                .choices = run.model.experts_per_token,
                .tokens = run.batch.micro * run.data.seq_len / (l.tp * l.cp),
                .capacity = 0};
  e.capacity = std::min(int64_t(std::ceil(l.ep_buffer * double(e.rows()))), e.rows() * l.ep);
  return e;
}

// Passes of a rank's blocks of experts in a step as booked, and what one of them moves.
struct ExpertPasses {
  int64_t forward = 0, backward = 0, rounds = 1;
  Leaving balanced;
  int64_t rows(const Leaving& x) const {
    return (forward + backward) * (x.out + x.in) + 3 * backward * x.further;
  }
};

ExpertPasses passes_of(const RunSpec& run, const Schedule& schedule, const RowExchange& e,
                       const MostWire::Rows& r) {
  const Mesh mesh = mesh_of(run.layout);
  const std::vector<StageRange> stages = split_layers(run, schedule.stages);
  ExpertPasses p;
  for (const Action& a : schedule.ranks[size_t(mesh.coord(r.rank, Axis::pp))])
    for (int64_t b = stages[size_t(a.stage)].first; a.kind == Act::F && b < stages[size_t(a.stage)].last; b++)
      p.backward += run.model.expert_block(b);
  p.balanced = e.balanced(mesh.coord(r.rank, Axis::ep), p.rounds);
  // Rows set out once a round forward; backward their gradients do, and beyond the first round rows and
  // gradients for either gradient (ExpertExchange).
  p.forward = (r.starts - p.backward * (4 * p.rounds - 3)) / p.rounds;
  return p;
}

// coming: rows that come to the rank whatever is chosen.
RoutedBytes bytes_of(const RunSpec& run, const Schedule& schedule, const MostWire::Rows& r, int64_t coming) {
  const RowExchange e = exchange_of(run);
  const ExpertPasses p = passes_of(run, schedule, e, r);
  const int64_t row = run.model.hidden * size_of(dtype_from_name(run.precision.compute));
  require(
      r.started == row * ((p.forward + p.backward) * p.balanced.out + 3 * p.backward * p.balanced.further),
      "an exchange moves rows as its passes say");
  const int64_t others = r.all_to_all - row * p.rows(p.balanced);
  RoutedBytes b{.least = others + row * p.rows({.out = e.leaving(run.moe.capacity > 0), .in = coming}),
                .most = 0};
  for (const Leaving& end : e.most()) b.most = std::max(b.most, others + row * p.rows(end));
  return b;
}

// FLOPs of one further round, whose products have as many rows as there is room for: of a forward pass, and
// of the backward passes for both gradients (ExpertExchange::further_forward and further_backward).
struct RoundFlops {
  double forward, backward;
};

RoundFlops further_round(const RunSpec& run, const RowExchange& e) {
  const int64_t hidden = run.model.hidden, ffn = run.model.moe_ffn;
  const auto rows = [&](int64_t columns) { return Tensor(nullptr, {e.capacity, columns}, DType::f32); };
  const auto gradient = [&](int64_t out, int64_t in) {
    return Tensor(nullptr, {e.own, out, in}, DType::f32);
  };
  const Tensor x = rows(hidden), u = rows(2 * ffn), a = rows(ffn);
  const double inner =
      cost(GroupedMatmulArgs{.x = x, .y = u}).flops + cost(SwigluArgs{.gate = a, .up = a, .y = a}).flops;
  const double outer = cost(GroupedMatmulArgs{.x = a, .y = x}).flops;
  const double input = cost(GroupedMatmulArgs{.x = x, .y = a}).flops +
                       cost(SwigluBackwardArgs{.gate = a, .up = a, .dy = a, .dgate = a, .dup = a}).flops +
                       cost(GroupedMatmulArgs{.x = u, .y = x}).flops;
  const auto weight = [&](const Tensor& dy, const Tensor& of) {
    return cost(GroupedMatmulWeightArgs{
                    .dy = dy, .x = of, .dw = gradient(dy.cols(), of.cols()), .accumulate = true})
        .flops;
  };
  const double home = cost(CombineRowsArgs{.x = x, .y = x}).flops;
  return {.forward = inner + outer + home,
          .backward = 2 * (inner + input) + home + weight(x, a) + weight(u, x)};
}

}  // namespace

RoutedBytes routed_bytes(const RunSpec& run, const Schedule& schedule, const MostWire::Rows& r) {
  return bytes_of(run, schedule, r, 0);
}

std::optional<RoutedBytes> routed_bytes(const RunSpec& run, const Schedule& schedule, const MostWire& wire) {
  if (wire.rows.empty()) return std::nullopt;
  // Over the ranks of ep as many rows come as leave, so to one of them no fewer than leave it. With Muon the
  // one whose owned matrices travel may be another.
  const bool alike = run.optimizer.name != "muon";
  const int64_t coming = alike ? exchange_of(run).leaving(run.moe.capacity > 0) : 0;
  RoutedBytes all;
  for (const MostWire::Rows& r : wire.rows) {
    const RoutedBytes b = bytes_of(run, schedule, r, coming);
    all.least = std::max(all.least, b.least), all.most = std::max(all.most, b.most);
  }
  return all;
}

std::optional<RoutedFlops> routed_flops(const RunSpec& run, const Schedule& schedule,
                                        const Booking& booking) {
  const auto& all = booking.wire.rows;
  const auto r = std::find_if(all.begin(), all.end(),
                              [&](const MostWire::Rows& of) { return of.rank == booking.tape.rank; });
  if (r == all.end()) return std::nullopt;
  const RowExchange e = exchange_of(run);
  const ExpertPasses p = passes_of(run, schedule, e, *r);
  const RoundFlops round = further_round(run, e);
  const double each = double(p.forward) * round.forward + double(p.backward) * round.backward;
  const double one = booking.total.flops - double(p.rounds - 1) * each;  // of one round a pass
  return RoutedFlops{.least = one + double(e.least_rounds(run.moe.capacity > 0) - 1) * each,
                     .most = one + double(e.most_rounds() - 1) * each};
}

}  // namespace trireme
