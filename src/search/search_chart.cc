#include "search/search_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/markup.h"

namespace trireme {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 78, kRight = 24, kTop = 44, kBottom = 92;
constexpr const char* kColors[] = {"#0b62a4", "#c8500a", "#2a7f3f", "#8c3f9e",
                                   "#8a6d00", "#555555", "#b3243b", "#12858c"};

// Where values lie on paper.
// A number at an axis, short enough for its place.
std::string tick_text(double v) {
  if (std::abs(v) >= 1e16) return fmt::format("{:.3g}", v);
  for (const auto& [unit, name] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}})
    if (std::abs(v) >= unit) return fmt::format("{:.3g} {}", v / unit, name);
  return fmt::format("{:.6g}", v);
}

class Scale {
 public:
  Scale(const ChartAxis& axis, double low, double high, double from, double to)
      : log_(axis.logarithmic), from_(from), to_(to) {
    if (log_) {
      if (high > 1000 * low) {
        add_decades(low, high);
        return;
      }
      low_ = std::floor(std::log2(low)), high_ = std::ceil(std::log2(high));
      if (high_ <= low_) high_ = low_ + 1;
      for (double e = low_; e <= high_; e += std::max(1.0, std::ceil((high_ - low_) / 12)))
        ticks_.push_back(std::exp2(e));
      return;
    }
    const double bottom = axis.from_zero ? std::min(0.0, low) : low;
    const double span = std::max(high - bottom, 1e-12 * std::max(1.0, std::abs(high)));
    double step = std::pow(10, std::floor(std::log10(span / 5)));
    for (const double k : {1.0, 2.0, 5.0, 10.0})
      if (span / (step * k) <= 7) {
        step *= k;
        break;
      }
    low_ = std::floor(bottom / step) * step, high_ = std::ceil((high + 1e-9 * span) / step) * step;
    for (double v = low_; v <= high_ + step / 2; v += step) ticks_.push_back(std::abs(v) < step / 2 ? 0 : v);
  }
  double at(double v) const {
    const double x = log_ ? std::log2(v) : v;
    return from_ + (x - low_) / (high_ - low_) * (to_ - from_);
  }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  void add_decades(double low, double high) {
    const double first = std::floor(std::log10(low));
    const double last = std::ceil(std::log10(high));
    low_ = first * std::log2(10.0);
    high_ = last * std::log2(10.0);
    for (double e = first; e <= last; e += std::max(1.0, std::ceil((last - first) / 12)))
      ticks_.push_back(std::pow(10.0, e));
  }

  bool log_;
  double low_ = 0, high_ = 1, from_, to_;
  std::vector<double> ticks_;
};

struct ChartRange {
  double low = INFINITY, high = -INFINITY;
};
template <class Of>
ChartRange range_of(const Chart& c, Of&& of) {
  ChartRange r;
  for (const ChartSeries& s : c.series)
    for (const auto* points : {&s.points, &s.lower})
      for (const ChartPoint& p : *points) r.low = std::min(r.low, of(p)), r.high = std::max(r.high, of(p));
  if (r.low > r.high) r = {1, 2};
  return r;
}

std::string axes_svg(const Chart& c, const Scale& x, const Scale& y) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string s;
  for (const double v : x.ticks()) {
    s += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", x.at(v),
                     kTop, bottom);
    s += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x.at(v), bottom + 18,
                     tick_text(v));
  }
  for (const double v : y.ticks()) {
    s += fmt::format("<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#ddd\"/>\n", y.at(v),
                     kLeft, right);
    s += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, y.at(v) + 4,
                     tick_text(v));
  }
  s += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + right) / 2,
                   bottom + 38, escaped(c.x.title));
  s += fmt::format("<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                   (kTop + bottom) / 2, escaped(c.y.title));
  return s;
}

std::string series_svg(const ChartSeries& s, const Scale& x, const Scale& y, const char* color) {
  std::string out, path;
  for (const ChartPoint& p : s.points)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x.at(p.x), y.at(p.y));
  if (!s.lower.empty()) {
    for (size_t i = s.lower.size(); i-- > 0;)
      path += fmt::format(" L{:.1f} {:.1f}", x.at(s.lower[i].x), y.at(s.lower[i].y));
    return fmt::format("<path d=\"{} Z\" fill=\"{}\" fill-opacity=\"0.18\"/>\n", path, color);
  }
  if (s.line && s.points.size() > 1)
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, color);
  for (const ChartPoint& p : s.points) {
    if (!s.dots && !p.marked) continue;
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"{}><title>{}</title></circle>\n", x.at(p.x),
        y.at(p.y), p.marked ? 6 : 3.5, color, p.marked ? " stroke=\"#000\" stroke-width=\"1.5\"" : "",
        escaped(p.label.empty() ? fmt::format("{:.6g}, {:.6g}", p.x, p.y) : p.label));
    if (p.marked && !p.label.empty())
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x.at(p.x),
                         y.at(p.y) - 10, x.at(p.x) > 0.6 * kWidth ? "end" : "start", escaped(p.label));
  }
  return out;
}

}  // namespace

std::string svg_of(const Chart& c) {
  const ChartRange xs = range_of(c, [](const ChartPoint& p) { return p.x; });
  const ChartRange ys = range_of(c, [](const ChartPoint& p) { return p.y; });
  const Scale x(c.x, xs.low, xs.high, kLeft, kWidth - kRight);
  const Scale y(c.y, ys.low, ys.high, kHeight - kBottom, kTop);
  std::string s = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  s += fmt::format("<text x=\"{}\" y=\"24\" font-size=\"15\">{}</text>\n", kLeft, escaped(c.title));
  s += axes_svg(c, x, y);
  double at = kLeft;
  for (size_t i = 0; i < c.series.size(); i++) {
    const char* color = kColors[i % std::size(kColors)];
    s += series_svg(c.series[i], x, y, color);
    if (c.series[i].name.empty()) continue;
    s += fmt::format("<rect x=\"{:.0f}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", at,
                     kHeight - 26, color);
    s += fmt::format("<text x=\"{:.0f}\" y=\"{}\">{}</text>\n", at + 17, kHeight - 16,
                     escaped(c.series[i].name));
    at += 34 + 6.6 * double(c.series[i].name.size());
  }
  return s + "</svg>\n";
}

}  // namespace trireme
