// Charts of a search, SVG: points and lines over two axes, logarithmic ones too.
#pragma once
#include <string>
#include <vector>

namespace trireme {

struct ChartPoint {
  double x = 0, y = 0;
  std::string label;  // beside it, and shown on hovering; may be empty
  bool marked = false;
};
struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // by x
  bool line = true;
  bool dots = true;
  std::vector<ChartPoint> lower;  // by x: the area between these and `points` is tinted instead
};
struct ChartAxis {
  std::string title;
  bool logarithmic = false;  // ticks at powers of two, beyond a factor of 1,000 at powers of ten
  bool from_zero = true;     // linear axes
};
struct Chart {
  std::string title;
  ChartAxis x, y;
  std::vector<ChartSeries> series;
};
// As wide as a page. Texts may have any characters.
std::string svg_of(const Chart&);

}  // namespace trireme
