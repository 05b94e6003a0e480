#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "base/progress.h"

namespace trireme {

std::string three_digits(double x) {
  if (!std::isfinite(x)) return "?";
  if (x == 0) return "0";
  const double power = std::floor(std::log10(std::abs(x))) - 2;
  const double unit = std::pow(10, power);
  const double rounded = std::round(x / unit) * unit;
  if (std::abs(rounded) < 99.95) {
    const int after = std::max(0, int(2 - std::floor(std::log10(std::abs(rounded)) + 1e-9)));
    return fmt::format("{:.{}f}", rounded, after);
  }
  return grouped(rounded);
}

std::string decimal(double value, std::string_view unit) {
  static constexpr std::array<const char*, 8> kPrefixes = {"", "k", "M", "G", "T", "P", "E", "Z"};
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && value >= 999.5) {
    value /= 1000;
    ++i;
  }
  const int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, i == 0 && value == std::floor(value) ? 0 : digits, kPrefixes[i],
                     unit);
}

std::string bytes_text(double bytes) {
  return decimal(bytes, "B");
}

std::string capacity_text(double bytes) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  return fmt::format("{} ({:.3g} GiB)", bytes_text(bytes), bytes / kGiB);
}

std::string seconds_text(double s) {
  if (s >= 999.5) return human_seconds(s);
  if (s >= 0.9995) return three_digits(s) + " s";
  return s >= 0.9995e-3 ? three_digits(s * 1e3) + " ms" : three_digits(s * 1e6) + " us";
}

std::string answer_line(std::string_view name, std::string_view text) {
  return fmt::format("  {:<11} {}\n", name, text);
}

std::string grouped(double x) {
  std::string s = fmt::format("{:.0f}", x);
  const int64_t least = s[0] == '-' ? 1 : 0;
  for (auto i = int64_t(s.size()) - 3; i > least; i -= 3) s.insert(size_t(i), ",");
  return s;
}

}  // namespace trireme
