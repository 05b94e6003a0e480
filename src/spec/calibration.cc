#include "spec/calibration.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "spec/toml.h"

namespace trireme {
namespace {

// The number that begins the text, which is cut off; NaN where there is none.
double take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nan("");
  text.remove_prefix(size_t(end - text.data()));
  return value;
}
bool take(std::string_view& text, char c) {
  if (text.empty() || text[0] != c) return false;
  text.remove_prefix(1);
  return true;
}

// "1024x384x1e9=0.002"; false where it is none.
bool read_point(std::string_view text, SpeedPoint& p) {
  p.rows = take_number(text);
  bool fine = take(text, 'x');
  p.cols = take_number(text);
  fine = take(text, 'x') && fine;
  p.work = take_number(text);
  fine = take(text, '=') && fine;
  p.seconds = take_number(text);
  auto in = [](double v, double low, double high) { return v >= low && v <= high; };  // false for NaN
  return fine && text.empty() && in(p.rows, 1, 1e15) && in(p.cols, 1, 1e15) && in(p.work, 0, 1e21) &&
         in(p.seconds, 1e-12, 1e6);
}

// Four digits without a dot, "21e-4" for 0.0021: files of specs have few dots (spec/toml.cc), tables have
// thousands of seconds.
std::string seconds_text(double s) {
  const std::string text = fmt::format("{:.3e}", s);  // "2.100e-03"
  std::string digits = text.substr(0, 1) + text.substr(2, 3);
  int exponent = std::stoi(text.substr(6)) - 3;
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back(), exponent++;
  return exponent == 0 ? digits : fmt::format("{}e{}", digits, exponent);
}

}  // namespace

std::string speed_table_text(const SpeedTable& t) {
  std::string out = t.of;
  for (const SpeedPoint& p : t.points)
    out += fmt::format(" {:.0f}x{:.0f}x{:.0f}={}", p.rows, p.cols, p.work, seconds_text(p.seconds));
  return out;
}

SpeedTable speed_table_of(std::string_view line, std::string& wrong) {
  constexpr size_t kMostPoints = 10000;
  SpeedTable t;
  wrong.clear();
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    if (word.empty()) continue;
    if (word.find('=') == std::string_view::npos && t.points.empty()) {
      t.of += (t.of.empty() ? "" : " ") + std::string(word);
      continue;
    }
    SpeedPoint p;
    if (!read_point(word, p) || t.points.size() == kMostPoints) {
      wrong = fmt::format("{} is no ROWSxCOLSxWORK=SECONDS, such as 1024x384x1e9=0.002", shown(word));
      return t;
    }
    t.points.push_back(p);
  }
  if (t.of.empty() || t.points.empty())
    wrong = fmt::format("{} has no {}", shown(t.of), t.of.empty() ? "name" : "points");
  return t;
}

}  // namespace trireme
