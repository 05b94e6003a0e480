// Programming tasks in HumanEval's file format (Chen et al., 2021), and the programs that judge a completion.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trireme {

struct CodeTask {
  std::string id;           // "HumanEval/0"
  std::string prompt;       // imports, a function's head and its docstring
  std::string entry_point;  // the function's name
  std::string solution;     // a body that passes
  std::string test;         // defines check(candidate)
};

// A completion of one task, by its place in the list of tasks.
struct CodeSample {
  size_t task = 0;
  std::string completion;
};

// JSON lines, also compressed by gzip. bad_request names file, line and key.
std::vector<CodeTask> read_code_tasks(const fs::path&);

// Lines {"task_id": "...", "completion": "..."}, as HumanEval's own tools write them.
std::vector<CodeSample> read_code_samples(const fs::path&, const std::vector<CodeTask>&);

// Strings that end a completion of a function's body (Chen et al., section 3.1, and the code fence).
std::vector<std::string> code_stop_strings();

// The request to a chat model.
std::string chat_request(const CodeTask&);

// A chat model's answer as a completion: the last closed code block that defines the function, else the last
// block, else the whole answer.
std::string code_of_answer(std::string_view answer, const CodeTask&);

// Prompt, completion, test and call, as HumanEval joins them. If the completion itself defines the function,
// only the prompt's lines above its function (imports, helpers) stay.
std::string judged_program(const CodeTask&, const std::string& completion);

}  // namespace trireme
