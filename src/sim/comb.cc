#include "sim/comb.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "sim/markup.h"

namespace trireme {
namespace {

struct UseStyle {
  std::string_view name, color;
  char letter;
};
// Works have the colours of schedules drawn (sim/draw.cc).
constexpr std::array<UseStyle, kUses> kStyles = {{{"forward", "#4c78c8", 'F'},
                                                  {"input gradient", "#3fa66b", 'I'},
                                                  {"weight gradient", "#b98a2f", 'W'},
                                                  {"recompute", "#999999", 'R'},
                                                  {"update", "#7a5195", 'U'},
                                                  {"other work", "#555555", 'o'},
                                                  {"bubble", "#eeeeee", 'b'},
                                                  {"pp", "#f2c9d4", 'p'},
                                                  {"tp", "#e4572e", 't'},
                                                  {"cp", "#f3a712", 'c'},
                                                  {"ep", "#d1495b", 'e'},
                                                  {"dp", "#a8323e", 'd'},
                                                  {"peers", "#111111", 's'},
                                                  {"agree", "#cfcfe8", 'n'},
                                                  {"disk", "#00798c", 'k'},
                                                  {"host", "#5bb5a2", 'h'},
                                                  {"stopped", "#ff0000", 'x'},
                                                  {"done", "#ffffff", '.'},
                                                  {"data", "#f58518", 'i'},
                                                  {"launch", "#9c755f", 'l'},
                                                  {"save", "#2f4b7c", 'C'},
                                                  {"between steps", "#bab0ab", '-'},
                                                  {"unknown", "#ff9da6", '?'}}};

Use work_of(const Piece& p) {
  if (p.name == "I") return Use::input;
  if (p.name == "W") return Use::weight;
  return use_of_action(p.action);
}

Use axis_of(const Tape& t, const Piece& p) {
  if (of_disk(p)) return Use::disk;
  if (of_host(p)) return Use::host;
  if (p.kind == PieceKind::send || p.kind == PieceKind::recv) return Use::pp;
  if (p.group < 0) return Use::peers;
  return use_of_group(t.groups[size_t(p.group)].name);
}

class ThreadWalk {
 public:
  ThreadWalk(const RankTape& t, const RankReplay& r, int64_t makespan)
      : tape_(*t.tape), replay_(r), makespan_(makespan), issued_(tape_.streams.size()) {}

  std::vector<Stretch> run() {
    bool stopped = false;
    for (size_t i = 0; i < tape_.pieces.size() && !stopped; i++) {
      const Piece& p = tape_.pieces[i];
      issued_[size_t(p.stream)].push_back(i);
      if (p.stream != 0) continue;
      const PieceTime& t = replay_.pieces[i];
      if (t.end < 0) {
        stopped = true;
        break;
      }
      until(t.begin, Use::other_work);  // what the thread does between pieces
      if (p.kind == PieceKind::op) until(t.end, work_of(p));
      if (p.kind == PieceKind::wait) wait(p, t);
      if (p.kind == PieceKind::send) until(t.end, Use::pp);
      if (p.kind == PieceKind::call || p.kind == PieceKind::recv) {
        const Use axis = p.kind == PieceKind::recv ? Use::pp : axis_of(tape_, p);
        until(t.met, late_of(axis)), until(t.end, axis);
      }
    }
    until(makespan_, stopped ? Use::stopped : Use::done);
    return std::move(out_);
  }

 private:
  void until(int64_t end, Use use) {
    if (end <= at_) return;
    if (!out_.empty() && out_.back().use == use)
      out_.back().end = end;
    else
      out_.push_back({use, at_, end});
    at_ = end;
  }
  // For all that was issued there before the mark and was not yet done.
  void wait(const Piece& p, const PieceTime& t) {
    const std::vector<size_t>& there = issued_[size_t(p.on)];
    size_t first = size_t(p.mark);
    while (first > 0 && replay_.pieces[there[first - 1]].end > t.begin) first--;
    for (size_t k = first; k < size_t(p.mark); k++) {
      const Piece& behind = tape_.pieces[there[k]];
      const PieceTime& b = replay_.pieces[there[k]];
      const Use axis = axis_of(tape_, behind);
      if (behind.kind == PieceKind::call || behind.kind == PieceKind::recv)
        until(std::min(b.met, t.end), late_of(axis));
      until(std::min(b.end, t.end), axis);
    }
    until(t.end, Use::peers);
  }

