#include "forecast/axes.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/progress.h"
#include "comm/options.h"
#include "measure/price.h"
#include "runtime/recording.h"
#include "sim/replay.h"
#include "spec/complaint.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

struct Way {
  std::string_view name;
  void (*set)(LayoutSpec&, int64_t ranks);
};

constexpr Way kWays[] = {
    {"tp", [](LayoutSpec& l, int64_t n) { l.tp = n; }},
    {"tp sequence", [](LayoutSpec& l, int64_t n) { l.tp = n, l.sequence = true; }},
    {"cp ring", [](LayoutSpec& l, int64_t n) { l.cp = n; }},
    {"cp ulysses", [](LayoutSpec& l, int64_t n) { l.cp = n, l.cp_method = "ulysses"; }},
    {"ep", [](LayoutSpec& l, int64_t n) { l.dp = n, l.ep = n; }},
};

// One microbatch of `ranks` sequences, all on these ranks: with ep, which divides tokens by sequences, each
// rank has one.
RunSpec run_of(const RunSpec& base, const Way& way, int64_t ranks, int64_t seq_len, int64_t layers) {
  RunSpec r = base;
  r.layout = LayoutSpec();
  r.layout.cp_placement = base.layout.cp_placement, r.layout.tp_chunks = base.layout.tp_chunks;
  r.layout.bucket_mb = base.layout.bucket_mb, r.layout.cp_overlap = base.layout.cp_overlap;
  way.set(r.layout, ranks);
  r.data.seq_len = seq_len;
  r.batch.global = ranks, r.batch.micro = ranks / r.layout.dp;
  r.model.layers = layers;
  r.model.max_positions = std::max(r.model.max_positions, seq_len);
  r.optimizer.name = "adamw", r.train.noise_scale = 0;
  return r;
}

std::string refusal_of(const RunSpec& run, std::string_view way) {
  if (way == "ep" && run.model.experts == 0) return "the model has no experts";
  for (const auto& problems : {problems_of(run), unsupported_of(run)})
    if (!problems.empty()) return text_of(run, problems[0]);
  return {};
}

struct Totals {
  int64_t wire = 0, comm = 0, exposed = 0, compute = 0;  // bytes; nanoseconds
};

// Of the step's passes: what stands in F, B, I and W.
Totals totals_of(const RunSpec& run, const ClusterSpec& cluster, int threads) {
  const Tape tape = record_training(run, schedule_of(run), threads);
  const std::vector<Price> prices = price(tape, cluster, run);
  const RankTape rank{0, &tape, prices};
  const Replay all = replay({&rank, 1});
  auto in_pass = [](const Piece& p) {
    return p.action == "F" || p.action == "B" || p.action == "I" || p.action == "W";
  };
  auto says = [&](const Piece& p) {
    if (p.kind == PieceKind::send || p.kind == PieceKind::recv) return true;
    if (p.kind != PieceKind::call || tape.groups[size_t(p.group)].name == "control") return false;
    // Context and expert ranks are replicas, whose gradients are summed meanwhile.
    return run.layout.tp > 1 || p.name != "all_reduce";
  };
  Totals t;
  for (size_t i = 0; i < tape.pieces.size(); i++) {
    const Piece& p = tape.pieces[i];
    if (!in_pass(p)) continue;
    if (p.kind == PieceKind::op && !of_offload(p)) t.compute += prices[i].time;
    if (says(p)) t.wire += p.wire, t.comm += prices[i].time;
  }
  for (const Exposure& e : exposures(rank, all.ranks[0]))
    if (in_pass(tape.pieces[e.at]) && says(tape.pieces[e.held_by])) t.exposed += e.time;
  return t;
}

