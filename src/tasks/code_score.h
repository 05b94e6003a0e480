// Completions judged in the sandbox, and the score of a set of tasks.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <vector>

#include "sandbox/sandbox.h"
#include "tasks/code_tasks.h"
#include "tasks/pass_at_k.h"

namespace trireme {

// Runs every sample, `threads` at a time. Verdicts are in the order of samples.
// `progress` is called from one thread at a time with the number of samples done; if it throws, no further
// sample starts, and the exception leaves this function.
std::vector<SandboxResult> judge_samples(const Sandbox&, const SandboxLimits&, const std::vector<CodeTask>&,
                                         const std::vector<CodeSample>&, int threads,
                                         const std::function<void(int64_t done)>& progress = {});

inline constexpr size_t kSandboxEnds = size_t(SandboxEnd::output) + 1;

struct CodeScore {
  std::map<int64_t, MeanOfTasks> pass;          // by k
  std::array<int64_t, kSandboxEnds> ends{};     // samples by their SandboxEnd
  std::vector<std::array<int64_t, 2>> of_task;  // passed, samples
};

// Tasks without samples are left out. bad_request if a task has fewer samples than a k.
CodeScore score_samples(const std::vector<CodeTask>&, const std::vector<CodeSample>&,
                        const std::vector<SandboxResult>&, const std::vector<int64_t>& ks);

}  // namespace trireme
