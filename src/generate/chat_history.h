// A conversation as the text of the next prompt, within a model's context.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace trireme {

// Turns are dropped from the beginning, a question with its answer, until the rest fits. The system message
// stays.
class ChatHistory {
 public:
  // Without a template turns are plain: "User: ...\nAssistant: ...".
  ChatHistory(const Tokenizer&, std::optional<ChatTemplate>, std::string system);

  // Ids of the conversation, ended by `question` and the beginning of the answer, at most `most` of them.
  // bad_request if the system message and the question alone are longer; the history is unchanged then.
  std::vector<int32_t> ask(const std::string& question, int64_t most);
  void answer(const std::string& text);  // to the last question
  void clear();                          // all but the system message

  // Strings that end an answer, in addition to the end-of-text token.
  std::vector<std::string> stops() const;
  int64_t dropped() const { return dropped_; }  // turns, so far
  bool has_template() const { return template_.has_value(); }

 private:
  struct Turn {
    std::string question, answer;
  };
  std::string rendered(size_t first) const;

  const Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string system_;
  std::vector<Turn> turns_;  // the last one has no answer yet between ask() and answer()
  int64_t dropped_ = 0;
};

}  // namespace trireme
