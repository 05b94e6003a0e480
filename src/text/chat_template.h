// The chat template of a model: conversations as the text that the model was trained on.
//
// A template is a program in Jinja, from a model's folder. text/jinja runs the subset of the language that
// such templates use, with the settings of the transformers library, and names what it does not support.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/jinja/interpreter.h"

namespace trireme {

// Inputs of one rendering.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // objects with "role" and "content"
  nlohmann::ordered_json tools = nullptr;                             // JSON schemas of functions, or null
  bool add_generation_prompt = false;  // ends with the beginning of the assistant's next message
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  // more names for the template
  int64_t now = -1;  // seconds since 1970, for templates that print the date; below 0: the clock's
};

class ChatTemplate {
 public:
  using Rendered = jinja::Rendered;  // text, and the bytes of it that {% generation %} blocks wrote

  // From a model's folder: chat_template.jinja, else "chat_template" of tokenizer_config.json (a text, or a
  // list of named ones), with the special tokens of tokenizer_config.json and special_tokens_map.json.
  // bad_request if the folder has none, or the template uses a construct that is not supported.
  static ChatTemplate load(const fs::path& folder);
  // The same; nothing if the folder has none.
  static std::optional<ChatTemplate> find(const fs::path& folder);
  // From a file with the template alone, and a folder with the special tokens.
  static ChatTemplate load_file(const fs::path& file, const fs::path& folder);
  // `name` is for messages. special: "bos_token" and so on to their texts.
  static ChatTemplate of(const std::string& source, const std::string& name,
                         std::map<std::string, std::string> special);

  // bad_request names file and line of the template if it rejects the conversation (raise_exception) or
  // goes beyond a bound of text/jinja/work.h. Any thread.
  Rendered render(const ChatInput&) const;
  // Whether {% generation %} blocks mark what the assistant says.
  bool marks_generated(const ChatInput&) const;

  // Text of a special token such as "eos_token"; "": none.
  const std::string& special(const std::string& name) const;
  const std::string& name() const { return name_; }

 private:
  struct Parsed {
    std::string name;  // in a list of templates; "" alone
    std::shared_ptr<const jinja::Body> body;
    bool marks = false;
  };
  void add(const std::string& name, const std::string& source);
  // The one called "tool_use" if there are tools and it exists, else "default".
  const Parsed& chosen(const ChatInput&) const;

  std::string name_;
  std::vector<Parsed> parsed_;
  std::map<std::string, std::string> special_;
};

// Reads the texts of special tokens ("bos_token", "eos_token", ...) from the configuration of a tokenizer in
// a folder. Empty if there is none.
std::map<std::string, std::string> special_tokens(const fs::path& folder);

}  // namespace trireme
