// Divisions, layouts and refusals in words.
#include <fmt/format.h>

#include <array>

#include "plan/search.h"

namespace trireme {

std::string_view text_of(Refusal r) {
  static constexpr std::array<std::string_view, kRefusals> kTexts = {
      "tp does not divide the heads",
      "tp neither divides the heads of keys and values nor is a multiple of them",
      "tp does not divide the feed-forward",
      "tp does not divide the shared expert",
      "tp leaves a rank no part of the vocabulary",
      "tp and cp do not divide the sequence",
      "cp does not divide the sequence into pairs of chunks",
      "more stages than layers",
      "dp does not divide the global batch",
      "ep does not divide the experts",
      "does not fit into memory"};
  return kTexts[size_t(r)];
}

std::string_view order_of(Nearest n) {
  return n == Nearest::tensor ? "pp dp cp tp" : n == Nearest::stages ? "dp pp cp tp" : "pp tp cp dp";
}

std::string division_text(const SearchLayout& l) {
  std::string s;
  const auto axis = [&](const char* name, int64_t n) {
    if (n > 1) s += fmt::format("{}{} {}", s.empty() ? "" : " ", name, n);
  };
  axis("tp", l.tp), axis("pp", l.pp), axis("cp", l.cp), axis("dp", l.dp), axis("ep", l.ep);
  return s.empty() ? "one device" : s;
}

std::string text_of(const SearchLayout& l) {
  std::string s = division_text(l);
  if (l.zero > 0) s += fmt::format(", zero {}", l.zero);
  if (l.shards > 0) s += fmt::format(" in groups of {}", l.shards);
  if (l.pp > 1) {
    s += fmt::format(", {}", l.schedule);
    if (l.schedule == "interleaved") s += fmt::format(" x{}", l.chunks);
  }
  s += fmt::format(", micro {} x {}", l.micro, l.microbatches());
  if (l.again != Again::none)
    s += fmt::format(", recompute {}", l.again == Again::full ? "full" : "selective");
  if (l.offload) s += ", state offloaded";
  if (l.nearest != Nearest::tensor) s += fmt::format(", order \"{}\"", order_of(l.nearest));
  return s;
}

std::vector<Nearest> orders_alike(const Priced& p) {
  std::vector<Nearest> all;
  for (int i = 0; i < int(kOrders); i++)
    if (p.alike >> i & 1) all.push_back(Nearest(i));
  return all;
}

std::string text_of(const Priced& p) {
  std::string s;
  for (const Nearest n : orders_alike(p)) s += fmt::format("{} \"{}\"", s.empty() ? "" : ",", order_of(n));
  return text_of(p.layout) + (s.empty() ? "" : fmt::format(" (or order{})", s));
}

}  // namespace trireme
