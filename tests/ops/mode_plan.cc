#include <algorithm>

#include "instance.h"
#include "modes.h"

namespace trireme::harness {

int run_plan(const Options& options) {
  std::vector<fs::path> files;
  if (fs::is_regular_file(options.problems)) {
    files.push_back(options.problems);
  } else {
    for (const auto& entry : fs::directory_iterator(options.problems))
      if (entry.path().extension() == ".txt") files.push_back(entry.path());
    std::ranges::sort(files);
  }
  auto device = make_meta_of(options.device, options.threads[0]);
  fmt::print("{:>10} {:>11} {:>10} {:>10}  problem\n", "memory MB", "scratch MB", "GFLOP", "GB moved");
  for (const fs::path& file : files) {
    Options of_file = options;
    of_file.problems = file;
    for_each_problem(of_file, "", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
      Instance run(entry, p, *device, int64_t(1) << 40);
      run.launch();
      int64_t bytes = 0;
      for (const Operand& o : run.operands().list) bytes += o.extent();
      const Cost c = run.the_case().expense();
      fmt::print("{:10.1f} {:11.1f} {:10.1f} {:10.3f}  {}\n", double(bytes) * 1e-6,
                 double(run.scratch_peak()) * 1e-6, c.flops * 1e-9,
                 double(c.bytes_read + c.bytes_written) * 1e-9, p.line);
    });
  }
  return 0;
}

}  // namespace trireme::harness
