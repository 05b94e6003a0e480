#include "generate/chat_history.h"

#include "base/error.h"

namespace trireme {

ChatHistory::ChatHistory(const Tokenizer& tokenizer, std::optional<ChatTemplate> chat_template,
                         std::string system)
    : tokenizer_(tokenizer), template_(std::move(chat_template)), system_(std::move(system)) {}

// The conversation from turn `first` on, and the beginning of the answer to the last one.
std::string ChatHistory::rendered(size_t first) const {
  if (!template_) {
    std::string text = system_.empty() ? "" : system_ + "\n\n";
    for (size_t i = first; i < turns_.size(); i++) {
      text += "User: " + turns_[i].question + "\nAssistant:";
      if (i + 1 < turns_.size()) text += " " + turns_[i].answer + "\n";
    }
    return text;
  }
  ChatInput input;
  input.add_generation_prompt = true;
  if (!system_.empty()) input.messages.push_back({{"role", "system"}, {"content", system_}});
  for (size_t i = first; i < turns_.size(); i++) {
    input.messages.push_back({{"role", "user"}, {"content", turns_[i].question}});
    if (i + 1 < turns_.size())
      input.messages.push_back({{"role", "assistant"}, {"content", turns_[i].answer}});
  }
  return template_->render(input).text;
}

std::vector<int32_t> ChatHistory::ask(const std::string& question, int64_t most) {
  turns_.push_back({question, ""});
  for (size_t first = 0; first < turns_.size(); first++) {
    std::vector<int32_t> ids = tokenizer_.encode(rendered(first));
    if (int64_t(ids.size()) > most) continue;
    turns_.erase(turns_.begin(), turns_.begin() + int64_t(first));
    dropped_ += int64_t(first);
    return ids;
  }
  turns_.pop_back();
  bad_request("the message does not fit into the context: {} tokens are left for messages", most);
}

void ChatHistory::answer(const std::string& text) {
  require(!turns_.empty(), "an answer to no question");
  turns_.back().answer = text;
}

void ChatHistory::clear() {
  turns_.clear();
}

std::vector<std::string> ChatHistory::stops() const {
  return template_ ? std::vector<std::string>{} : std::vector<std::string>{"\nUser:"};
}

}  // namespace trireme