  const Tape& tape_;
  const RankReplay& replay_;
  int64_t makespan_, at_ = 0;
  std::vector<std::vector<size_t>> issued_;  // by stream
  std::vector<Stretch> out_;
};

bool on_microbatches(Use u) {
  return u == Use::forward || u == Use::input || u == Use::weight || u == Use::again;
}

int64_t work_in(const UseTimes& t) {
  int64_t sum = 0;
  for (size_t u = 0; u < kWorks; u++) sum += t[u];
  return sum;
}
Use most_of_gap(const UseTimes& t) {
  return Use(std::max_element(t.begin() + kWorks, t.end()) - t.begin());
}

}  // namespace

std::string_view name_of(Use u) {
  return kStyles[size_t(u)].name;
}

char letter_of(Use u) {
  return kStyles[size_t(u)].letter;
}

Use use_of_action(std::string_view n) {
  if (n == "F") return Use::forward;
  if (n == "B" || n == "I") return Use::input;
  if (n == "W") return Use::weight;
  if (n == "R") return Use::again;
  return n == "Step" || n == "update" || n == "norm" ? Use::update : Use::other_work;
}

Use use_of_group(std::string_view group) {
  const std::string_view first = group.substr(0, group.find_first_of(" +"));
  for (Use u : {Use::tp, Use::cp, Use::ep, Use::dp, Use::pp})
    if (first == kStyles[size_t(u)].name) return u;
  return first == "edp" || group.find("shard") != group.npos ? Use::dp : Use::agree;
}

Use late_of(Use axis) {
  if (axis == Use::pp) return Use::bubble;
  return axis == Use::agree || axis == Use::disk || axis == Use::host ? axis : Use::peers;
}

std::vector<Stretch> stretches_of(const RankTape& t, const RankReplay& r, int64_t makespan) {
  return ThreadWalk(t, r, makespan).run();
}

UseTimes use_of(const std::vector<Stretch>& all) {
  UseTimes t{};
  for (const Stretch& s : all) t[size_t(s.use)] += s.end - s.begin;
  return t;
}

OwnSpan own_span(const std::vector<Stretch>& all) {
  OwnSpan span;
  int64_t idle = 0;
  bool begun = false;
  for (const Stretch& s : all) {
    if (on_microbatches(s.use)) {
      if (!begun) span.begin = s.begin;
      begun = true, span.end = s.end, span.idle = idle;
    }
    if (begun && (s.use == Use::bubble || s.use == Use::pp)) idle += s.end - s.begin;
  }
  return span;
}

std::vector<UseTimes> bins_of(const CombRow& row, int64_t makespan, int bins) {
  std::vector<UseTimes> out(static_cast<size_t>(bins));
  const auto edge = [&](int64_t b) { return int64_t(double(makespan) * double(b) / double(bins)); };
  size_t at = 0;
  for (int b = 0; b < bins; b++) {
    const int64_t from = edge(b), to = b + 1 == bins ? makespan : edge(b + 1);
    while (at < row.stretches.size() && row.stretches[at].end <= from) at++;
    for (size_t i = at; i < row.stretches.size() && row.stretches[i].begin < to; i++) {
      const Stretch& s = row.stretches[i];
      out[size_t(b)][size_t(s.use)] += std::min(to, s.end) - std::max(from, s.begin);
    }
  }
  return out;
}

std::string_view comb_legend() {
  return "height: share of the bin that is work; below, where less than nine tenths is: what most of the gap "
         "waits for\n"
         "b bubble (another stage has not sent yet), p message on its way, t/c/e/d collective of "
         "tp/cp/ep/dp, s "
         "slower ranks of a collective, n all ranks at the step's end, k disk, h the host's memory, x a "
         "failed "
         "rank, . done\n";
}

std::string comb_text(const Comb& comb, int columns) {
  static constexpr std::array<std::string_view, 9> kEighths = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  size_t wide = 0;
  for (const CombRow& row : comb.rows) wide = std::max(wide, row.name.size());
  std::string out;
  for (const CombRow& row : comb.rows) {
    std::string teeth, gaps;
    for (const UseTimes& t : bins_of(row, comb.makespan, columns)) {
      int64_t all = 0;
      for (int64_t x : t) all += x;
      const double share = all > 0 ? double(work_in(t)) / double(all) : 0;
      teeth += kEighths[size_t(share * 8 + 0.5)];
      gaps += share >= 0.9 || all == 0 ? ' ' : kStyles[size_t(most_of_gap(t))].letter;
    }
    gaps.resize(gaps.find_last_not_of(' ') + 1);
    out += fmt::format("{:<{}} {}\n", row.name, wide, teeth);
    if (!gaps.empty()) out += fmt::format("{:<{}} {}\n", "", wide, gaps);
  }
  return out;
}

std::string comb_svg(const Comb& comb, std::string_view title) {
  constexpr int kBins = 150, kBin = 7, kLeft = 130, kTop = 52, kRow = 34, kTooth = 28;
  constexpr double kWidth = kLeft + kBins * kBin + 20;
  const double height = kTop + kRow * double(comb.rows.size()) + 26;
  std::string out = svg_head(kWidth, height) +
                    fmt::format("<text x=\"4\" y=\"18\" font-size=\"13\">{}</text>\n", escaped(title));
  auto to = std::back_inserter(out);
  std::array<bool, kUses> used{};
  for (size_t r = 0; r < comb.rows.size(); r++) {
    const int y = kTop + kRow * int(r);
    fmt::format_to(to, "<text x=\"4\" y=\"{}\">{}</text>\n", y + 19, escaped(comb.rows[r].name));
    std::array<std::string, kUses> paths;  // of a use, its part of every bin
    const std::vector<UseTimes> bins = bins_of(comb.rows[r], comb.makespan, kBins);
    for (size_t b = 0; b < bins.size(); b++) {
      int64_t sum = 0;
      for (int64_t t : bins[b]) sum += t;
      double bottom = y + kTooth;
      for (size_t u = 0; u < kUses && sum > 0; u++) {
        if (bins[b][u] == 0) continue;
        const double tall = kTooth * double(bins[b][u]) / double(sum);
        fmt::format_to(std::back_inserter(paths[u]), "M{},{:.1f}h{}v-{:.1f}h-{}z", kLeft + kBin * int(b),
                       bottom, kBin, tall, kBin);
        bottom -= tall;
      }
    }
    for (size_t u = 0; u < kUses; u++) {
      if (paths[u].empty() || Use(u) == Use::done) continue;
      used[u] = true;
      fmt::format_to(to, "<path fill=\"{}\" d=\"{}\"/>\n", kStyles[u].color, paths[u]);
    }
  }
  double x = 4;
  for (size_t u = 0; u < kUses; u++) {
    if (!used[u]) continue;
    fmt::format_to(to,
                   "<rect x=\"{0:.0f}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{1}\" stroke=\"#888\"/>"
                   "<text x=\"{2:.0f}\" y=\"38\">{3}</text>\n",
                   x, kStyles[u].color, x + 16, kStyles[u].name);
    x += 30 + 7 * double(kStyles[u].name.size());
  }
  constexpr int kTicks = 10;
  for (int tick = 0; tick <= kTicks; tick++)
    fmt::format_to(to, "<text x=\"{}\" y=\"{:.0f}\" text-anchor=\"middle\">{:.3g} s</text>\n",
                   kLeft + kBins * kBin * tick / kTicks, height - 8,
                   double(comb.makespan) * 1e-9 * tick / kTicks);
  return out + "</svg>\n";
}

}  // namespace trireme
