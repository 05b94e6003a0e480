#include <map>

#include "instance.h"
#include "modes.h"

namespace trireme::harness {

// The first problem of each (op, type) is run on the device as it is; a refusal is printed, not a failure.
int run_support(const Options& options) {
  auto device = make_device(options.device, {.threads = options.threads[0]});
  fmt::print("device {}, {} threads\n", device->name(), options.threads[0]);
  for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    fmt::print("  matrix products in {:5} {}\n", name_of(t),
               device->native(t) ? "in hardware" : "not in hardware");
  std::map<std::pair<std::string_view, std::string>, std::string> seen;
  for_each_problem(options, "", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
    std::pair<std::string_view, std::string> key(entry.op, p.word("dtype", "f32"));
    if (seen.contains(key)) return;
    try {
      Instance run(entry, p, *device, planned_scratch(entry, p, options.device, options.threads[0]));
      run.reset();
      run.launch();
      Cost c = run.the_case().expense();
      seen[key] = fmt::format("yes  ({}: {:.3g} FLOPs, {} bytes, {} of scratch)", p.line, c.flops,
                              c.bytes_read + c.bytes_written, run.scratch_peak());
    } catch (const Error& e) {
      seen[key] = fmt::format("no   ({}: {})", p.line, e.what());
    }
  });
  for (auto& [key, text] : seen) fmt::print("  {:20} {:5} {}\n", key.first, key.second, text);
  return 0;
}

}  // namespace trireme::harness
