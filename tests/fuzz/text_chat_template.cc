// A chat template and a conversation: text before the first zero byte is the template. An accepted one
// renders within its bounds, twice alike, and no target ends before it begins.
#include "fuzz.h"
#include "text/chat_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string text(fuzz::text_of(data, size));
  const size_t zero = std::min(text.find('\0'), text.size());
  const std::string line =
      zero < text.size() ? text.substr(zero + 1) : R"({"messages": [{"role": "user", "content": "a"},
                                     {"role": "assistant", "content": "b"}], "tools": [{"name": "f"}]})";
  fuzz::accepts([&] {
    const ChatTemplate t = ChatTemplate::of(text.substr(0, zero), "fuzz.jinja", {{"bos_token", "<s>"}});
    Conversation c = Conversation::parse(line, "fuzz.jsonl, line 1");
    c.input.now = 0;
    const ChatText a = chat_text(c, &t), b = chat_text(c, &t);
    fuzz::expect(a.text == b.text && a.targets == b.targets, "two renderings differ");
    for (const jinja::Span& s : a.targets) fuzz::expect(s.begin <= s.end, "a target ends before it begins");
  });
  return 0;
}
