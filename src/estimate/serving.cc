#include "estimate/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "cost/walls.h"
#include "spec/parameters.h"

namespace trireme {
namespace {

constexpr double kMostTexts = 64;      // decoded together
constexpr double kServedMemory = 0.9;  // usable share of a device's memory
constexpr double kServedBytes = 2;     // per parameter

// Sets the devices of a copy, and the texts whose cache the rest of their memory has.
bool divide(RooflineCase& c) {
  const double weights = kServedBytes * double(parameters(c.model));
  const double text = kv_cache_bytes(c.model, double(c.context), 1);
  for (; c.tp <= int64_t(c.figures.near) && c.model.heads % c.tp == 0; c.tp *= 2) {
    const double rest = kServedMemory * c.figures.memory * double(c.tp) - weights;
    if (rest < text) continue;
    c.batch = int64_t(std::exp2(std::floor(std::log2(std::min(kMostTexts, rest / text)))));
    c.gpus = c.tp;
    return true;
  }
  return false;
}

double phase_seconds(const Roofline& r, Phase phase) {
  double seconds = 0;
  for (const RooflinePoint& p : r.memory)
    if (p.phase == phase && p.part == "all") seconds += p.seconds;
  for (const RooflinePoint& p : r.network)
    if (p.phase == phase) seconds += p.bytes / p.slope;
  return seconds;
}

}  // namespace

std::optional<Serving> serving_of(RooflineCase c, double prompt, double answer) {
  c.context = int64_t(std::max(1.0, prompt + answer / 2));
  if (!divide(c)) return std::nullopt;
  Serving s{.tp = c.tp, .batch = c.batch};
  s.token_s = phase_seconds(roofline_of(c), Phase::decode);
  c.batch = 1;
  c.context = int64_t(std::max(1.0, prompt));
  s.prompt = c.context;
  s.first_token_s = phase_seconds(roofline_of(c), Phase::prefill);
  return s;
}

std::string serving_text(const Serving& s) {
  return fmt::format(
      "first token of {} tokens in {}, {} tokens/s per GPU from {} texts at once (bounds; tp {})", s.prompt,
      seconds_text(s.first_token_s), three_digits(s.per_device()), s.batch, s.tp);
}

}  // namespace trireme
