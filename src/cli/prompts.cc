#include "cli/prompts.h"

#include "base/json.h"
#include "text/jsonl.h"

namespace trireme::cli {

std::vector<std::string> read_prompts(const fs::path& path) {
  std::vector<std::string> prompts;
  if (is_json_lines(path) || looks_like_json_lines(path, "prompt")) {
    JsonLines lines(path, "prompt");
    for (int64_t i = 0; i < lines.documents(); i++) prompts.push_back(lines.read(i));
  } else {
    std::string text = read_text(path);
    for (size_t at = 0; at < text.size();) {
      size_t end = std::min(text.find('\n', at), text.size());
      std::string line = text.substr(at, end - at);
      at = end + 1;
      if (line.ends_with('\r')) line.pop_back();
      if (line.find_first_not_of(" \t") != std::string::npos) prompts.push_back(std::move(line));
    }
  }
  if (prompts.empty())
    bad_request(
        "{} holds no prompt: write one a line, or JSON lines with a \"prompt\" in a file named .jsonl",
        path.string());
  return prompts;
}

Prompts encode_prompts(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  Prompts prompts;
  for (const std::string& text : texts) {
    prompts.push_back(tokenizer.encode(text));
    if (!prompts.back().empty()) continue;
    auto start = tokenizer.find_end_of_text();
    if (!start)
      bad_request("prompt {} is empty and the tokenizer has no {} to start from", prompts.size(), kEndOfText);
    prompts.back() = {*start};
  }
  return prompts;
}

std::string json_line(size_t index, const std::string& prompt, const std::string& text, const Generated& g) {
  nlohmann::ordered_json j{{"index", index},
                           {"prompt", prompt},
                           {"text", text},
                           {"tokens", g.tokens.size()},
                           {"finish", name_of(g.finish)}};
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trireme::cli
