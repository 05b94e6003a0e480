// Multiple-choice questions: a file of JSON lines, and the tokens that a question is scored by.
#pragma once
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "train/scored_batches.h"

namespace trireme {

struct ChoiceQuestion {
  std::string prompt;
  std::vector<std::string> choices;  // at least two, none empty; each goes on from the prompt as it is
  int64_t answer = 0;                // index of the right one
  int64_t line = 0;                  // of the file, from 1
};

// {"prompt": "...", "choices": ["...", ...], "answer": 0 or "A"} a line, other keys ignored, lines of blanks
// skipped. From outside: whatever is wrong is a bad_request that names `file`, line and key.
std::vector<ChoiceQuestion> parse_choices(std::string_view jsonl, std::string_view file);
std::vector<ChoiceQuestion> read_choices(const fs::path&);

// Prompt and choice as tokens, of which those of the choice are scored. Both are encoded together, so that
// they meet as they do in text. The choice's tokens follow as many tokens as the prompt alone has. Blanks at
// the prompt's end belong to the choice. The lm-evaluation-harness does the same. An empty prompt
// is the start of a document.
ScoredText scored_text(const Tokenizer&, const std::string& prompt, const std::string& choice);

}  // namespace trireme
