#include "train/choices.h"

#include <algorithm>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "text/json_line.h"

namespace trireme {
namespace {

using nlohmann::json;

// A value as a message may quote it: short printable ASCII, whatever is in the file. Lists and objects are
// only named: nested deeply enough, printing one would overflow the stack.
std::string quoted(const json& j) {
  if (j.is_array()) return fmt::format("a list of {}", j.size());
  if (j.is_object()) return "an object";
  std::string s = j.dump(-1, ' ', /*ensure_ascii=*/true);
  if (s.size() > 40) s = s.substr(0, 37) + "...";
  return s;
}

class Line {
 public:
  Line(std::string_view text, std::string_view file, int64_t number) : file_(file), number_(number) {
    value_ = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    if (value_.is_object()) return;
    // Why not, by the reader of training data, which also takes what Python's json module writes.
    const JsonLine read = read_json_line(text, "prompt");
    if (value_.is_discarded() && read.error.empty())
      fail("NaN, Infinity, a lone surrogate or a number too long; JSON has none of these");
    fail("not a JSON object with \"prompt\", \"choices\" and \"answer\"{}{}", read.error.empty() ? "" : ": ",
         read.error);
  }

  ChoiceQuestion question() const {
    ChoiceQuestion q;
    q.line = number_;
    const json& prompt = at("prompt");
    if (!prompt.is_string()) fail("\"prompt\" is {}, but must be a string", quoted(prompt));
    q.prompt = prompt.get<std::string>();
    const json& choices = at("choices");
    if (!choices.is_array() || choices.size() < 2)
      fail("\"choices\" is {}, but must be a list of at least two strings", quoted(choices));
    for (const json& c : choices) {
      if (!c.is_string() || c.get_ref<const std::string&>().empty())
        fail("choice {} is {}, but must be a string that is not empty", q.choices.size(), quoted(c));
      q.choices.push_back(c.get<std::string>());
    }
    q.answer = answer(int64_t(q.choices.size()));
    return q;
  }

 private:
  template <class... A>
  [[noreturn]] void fail(fmt::format_string<A...> f, A&&... a) const {
    bad_request("{}, line {}: {}", file_, number_, fmt::format(f, std::forward<A>(a)...));
  }
  const json& at(const char* key) const {
    auto it = value_.find(key);
    if (it == value_.end()) fail("no key \"{}\"", key);
    return *it;
  }
  int64_t answer(int64_t n) const {
    const json& j = at("answer");
    int64_t i = -1;
    if (j.is_number_unsigned()) {
      i = int64_t(std::min<uint64_t>(j.get<uint64_t>(), uint64_t(n)));
    } else if (j.is_string()) {
      const auto& s = j.get_ref<const std::string&>();
      if (s.size() == 1 && s[0] >= 'A' && s[0] <= 'Z') i = s[0] - 'A';
      if (s.size() == 1 && s[0] >= 'a' && s[0] <= 'z') i = s[0] - 'a';
    }
    if (i < 0 || i >= n)
      fail("\"answer\" is {}, but must be one of the {} choices: 0 to {}, or \"A\" to \"{}\"", quoted(j), n,
           n - 1, char('A' + std::min<int64_t>(n - 1, 25)));
    return i;
  }

  std::string_view file_;
  int64_t number_;
  json value_;
};

}  // namespace

std::vector<ChoiceQuestion> parse_choices(std::string_view jsonl, std::string_view file) {
  std::vector<ChoiceQuestion> questions;
  int64_t number = 1;
  for (size_t at = 0; at < jsonl.size(); number++) {
    size_t end = std::min(jsonl.find('\n', at), jsonl.size());
    std::string_view line = jsonl.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    questions.push_back(Line(line, file, number).question());
  }
  if (questions.empty()) bad_request("{} holds no question: write a JSON object a line", file);
  return questions;
}

std::vector<ChoiceQuestion> read_choices(const fs::path& path) {
  const std::string text = read_text(path);
  refuse_marked(path, text);
  return parse_choices(text, path.string());
}

ScoredText scored_text(const Tokenizer& tokenizer, const std::string& prompt, const std::string& choice) {
  const std::string_view before_blanks =
      std::string_view(prompt).substr(0, prompt.find_last_not_of(" \t\n\r\v\f") + 1);
  ScoredText t;
  t.tokens = tokenizer.encode(prompt + choice);
  auto all = int64_t(t.tokens.size());
  int64_t before = before_blanks.empty() ? 0 : int64_t(tokenizer.encode(before_blanks).size());
  t.scored = std::clamp<int64_t>(all - before, 1, all);
  if (t.scored == all) t.tokens.insert(t.tokens.begin(), tokenizer.end_of_text());
  return t;
}

}  // namespace trireme
