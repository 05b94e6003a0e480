#include "plan/axes.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/progress.h"
#include "comm/options.h"
#include "plan/price.h"
#include "runtime/recording.h"
#include "sim/replay.h"
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
  r.layout.bucket_mb = base.layout.bucket_mb;
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
    if (!problems.empty()) return fmt::format("{}: {}", problems[0].keys.front(), problems[0].text);
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
    if (p.kind == PieceKind::op && !of_disk(p)) t.compute += prices[i].time;
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

const AxisCost* cheapest(std::span<const AxisCost> rows) {
  const AxisCost* best = nullptr;
  for (const AxisCost& r : rows)
    if (r.refused.empty() && (!best || r.comm_s < best->comm_s)) best = &r;
  return best;
}

std::string in_ms(double s) {
  return fmt::format("{:.3f} ms", s * 1e3);
}

}  // namespace

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
    for (int64_t s = run.data.seq_len; s <= longest; s *= 4) {
      const size_t first = table.rows.size();
      for (const Way& way : kWays) table.rows.push_back(cost_of_way(run, cluster, threads, way, n, s));
      const AxisCost* best = cheapest(std::span(table.rows).subspan(first));
      if (!best) continue;
      if (!before.empty() && best->way != before) table.crossovers.push_back({n, s, before, best->way});
      before = best->way;
    }
  }
  return table;
}

std::string to_text(const AxisTable& table, const RunSpec& run, const ClusterSpec& cluster) {
  const ModelSpec& m = run.model;
  std::string s = fmt::format(
      "one block of {}: hidden {}, {} heads ({} for keys and values), {}; {}; machine: {}\n"
      "forward and backward of as many sequences as ranks; * = least time on the wire\n\n"
      "{:>5} {:>8}  {:<12} {:>12} {:>12} {:>12} {:>12}\n",
      m.arch, m.hidden, m.heads, m.kv_heads,
      m.experts > 0 ? fmt::format("{} of {} experts of {}", m.experts_per_token, m.experts, m.moe_ffn)
                    : fmt::format("ffn {}", m.ffn),
      run.precision.compute, cluster.name, "ranks", "seq_len", "way", "rank's wire", "on the wire", "exposed",
      "compute");
  std::vector<std::string> refusals;
  for (size_t i = 0; i < table.rows.size();) {
    size_t end = i;
    while (end < table.rows.size() && table.rows[end].ranks == table.rows[i].ranks &&
           table.rows[end].seq_len == table.rows[i].seq_len)
      end++;
    const AxisCost* best = cheapest(std::span(table.rows).subspan(i, end - i));
    for (; i < end; i++) {
      const AxisCost& r = table.rows[i];
      if (!r.refused.empty()) {
        const std::string line = fmt::format("{} on {} ranks: {}", r.way, r.ranks, r.refused);
        if (std::find(refusals.begin(), refusals.end(), line) == refusals.end()) refusals.push_back(line);
        continue;
      }
      s += fmt::format("{:>5} {:>8}{} {:<12} {:>12} {:>12} {:>12} {:>12}\n", r.ranks, r.seq_len,
                       &r == best ? " *" : "  ", r.way, human_bytes(r.wire_bytes), in_ms(r.comm_s),
                       in_ms(r.exposed_s), in_ms(r.compute_s));
    }
  }
  s += '\n';
  for (const Crossover& c : table.crossovers)
    s += fmt::format("{} ranks: from {} tokens a sequence on {} takes less of the wire's time than {}\n",
                     c.ranks, c.seq_len, c.to, c.from);
  if (table.crossovers.empty()) s += "no length changes which way is cheapest\n";
  for (const std::string& r : refusals) s += "left out: " + r + "\n";
  return s;
}

std::string to_json(const AxisTable& table) {
  nlohmann::ordered_json j;
  j["rows"] = j["crossovers"] = nlohmann::ordered_json::array();
  for (const AxisCost& r : table.rows) {
    nlohmann::ordered_json row = {{"way", r.way}, {"ranks", r.ranks}, {"seq_len", r.seq_len}};
    if (r.refused.empty()) {
      row["wire_bytes"] = r.wire_bytes, row["comm_s"] = r.comm_s;
      row["exposed_s"] = r.exposed_s, row["compute_s"] = r.compute_s;
    } else {
      row["refused"] = r.refused;
    }
    j["rows"].push_back(row);
  }
  for (const Crossover& c : table.crossovers)
    j["crossovers"].push_back({{"ranks", c.ranks}, {"seq_len", c.seq_len}, {"from", c.from}, {"to", c.to}});
  return j.dump(2);
}

}  // namespace trireme
