#include "tasks/yaml_json.h"

#include <yaml.h>

#include <charconv>

#include "base/error.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

constexpr int kMostYamlDepth = 64;
constexpr int64_t kMostYamlNodes = 2'000'000;  // aliases of aliases grow without bound

bool one_of(const std::string& s, std::initializer_list<const char*> words) {
  for (const char* w : words)
    if (s == w) return true;
  return false;
}

// YAML 1.1, as PyYAML resolves plain scalars. Floats take a dot.
ordered_json plain_scalar(const std::string& s) {
  if (one_of(s, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (one_of(s, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (one_of(s, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) return false;
  const char* begin = s.data() + (s[0] == '+' ? 1 : 0);
  const char* end = s.data() + s.size();
  int64_t i = 0;
  if (const auto r = std::from_chars(begin, end, i); r.ec == std::errc() && r.ptr == end) return i;
  double d = 0;
  if (s.find('.') != std::string::npos && s.find_first_not_of("+-.0123456789eE") == std::string::npos)
    if (const auto r = std::from_chars(begin, end, d); r.ec == std::errc() && r.ptr == end) return d;
  return s;
}

// One document of a file, which libyaml has parsed: the parser of PyYAML's fast loader.
class YamlReader {
 public:
  YamlReader(const std::string& text, const std::string& name) : name_(name) {
    if (!yaml_parser_initialize(&parser_)) run_failed("{}: no memory to parse it", name);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    if (yaml_parser_load(&parser_, &document_)) return;
    const std::string why = parser_.problem ? parser_.problem : "unknown";
    const size_t line = parser_.problem_mark.line + 1;
    yaml_parser_delete(&parser_);
    bad_request("{}, line {}: not YAML: {}", name, line, why);
  }
  YamlReader(const YamlReader&) = delete;
  ~YamlReader() {
    yaml_document_delete(&document_);
    yaml_parser_delete(&parser_);
  }

  ordered_json whole() { return value(yaml_document_get_root_node(&document_), 0); }

 private:
  ordered_json value(const yaml_node_t* n, int depth) {
    if (n == nullptr) return nullptr;  // an empty file
    // Aliases make a node appear several times, or within itself.
    if (depth > kMostYamlDepth || ++nodes_ > kMostYamlNodes) fail(*n, "nested too deeply, or too large");
    const std::string tag = reinterpret_cast<const char*>(n->tag);
    const std::string text = n->type == YAML_SCALAR_NODE ? scalar(*n) : "";
    if (tag.size() > 1 && tag[0] == '!') return {{"!tag", tag + " " + text}};
    if (n->type == YAML_SCALAR_NODE)
      return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && tag == YAML_STR_TAG ? plain_scalar(text)
                                                                                    : ordered_json(text);
    if (n->type == YAML_SEQUENCE_NODE) {
      ordered_json list = ordered_json::array();
      for (const yaml_node_item_t* i = n->data.sequence.items.start; i != n->data.sequence.items.top; i++)
        list.push_back(value(yaml_document_get_node(&document_, *i), depth + 1));
      return list;
    }
    ordered_json map = ordered_json::object();
    for (const yaml_node_pair_t* p = n->data.mapping.pairs.start; p != n->data.mapping.pairs.top; p++) {
      const yaml_node_t* key = yaml_document_get_node(&document_, p->key);
      if (key->type != YAML_SCALAR_NODE) fail(*key, "a key that is not a text");
      map[scalar(*key)] = value(yaml_document_get_node(&document_, p->value), depth + 1);
    }
    return map;
  }
  static std::string scalar(const yaml_node_t& n) {
    return {reinterpret_cast<const char*>(n.data.scalar.value), n.data.scalar.length};
  }
  [[noreturn]] void fail(const yaml_node_t& n, std::string_view why) const {
    bad_request("{}, line {}: {}", name_, n.start_mark.line + 1, why);
  }

  std::string name_;
  yaml_parser_t parser_{};
  yaml_document_t document_{};
  int64_t nodes_ = 0;
};

ordered_json with_includes(const fs::path& file, int depth) {
  ordered_json own = parse_yaml(read_text(file), file.string());
  if (!own.is_object()) bad_request("{}: expected a map of keys", file.string());
  const auto include = own.find("include");
  if (include == own.end()) return own;
  if (depth > 8) bad_request("{}: include = {}: files include each other", file.string(), include->dump());
  ordered_json all = ordered_json::object();
  for (const ordered_json& name : include->is_array() ? *include : ordered_json::array({*include})) {
    if (!name.is_string()) bad_request("{}: include = {}: expected a file", file.string(), name.dump());
    all.update(with_includes(file.parent_path() / name.get<std::string>(), depth + 1));
  }
  own.erase("include");
  all.update(own);
  return all;
}

}  // namespace

ordered_json parse_yaml(const std::string& text, const std::string& name) {
  return YamlReader(text, name).whole();
}

ordered_json read_yaml(const fs::path& file) {
  return with_includes(file, 0);
}

}  // namespace trireme
