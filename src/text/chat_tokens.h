// Conversations and prompt/completion pairs as tokens, with a mark for each token that is a target of the
// loss.
//
// Targets are what the assistant says. If the template has {% generation %} blocks, that is their output.
// Otherwise message i of the assistant begins where the rendering of messages 0 .. i-1 with the generation
// prompt ends to agree with the rendering of messages 0 .. i, and ends where the latter ends. A message whose
// rendering changes when messages follow it, so that the whole text does not begin with it, has no targets;
// such messages are counted. A token is a target if it overlaps a target's text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace trireme {

// One line of a chat file.
struct Conversation {
  ChatInput input;           // messages of a prompt and its completion end to end
  size_t prompt = 0;         // messages before it are context, also the assistant's
  std::string before, said;  // a pair of texts, which no template renders
  bool plain = false;        // a pair of texts
  bool cut = false;          // the completion was cut off: what would end it is not learned

  // A JSON object with "messages" (and "tools", "chat_template_kwargs"), or with "prompt" and "completion":
  // two texts, or two lists of messages. "cut": true may follow; the last message is then an assistant's
  // text. bad_request, beginning with `where`, for another line.
  static Conversation parse(std::string_view line, const std::string& where);
};

struct ChatText {
  std::string text;
  std::vector<jinja::Span> targets;  // bytes, in order
  int64_t changed = 0;  // messages of the assistant that are rendered otherwise when others follow
};
// `chat` may be null for a pair of texts.
ChatText chat_text(const Conversation&, const ChatTemplate* chat);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> targets;  // 1 for each id that is a target
  int64_t changed = 0;           // as in ChatText
};
// The ids of the text. A pair of texts is closed by the token end_of_text (-1: none), which is a target. A
// conversation that was cut has no such token, and no text of the template after its last message.
// bad_request if the tokens cannot be placed in the text: a normalizer changed it.
ChatTokens chat_tokens(const Tokenizer&, const ChatTemplate*, const Conversation&, int32_t end_of_text);

// Byte range of each token in the text, in order. If the post-processor of a byte-level tokenizer trims
// offsets, the range excludes the blanks at both ends, as in the `tokenizers` library.
std::vector<jinja::Span> token_places(const Tokenizer&, std::string_view text, std::span<const int32_t> ids);

}  // namespace trireme
