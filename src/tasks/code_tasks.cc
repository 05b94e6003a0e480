#include "tasks/code_tasks.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "tasks/text_lines.h"
#include "text/jsonl.h"

namespace trireme {
namespace {

bool is_identifier(std::string_view s) {
  if (s.empty() || (s[0] >= '0' && s[0] <= '9')) return false;
  for (char c : s)
    if (!(c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
      return false;
  return true;
}

// Where a line of `code` begins that defines the function at the outermost level; npos: nowhere.
size_t definition(std::string_view code, const std::string& name) {
  for (const std::string& head : {"def " + name + "(", "def " + name + " (", "async def " + name + "("}) {
    if (code.starts_with(head)) return 0;
    const size_t at = code.find("\n" + head);
    if (at != std::string_view::npos) return at + 1;
  }
  return std::string_view::npos;
}

// Closed blocks between fences of three backticks, without the fences and the language.
std::vector<std::string_view> fenced_blocks(std::string_view text) {
  std::vector<std::string_view> blocks;
  constexpr std::string_view kFence = "```";
  for (size_t at = 0; (at = text.find(kFence, at)) != std::string_view::npos;) {
    const size_t begin = text.find('\n', at);
    if (begin == std::string_view::npos) break;
    const size_t end = text.find(kFence, begin);
    if (end == std::string_view::npos) break;
    blocks.push_back(text.substr(begin + 1, end - begin - 1));
    at = end + kFence.size();
  }
  return blocks;
}

}  // namespace

std::vector<CodeTask> read_code_tasks(const fs::path& path) {
  std::vector<CodeTask> tasks;
  std::map<std::string, std::string> seen;
  each_line(read_text_or_gzip(path), path.string(), [&](std::string_view line, const std::string& where) {
    CodeTask t;
    t.id = json_text(line, "task_id", where);
    t.prompt = json_text(line, "prompt", where);
    t.entry_point = json_text(line, "entry_point", where);
    t.test = json_text(line, "test", where);
    t.solution = json_text(line, "canonical_solution", where);
    if (!is_identifier(t.entry_point))
      bad_request("{}: entry_point = {:?}: expected the name of a Python function", where, t.entry_point);
    if (const auto [old, added] = seen.emplace(t.id, where); !added)
      bad_request("{}: task_id = {:?}: repeats {}", where, t.id, old->second);
    tasks.push_back(std::move(t));
  });
  if (tasks.empty()) bad_request("{}: no tasks", path.string());
  return tasks;
}

std::vector<CodeSample> read_code_samples(const fs::path& path, const std::vector<CodeTask>& tasks) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < tasks.size(); i++) places[tasks[i].id] = i;
  std::vector<CodeSample> samples;
  each_line(read_text_or_gzip(path), path.string(), [&](std::string_view line, const std::string& where) {
    const std::string id = json_text(line, "task_id", where);
    const auto place = places.find(id);
    if (place == places.end()) bad_request("{}: task_id = {:?}: not in the file of tasks", where, id);
    samples.push_back({place->second, json_text(line, "completion", where)});
  });
  if (samples.empty()) bad_request("{}: no samples", path.string());
  return samples;
}

std::vector<std::string> code_stop_strings() {
  return {"\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```"};
}

std::string chat_request(const CodeTask& t) {
  return fmt::format(
      "Complete this Python function. Answer with the whole function in one code "
      "block.\n\n```python\n{}\n```",
      t.prompt);
}

std::string code_of_answer(std::string_view answer, const CodeTask& task) {
  const std::vector<std::string_view> blocks = fenced_blocks(answer);
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b)
    if (definition(*b, task.entry_point) != std::string_view::npos) return std::string(*b);
  return std::string(blocks.empty() ? answer : blocks.back());
}

std::string judged_program(const CodeTask& t, const std::string& completion) {
  std::string head = t.prompt;
  if (definition(completion, t.entry_point) != std::string_view::npos) {
    const size_t at = definition(t.prompt, t.entry_point);
    head = at == std::string_view::npos ? t.prompt + "\n" : t.prompt.substr(0, at);
  }
  return fmt::format("{}{}\n{}\ncheck({})\n", head, completion, t.test, t.entry_point);
}

}  // namespace trireme
