// What pictures share: markup of texts, an SVG's first line.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace trireme {

// Of markup: text as it stands.
inline std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}
inline std::string svg_head(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      width, height);
}

}  // namespace trireme
