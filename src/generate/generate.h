// Text from a model: the training layers run forward over the tokens so far, one token at a time.
#pragma once
#include <functional>
#include <vector>

#include "generate/sampler.h"
#include "runtime/stage_runner.h"

namespace trireme {

struct GenerateOptions {
  SampleOptions sample;
  int64_t tokens = 200;      // at most so many new ones
  int64_t context = 256;     // the model sees the last so many
  int32_t end_of_text = -1;  // stops when drawn; -1 = never
};

// Extends `prompt` (at least one token); on_token sees each new one. Returns the new tokens.
std::vector<int32_t> generate(StageRunner&, std::vector<int32_t> prompt, const GenerateOptions&,
                              const std::function<void(int32_t)>& on_token = {});

}  // namespace trireme
