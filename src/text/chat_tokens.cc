#include "text/chat_tokens.h"

#include <algorithm>

#include "base/json_depth.h"
#include "text/jinja/characters.h"
#include "text/json_line.h"
#include "text/normal_form.h"

namespace trireme {
namespace {

using Ordered = nlohmann::ordered_json;
using jinja::Span;

bool is_messages(const Ordered& j) {
  return j.is_array() && !j.empty() && std::all_of(j.begin(), j.end(), [](const Ordered& m) {
           return m.is_object() && m.contains("role") && m["role"].is_string();
         });
}

bool ends_with_answer(const Ordered& messages) {
  const Ordered& last = messages.back();
  return last["role"] == "assistant" && last.contains("content") && last["content"].is_string();
}

size_t common_prefix(std::string_view a, std::string_view b) {
  size_t n = size_t(
      std::mismatch(a.begin(), a.begin() + long(std::min(a.size(), b.size())), b.begin()).first - a.begin());
  while (n > 0 && n < b.size() && (uint8_t(b[n]) & 0xC0) == 0x80) n--;  // not inside a character
  return n;
}

// The messages before `end`, rendered alone.
std::string part(const Conversation& c, const ChatTemplate& chat, size_t end, bool generation_prompt) {
  ChatInput input = c.input;
  input.messages = Ordered::array();
  for (size_t i = 0; i < end; i++) input.messages.push_back(c.input.messages[i]);
  input.add_generation_prompt = generation_prompt;
  return chat.render(input).text;
}

void find_targets(const Conversation& c, const ChatTemplate& chat, ChatText& out) {
  for (size_t i = std::max<size_t>(c.prompt, 1); i < c.input.messages.size(); i++) {
    if (c.input.messages[i]["role"] != "assistant") continue;
    const bool is_last = i + 1 == c.input.messages.size();
    const std::string before = part(c, chat, i, true),
                      with = is_last ? out.text : part(c, chat, i + 1, false);
    const size_t begin = common_prefix(before, with);
    if (!std::string_view(out.text).starts_with(with) || begin == with.size()) {
      out.changed++;
      continue;
    }
    out.targets.push_back({begin, with.size()});
  }
}

bool has_word(std::string_view json, std::string_view word) {
  return json.find(word) != std::string_view::npos;
}

size_t blanks_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && jinja::blank_at(text, end)) end += jinja::blank_at(text, end);
  return end - at;
}

void trim(std::string_view text, Span& s) {
  const std::string_view inside = text.substr(s.begin, s.end - s.begin);
  const size_t left = inside.size() - jinja::strip(inside, nullptr, true, false).size();
  s.begin += left;
  s.end = s.begin + jinja::strip(inside, nullptr, true, true).size();
}

}  // namespace

Conversation Conversation::parse(std::string_view line, const std::string& where) {
  if (json_depth(line) > kMostJsonDepth) bad_request("{}: nests deeper than {}", where, kMostJsonDepth);
  const Ordered j = Ordered::parse(line, nullptr, false);
  if (!j.is_object()) bad_request("{}: not a JSON object: {}", where, json_fault(line));
  Conversation c;
  const bool messages = j.contains("messages"), pair = j.contains("prompt") && j.contains("completion");
  if (messages && !is_messages(j["messages"]))
    bad_request("{}: \"messages\" is not a list of objects with \"role\"; at least one", where);
  if (messages) {
    c.input.messages = j["messages"];
  } else if (pair && j["prompt"].is_string() && j["completion"].is_string()) {
    c.plain = true;
    c.before = j["prompt"].get<std::string>();
    c.said = j["completion"].get<std::string>();
  } else if (pair && is_messages(j["prompt"]) && is_messages(j["completion"])) {
    c.prompt = j["prompt"].size();
    c.input.messages = j["prompt"];
    for (const Ordered& m : j["completion"]) c.input.messages.push_back(m);
  } else {
    bad_request(
        "{}: neither \"messages\", nor \"prompt\" and \"completion\" that are two texts or two lists of "
        "messages",
        where);
  }
  if (const auto cut = j.find("cut"); cut != j.end()) {
    if (!cut->is_boolean()) bad_request("{}: \"cut\" = {}: expected true or false", where, cut->dump());
    c.cut = *cut;
    if (c.cut && !c.plain && !ends_with_answer(c.input.messages))
      bad_request("{}: \"cut\" = true: the last message is not a text of the assistant", where);
  }
  if (const auto tools = j.find("tools"); tools != j.end()) {
    // Data sets keep tools as JSON inside of a text, since their columns have one type.
    const std::string text = tools->is_string() ? tools->get<std::string>() : "";
    if (json_depth(text) > kMostJsonDepth) bad_request("{}: \"tools\" nests too deeply", where);
    c.input.tools = tools->is_string() && !text.empty() ? Ordered::parse(text, nullptr, false)
                    : tools->is_string()                ? Ordered()
                                                        : *tools;
    if (!c.input.tools.is_null() && !c.input.tools.is_array())
      bad_request("{}: \"tools\" is not a list of functions", where);
  }
  if (const auto more = j.find("chat_template_kwargs"); more != j.end() && !more->is_null()) {
    if (!more->is_object()) bad_request("{}: \"chat_template_kwargs\" is not an object", where);
    c.input.variables = *more;
  }
  return c;
}

