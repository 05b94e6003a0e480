#include "generate/chat_history.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme {
namespace {

// A token per byte.
const Tokenizer& bytes() {
  static const Tokenizer one = [] {
    Tokenizer::Parts parts;
    for (int b = 0; b < 256; b++) parts.tokens.push_back(std::string(1, char(b)));
    return Tokenizer(std::move(parts));
  }();
  return one;
}

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt "
    "%}[assistant]{% endif %}";

std::string asked(ChatHistory& h, const std::string& question, int64_t most = 1000) {
  return bytes().decode(h.ask(question, most));
}

TEST(ChatHistory, RendersTheWholeConversation) {
  ChatHistory h(bytes(), ChatTemplate::of(kTemplate, "t", {}), "Be brief.");
  EXPECT_EQ(asked(h, "Hi"), "[system]Be brief.;[user]Hi;[assistant]");
  h.answer("Hello");
  EXPECT_EQ(asked(h, "Bye"), "[system]Be brief.;[user]Hi;[assistant]Hello;[user]Bye;[assistant]");
  EXPECT_TRUE(h.stops().empty());
  h.clear();
  EXPECT_EQ(asked(h, "Again"), "[system]Be brief.;[user]Again;[assistant]");
}

TEST(ChatHistory, PlainTurnsWithoutATemplate) {
  ChatHistory h(bytes(), {}, "");
  asked(h, "Hi");
  h.answer("Hello");
  EXPECT_EQ(asked(h, "Bye"), "User: Hi\nAssistant: Hello\nUser: Bye\nAssistant:");
  EXPECT_EQ(h.stops(), std::vector<std::string>{"\nUser:"});
}

TEST(ChatHistory, DropsTheOldestTurnsButNotTheSystemMessage) {
  ChatHistory h(bytes(), ChatTemplate::of(kTemplate, "t", {}), "S");
  for (const char* q : {"one", "two"}) {
    asked(h, q);
    h.answer("yes");
  }
  const std::string last = "[system]S;[user]two;[assistant]yes;[user]three;[assistant]";
  EXPECT_EQ(asked(h, "three", int64_t(last.size())), last);
  EXPECT_EQ(h.dropped(), 1);
  h.answer("ok");
  // Too long by itself: an error, and the conversation is as before.
  EXPECT_THROW(h.ask(std::string(100, 'x'), 60), Error);
  EXPECT_EQ(asked(h, "4"),
            "[system]S;[user]two;[assistant]yes;[user]three;[assistant]ok;[user]4;[assistant]");
}

}  // namespace
}  // namespace trireme
