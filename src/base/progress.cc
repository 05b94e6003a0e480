#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>

#include "base/visible.h"

namespace trireme {
namespace {

constexpr int kBar = 24, kLeastBar = 8;  // characters between the brackets

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Three significant digits and the unit; a value that would round to the next unit's 1.00 takes that unit.
std::string scaled(double v, std::span<const char* const> units) {
  size_t u = 0;
  while (u + 1 < units.size() && std::abs(v) >= 999.5) {
    v /= 1000;
    u++;
  }
  if (u == 0) return fmt::format("{:.0f}{}", v, units[0]);
  const double size = std::abs(v);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", v, decimals, units[u]);
}

int columns_of(std::FILE* f) {
  winsize w{};
  return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {" B", " kB", " MB", " GB", " TB", " PB"};
  return scaled(double(bytes), kUnits);
}

std::string exact_bytes(int64_t bytes) {
  const std::string exact = fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
  return bytes < 1000 ? exact : fmt::format("{} ({})", exact, human_bytes(bytes));
}

std::string human_count(double n) {
  constexpr std::array<const char*, 5> kUnits = {"", " k", " M", " B", " T"};
  return scaled(n, kUnits);
}

std::string human_seconds(double s) {
  if (!std::isfinite(s)) return "?";
  if (s < 0) return "-" + human_seconds(-s);
  if (s < 999.5e-6) return fmt::format("{:.0f} us", s * 1e6);
  if (s < 999.5e-3) return fmt::format("{:.0f} ms", s * 1e3);
  if (s < 9.995) return fmt::format("{:.2f} s", s);
  if (s < 59.95) return fmt::format("{:.1f} s", s);
  const int64_t whole = std::llround(std::min(s, 1e15));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

Progress::Progress(std::string what, int64_t total, Options options)
    : what_(std::move(what)), total_(total), done_(options.begin), options_(options) {
  if (options_.terminal < 0) options_.terminal = isatty(fileno(options_.out));
  if (!options_.now_s) options_.now_s = steady_seconds;
}

Progress::~Progress() {
  finish();
}

// Without a total there is neither bar nor percentage nor time left: only the count.
std::string Progress::line(int columns) const {
  const double part = total_ > 0 ? std::clamp(double(done_) / double(total_), 0.0, 1.0) : 0;
  const int64_t here = done_ - first_done_, left = total_ - done_;
  std::string tail, text = text_.empty() ? "" : "  " + text_;
  const std::string done =
      total_ > 0 ? fmt::format(" {:3} %", std::clamp(int(100.0 * double(done_) / double(total_)), 0, 100))
                 : fmt::format(" {}", done_);
  if (here > 0 && left > 0)
    tail =
        fmt::format("  {} left", human_seconds((options_.now_s() - first_s_) * double(left) / double(here)));
  int room = columns - int(what_.size() + done.size() + tail.size());  // of the bar and the text
  std::string bar;
  if (columns > 0 && total_ > 0) {
    constexpr int kFrame = 3, kTold = 24;  // a space and the brackets; of a text that is cut
    const int beside = room - kFrame - int(text.size());
    const int wide = beside >= kBar                                              ? kBar
                     : beside >= kLeastBar || room >= kFrame + kLeastBar + kTold ? kLeastBar
                                                                                 : 0;
    const int full = int(part * wide);
    if (wide > 0)
      bar = fmt::format(" [{}{}{}]", std::string(size_t(full), '='), full < wide ? ">" : "",
                        std::string(size_t(std::max(0, wide - full - 1)), ' '));
    room -= int(bar.size());
  }
  if (columns > 0 && int(text.size()) > room) {  // where two blanks divide what it tells, if they do
    text.resize(size_t(std::max(0, room)));
    if (const size_t at = text.rfind("  "); at != std::string::npos && at > 0) text.resize(at);
  }
  return what_ + bar + done + text + tail;
}

void Progress::redraw() {
  std::string s;
  if (options_.terminal == 1) {
    // One column stays free, so that no terminal wraps the line; the rest of the old line is erased.
    const int columns = std::max(1, (options_.columns ? options_.columns : columns_of(options_.out)) - 1);
    s = "\r" + line(columns).substr(0, size_t(columns)) + "\x1b[K";
  } else {
    s = line(0) + '\n';
  }
  std::fwrite(s.data(), 1, s.size(), options_.out);
  std::fflush(options_.out);
  shown_s_ = options_.now_s();
  shown_ = true;
}

void Progress::update(int64_t done, std::string_view text) {
  const bool first = !updated_, moved = first || done != done_;
  done_ = done;
  text_ = visible(text);
  if (first) first_done_ = done, first_s_ = options_.now_s();
  updated_ = true, shown_ = false, finished_ = false;
  const bool by_work = options_.terminal != 1 && options_.line_every > 0 && moved;
  const double every = options_.terminal == 1 ? options_.redraw_every_s : options_.line_every_s;
  if (by_work ? done % options_.line_every == 0 || first : options_.now_s() - shown_s_ >= every) redraw();
}

void Progress::note(std::string_view text) {
  const bool bar = options_.terminal == 1 && updated_ && !finished_;
  std::string s = fmt::format("{}{}\n", bar ? "\r\x1b[K" : "", visible_lines(text));
  std::fwrite(s.data(), 1, s.size(), options_.out);
  std::fflush(options_.out);
  if (bar) redraw();
}

void Progress::finish() {
  if (finished_ || !updated_) return;
  if (!shown_) redraw();
  if (options_.terminal == 1) std::fputs("\n", options_.out), std::fflush(options_.out);
  finished_ = true;
}

}  // namespace trireme