namespace {

// The text up to the end of the last message, without what the template writes after it. A mark at that end
// shows where it is in the rendering.
ChatText text_of_cut(const Conversation& c, const ChatTemplate& chat) {
  constexpr std::string_view kMark =
      "\x01"
      "cut here"
      "\x01";
  Conversation marked = c;
  marked.cut = false;
  Ordered& content = marked.input.messages.back()["content"];
  content = content.get<std::string>() + std::string(kMark);
  ChatText out = chat_text(marked, &chat);
  const size_t end = out.text.rfind(kMark);
  if (end == std::string::npos)
    bad_request("\"cut\" = true: {} does not write the last message unchanged", chat.name());
  out.text.resize(end);
  for (Span& s : out.targets) s = {std::min(s.begin, end), std::min(s.end, end)};
  std::erase_if(out.targets, [](const Span& s) { return s.begin == s.end; });
  return out;
}

}  // namespace

ChatText chat_text(const Conversation& c, const ChatTemplate* chat) {
  ChatText out;
  if (c.plain) {
    out.text = c.before + c.said;
    if (!c.said.empty()) out.targets = {{c.before.size(), out.text.size()}};
    return out;
  }
  require(chat, "a conversation wants a chat template");
  if (c.cut) return text_of_cut(c, *chat);
  ChatTemplate::Rendered r = chat->render(c.input);
  out.text = std::move(r.text);
  if (!chat->marks_generated(c.input)) {
    find_targets(c, *chat, out);
    return out;
  }
  const size_t prompt = c.prompt > 0 ? common_prefix(part(c, *chat, c.prompt, true), out.text) : 0;
  for (Span s : r.generated)
    if (s.end > prompt) out.targets.push_back({std::max(s.begin, prompt), s.end});
  return out;
}

std::vector<Span> token_places(const Tokenizer& t, std::string_view text, std::span<const int32_t> ids) {
  const bool trims = t.pipeline().byte_level && has_word(t.pipeline().post_processor_json, "\"ByteLevel\"") &&
                     has_word(t.pipeline().post_processor_json, "\"trim_offsets\":true");
  std::vector<bool> added(size_t(t.vocab_size()), false);
  for (const AddedToken& a : t.added()) added[size_t(a.id)] = true;
  std::vector<Span> out;
  size_t at = 0;
  for (int32_t id : ids) {
    std::string_view token = t.token(id);
    size_t blanks = 0;
    if (!text.substr(at).starts_with(token)) {
      blanks = blanks_at(text, at);  // that an added token took with it
      if (!text.substr(at + blanks).starts_with(token)) blanks = 0;
    }
    // A space that the tokenizer puts before a text.
    if (blanks == 0 && !text.substr(at).starts_with(token) && token.starts_with(' ')) token.remove_prefix(1);
    if (!text.substr(at + blanks).starts_with(token))
      bad_request(
          "token {} ({:?}) is not at byte {} of the text: the tokenizer's normalizer changes this text, so "
          "its loss mask is not known",
          id, t.token(id), at);
    Span s{at + blanks, at + blanks + token.size()};
    at = s.end;
    if (trims && !added[size_t(id)]) trim(text, s);
    out.push_back(s);
  }
  if (at + blanks_at(text, at) != text.size())
    bad_request("the tokens end at byte {} of a text of {}", at, text.size());
  return out;
}

ChatTokens chat_tokens(const Tokenizer& t, const ChatTemplate* chat, const Conversation& c,
                       int32_t end_of_text) {
  ChatText text = chat_text(c, chat);
  ChatTokens out{.changed = text.changed};
  out.ids = t.encode(text.text, Specials::recognise);
  std::string composed;
  // Composition is the one normalization that moves bytes and leaves texts what they are.
  if (has_word(t.pipeline().normalizer_json, "\"NFC\"") && !surely_nfc(text.text)) {
    append_nfc(composed, text.text);
    for (Span& s : text.targets)
      for (size_t* place : {&s.begin, &s.end}) {
        std::string before;
        append_nfc(before, std::string_view(text.text).substr(0, *place));
        *place = before.size();
      }
    text.text = composed;
  }
  const std::vector<Span> places = token_places(t, text.text, out.ids);
  out.targets.assign(out.ids.size(), 0);
  size_t span = 0;
  for (size_t i = 0; i < places.size(); i++) {
    while (span < text.targets.size() && places[i].begin >= text.targets[span].end) span++;
    if (span == text.targets.size()) break;
    out.targets[i] = places[i].end > text.targets[span].begin;
  }
  if (c.plain && !c.cut && end_of_text >= 0) {
    out.ids.push_back(end_of_text);
    out.targets.push_back(1);
  }
  return out;
}

}  // namespace trireme
