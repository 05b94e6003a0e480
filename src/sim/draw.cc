#include "sim/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

namespace trireme {
namespace {

int64_t time_slot(const ScheduleTimeline& t) {
  int64_t slot = 0;
  for (const auto& rank : t.ranks)
    for (const Drawn& d : rank) slot = std::gcd(std::gcd(slot, d.begin), d.end);
  return std::max<int64_t>(1, slot);
}

// Stages of a rank are its chunks in ascending order; the first is drawn in capitals.
bool first_chunk(const ScheduleTimeline& t, const Drawn& d, int stages_a_chunk) {
  return t.chunks == 1 || d.stage < stages_a_chunk;
}
int stages_a_chunk(const ScheduleTimeline& t) {
  return int(t.ranks.size());
}
char letter(const ScheduleTimeline& t, const Drawn& d) {
  const char c = name_of(d.kind)[0];
  return first_chunk(t, d, stages_a_chunk(t)) ? c : char(c - 'A' + 'a');
}

std::string slots_of(const ScheduleTimeline& t, const std::vector<Drawn>& rank, int64_t slot, int width) {
  std::string row(size_t(t.replay.makespan / slot) * size_t(width), ' ');
  for (size_t i = 0; i < row.size(); i += size_t(width)) row[i] = '.';
  for (const Drawn& d : rank) {
    std::string cell = letter(t, d) + std::to_string(d.mb);
    cell.resize(size_t((d.end - d.begin) / slot) * size_t(width) - 1, '-');
    row.replace(size_t(d.begin / slot) * size_t(width), cell.size(), cell);
  }
  return row;
}

std::string bins_of(const ScheduleTimeline& t, const std::vector<Drawn>& rank, int columns) {
  std::string row;
  size_t at = 0;
  for (int c = 0; c < columns; c++) {
    const int64_t from = t.replay.makespan * c / columns, to = t.replay.makespan * (c + 1) / columns;
    std::array<int64_t, 256> time{};
    int64_t idle = to - from;
    while (at < rank.size() && rank[at].end <= from) at++;
    for (size_t i = at; i < rank.size() && rank[i].begin < to; i++) {
      const int64_t part = std::min(to, rank[i].end) - std::max(from, rank[i].begin);
      time[uint8_t(letter(t, rank[i]))] += part, idle -= part;
    }
    time['.'] = idle;
    row += char(std::max_element(time.begin(), time.end()) - time.begin());
  }
  return row;
}

std::string_view colour(const Drawn& d, bool first) {
  switch (d.kind) {
    case Act::F:
      return first ? "#4c78c8" : "#9db8e8";
    case Act::I:
      return first ? "#3fa66b" : "#9ad3b1";
    case Act::W:
      return first ? "#b98a2f" : "#e3c583";
    case Act::B:
      return first ? "#2b8a83" : "#8cc9c4";
    default:
      return "#999999";
  }
}

}  // namespace

ScheduleTimeline timeline_of(const Schedule& s, const StageTimes& times) {
  const PipelineTapes tapes = tapes_of(s, {&times, 1});
  const auto ranks = tapes.ranks();
  ScheduleTimeline t{.ranks = {}, .replay = replay(ranks), .bubble = {}, .held = held_peaks(s)};
  t.bubble = bubble(ranks, t.replay);
  t.chunks = std::max(1, s.stages / int(s.ranks.size()));
  for (size_t r = 0; r < ranks.size(); r++) {
    std::vector<Drawn>& drawn = t.ranks.emplace_back();
    std::vector<Action> ops;  // of a tape's ops, the actions: in the same order
    for (const Action& a : s.ranks[r])
      if (a.kind <= Act::R || a.kind == Act::Step) ops.push_back(a);
    size_t next = 0;
    for (size_t i = 0; i < tapes.tapes[r].pieces.size(); i++) {
      if (tapes.tapes[r].pieces[i].kind != PieceKind::op) continue;
      const Action& a = ops.at(next++);
      const PieceTime& p = t.replay.ranks[r].pieces[i];
      if (p.end > p.begin && a.kind != Act::Step) drawn.push_back({a.kind, a.stage, a.mb, p.begin, p.end});
    }
  }
  return t;
}

std::string grid_of(const ScheduleTimeline& t, int columns) {
  const int64_t slot = time_slot(t);
  int most = 0;
  for (const auto& rank : t.ranks)
    for (const Drawn& d : rank) most = std::max(most, d.mb);
  const int width = int(std::to_string(most).size()) + 2;
  const bool fits = t.replay.makespan / slot * width <= columns;
  std::string out;
  for (size_t r = 0; r < t.ranks.size(); r++) {
    std::string row = fmt::format("{:>4} ", r);
    row += fits ? slots_of(t, t.ranks[r], slot, width) : bins_of(t, t.ranks[r], columns);
    row.resize(row.find_last_not_of(' ') + 1);
    out += row + '\n';
  }
  return out;
}

std::string svg_of(const ScheduleTimeline& t, const std::string& title) {
  constexpr double kWidth = 1200, kLeft = 50, kRow = 24, kTop = 30;
  const double scale = (kWidth - kLeft - 10) / double(std::max<int64_t>(1, t.replay.makespan));
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<text x=\"{}\" y=\"18\" font-size=\"13\">{}</text>\n",
      kWidth, kTop + kRow * double(t.ranks.size()) + 10, kLeft, title);
  auto to = std::back_inserter(out);
  for (size_t r = 0; r < t.ranks.size(); r++) {
    const double y = kTop + kRow * double(r);
    fmt::format_to(to, "<text x=\"4\" y=\"{:.0f}\">rank {}</text>\n", y + 15, r);
    fmt::format_to(to, "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"20\" fill=\"#eeeeee\"/>\n",
                   kLeft, y, scale * double(t.replay.makespan));
    for (const Drawn& d : t.ranks[r]) {
      const double x = kLeft + scale * double(d.begin), wide = scale * double(d.end - d.begin);
      fmt::format_to(to, "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"20\" fill=\"{}\"", x, y,
                     wide, colour(d, first_chunk(t, d, stages_a_chunk(t))));
      fmt::format_to(to, "{}/>\n", wide > 3 ? " stroke=\"#ffffff\" stroke-width=\"0.5\"" : "");
      if (wide >= 14)
        fmt::format_to(to,
                       "<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\" fill=\"#ffffff\">{}</text>\n",
                       x + wide / 2, y + 14, d.mb);
    }
  }
  return out + "</svg>\n";
}

std::string html_of(const ScheduleTimeline& t, const std::string& title, const std::string& text) {
  return fmt::format(
      "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{}</title>\n<h1>{}</h1>\n{}<p>Blue: forward. Green: "
      "gradient "
      "of the input. Ochre: gradient of the weights. Teal: whole backward. Grey: idle. Light: later "
      "chunks.</p>\n"
      "<pre>{}</pre>\n",
      title, title, svg_of(t, title), text);
}

}  // namespace trireme
