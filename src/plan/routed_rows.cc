#include "plan/routed_rows.h"

#include <algorithm>
#include <array>
#include <cmath>

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
  // A token's choices are different experts, so an owner gets as many of a token's as it has at most. Rows of
  // other ranks come here or make the lines of other owners longer, beyond whose first `capacity` rows those
  // of this rank go in further rounds: the more come, the fewer of these. The bytes are linear between where
  // no more go in further rounds, where the first does, and where the most rows come.
  std::array<Leaving, 3> most() const {
    const int64_t to_one = tokens * std::min(choices, own);
    const int64_t out = tokens * std::min(choices, experts - own), in = (ep - 1) * to_one;
    const int64_t further =
        std::min(out, (ep - 1) * std::min(to_one, std::max<int64_t>(0, ep * to_one - capacity)));
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

}  // namespace

std::optional<RoutedBytes> routed_bytes(const RunSpec& run, const Schedule& schedule, const MostWire& wire) {
  if (wire.rows.empty()) return std::nullopt;
  const RowExchange e = exchange_of(run);
  const Mesh mesh = mesh_of(run.layout);
  const std::vector<StageRange> stages = split_layers(run, schedule.stages);
  const int64_t row = run.model.hidden * size_of(dtype_from_name(run.precision.compute));
  RoutedBytes all;
  for (const MostWire::Rows& r : wire.rows) {
    int64_t backward = 0, rounds = 1;  // passes of blocks
    for (const Action& a : schedule.ranks[size_t(mesh.coord(r.rank, Axis::pp))])
      for (int64_t b = stages[size_t(a.stage)].first; a.kind == Act::F && b < stages[size_t(a.stage)].last;
           b++)
        backward += run.model.expert_block(b);
    const Leaving balanced = e.balanced(mesh.coord(r.rank, Axis::ep), rounds);
    // Rows set out once a round forward; backward their gradients do, and beyond the first round rows and
    // gradients for either gradient (ExpertExchange).
    const int64_t forward = (r.starts - backward * (4 * rounds - 3)) / rounds;
    const auto bytes = [&](const Leaving& x) {
      return row * ((forward + backward) * (x.out + x.in) + 3 * backward * x.further);
    };
    require(r.started == row * ((forward + backward) * balanced.out + 3 * backward * balanced.further),
            "an exchange moves rows as its passes say");
    const int64_t others = r.all_to_all - bytes(balanced);
    // Where owners have fewer experts than a token chooses, some rows leave; over the ranks of ep as many
    // come as leave, so one of them has twice that. Dropped rows go nowhere.
    const int64_t leaving = run.moe.capacity > 0 ? 0 : e.tokens * std::max<int64_t>(0, e.choices - e.own);
    const bool alike = run.optimizer.name != "muon";  // of what else is in all_to_all
    all.least = std::max(all.least, others + bytes({.out = leaving, .in = alike ? leaving : 0}));
    for (const Leaving& end : e.most()) all.most = std::max(all.most, others + bytes(end));
  }
  return all;
}

}  // namespace trireme
