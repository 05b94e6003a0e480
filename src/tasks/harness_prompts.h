// Requests to a model in a task of lm-evaluation-harness: contexts with few-shot examples, and the texts
// whose likelihood counts.
#pragma once
#include "tasks/harness_task.h"

namespace trireme {

struct HarnessRequest {
  // multiple_choice: context and continuation of each choice. generate_until: one context, no continuation.
  // loglikelihood_rolling: no context, the whole text.
  std::vector<std::string> contexts, continuations;
  std::vector<std::string> choices;  // multiple_choice: without the delimiter
  std::vector<int64_t> right;        // indices of choices; more than one only if several are right
  std::vector<std::string> answers;  // generate_until: texts that are right
};

// One for each document, or the first `limit` of them (0: all). Few-shot examples are drawn as Python's
// random.Random(seed) draws them; the harness's default seed is 1234.
std::vector<HarnessRequest> harness_requests(const HarnessTask&, int64_t limit = 0, uint32_t seed = 1234);

}  // namespace trireme
