#include "catalog/constants.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "catalog/data_texts.h"
#include "checkpoint/json.h"

namespace trireme {
namespace {

using ConstantsJson = nlohmann::ordered_json;

Fit fit_named(std::string_view name, std::string_view file) {
  for (size_t f = 0; f < kFits; ++f)
    if (name_of(Fit(f)) == name) return Fit(f);
  bad_request("{}: \"{}\" is no constant of the forecast", file, printable(name));
}

double positive(const nlohmann::json& j, std::string_view name, std::string_view file) {
  constexpr double kLeast = 1e-12, kMost = 1e12;
  const double v = j.is_number() ? j.get<double>() : 0;
  if (!(v >= kLeast && v <= kMost))
    bad_request("{}: {} is no number from {} to {}", file, printable(name), kLeast, kMost);
  return v;
}

// A scope's name is printed wherever one is to be chosen.
const std::string& scope_named(const std::string& scope, std::string_view file) {
  if (std::any_of(scope.begin(), scope.end(), [](char c) { return uint8_t(c) < 0x20 || c == 0x7f; }))
    bad_request("{}: the name of scope \"{}\" has control bytes; right is as \"site:mine\"", file,
                printable(scope));
  return scope;
}

Prior prior_from(const nlohmann::json& j, std::string_view name, std::string_view file) {
  if (!j.is_array() || j.size() != 2)
    bad_request("{}: prior of {} is not [center, sigma]", file, printable(name));
  const bool known = j[1].is_number() && j[1].get<double>() == 0;
  return {positive(j[0], name, file), known ? 0 : positive(j[1], name, file)};
}

}  // namespace

ConstantLayer layer_of(Fit f) {
  if (f == Fit::gemm) return ConstantLayer::device;
  return f == Fit::dp || f == Fit::jitter || f == Fit::ring || f == Fit::pace ? ConstantLayer::site
                                                                              : ConstantLayer::software;
}

std::vector<std::string> scopes_of(const Whose& r, Fit f) {
  const auto chain = [](std::string layer, const std::string& name) {
    std::vector<std::string> all = {layer};
    for (size_t slash = 0; slash != std::string::npos;) {
      slash = name.find('/', slash + 1);
      all.push_back(layer + ":" + name.substr(0, slash));
    }
    return all;
  };
  switch (layer_of(f)) {
    case ConstantLayer::device:
      return chain("device", r.device);
    case ConstantLayer::site:
      return chain("site", r.site);
    default:
      return chain("software", r.software);
  }
}

Prior ScoreConstants::prior(const std::string& scope, Fit f) const {
  if (const auto s = scope_priors.find(scope); s != scope_priors.end())
    if (const auto p = s->second.find(f); p != s->second.end()) return p->second;
  const Prior& all = priors[size_t(f)];
  if (scope.find(':') == std::string::npos) return all;
  constexpr double kGenerations = 0.5;  // of one software differ less than softwares
  return {1, scope.find('/') == std::string::npos ? all.sigma : kGenerations * all.sigma};
}
double ScoreConstants::factor(const std::string& scope, Fit f) const {
  if (const auto s = fitted.find(scope); s != fitted.end())
    if (const auto v = s->second.find(f); v != s->second.end()) return v->second;
  return prior(scope, f).center;
}
FitValues ScoreConstants::of(const Whose& r) const {
  FitValues v{};
  for (size_t f = 0; f < kFits; ++f) {
    v[f] = 1;
    for (const std::string& scope : scopes_of(r, Fit(f))) v[f] *= factor(scope, Fit(f));
  }
  return v;
}

ScoreConstants parse_constants(std::string_view text, std::string_view file) {
  constexpr size_t kMost = 4 << 20;
  const nlohmann::json j = parse_json(text, file, kMost);
  const auto object = [&](const nlohmann::json& in, const char* key) -> const nlohmann::json& {
    if (!in.is_object() || !in.contains(key) || !in.at(key).is_object())
      bad_request("{}: no object \"{}\"", file, key);
    return in.at(key);
  };
  ScoreConstants c;
  for (const auto& [name, p] : object(j, "priors").items())
    c.priors[size_t(fit_named(name, file))] = prior_from(p, name, file);
  for (const auto& [scope, fits] : object(j, "scope_priors").items())
    for (const auto& [name, p] : fits.items())
      if (name != "source")
        c.scope_priors[scope_named(scope, file)][fit_named(name, file)] = prior_from(p, name, file);
  for (const auto& [scope, fits] : object(j, "fitted").items())
    for (const auto& [name, v] : fits.items())
      c.fitted[scope_named(scope, file)][fit_named(name, file)] = positive(v, name, file);
  if (j.contains("unseen")) {
    const nlohmann::json& unseen = object(j, "unseen");
    const auto take = [&](const char* key, double& to) {
      if (unseen.contains(key)) to = positive(unseen.at(key), key, file);
    };
    take("seconds", c.unseen_seconds), take("bytes", c.unseen_bytes);
  }
  return c;
}

const ScoreConstants& shipped_constants() {
  static const ScoreConstants c = parse_constants(kScoreConstants, "data/score_constants.json");
  return c;
}

std::string save_constants(const ScoreConstants& c) {
  ConstantsJson j;
  for (size_t f = 0; f < kFits; ++f) j["priors"][name_of(Fit(f))] = {c.priors[f].center, c.priors[f].sigma};
  j["scope_priors"] = ConstantsJson::object(), j["fitted"] = ConstantsJson::object();
  for (const auto& [scope, fits] : c.scope_priors)
    for (const auto& [f, p] : fits) j["scope_priors"][scope][name_of(f)] = {p.center, p.sigma};
  const auto short_of = [](double v) { return std::stod(fmt::format("{:.4g}", v)); };
  for (const auto& [scope, fits] : c.fitted)
    for (const auto& [f, v] : fits) j["fitted"][scope][name_of(f)] = short_of(v);
  j["unseen"] = {{"seconds", short_of(c.unseen_seconds)}, {"bytes", short_of(c.unseen_bytes)}};
  return j.dump(1) + "\n";
}

}  // namespace trireme
