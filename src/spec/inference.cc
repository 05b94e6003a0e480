#include "spec/inference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "spec/complaint.h"
#include "spec/supported.h"

namespace trireme {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

int64_t* degree_of(InferenceLayout& l, std::string_view axis) {
  if (axis == "tp") return &l.tp;
  if (axis == "pp") return &l.pp;
  if (axis == "cp") return &l.cp;
  if (axis == "ep") return &l.ep;
  return nullptr;
}

[[noreturn]] void wrong_layout(std::string_view text) {
  bad_request(
      "--layout = \"{}\": no layout; give degrees of tp, pp, cp and ep, such as \"tp=2,pp=2\", or \"run\" "
      "for the "
      "run's own",
      text);
}

}  // namespace

int64_t InferenceLayout::dp() const {
  return ep / std::gcd(ep, tp * cp);
}

InferenceLayout inference_layout(std::string_view text, const RunSpec& run) {
  if (text == "run") return {run.layout.tp, run.layout.pp, run.layout.cp, run.layout.ep};
  InferenceLayout out;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    int64_t* degree = equals == item.npos ? nullptr : degree_of(out, item.substr(0, equals));
    if (!degree) wrong_layout(text);
    const std::string_view number = item.substr(equals + 1);
    const char* end = number.data() + number.size();
    const auto [at, error] = std::from_chars(number.data(), end, *degree);
    if (error != std::errc() || at != end || *degree < 1 || *degree > kMostRanks) wrong_layout(text);
  }
  return out;
}

RunSpec inference_run(const RunSpec& run, const InferenceLayout& layout) {
  RunSpec out = run;
  out.layout = {};
  out.layout.tp = layout.tp;
  out.layout.pp = layout.pp;
  out.layout.cp = layout.cp;
  out.layout.ep = layout.ep;
  out.layout.dp = layout.dp();
  out.layout.order = run.layout.order;
  out.layout.cut = run.layout.cut;
  if (int64_t(run.layout.stage_layers.size()) == layout.pp) out.layout.stage_layers = run.layout.stage_layers;
  out.layout.ep_buffer = run.layout.ep_buffer;
  out.layout.cp_method = run.layout.cp_method;
  out.layout.cp_overlap = run.layout.cp_overlap;
  out.layout.cp_placement = "contiguous";
  out.batch.global = out.batch.micro * out.layout.dp;
  out.batch.ramp = {};
  out.optimizer.name = "adamw";
  out.optimizer.post_validation = "off";
  out.precision.fp8 = "none";
  out.train.noise_scale = 0;
  out.own_schedule = {};
  out.known_routing = {};
  // Texts of any length are completed to parts of equal length.
  RunSpec checked = out;
  const int64_t parts = layout.cp * layout.tp;
  checked.data.seq_len = std::max(parts, checked.data.seq_len / parts * parts);
  std::vector<Problem> problems = problems_of(checked);
  for (Problem& p : unsupported_of(checked)) problems.push_back(std::move(p));
  std::vector<std::string> lines;
  for (const Problem& p : problems) lines.push_back(text_of(checked, p));
  if (!lines.empty()) bad_request("--layout: {}", fmt::join(lines, "; "));
  return out;
}

}  // namespace trireme
