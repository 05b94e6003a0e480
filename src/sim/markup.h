// What pictures share: markup of texts, an SVG's first line.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace trireme {

// Of markup: text as it stands, also between quotes; control characters but line ends are left out.
inline std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= ' ' || c == '\n')
      out += c;
  }
  return out;
}
inline std::string svg_head(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      width, height);
}

}  // namespace trireme
