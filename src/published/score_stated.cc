// Network, kernels and types that a measured run states.
#include <algorithm>
#include <cctype>
#include <optional>

#include "base/printable.h"
#include "published/score_reader.h"

namespace trireme {
namespace {

constexpr double kGigabit = 1e9 / 8;

// The number that ends before `end`, and where it begins.
std::optional<double> number_before(std::string_view s, size_t end, size_t& begin) {
  while (end > 0 && s[end - 1] == ' ') --end;
  begin = end;
  while (begin > 0 && std::isdigit(uint8_t(s[begin - 1]))) --begin;
  constexpr size_t kMostDigits = 6;
  if (begin == end || end - begin > kMostDigits) return std::nullopt;
  return std::stod(std::string(s.substr(begin, end - begin)));
}

}  // namespace

double node_bandwidth(std::string_view interconnect, double devices) {
  const size_t unit = interconnect.find("Gb/s");
  if (unit == std::string_view::npos) return 0;
  size_t begin = 0;
  const auto port = number_before(interconnect, unit, begin);
  if (!port) return 0;
  const auto says = [&](std::string_view word) { return interconnect.find(word, unit) != interconnect.npos; };
  if (says("per GPU")) return *port * kGigabit * devices;
  if (begin > 0 && interconnect[begin - 1] == 'x')
    if (const auto ports = number_before(interconnect, begin - 1, begin)) return *ports * *port * kGigabit;
  return says("per node") || says("a node") ? *port * kGigabit : 0;
}

void RowReader::read_network() {
  DeviceFigures& d = row_.figures;
  const auto in_node = f_.whole("cluster", "gpus_per_node");
  constexpr double kRack = 8;  // more devices than a node's share one fast network: racks of GB200
  if (in_node && *in_node >= 1 && d.near <= kRack) d.near = double(*in_node);
  const double devices = in_node && *in_node >= 1 ? double(*in_node) : d.near;
  double node = 0;
  if (const auto gigabits = f_.number("cluster", "network_gbits"))
    node = *gigabits * kGigabit;
  else if (c_.nic_of(rule_->site) <= 0)
    node = node_bandwidth(f_.text("cluster", "interconnect"), devices);
  if (node > 0) d.nic = node / devices;
  if (const auto us = f_.number("cluster", "network_latency_us")) d.latency = *us * 1e-6;
}

void RowReader::read_kernels() {
  if (const RowJson* v = f_.find("layout", "sequence_parallel"); v && v->is_boolean())
    s_.sequence = v->get<bool>();
  if (const std::string norms = f_.text("layout", "norms"); !norms.empty()) {
    if (norms != "fused" && norms != "unfused")
      unusable("layout.norms \"{}\"; expected fused or unfused", printable(norms));
    s_.fused_norms = norms == "fused";
  }
  if (const std::string kernel = f_.text("layout", "attention"); !kernel.empty()) {
    const auto kind = attention_named(kernel);
    if (!kind)
      unusable("layout.attention \"{}\"; expected flash, flash 1, flash 2 or unfused", printable(kernel));
    s_.attention = *kind;
  }
}

void RowReader::read_types() {
  const auto type = [&](const char* key) {
    const std::string t = f_.text("layout", key);
    if (!t.empty() && t != "f32" && t != "bf16" && t != "f16")
      unusable("layout.{} \"{}\"; expected f32, bf16 or f16", key, printable(t));
    return t;
  };
  constexpr double kSingle = 4, kHalf = 2;
  if (const std::string grads = type("grads"); !grads.empty())
    s_.grad_bytes = s_.grad_stored = grads == "f32" ? kSingle : kHalf;
  else
    gradients_missing_ = rule_->gradients_unknown;
  if (const std::string moments = type("moments"); !moments.empty())
    s_.keeping.optimizer = kSingle + 2 * (moments == "f32" ? kSingle : kHalf);
}

}  // namespace trireme