AxisCost cost_of_way(const RunSpec& base, const ClusterSpec& cluster, int threads, const Way& way,
                     int64_t ranks, int64_t seq_len) {
  AxisCost c{.way = std::string(way.name), .ranks = ranks, .seq_len = seq_len};
  const RunSpec one = run_of(base, way, ranks, seq_len, 1), two = run_of(base, way, ranks, seq_len, 2);
  c.refused = refusal_of(two, way.name);
  if (!c.refused.empty()) return c;
  const Totals a = totals_of(one, cluster, threads), b = totals_of(two, cluster, threads);
  c.wire_bytes = b.wire - a.wire;
  c.comm_s = double(b.comm - a.comm) * 1e-9;
  c.exposed_s = double(b.exposed - a.exposed) * 1e-9;
  c.compute_s = double(b.compute - a.compute) * 1e-9;
  return c;
}

// rows: of one way each, of the same lengths.
AxisPair pair_of(std::span<const AxisCost* const> a, std::span<const AxisCost* const> b) {
  AxisPair p{.ranks = a[0]->ranks, .first = a[0]->way, .second = b[0]->way};
  double before = 0;  // seconds that `second` takes more, one length before
  for (size_t i = 0; i < a.size(); i++) {
    double more = b[i]->comm_s - a[i]->comm_s;
    if (i == 0 && more < 0) std::swap(p.first, p.second), std::swap(a, b), more = -more;
    const bool second_was = p.changes.size() % 2 == 1;
    if (i > 0 && (second_was ? more > 0 : more < 0)) {
      const double at =
          double(a[i - 1]->seq_len) + double(a[i]->seq_len - a[i - 1]->seq_len) * before / (before - more);
      p.changes.push_back(int64_t(std::ceil(at)));
    }
    before = more;
  }
  return p;
}

// rows: of one number of ranks, all lengths.
std::vector<AxisPair> pairs_of_ways(std::span<const AxisCost> rows) {
  std::vector<std::vector<const AxisCost*>> ways;
  for (const Way& way : kWays) {
    std::vector<const AxisCost*> of_way;
    for (const AxisCost& r : rows)
      if (r.way == way.name && r.refused.empty()) of_way.push_back(&r);
    // What only some lengths permit is compared with nothing.
    if (!of_way.empty() && of_way.size() * std::size(kWays) == rows.size()) ways.push_back(of_way);
  }
  std::vector<AxisPair> pairs;
  for (size_t i = 0; i < ways.size(); i++)
    for (size_t j = i + 1; j < ways.size(); j++) pairs.push_back(pair_of(ways[i], ways[j]));
  return pairs;
}
}  // namespace

const AxisCost* cheapest(std::span<const AxisCost> rows) {
  const AxisCost* best = nullptr;
  for (const AxisCost& r : rows)
    if (r.refused.empty() && (!best || r.comm_s < best->comm_s)) best = &r;
  return best;
}

AxisTable compare_axes(const RunSpec& run, const ClusterSpec& cluster, int threads,
                       std::vector<int64_t> ranks, int64_t longest) {
  if (!links_known(options_of(run, cluster)))
    bad_request(
        "{}: the axes are compared by latency and bandwidth of its links, and they are not known: it takes "
        "{}",
        run.cluster.file.empty() ? "this machine" : run.cluster.file, links_wanted(run, cluster));
  AxisTable table;
  for (int64_t n : ranks) {
    std::string before;
    const size_t begin = table.rows.size();
    for (int64_t s = run.data.seq_len; s <= longest; s *= 4) {
      const size_t first = table.rows.size();
      for (const Way& way : kWays) table.rows.push_back(cost_of_way(run, cluster, threads, way, n, s));
      const AxisCost* best = cheapest(std::span(table.rows).subspan(first));
      if (!best) continue;
      if (!before.empty() && best->way != before) table.crossovers.push_back({n, s, before, best->way});
      before = best->way;
    }
    for (AxisPair& p : pairs_of_ways(std::span(table.rows).subspan(begin)))
      table.pairs.push_back(std::move(p));
  }
  return table;
}

}  // namespace trireme
