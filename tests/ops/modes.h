// The four modes of the harness. Each prints one line per op (per problem in perf), every failure in full,
// and returns the number of failures.
#pragma once
#include "case.h"
#include "device/device.h"

namespace trireme::harness {

struct Options {
  std::string device = "cpu";
  std::vector<std::string> ops;     // only these; none = all
  std::vector<std::string> except;  // but not these
  std::string filter;               // only problem lines that contain this
  int one_of = 1;                   // every so manieth of an op's lines
  std::vector<int> threads = {1};
  fs::path problems;  // folder of <op>.txt, or one file of any ops
  bool verbose = false;
  bool require_8_bit = false;  // fp8_matmul by another than an 8-bit kernel is a failure
  bool in_turn = false;        // perf: the lines take turns, launch by launch
};

// make_device, which also knows "cuda-emulated": the CUDA kernels on this processor (tests/emulate); and
// "cuda-sm90", "cuda-emulated-sm90": with attention's kernels for sm_90a, which until they have run are on
// trial.
std::unique_ptr<Device> make_harness_device(std::string_view name, const DeviceOptions& = {});
// Why the kernel must not have taken the problem: "" if it may.
std::string wrong_kernel(const Options&, std::string_view op, const Problem&, std::string_view kernel);
bool on_sm90(std::string_view device);
// A meta device that books what device `name` does.
std::unique_ptr<Device> make_meta_of(std::string_view name, int threads);

int run_test(const Options&);  // against the double-precision reference; bits; fences; scratch against meta
int run_grad(const Options&);  // finite differences
int run_perf(const Options&);  // medians, and their ratio to what the machine can do
// Builds and books every line of every .txt file of the folder, or of the one file, on meta. Prints the
// memory and work of each line. Throws bad_request at a line that does not parse or that an op's check
// rejects.
int run_plan(const Options&);
int run_support(const Options&);  // which ops and types the device takes

// Calls f(entry, file, problem) for each problem line of the chosen ops that is for `mode` ("" = any). An op
// without a case and a choice that no line meets are bad requests, so that nothing passes by not being run.
using ProblemVisitor = std::function<void(const CaseEntry&, const ProblemFile&, const Problem&)>;
void for_each_problem(const Options&, std::string_view mode, const ProblemVisitor&);

// Distance of `got` from `want`. nmse = sum (got - want)^2 / sum want^2. worst = max over elements of
// |got - want| / (|want| + rms(want)): relative for large elements, against the typical one for small
// elements. Not-a-numbers and infinities must match exactly, else both are infinite.
struct Distance {
  double nmse = 0, worst = 0;
  int64_t at = 0;  // the worst element
};
Distance distance(const std::vector<double>& want, const std::vector<double>& got);

}  // namespace trireme::harness
