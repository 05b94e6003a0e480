// Conversations as tokens with a loss mask: which tokens are targets.
#include "text/chat_tokens.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

const std::string kChatMl =
    "{% for m in messages %}<|s|>{{ m.role }}\n{{ m.content }}<|e|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}";

// A token per byte, and two that mark messages.
Tokenizer bytes_and_marks() {
  Tokenizer::Parts p;
  for (int b = 0; b < 256; b++) p.tokens.emplace_back(1, char(b));
  for (const char* mark : {"<|s|>", "<|e|>"}) {
    p.added.push_back({.content = mark, .id = int32_t(p.tokens.size())});
    p.tokens.emplace_back(mark);
  }
  return Tokenizer(p);
}
Conversation talk(const std::string& line) {
  return Conversation::parse(line, "t, line 1");
}
std::string targets_of(const ChatTokens& t, const Tokenizer& tokenizer) {
  std::string out;
  for (size_t i = 0; i < t.ids.size(); i++) {
    if (t.targets[i]) out += tokenizer.token(t.ids[i]);
    if (t.targets[i] && (i + 1 == t.ids.size() || !t.targets[i + 1])) out += "|";
  }
  return out;
}
std::string targets(const std::string& source, const std::string& line, int64_t* changed = nullptr) {
  const Tokenizer t = bytes_and_marks();
  const ChatTemplate chat = ChatTemplate::of(source, "t", {});
  const ChatTokens tokens = chat_tokens(t, &chat, talk(line), 257);
  EXPECT_EQ(tokens.ids.size(), tokens.targets.size());
  if (changed) *changed = tokens.changed;
  return targets_of(tokens, t);
}

const std::string kTwo =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bé"},
                     {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";

TEST(ChatTokens, TargetsAreWhatTheAssistantSays) {
  EXPECT_EQ(targets(kChatMl, kTwo), "bé<|e|>\n|d<|e|>\n|");
  EXPECT_EQ(
      targets("{% for m in messages %}[{% if m.role == 'assistant' %}{% generation %}{{ m.content }}]{% "
              "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
              kTwo),
      "bé]|d]|");
}

TEST(ChatTokens, ACompletionIsTheTarget) {
  EXPECT_EQ(
      targets(kChatMl, R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
       {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})"),
      "d<|e|>\n|");
  EXPECT_EQ(targets(kChatMl, R"({"prompt": "ab", "completion": "cd"})"), "cd<|e|>|");
  EXPECT_EQ(targets(kChatMl, R"({"prompt": "", "completion": "<|s|>"})"), "<|s|><|e|>|");
}

// The end of a completion that was cut is neither a target nor in the text.
TEST(ChatTokens, ACutCompletionHasNoEnd) {
  EXPECT_EQ(targets(kChatMl, R"({"prompt": "ab", "completion": "cd", "cut": true})"), "cd|");
  EXPECT_EQ(targets(kChatMl, R"({"prompt": "ab", "completion": "cd", "cut": false})"), "cd<|e|>|");
  const std::string line =
      R"({"prompt": [{"role": "user", "content": "a"}],
          "completion": [{"role": "assistant", "content": "d "}], "cut": true})";
  EXPECT_EQ(targets(kChatMl, line), "d |");
  EXPECT_EQ(
      targets("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim "
              "}}!{% endgeneration %}{% endif %}{% endfor %}.",
              line),
      "d |");
  const ChatTemplate chat = ChatTemplate::of(kChatMl, "t", {});
  EXPECT_EQ(chat_text(talk(line), &chat).text, "<|s|>user\na<|e|>\n<|s|>assistant\nd ");
  EXPECT_THROW(talk(R"({"prompt": "a", "completion": "b", "cut": 1})"), Error);
  EXPECT_THROW(talk(R"({"messages": [{"role": "user", "content": "a"}], "cut": true})"), Error);
}

TEST(ChatTokens, NamesTheByteOfAMalformedLine) {
  const auto fault = [](const std::string& line) -> std::string {
    try {
      talk(line);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(fault(R"({"prompt": "a", "completion": )"),
            "t, line 1: not a JSON object: the line ends before a value at byte 30");
  EXPECT_EQ(fault("[1]"), "t, line 1: not a JSON object: no { at byte 0");
  EXPECT_NE(fault(R"({"prompt": "a", "completion": "b", "n": NaN})").find("NaN"), std::string::npos);
}

// The template leaves the thoughts of all but the last message out.
TEST(ChatTokens, AMessageThatChangesIsNotATarget) {
  int64_t changed = 0;
  EXPECT_EQ(
      targets("{% for m in messages %}<|s|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}(hm){% "
              "endif "
              "%}{{ m.content }}<|e|>{% endfor %}{% if add_generation_prompt %}<|s|>assistant\n{% endif %}",
              kTwo, &changed),
      "(hm)d<|e|>|");
  EXPECT_EQ(changed, 1);
}

TEST(ChatTokens, ReadsToolsAndNamesFaults) {
  const Conversation c = talk(
      R"({"messages": [{"role": "user", "content": "a"}], "tools": "[{\"name\": \"f\"}]", "chat_template_kwargs": {"x": 1}})");
  EXPECT_EQ(c.input.tools.size(), 1u);
  EXPECT_EQ(c.input.variables["x"], 1);
  for (const char* line :
       {"[]", "{", R"({"messages": []})", R"({"messages": [1]})", R"({"prompt": "a"})",
        R"({"messages": [{"content": "a"}]})", R"({"messages": [{"role": "user"}], "tools": 3})"}) {
    try {
      talk(line);
      ADD_FAILURE() << line;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).substr(0, 9), "t, line 1") << line;
      EXPECT_EQ(e.fault, Fault::request);
    }
  }
}

}  // namespace
}  // namespace trireme
