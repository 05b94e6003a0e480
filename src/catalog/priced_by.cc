#include "catalog/priced_by.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "cost/stage_time.h"
#include "spec/suggest.h"

namespace trireme {
namespace {

// Names of a layer: "mine" of "site:mine".
std::vector<std::string> names_of(const ScoreConstants& constants, const std::string& layer) {
  std::vector<std::string> names;
  for (const auto& [scope, values] : constants.fitted)
    if (scope.starts_with(layer + ":")) names.push_back(scope.substr(layer.size() + 1));
  return names;
}

// what: the option or the row's key, for the error.
void know(const ScoreConstants& constants, std::string_view what, const std::string& layer,
          const std::string& name) {
  if (name.empty() || constants.fitted.count(layer + ":" + name)) return;
  const std::vector<std::string> names = names_of(constants, layer);
  const std::string near = suggest(name, names);
  bad_request("{}: no \"{}\"{}; right is one of: {}", what, printable(name),
              near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(names, ", "));
}

}  // namespace

void know_software(const ScoreConstants& constants, std::string_view what, const std::string& name) {
  know(constants, what, "software", name);
}

FitValues constants_of(const PricedBy& by) {
  const ScoreConstants& constants = by.own ? *by.own : shipped_constants();
  know(constants, "--software", "software", by.software);
  know(constants, "--site", "site", by.site);
  return constants.of({by.device, by.software, by.site});
}

void price_by_own(PricedBy& by, std::string_view text, const std::string& file) {
  by.own = std::make_shared<const ScoreConstants>(parse_constants(text, file)), by.file = file;
  if (!by.site.empty()) return;
  const auto& shipped = shipped_constants().fitted;
  std::vector<std::string> own;
  for (const std::string& name : names_of(*by.own, "site"))
    if (!shipped.count("site:" + name)) own.push_back(name);
  if (own.size() == 1) by.site = own[0];
  if (own.size() > 1)
    bad_request("--constants: {} has {} sites of its own; name one: --site {}", file, own.size(),
                fmt::join(own, ", --site "));
  // A calibration moves nothing but a site's, so that without a name nothing of it would be used.
  bool others = own.size() == 1;
  for (const auto& [scope, values] : by.own->fitted) {
    const auto known = shipped.find(scope);
    others |= !scope.starts_with("site:") && (known == shipped.end() || known->second != values);
  }
  if (!others)
    bad_request(
        "--constants: {} differs from the shipped constants in its sites at most; name one: --site {}", file,
        fmt::join(names_of(*by.own, "site"), ", --site "));
}

double site_slowness(const PricedBy& by, int64_t devices) {
  if (by.site.empty()) return 1;
  StepCase c;
  c.dp = devices;
  return slowness(c, {}, constants_of(by));
}

std::string text_of(const PricedBy& by) {
  if (by.file.empty() && by.software.empty() && by.site.empty()) return "";
  std::string s = fmt::format("constants of {}", by.file.empty() ? "data/score_constants.json" : by.file);
  if (!by.software.empty()) s += fmt::format(": software {}", by.software);
  if (!by.site.empty()) {
    PricedBy all = by;
    all.site.clear();
    const auto pace = [](const PricedBy& p) { return constants_of(p)[size_t(Fit::pace)]; };
    FitValues paced = constants_of(all);
    paced[size_t(Fit::pace)] = pace(by);
    s += fmt::format("{} site {} ({} x {:.3f} of what all sites have in common)",
                     by.software.empty() ? ":" : ",", by.site,
                     paced == constants_of(by) ? "the whole step" : "its own exposed waits; all parts",
                     pace(by) / pace(all));
  }
  return s;
}

FitValues ordered_constants(FitValues f) {
  for (const Fit x : {Fit::tp, Fit::pp, Fit::cp, Fit::ep, Fit::ep_far, Fit::dp}) f[size_t(x)] = 1;
  return f;
}

FitValues constants_at_the_roof(FitValues f) {
  const auto at_least = [&](Fit x) { f[size_t(x)] = std::max(f[size_t(x)], 1.0); };
  const auto at_most = [&](Fit x, double v) { f[size_t(x)] = std::min(f[size_t(x)], v); };
  for (const Fit x :
       {Fit::gemm, Fit::gemm_soft, Fit::gemm8, Fit::gemm4, Fit::blocks8, Fit::attention, Fit::expert})
    at_least(x);
  for (const Fit x : {Fit::memory, Fit::routing, Fit::softmax, Fit::pace}) at_most(x, 1);
  for (const Fit x : {Fit::host, Fit::host_moe, Fit::each, Fit::step, Fit::ring, Fit::jitter}) at_most(x, 0);
  return f;
}

}  // namespace trireme
