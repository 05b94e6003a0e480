#include "generate/generate.h"

#include <algorithm>

namespace trireme {

std::vector<int32_t> generate(StageRunner& runner, std::vector<int32_t> prompt, const GenerateOptions& o,
                              const std::function<void(int32_t)>& on_token) {
  if (prompt.empty()) bad_request("a prompt must have at least one token");
  Sampler sampler(o.sample);
  std::vector<int32_t> out;
  std::vector<float> logits;
  for (int64_t i = 0; i < o.tokens; i++) {
    size_t n = std::min(prompt.size(), size_t(o.context));
    runner.logits(std::span(prompt).last(n), logits);
    size_t vocab = logits.size() / n;
    int32_t id = sampler.next(std::span<const float>(logits).last(vocab), uint64_t(i));
    if (id == o.end_of_text) break;
    prompt.push_back(id);
    out.push_back(id);
    if (on_token) on_token(id);
  }
  return out;
}

}  // namespace trireme
