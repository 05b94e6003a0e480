// tokenize --chat: conversations into token shards with a loss mask.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace trireme::cli {

struct ChatRequest {
  std::vector<std::string> files;          // JSON Lines
  std::string out;                         // folder
  std::string tokenizer;                   // tokenizer.json
  std::string chat_template;               // file; "": the file in the tokenizer's folder
  std::optional<std::string> end_of_text;  // closes a pair of texts; none: the tokenizer's
  double hold_out = 0;                     // share of conversations for valid
  bool skip_bad_lines = false;
  bool report_on_stderr = false;
};
// Writes OUT/train and, if conversations are held out, OUT/valid, and the tokenizer's files next to them.
void tokenize_chat(const ChatRequest&);

}  // namespace trireme::cli
