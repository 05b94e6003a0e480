#include "sim/memory_curve.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "sim/markup.h"

namespace trireme {

std::vector<MemoryPoint> memory_of(const World& w, const RankTape& t, const RankReplay& r) {
  std::unordered_map<std::string_view, const LayerWork*> work;
  std::vector<int> holder = rank_of_stages(w.schedule);
  const int pp = w.mesh.coord(t.rank, Axis::pp);
  int64_t held = w.work.base;
  for (size_t s = 0; s < holder.size(); s++)
    for (const StageWork::Layer& l : w.work.stages[s].layers) {
      if (holder[s] != pp) continue;
      const LayerWork& of = w.work.kinds[size_t(l.kind)];
      work[l.name] = &of;
      held += of.state;
    }
  std::vector<std::pair<int64_t, int64_t>> changes;  // time, bytes
  for (size_t i = 0; i < t.tape->pieces.size(); i++) {
    const Piece& p = t.tape->pieces[i];
    const PieceTime& at = r.pieces[i];
    if (p.kind != PieceKind::op || at.end < 0 || p.layer.empty()) continue;
    const auto it = work.find(p.layer);
    if (it == work.end()) continue;
    if (p.name == "F") changes.emplace_back(at.end, it->second->kept);
    if (p.name == "I") changes.emplace_back(at.begin, it->second->waiting);
    if (p.name == "W") changes.emplace_back(at.end, -it->second->kept - it->second->waiting);
    if ((p.name == "I" || p.name == "W") && it->second->scratch > 0) {
      changes.emplace_back(at.begin, it->second->scratch);
      changes.emplace_back(at.end, -it->second->scratch);
    }
  }
  // Of one moment what goes makes room for what comes.
  std::sort(changes.begin(), changes.end());
  std::vector<MemoryPoint> points = {{0, held}};
  for (const auto& [time, bytes] : changes) {
    held += bytes;
    if (points.back().time == time)
      points.back().bytes = held;
    else
      points.push_back({time, held});
  }
  return points;
}

int64_t peak_of(const std::vector<MemoryPoint>& points) {
  int64_t most = 0;
  for (const MemoryPoint& p : points) most = std::max(most, p.bytes);
  return most;
}

std::string memory_svg(const std::vector<MemoryRow>& rows, int64_t makespan, int64_t limit,
                       std::string_view title) {
  constexpr double kWidth = 1200, kLeft = 130, kRight = 110, kTop = 30, kRow = 44, kTall = 38, kGB = 1e9;
  int64_t most = limit;
  for (const MemoryRow& row : rows) most = std::max(most, peak_of(row.points));
  const double height = kTop + kRow * double(rows.size()) + 22;
  const double wide = (kWidth - kLeft - kRight) / double(std::max<int64_t>(1, makespan));
  const double tall = kTall / double(std::max<int64_t>(1, most));
  std::string out = svg_head(kWidth, height) +
                    fmt::format("<text x=\"4\" y=\"18\" font-size=\"13\">{}</text>\n", escaped(title));
  auto to = std::back_inserter(out);
  for (size_t r = 0; r < rows.size(); r++) {
    const double floor = kTop + kRow * double(r) + kTall;
    const int64_t peak = peak_of(rows[r].points);
    fmt::format_to(to, "<text x=\"4\" y=\"{:.0f}\">{}</text>\n", floor - 14, escaped(rows[r].name));
    fmt::format_to(to, "<path fill=\"#9db8e8\" stroke=\"#4c78c8\" d=\"M{:.1f},{:.1f}", kLeft, floor);
    for (const MemoryPoint& p : rows[r].points)
      fmt::format_to(to, "H{:.1f}V{:.1f}", kLeft + wide * double(p.time), floor - tall * double(p.bytes));
    fmt::format_to(to, "H{:.1f}V{:.1f}Z\"/>\n", kLeft + wide * double(makespan), floor);
    if (limit > 0)
      fmt::format_to(to, "<path stroke=\"#a8323e\" stroke-dasharray=\"4 3\" d=\"M{:.1f},{:.1f}H{:.1f}\"/>\n",
                     kLeft, floor - tall * double(limit), kWidth - kRight);
    fmt::format_to(to, "<text x=\"{:.0f}\" y=\"{:.0f}\">peak {:.1f} GB</text>\n", kWidth - kRight + 6,
                   floor - 14, double(peak) / kGB);
  }
  fmt::format_to(to, "<text x=\"{:.0f}\" y=\"{:.0f}\">0 s</text>\n", kLeft, height - 6);
  fmt::format_to(
      to, "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{:.4g} s{}</text>\n", kWidth - kRight,
      height - 6, double(makespan) * 1e-9,
      limit > 0 ? fmt::format("; dashed: {:.1f} GB, the device's memory", double(limit) / kGB) : "");
  return out + "</svg>\n";
}

}  // namespace trireme
