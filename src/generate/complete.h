// Whole texts from prompts, as evaluations want them: with stop strings, nothing shown meanwhile.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "generate/generate.h"
#include "text/tokenizer.h"

namespace trireme {

struct Completion {
  std::string text;  // up to the first stop string
  int64_t tokens = 0;
  Finish finish = Finish::length;
};

struct Completions {
  std::vector<Completion> texts;  // in the order of prompts; empty ones if `leave` ended the work
  GenerateStats stats;
};

// stops: none, or a list for each prompt. progress: called with the number of complete texts after each.
// leave: asked between passes; true ends the work.
Completions complete_texts(StageRunner&, const Tokenizer&, const Prompts&, const GenerateOptions&,
                           const std::vector<std::vector<std::string>>& stops,
                           const std::function<void(int64_t done)>& progress = {},
                           const std::function<bool()>& leave = {});

}  // namespace trireme
