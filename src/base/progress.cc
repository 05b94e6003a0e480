#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>

namespace trireme {
namespace {

constexpr int kBar = 24;  // characters between the brackets

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Three significant digits and the unit; a value that would round to the next unit's 1.00 takes that unit.
std::string scaled(double v, double base, std::span<const char* const> units) {
  size_t u = 0;
  while (u + 1 < units.size() && std::abs(v) >= base - (u == 0 ? 0.5 : base == 1000 ? 0.5 : 0))
    v /= base, u++;
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
  constexpr std::array<const char*, 6> kUnits = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(double(bytes), 1024, kUnits);
}

std::string human_count(double n) {
  constexpr std::array<const char*, 5> kUnits = {"", " k", " M", " B", " T"};
  return scaled(n, 1000, kUnits);
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
std::string Progress::line(bool with_bar) const {
  std::string s = what_;
  if (total_ > 0) {
    const double part = std::clamp(double(done_) / double(total_), 0.0, 1.0);
    if (with_bar) {
      const int full = int(part * kBar);
      s += fmt::format(" [{}{}{}]", std::string(size_t(full), '='), full < kBar ? ">" : "",
                       std::string(size_t(std::max(0, kBar - full - 1)), ' '));
    }
    s += fmt::format(" {:3} %", std::clamp(int(100.0 * double(done_) / double(total_)), 0, 100));
  } else {
    s += fmt::format(" {}", done_);
  }
  if (!text_.empty()) s += "  " + text_;
  const int64_t here = done_ - first_done_, left = total_ - done_;
  if (here > 0 && left > 0) {
    s += fmt::format("  {} left", human_seconds((options_.now_s() - first_s_) * double(left) / double(here)));
  }
  return s;
}

void Progress::redraw() {
  const bool terminal = options_.terminal == 1;
  std::string s = line(terminal);
  if (terminal) {
    // One column stays free, so that no terminal wraps the line; the rest of the old line is erased.
    const int columns = options_.columns ? options_.columns : columns_of(options_.out);
    s = "\r" + s.substr(0, size_t(std::max(1, columns - 1))) + "\x1b[K";
  } else {
    s += '\n';
  }
  std::fwrite(s.data(), 1, s.size(), options_.out);
  std::fflush(options_.out);
  shown_s_ = options_.now_s();
  shown_ = true;
}

void Progress::update(int64_t done, std::string_view text) {
  done_ = done, text_ = text;
  if (!updated_) first_done_ = done, first_s_ = options_.now_s();
  updated_ = true, shown_ = false, finished_ = false;
  const double every = options_.terminal == 1 ? options_.redraw_every_s : options_.line_every_s;
  if (options_.now_s() - shown_s_ >= every) redraw();
}

void Progress::note(std::string_view text) {
  const bool bar = options_.terminal == 1 && updated_ && !finished_;
  std::string s = fmt::format("{}{}\n", bar ? "\r\x1b[K" : "", text);
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
