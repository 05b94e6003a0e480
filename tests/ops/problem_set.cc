#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "emulated_device.h"
#include "modes.h"

namespace trireme::harness {
namespace {

constexpr std::string_view kSm90 = "cuda-sm90";

void refuse_missing_cases() {
  auto has_case = [](std::string_view op) {
    return std::ranges::any_of(all_cases(), [op](const CaseEntry& e) { return e.op == op; });
  };
#define TRIREME_NEEDS_CASE(Args) \
  if (!has_case(Args::kName)) bad_request("cases.cc has no case of op '{}'", Args::kName);
  TRIREME_OPS(TRIREME_NEEDS_CASE)
#undef TRIREME_NEEDS_CASE
}

}  // namespace

std::unique_ptr<Device> make_harness_device(std::string_view name, const DeviceOptions& options) {
  if (name == kEmulatedCuda || name == kEmulatedSm90) return make_emulated_device(on_sm90(name));
  if (name != "cuda" && name != kSm90) return make_device(name, options);
  DeviceOptions with = options;
  with.sm90_attention = on_sm90(name);
  return make_cuda_device(with);
}
bool on_sm90(std::string_view device) {
  return device == kSm90 || device == kEmulatedSm90;
}
namespace {

// As docs/device.md describes those kernels, not as they report themselves. "": any may take it.
std::string_view kernel_asked_for(std::string_view device, std::string_view op, const Problem& p) {
  if (!on_sm90(device) || !op.starts_with("attention") || size_of(p.dtype()) != 2) return {};
  // A negative scale is simt's.
  if (p.number("scale", 1) <= 0) return {};
  const int64_t widest = op == "attention" || op == "attention_backward" ? 256 : 0;
  for (int64_t n : {p.size("d"), p.size("dv", p.size("d")), p.size("pad", 0), p.size("offset", 0)})
    if (n % 8 != 0 || n > widest) return {};
  return "sm_90a";
}

}  // namespace

std::string wrong_kernel(const Options& options, std::string_view op, const Problem& p,
                         std::string_view kernel) {
  const std::string_view asked = kernel_asked_for(options.device, op, p);
  if (!asked.empty() && kernel != asked)
    return fmt::format("kernel {} was asked for, and {} took it", asked, kernel);
  if (options.require_8_bit && op == "fp8_matmul" && !kernel.starts_with("8-bit"))
    return fmt::format("an 8-bit kernel was asked for, and {} took it",
                       kernel.empty() ? fmt::format("device {} has none", options.device) : kernel);
  return "";
}
std::unique_ptr<Device> make_meta_of(std::string_view name, int threads) {
  if (name == "meta") name = "cpu";
  return make_device("meta", {.threads = threads,
                              .models = name.starts_with("cuda") ? "cuda" : name,
                              .sm90_attention = on_sm90(name)});
}

namespace {

const CaseEntry& entry_of(const Problem& p) {
  for (const CaseEntry& e : all_cases())
    if (e.op == p.op) return e;
  bad_request("{}: '{}' is no op", p.place, p.op);
}

bool is_chosen(const Options& options, std::string_view op) {
  // Not an op of GPUs (Kernels::orthogonalises).
  if (op == OrthogonaliseArgs::kName && options.device.starts_with("cuda")) return false;
  auto has = [op](const std::vector<std::string>& ops) { return std::ranges::find(ops, op) != ops.end(); };
  return (options.ops.empty() || has(options.ops)) && !has(options.except);
}

}  // namespace

void for_each_problem(const Options& options, std::string_view mode, const ProblemVisitor& visit) {
  refuse_missing_cases();
  int visited = 0;
  std::map<std::string_view, int> met;  // lines by op
  // only: the op that the file is of, or null.
  auto visit_file = [&](const fs::path& path, const CaseEntry* only) {
    ProblemFile file(path, options.device);
    for (const Problem& p : file.problems()) {
      if (only && p.op != only->op)
        bad_request("{}: the line is of op '{}', the file of '{}'", p.place, p.op, only->op);
      const CaseEntry& entry = only ? *only : entry_of(p);
      if (!is_chosen(options, entry.op)) continue;
      if (!mode.empty() && !p.is_for(mode)) continue;
      if (p.line.find(options.filter) == std::string::npos) continue;
      if (met[entry.op]++ % options.one_of != 0) continue;
      visit(entry, file, p);
      visited++;
    }
  };
  if (fs::is_regular_file(options.problems)) {
    visit_file(options.problems, nullptr);
  } else {
    for (const CaseEntry& entry : all_cases())
      if (is_chosen(options, entry.op))
        visit_file(options.problems / (std::string(entry.op) + ".txt"), &entry);
  }
  if (visited == 0)
    bad_request("no problem line is for mode '{}' with --op '{}' and --filter '{}'", mode,
                fmt::join(options.ops, ","), options.filter);
}

}  // namespace trireme::harness
