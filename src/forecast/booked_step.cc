#include "forecast/booked_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/timed.h"
#include "catalog/call_price.h"
#include "comm/options.h"
#include "forecast/untrained_router.h"
#include "mesh/mesh.h"

namespace trireme {
namespace {

class BookedPaces {
 public:
  BookedPaces(const Disturbance& d, const CommOptions& links, int64_t world)
      : d_(d), node_(links.node > 0 ? links.node : int(world)) {
    const auto nodes = (world + node_ - 1) / node_;
    for (const auto& [r, f] : d.slow_ranks) there(r, world, "--slow");
    if (d.failing_rank >= 0) there(d.failing_rank, world, "--fail");
    for (const auto& [n, f] : d.slow_links)
      if (n < 0 || n >= nodes)
        bad_request("--slow-link {}: nodes are 0 to {} ({} ranks each)", n, nodes - 1, node_);
  }
  double slower(int rank) const {
    const auto it = d_.slow_ranks.find(rank);
    return it == d_.slow_ranks.end() ? 1 : it->second;
  }
  // Bandwidth that is left to a collective or message of these ranks.
  double link(std::span<const int> ranks) const {
    double least = 1;
    for (int r : ranks)
      if (const auto it = d_.slow_links.find(r / node_); it != d_.slow_links.end())
        least = std::min(least, it->second);
    const bool inside =
        std::all_of(ranks.begin(), ranks.end(), [&](int r) { return r / node_ == ranks[0] / node_; });
    return inside ? 1 : least;
  }

 private:
  static void there(int rank, int64_t world, std::string_view what) {
    if (rank < 0 || rank >= world) bad_request("{} {}: ranks are 0 to {}", what, rank, world - 1);
  }
  const Disturbance& d_;
  int node_;
};

void disturb(const Tape& t, const BookedPaces& paces, std::vector<Price>& prices) {
  for (size_t i = 0; i < prices.size(); i++) {
    const Piece& p = t.pieces[i];
    double by = 1;
    if (p.kind == PieceKind::op && !of_offload(p)) by = paces.slower(t.rank);
    if (p.kind == PieceKind::call) by = 1 / paces.link(t.groups[size_t(p.group)].ranks);
    const int ends[] = {t.rank, p.peer};
    if (p.kind == PieceKind::send) by = 1 / paces.link(ends);
    if (by != 1) prices[i].time = std::llround(double(prices[i].time) * by);
  }
}

bool same_timeline(const RankReplay& a, const RankReplay& b) {
  return std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
                    [](const PieceTime& x, const PieceTime& y) {
                      return x.begin == y.begin && x.met == y.met && x.end == y.end;
                    });
}

void add_rows(BookedStep& s, const Mesh& mesh, const Disturbance& d) {
  for (size_t r = 0; r < s.ranks.size(); r++) {
    const int pp = mesh.coord(int(r), Axis::pp);
    const bool disturbed = d.slow_ranks.count(int(r)) || d.failing_rank == int(r);
    const auto same = std::find_if(s.rows.begin(), s.rows.end(), [&](const StepRow& row) {
      return row.pp == pp && row.disturbed == disturbed &&
             same_timeline(s.replay.ranks[row.at], s.replay.ranks[r]);
    });
    s.class_of.push_back(int(same - s.rows.begin()));
    if (same != s.rows.end()) {
      same->ranks++;
      continue;
    }
    StepRow row{.name = fmt::format("rank {}", r), .rank = int(r), .pp = pp};
    row.disturbed = disturbed, row.at = r;
    row.stretches = stretches_of(s.ranks[r], s.replay.ranks[r], s.replay.makespan);
    row.use = use_of(row.stretches), row.span = own_span(row.stretches);
    row.memory = memory_of(s.ranks[r], s.replay.ranks[r]), row.peak = peak_of(row.memory);
    s.rows.push_back(std::move(row));
  }
  for (StepRow& row : s.rows) {
    if (row.ranks > 1) row.name += fmt::format(" +{}", row.ranks - 1);
    if (mesh.size(Axis::pp) > 1) row.name = fmt::format("stage {} ", row.pp) + row.name;
    if (row.disturbed) row.name += "!";
  }
}

}  // namespace

std::vector<MemoryPoint> memory_of(const RankTape& t, const RankReplay& r) {
  std::vector<MemoryPoint> points;
  for (size_t i = 0; i < t.tape->pieces.size(); i++) {
    const Piece& p = t.tape->pieces[i];
    if (p.stream != 0 || r.pieces[i].begin < 0) continue;
    const int64_t time = points.empty() ? 0 : r.pieces[i].begin;
    if (!points.empty() && points.back().time == time)
      points.back().bytes = std::max(points.back().bytes, p.most);
    else if (points.empty() || points.back().bytes != p.most)
      points.push_back({time, p.most});
  }
  return points;
}

BookedStep booked_step(const RunSpec& run, const Schedule& schedule, const ClusterSpec& cluster, int threads,
                       const Disturbance& disturbed, const BookingProgress& progress, double of_bound) {
  if (run.layout.ep_load.untrained)
    return booked_step(with_expected_load(run), schedule, cluster, threads, disturbed, progress, of_bound);
  if (run.world() > kMostBookedRanks)
    bad_request("{} ranks are too many to record each; right is at most {}", run.world(), kMostBookedRanks);
  const BookedPaces paces(disturbed, forecast_links(run, cluster), run.world());
  BookedStep s;
  for (int r = 0; r < int(run.world()); r++) {
    s.tapes.push_back(record_training(run, schedule, threads, r, cluster));
    s.prices.push_back(price(s.tapes.back(), cluster, run));
    for (Price& p : s.prices.back())
      for (int64_t* t : {&p.before, &p.time})
        if (of_bound != 1) *t = std::llround(double(*t) * of_bound);
    disturb(s.tapes.back(), paces, s.prices.back());
    if (progress) progress(r + 1, run.world());
  }
  for (int r = 0; r < int(run.world()); r++) {
    s.ranks.push_back({.rank = r, .tape = &s.tapes[size_t(r)], .prices = s.prices[size_t(r)]});
    if (r == disturbed.failing_rank) s.ranks.back().fails = disturbed.fails_at;
    s.pieces += int64_t(s.tapes[size_t(r)].pieces.size());
  }
  const double begin = now_s();
  s.replay = replay(s.ranks);
  s.seconds = now_s() - begin;
  add_rows(s, mesh_of(run.layout), disturbed);
  return s;
}

}  // namespace trireme
