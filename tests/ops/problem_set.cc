#include <fmt/ranges.h>

#include <algorithm>

#include "device/cuda/cuda_device.h"
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
  if (name == kSm90) return make_cuda_device(options, true);
  return name == kEmulatedCuda ? make_emulated_device() : make_device(name, options);
}
std::unique_ptr<Device> make_meta_of(std::string_view name, int threads) {
  if (name == "meta") name = "cpu";
  return make_device("meta",
                     {.threads = threads, .models = name == kEmulatedCuda || name == kSm90 ? "cuda" : name});
}

void for_each_problem(const Options& options, std::string_view mode, const ProblemVisitor& visit) {
  refuse_missing_cases();
  int visited = 0;
  for (const CaseEntry& entry : all_cases()) {
    if (!options.ops.empty() && std::ranges::find(options.ops, entry.op) == options.ops.end()) continue;
    if (std::ranges::find(options.except, entry.op) != options.except.end()) continue;
    ProblemFile file(options.problems / (std::string(entry.op) + ".txt"), options.device);
    for (const Problem& p : file.problems()) {
      if (p.op != entry.op)
        bad_request("{}: the line is of op '{}', the file of '{}'", p.place, p.op, entry.op);
      if (!mode.empty() && !p.is_for(mode)) continue;
      if (p.line.find(options.filter) == std::string::npos) continue;
      visit(entry, file, p);
      visited++;
    }
  }
  if (visited == 0)
    bad_request("no problem line is for mode '{}' with --op '{}' and --filter '{}'", mode,
                fmt::join(options.ops, ","), options.filter);
}

}  // namespace trireme::harness
