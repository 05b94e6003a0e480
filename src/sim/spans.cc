// A replay as spans: the format of measured traces.
#include <algorithm>

#include "sim/replay.h"

namespace trireme {
namespace {

SpanKind kind_of(const Piece& p) {
  if (p.kind == PieceKind::op) return SpanKind::op;
  const bool waits = p.kind == PieceKind::wait || (p.kind == PieceKind::recv && p.stream == 0);
  return waits ? SpanKind::wait : SpanKind::comm;
}

Span span_of(const RankTape& rank, const Piece& p, const PieceTime& t, int64_t step) {
  Span s;
  s.kind = kind_of(p);
  s.rank = rank.rank, s.microbatch = p.microbatch, s.step = step;
  s.name = p.name, s.layer = p.layer, s.action = p.action;
  if (p.stream != 0) s.lane = rank.tape->streams[size_t(p.stream)];
  s.begin_ns = t.begin, s.end_ns = t.end, s.cost = p.cost;
  if (s.kind != SpanKind::comm) return s;
  s.group = p.group >= 0 ? std::string_view(rank.tape->groups[size_t(p.group)].name) : "p2p";
  s.algorithm = p.algorithm, s.wire_bytes = p.wire, s.met_ns = t.met;
  return s;
}

}  // namespace

std::vector<Span> spans_of(std::span<const RankTape> ranks, const Replay& all, int64_t step) {
  std::vector<Span> spans;
  for (size_t r = 0; r < ranks.size(); r++) {
    const std::vector<Piece>& pieces = ranks[r].tape->pieces;
    const RankReplay& times = all.ranks[r];
    for (size_t lane = 0; lane < ranks[r].tape->streams.size(); lane++)
      for (size_t i = 0; i < pieces.size(); i++)
        if (size_t(pieces[i].stream) == lane && pieces[i].kind != PieceKind::wait && times.pieces[i].end >= 0)
          spans.push_back(span_of(ranks[r], pieces[i], times.pieces[i], step));
    for (const Exposure& e : exposures(ranks[r], times)) {
      if (pieces[e.at].kind != PieceKind::wait) continue;
      Span s = span_of(ranks[r], pieces[e.at], times.pieces[e.at], step);
      s.name = pieces[e.held_by].name;
      spans.push_back(s);
    }
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.rank, a.lane, a.begin_ns) < std::tie(b.rank, b.lane, b.begin_ns);
  });
  return spans;
}

}  // namespace trireme
