#include "estimate/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "cost/walls.h"
#include "estimate/walls.h"
#include "sim/markup.h"

namespace trireme {
namespace {

constexpr std::array kPhases = {Phase::training, Phase::prefill, Phase::decode};

PhaseCase phase_case(const RooflineCase& c, Phase p) {
  const bool training = p == Phase::training;
  return {.model = c.model,
          .phase = p,
          .tokens = double(training ? c.seq : c.context),
          .batch = double(training ? c.micro : c.batch),
          .tp = double(c.tp),
          .microbatches = double(c.microbatches)};
}

RooflinePoint point(const RooflineCase& c, Phase p, std::string part, double flops, double bytes,
                    double slope) {
  RooflinePoint r{p, std::move(part), flops, bytes, slope, c.figures.bf16, 0};
  r.seconds = std::max(flops / r.peak, bytes / slope);
  return r;
}

void add_phase(const RooflineCase& c, Phase p, Roofline& r) {
  const PhaseCase phase = phase_case(c, p);
  const std::vector<PhasePart> parts = phase_parts(phase);
  double seconds = 0;
  for (const PhasePart& part : parts) {
    r.memory.push_back(point(c, p, std::string(part.name), part.flops, part.bytes, c.figures.bandwidth));
    seconds += r.memory.back().seconds;
  }
  const PhasePart all = sum_of(parts);
  r.memory.push_back(point(c, p, "all", all.flops, all.bytes, c.figures.bandwidth));
  r.memory.back().seconds = seconds;
  const auto link = [&](double span) { return span <= c.figures.near ? c.figures.bus : c.figures.nic; };
  if (c.tp > 1 && link(double(c.tp)) > 0)
    r.network.push_back(
        point(c, p, "tensor parallel", all.flops, tensor_wire_bytes(phase), link(double(c.tp))));
  const double replicas = double(c.gpus) / double(c.tp);
  if (p == Phase::training && replicas > 1 && link(double(c.gpus)) > 0)
    r.network.push_back(
        point(c, p, "gradients", all.flops, gradient_wire_bytes(phase, replicas), link(double(c.gpus))));
}

// The fewest rows of a decoding pass whose products reach the ridge.
double rows_to_ridge(const RooflineCase& c, double ridge) {
  PhaseCase phase = phase_case(c, Phase::decode);
  const auto reached = [&](double rows) {
    phase.batch = rows;
    const PhasePart products = phase_parts(phase).front();
    return products.flops / products.bytes >= ridge;
  };
  double low = 1, high = 1;
  constexpr double kMostRows = 1 << 24;
  while (high < kMostRows && !reached(high)) low = high, high *= 2;
  if (!reached(high)) return 0;
  while (high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    (reached(middle) ? high : low) = middle;
  }
  return reached(low) ? low : high;
}
}  // namespace

Roofline roofline_of(const RooflineCase& c) {
  Roofline r{.ridge = c.figures.bf16 / c.figures.bandwidth};
  if (c.figures.bus > 0) r.near_ridge = c.figures.bf16 / c.figures.bus;
  if (c.figures.nic > 0) r.far_ridge = c.figures.bf16 / c.figures.nic;
  for (const Phase p : kPhases) add_phase(c, p, r);
  r.rows_at_ridge = rows_to_ridge(c, r.ridge);
  return r;
}

}  // namespace trireme
