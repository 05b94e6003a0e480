// The parts of `trireme eval`: each kind of evaluation adds its options and runs.
#pragma once
#include <optional>

#include "cli/source.h"
#include "generate/sampler.h"

namespace trireme::cli {

// A progress bar, and the way out at a signal. Nothing of an evaluation is worth keeping, so the run failed
// (exit code 1) rather than paused.
class Watched {
 public:
  Watched(std::string verb, std::string what) : verb_(std::move(verb)), what_(std::move(what)) {
    install_interrupt_handlers();
  }
  void operator()(int64_t done, int64_t total);

 private:
  std::string verb_, what_;
  std::optional<Progress> bar_;
};

// eval --code: programming tasks in HumanEval's format (docs/evaluation.md).
struct CodeEval {
  std::string tasks, samples, out, layout, python = "python3";
  bool canonical = false, chat = false;
  int64_t per_task = 1;
  std::vector<int64_t> ks;
  SampleOptions sample{.top_p = 0.95};
  int64_t tokens = 512, parallel = 8, context = 0;
  std::vector<std::string> stops;
  double time_limit = 3;
  int64_t memory_mib = 512;
  int threads = 0;
};
CLI::Option* add_code_options(CLI::App& verb, CodeEval&);  // returns --code
void evaluate_code(const CodeEval&, const RunRequest&);

// eval --tasks FILE.yaml: a task of lm-evaluation-harness (docs/evaluation.md).
struct HarnessEval {
  std::string file, out, layout;
  int64_t fewshot = -1, limit = 0, context = 0;
};
void evaluate_harness(const HarnessEval&, const UsedRun&, bool json);

}  // namespace trireme::cli
