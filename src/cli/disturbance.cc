#include "cli/disturbance.h"

#include <charconv>
#include <cmath>

namespace trireme::cli {
namespace {

double number_of(std::string_view text, const std::string& all, std::string_view option,
                 std::string_view right) {
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(x))
    bad_request("{}: \"{}\" is not {}", option, all, right);
  return x;
}

}  // namespace

std::pair<int, double> pair_of(const std::string& text, char between, std::string_view option,
                               std::string_view right) {
  const size_t at = text.find(between);
  if (at == text.npos) bad_request("{}: \"{}\" is not {}", option, text, right);
  const std::string_view all = text;
  const double whole = number_of(all.substr(0, at), text, option, right);
  if (whole != std::floor(whole) || whole < 0 || whole > 1e9)
    bad_request("{}: \"{}\" is not {}", option, text, right);
  return {int(whole), number_of(all.substr(at + 1), text, option, right)};
}

void DisturbanceOptions::add_to(CLI::App& verb) {
  verb.add_option("--slow", slow, "a slower rank: 17=1.3 (repeatable)")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("RANK=FACTOR");
  verb.add_option("--slow-link", slow_links, "a node with a share of its bandwidth to others: 3=0.5")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("NODE=SHARE");
}

Disturbance DisturbanceOptions::parsed() const {
  constexpr double kMost = 1000;
  Disturbance d;
  for (const std::string& s : slow) {
    const auto [rank, by] = pair_of(s, '=', "--slow", "RANK=FACTOR, such as 17=1.3");
    if (!(by >= 1 / kMost && by <= kMost)) bad_request("--slow: {} is out of range; 0.001 to 1000", by);
    d.slow_ranks[rank] = by;
  }
  for (const std::string& s : slow_links) {
    const auto [node, share] = pair_of(s, '=', "--slow-link", "NODE=SHARE, such as 3=0.5");
    if (!(share >= 1 / kMost && share <= 1))
      bad_request("--slow-link: {} is out of range; 0.001 to 1", share);
    d.slow_links[node] = share;
  }
  return d;
}

}  // namespace trireme::cli
