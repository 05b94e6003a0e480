#include "sim/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "sim/markup.h"

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

// 12.5 and 12, not 12.50 and 12.00: pages hold hundreds.
std::string short_number(double x) {
  std::string s = fmt::format("{:.1f}", x);
  if (s.ends_with(".0")) s.resize(s.size() - 2);
  return s;
}

// Kinds by the letters of the grid: of later chunks lighter, so their numbers are dark.
constexpr std::string_view kStyle =
    "<style>.F{fill:#4c78c8}.f{fill:#9db8e8}.I{fill:#3fa66b}.i{fill:#9ad3b1}.W{fill:#b98a2f}.w{fill:#e3c583}"
    ".B{fill:#2b8a83}.b{fill:#8cc9c4}.R,.r{fill:#999}rect{stroke:#fff;stroke-width:.5}.idle{fill:#eee}"
    "text{fill:#222}.n{fill:#fff;text-anchor:middle}.m{text-anchor:middle}</style>\n";

}  // namespace

ScheduleTimeline timeline_of_stages(const Schedule& s, std::span<const StageTimes> times) {
  const PipelineTapes tapes = tapes_of(s, times);
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

std::string_view grid_legend() {
  return "F forward, I gradient of the input, W of the weights, B both, . idle; small letters: later chunks";
}

std::string svg_of(const ScheduleTimeline& t, std::string_view title) {
  constexpr double kWidth = 1200, kLeft = 50, kTop = 30, kRow = 24;
  const double scale = (kWidth - kLeft - 10) / double(std::max<int64_t>(1, t.replay.makespan));
  const double height = kTop + kRow * double(t.ranks.size()) + 10;
  std::string out =
      svg_head(kWidth, height) +
      fmt::format("{}<text x=\"{}\" y=\"18\" font-size=\"13\">{}</text>\n", kStyle, kLeft, escaped(title));
  auto to = std::back_inserter(out);
  for (size_t r = 0; r < t.ranks.size(); r++) {
    const double y = kTop + kRow * double(r);
    fmt::format_to(to, "<text x=\"4\" y=\"{}\">rank {}</text>\n", y + 15, r);
    fmt::format_to(to, "<rect class=\"idle\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"20\"/>\n", kLeft, y,
                   short_number(scale * double(t.replay.makespan)));
    for (const Drawn& d : t.ranks[r]) {
      const double x = kLeft + scale * double(d.begin), wide = scale * double(d.end - d.begin);
      fmt::format_to(to, "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"20\"/>\n", letter(t, d),
                     short_number(x), y, short_number(wide));
      if (wide >= 14)
        fmt::format_to(to, "<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n",
                       first_chunk(t, d, stages_a_chunk(t)) ? 'n' : 'm', short_number(x + wide / 2), y + 14,
                       d.mb);
    }
  }
  return out + "</svg>\n";
}

std::string html_of(const ScheduleTimeline& t, std::string_view title, std::string_view text) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{0}</title>\n{1}<p>Blue: "
      "forward. "
      "Green: gradient of the input. Ochre: gradient of the weights. Teal: whole backward. Grey: idle. "
      "Light: "
      "later chunks.</p>\n<pre>{2}</pre>\n</html>\n",
      escaped(title), svg_of(t, title), escaped(text));
}

}  // namespace trireme
