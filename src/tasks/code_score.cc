#include "tasks/code_score.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace trireme {

std::vector<SandboxResult> judge_samples(const Sandbox& sandbox, const SandboxLimits& limits,
                                         const std::vector<CodeTask>& tasks,
                                         const std::vector<CodeSample>& samples, int threads,
                                         const std::function<void(int64_t)>& progress) {
  std::vector<SandboxResult> results(samples.size());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  int64_t done = 0;
  auto work = [&] {
    for (size_t i = 0; (i = next++) < samples.size();) {
      try {
        const CodeSample& s = samples[i];
        results[i] = sandbox.run(judged_program(tasks[s.task], s.completion), limits);
        const std::lock_guard lock(mutex);
        if (progress) progress(++done);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = samples.size();
      }
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; t++) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  if (failure) std::rethrow_exception(failure);
  return results;
}

CodeScore score_samples(const std::vector<CodeTask>& tasks, const std::vector<CodeSample>& samples,
                        const std::vector<SandboxResult>& results, const std::vector<int64_t>& ks) {
  CodeScore score;
  score.of_task.resize(tasks.size());
  for (size_t i = 0; i < samples.size(); i++) {
    score.ends[size_t(results[i].end)]++;
    auto& [passed, all] = score.of_task[samples[i].task];
    passed += results[i].end == SandboxEnd::completed;
    all++;
  }
  for (int64_t k : ks) {
    std::vector<double> values;
    for (size_t t = 0; t < tasks.size(); t++) {
      const auto [passed, all] = score.of_task[t];
      if (all == 0) continue;
      if (all < k) bad_request("pass@{} of task {}: it has {} samples", k, tasks[t].id, all);
      values.push_back(pass_at_k(all, passed, k));
    }
    score.pass[k] = mean_of_tasks(values);
  }
  return score;
}

}  // namespace trireme
