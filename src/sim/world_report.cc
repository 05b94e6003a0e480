#include "sim/world_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace trireme {
namespace {

std::string row_name(const RankClass& c, bool alone_in_stage) {
  std::string name = fmt::format("stage {}", c.pp);
  if (!alone_in_stage) name += fmt::format(" rank {}", c.rank);
  if (c.ranks > 1 && !alone_in_stage) name += fmt::format(" +{}", c.ranks - 1);
  return name + (c.disturbed ? "!" : "");
}

Span span_around(SpanKind kind, int rank, std::string_view name, int64_t begin, int64_t end) {
  Span s;
  s.kind = kind, s.rank = rank, s.step = 1, s.name = name, s.begin_ns = begin, s.end_ns = end;
  return s;
}

// Pieces of compute that follow one another under one action of one microbatch.
std::vector<Span> action_spans(const RankTape& t, const RankReplay& r, int rank) {
  std::vector<Span> all;
  for (size_t i = 0; i < t.tape->pieces.size(); i++) {
    const Piece& p = t.tape->pieces[i];
    const PieceTime& at = r.pieces[i];
    if (p.stream != 0 || at.end < 0 || p.action.empty()) continue;
    if (all.empty() || all.back().name != p.action || all.back().microbatch != p.microbatch) {
      all.push_back(span_around(SpanKind::action, rank, p.action, at.begin, at.end));
      all.back().microbatch = p.microbatch;
    }
    all.back().end_ns = at.end;
  }
  return all;
}

int64_t held_at(const std::vector<MemoryPoint>& points, int64_t time) {
  const auto after = std::upper_bound(points.begin(), points.end(), time,
                                      [](int64_t t, const MemoryPoint& p) { return t < p.time; });
  return after == points.begin() ? 0 : std::prev(after)->bytes;
}

}  // namespace

std::vector<StepRow> rows_of(const World& w, const WorldReplay& all) {
  std::map<int, int> of_stage;
  for (const RankClass& c : all.classes) of_stage[c.pp]++;
  std::vector<StepRow> rows;
  for (size_t i = 0; i < all.classes.size(); i++) {
    const RankClass& c = all.classes[i];
    StepRow row{.name = row_name(c, of_stage[c.pp] == 1), .rank = c.rank, .pp = c.pp, .ranks = c.ranks};
    row.disturbed = c.disturbed, row.at = all.at(i);
    row.stretches = stretches_of(all.tapes[row.at], all.replay.ranks[row.at], all.replay.makespan);
    row.use = use_of(row.stretches), row.span = own_span(row.stretches);
    row.memory = memory_of(w, all.tapes[row.at], all.replay.ranks[row.at]);
    row.peak = peak_of(row.memory);
    rows.push_back(std::move(row));
  }
  return rows;
}

double bubble_of(const std::vector<StepRow>& rows) {
  double most = 0;
  for (const StepRow& r : rows) most = std::max(most, r.span.bubble());
  return most;
}

std::string rows_text(const std::vector<StepRow>& rows, int64_t makespan) {
  constexpr double kGB = 1e9;
  std::vector<size_t> columns;
  size_t wide = 5;
  for (size_t u = 0; u < kUses; u++)
    if (std::any_of(rows.begin(), rows.end(), [&](const StepRow& r) { return r.use[u] > 0; }))
      columns.push_back(u);
  for (const StepRow& r : rows) wide = std::max(wide, r.name.size());
  std::string out = fmt::format("{:<{}} {:>6}", "% of the step", std::max<size_t>(wide, 13), "ranks");
  const auto width = [](size_t u) { return std::max<size_t>(6, name_of(Use(u)).size()); };
  for (size_t u : columns) out += fmt::format("  {:>{}}", name_of(Use(u)), width(u));
  out += "  bubble/span    peak GB\n";
  for (const StepRow& r : rows) {
    out += fmt::format("{:<{}} {:>6}", r.name, std::max<size_t>(wide, 13), r.ranks);
    for (size_t u : columns)
      out += fmt::format("  {:>{}.1f}", 100 * double(r.use[u]) / double(std::max<int64_t>(1, makespan)),
                         width(u));
    out += fmt::format("  {:>9.1f} %", 100 * r.span.bubble());
    out += r.peak > 0 ? fmt::format("  {:>8.1f}\n", double(r.peak) / kGB) : "         -\n";
  }
  return out;
}

namespace {

// Returns at most `most` of the rows in `order`: disturbed ones, then others at equal distances with both
// ends.
std::vector<size_t> spread(const std::vector<size_t>& order, const std::vector<StepRow>& rows, size_t most) {
  std::vector<size_t> out;
  size_t at = 0;
  while (at < order.size() && out.size() < most && rows[order[at]].disturbed) out.push_back(order[at++]);
  std::set<int> stages;
  size_t end = at;  // the largest group of each stage
  while (end < order.size() && stages.insert(rows[order[end]].pp).second) end++;
  const size_t groups = end - at, room = most - out.size();
  if (groups <= room) end = at + room;
  for (size_t i = 0; i < room; i++)
    out.push_back(order[groups <= room ? at + i : room == 1 ? at : at + i * (groups - 1) / (room - 1)]);
  return out;
}

}  // namespace

std::vector<StepRow> chosen_rows(const std::vector<StepRow>& rows, size_t most) {
  std::map<int, size_t> largest;  // by pipeline rank
  for (size_t i = 0; i < rows.size(); i++) {
    const auto [it, fresh] = largest.try_emplace(rows[i].pp, i);
    if (!fresh && rows[i].ranks > rows[it->second].ranks) it->second = i;
  }
  const auto worth = [&](size_t i) { return std::tuple(!rows[i].disturbed, largest.at(rows[i].pp) != i, i); };
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth(a) < worth(b); });
  if (order.size() > most) order = spread(order, rows, most);
  std::sort(order.begin(), order.end());
  std::vector<StepRow> out;
  for (size_t i : order) out.push_back(rows[i]);
  return out;
}

Comb comb_of(const std::vector<StepRow>& rows, int64_t makespan) {
  Comb comb{.rows = {}, .makespan = makespan};
  for (const StepRow& r : rows) comb.rows.push_back({r.name, r.stretches});
  return comb;
}

std::vector<Span> step_spans(const RankTape& t, const RankReplay& r, const std::vector<MemoryPoint>& memory,
                             int rank, int64_t makespan) {
  std::vector<Span> all = {span_around(SpanKind::step, rank, "step", 0, makespan)};
  const std::vector<Span> actions = action_spans(t, r, rank);
  all.insert(all.end(), actions.begin(), actions.end());
  RankTape named = t;
  named.rank = rank;
  const Replay one{.ranks = {r}, .makespan = makespan};
  for (Span s : spans_of({&named, 1}, one)) {
    if (s.action == "update") s.action = "Step";  // as a run's trace has it
    all.push_back(s);
  }
  // Lanes in order, what encloses first.
  std::stable_sort(all.begin(), all.end(), [](const Span& a, const Span& b) {
    return std::tie(a.lane, a.begin_ns, a.kind) < std::tie(b.lane, b.begin_ns, b.kind);
  });
  if (memory.empty()) return all;
  const int64_t standing = memory.front().bytes;
  for (Span& s : all) {
    if (s.kind == SpanKind::comm) continue;
    s.memory[size_t(Bucket::weights)] = standing;
    s.memory[size_t(Bucket::activations)] = std::max<int64_t>(0, held_at(memory, s.begin_ns) - standing);
  }
  return all;
}

}  // namespace trireme
