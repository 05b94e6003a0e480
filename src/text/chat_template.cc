#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "base/json_depth.h"

namespace trireme {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr size_t kLongest = size_t(16) << 20;  // bytes of a configuration

bool is_there(const fs::path& file) {
  std::error_code none;
  return fs::is_regular_file(file, none);
}

Ordered read_config(const fs::path& file) {
  if (!is_there(file)) return Ordered::object();
  const std::string text = read_text(file);
  if (text.size() > kLongest) bad_request("{}: longer than {} bytes", file.string(), kLongest);
  if (json_depth(text) > kMostJsonDepth) bad_request("{}: nests too deeply", file.string());
  Ordered root = Ordered::parse(text, nullptr, false);
  if (!root.is_object()) bad_request("{}: not a JSON object", file.string());
  return root;
}

constexpr std::array kReasoning = {"reasoning_content", "thinking", "reasoning"};

// As transformers hands messages over: without keys that are null, and with reasoning under both names that
// templates read.
Ordered prepared(const Ordered& messages) {
  Ordered out = Ordered::array();
  for (const Ordered& message : messages) {
    Ordered kept = Ordered::object();
    for (const auto& [key, value] : message.items())
      if (!value.is_null()) kept[key] = value;
    const auto reasoning =
        std::find_if(kReasoning.begin(), kReasoning.end(), [&](const char* k) { return kept.contains(k); });
    if (reasoning != kReasoning.end()) {
      Ordered all = Ordered::object();
      all["thinking"] = kept[*reasoning];
      for (const auto& [key, value] : kept.items()) all[key] = value;
      all["reasoning_content"] = kept[*reasoning];
      kept = std::move(all);
    }
    out.push_back(std::move(kept));
  }
  return out;
}

}  // namespace

std::map<std::string, std::string> special_tokens(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const char* file : {kConfig, "special_tokens_map.json"}) {
    const Ordered root = read_config(folder / file);
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
      if (out.count(name) || !root.contains(name)) continue;
      const Ordered& token = root[name];
      if (token.is_string())
        out[name] = token.get<std::string>();
      else if (token.is_object() && token.contains("content") && token["content"].is_string())
        out[name] = token["content"].get<std::string>();
    }
  }
  return out;
}

void ChatTemplate::add(const std::string& name, const std::string& source) {
  jinja::Work work(name.empty() ? name_ : fmt::format("{} (template {:?})", name_, name));
  auto body = std::make_shared<const jinja::Body>(jinja::parse(source, work));
  const bool marks = jinja::has(*body, jinja::Stmt::Kind::generation);
  parsed_.push_back({name, std::move(body), marks});
}

ChatTemplate ChatTemplate::of(const std::string& source, const std::string& name,
                              std::map<std::string, std::string> special) {
  ChatTemplate t;
  t.name_ = name;
  t.special_ = std::move(special);
  t.add("", source);
  return t;
}

ChatTemplate ChatTemplate::load_file(const fs::path& file, const fs::path& folder) {
  return of(read_text(file), file.string(), special_tokens(folder));
}

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& folder) {
  if (is_there(folder / "chat_template.jinja")) return load_file(folder / "chat_template.jinja", folder);
  const Ordered config = read_config(folder / kConfig);
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  ChatTemplate t;
  t.name_ = fmt::format("{}, chat_template", (folder / kConfig).string());
  t.special_ = special_tokens(folder);
  if (found->is_string()) {
    t.add("", found->get<std::string>());
    return t;
  }
  if (!found->is_array()) bad_request("{}: neither a text nor a list of templates", t.name_);
  for (const Ordered& one : *found) {
    const bool sound = one.is_object() && one.contains("name") && one["name"].is_string() &&
                       one.contains("template") && one["template"].is_string();
    if (!sound) bad_request("{}: an entry without \"name\" and \"template\"", t.name_);
    t.add(one["name"].get<std::string>(), one["template"].get<std::string>());
  }
  if (t.parsed_.empty()) return {};
  return t;
}

ChatTemplate ChatTemplate::load(const fs::path& folder) {
  std::optional<ChatTemplate> t = find(folder);
  if (!t)
    bad_request("{}: no chat template: neither chat_template.jinja nor \"chat_template\" in {}",
                folder.string(), kConfig);
  return *std::move(t);
}

const ChatTemplate::Parsed& ChatTemplate::chosen(const ChatInput& input) const {
  auto called = [&](std::string_view name) {
    return std::find_if(parsed_.begin(), parsed_.end(), [&](const Parsed& p) { return p.name == name; });
  };
  auto at = input.tools.is_null() ? parsed_.end() : called("tool_use");
  if (at == parsed_.end()) at = called("default");
  if (at == parsed_.end() && parsed_.size() > 1)
    bad_request("{}: {} templates, and none of them is called \"default\"", name_, parsed_.size());
  return at == parsed_.end() ? parsed_.front() : *at;
}

bool ChatTemplate::marks_generated(const ChatInput& input) const {
  return chosen(input).marks;
}

const std::string& ChatTemplate::special(const std::string& name) const {
  static const std::string none;
  const auto at = special_.find(name);
  return at == special_.end() ? none : at->second;
}

ChatTemplate::Rendered ChatTemplate::render(const ChatInput& input) const {
  jinja::Work work(name_);
  const bool objects =
      input.messages.is_array() && std::all_of(input.messages.begin(), input.messages.end(),
                                               [](const Ordered& m) { return m.is_object(); });
  if (!objects || input.messages.empty())
    bad_request("a conversation is a list of messages, objects with \"role\" and \"content\"; at least one");
  jinja::Entries names;
  auto set = [&](const std::string& name, jinja::Value v) {
    for (auto& [known, value] : names)
      if (known == name) {
        value = std::move(v);
        return;
      }
    names.emplace_back(name, std::move(v));
  };
  for (const auto& [name, text] : special_) set(name, text);
  for (const auto& [name, value] : input.variables.items()) set(name, jinja::Value::from_json(value, work));
  set("messages", jinja::Value::from_json(prepared(input.messages), work));
  set("tools", jinja::Value::from_json(input.tools, work));
  set("documents", jinja::None());
  set("add_generation_prompt", input.add_generation_prompt);
  return jinja::render(*chosen(input).body, std::move(names),
                       input.now < 0 ? int64_t(std::time(nullptr)) : input.now, work);
}

}  // namespace trireme
