#include "spec/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/error.h"

// toml++ 3.3 asserts what some texts break (a date's T before no digit); without assertions it would run into
// undefined behaviour there. Here a broken one means what it is: the text is not TOML.
namespace trireme {
namespace {
struct BrokenAssertion {};
[[noreturn]] void broken_assertion() {
  throw BrokenAssertion();
}
}  // namespace
}  // namespace trireme
#undef NDEBUG
#define TOML_ASSERT(ok) ((ok) ? void(0) : ::trireme::broken_assertion())
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

namespace trireme {
namespace {

// Far above any run file. The count of dots bounds how deep dotted keys nest, since toml++ frees tables
// recursively.
constexpr size_t kMaxDots = 4096;
// Of all entries' keys together: each repeats its table's, so that a long key of many tables would take the
// square of the file's size.
constexpr size_t kMostKeyBytes = size_t(32) << 20;

// toml++ 3.3 has no answer to whether U+00A1 to U+0499, and some others, are spaces: it runs into undefined
// behaviour wherever it asks. So it never sees a byte beyond ASCII: each is parsed as the private code point
// U+10FF00 + byte, and becomes itself again in keys, strings and messages.
constexpr std::string_view kHidden = "\xf4\x8f";
std::string hide_unicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    auto u = static_cast<unsigned char>(c);
    if (u < 0x80)
      out += c;
    else
      out += kHidden, out += char(0xbc | u >> 6), out += char(0x80 | (u & 0x3f));
  }
  return out;
}
std::string unhide(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    if (text.substr(i, 2) == kHidden && i + 3 < text.size())
      out += char((text[i + 2] & 3) << 6 | (text[i + 3] & 0x3f)), i += 3;
    else
      out += text[i];
  }
  return out;
}

// Bytes of the character that text begins with (the Unicode standard's table 3-7); 0 if it is none.
size_t utf8_length(std::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  auto tail = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned a = byte(0), b = byte(1);
  if (a < 0x80) return 1;
  if (a >= 0xc2 && a <= 0xdf) return tail(1) ? 2 : 0;
  if (a >= 0xe0 && a <= 0xef)
    return tail(1) && tail(2) && !(a == 0xe0 && b < 0xa0) && !(a == 0xed && b > 0x9f) ? 3 : 0;
  if (a >= 0xf0 && a <= 0xf4)
    return tail(1) && tail(2) && tail(3) && !(a == 0xf0 && b < 0x90) && !(a == 0xf4 && b > 0x8f) ? 4 : 0;
  return 0;
}

// The line of the first bytes that toml++ may not see: no UTF-8, or an escape of a code point that hides a
// byte. 0 if there are none.
int line_of_unreadable(std::string_view text) {
  int line = 1;
  for (size_t i = 0, n = 1; i < text.size(); i += n) {
    n = utf8_length(text.substr(i));
    std::string_view e = text.substr(i, 8);
    bool hiding = e.substr(0, 6) == "\\U0010" &&
                  (e.substr(6) == "ff" || e.substr(6) == "FF" || e.substr(6) == "fF" || e.substr(6) == "Ff");
    if (n == 0 || hiding) return line;
    line += text[i] == '\n';
  }
  return 0;
}

int line_of(const toml::node& n) {
  return int(n.source().begin.line);
}

std::vector<double> numbers_of(const toml::array& a) {
  std::vector<double> numbers;
  for (const toml::node& x : a)
    if (auto v = x.is_number() ? x.value<double>() : std::nullopt) numbers.push_back(*v);
  return numbers;
}

// Empty unless each element is a list of numbers.
TomlLists lists_of(const toml::array& a) {
  TomlLists lists;
  for (const toml::node& x : a) {
    const toml::array* list = x.as_array();
    if (!list) return {};
    lists.push_back(numbers_of(*list));
    if (lists.back().size() != list->size()) return {};
  }
  return lists;
}

TomlEntry entry_of(std::string key, const toml::node& n) {
  TomlEntry e{.key = std::move(key), .value = TomlOther{}, .line = line_of(n), .text = {}};
  if (auto* s = n.as_string()) {
    e.value = unhide(s->get());
  } else if (auto* b = n.as_boolean()) {
    e.value = b->get();
  } else if (auto* i = n.as_integer()) {
    e.value = i->get();
  } else if (auto* d = n.as_floating_point()) {
    e.value = d->get();
  } else if (auto* a = n.as_array()) {
    std::vector<double> numbers = numbers_of(*a);
    TomlLists lists = lists_of(*a);
    std::vector<std::string> strings;
    for (const toml::node& x : *a)
      if (auto* s = x.as_string()) strings.push_back(unhide(s->get()));
    if (numbers.size() == a->size())
      e.value = std::move(numbers);
    else if (strings.size() == a->size())
      e.value = std::move(strings);
    else if (!lists.empty())
      e.value = std::move(lists);
    else
      e.value = TomlOther{a->is_array_of_tables() ? "a list of tables"
                                                  : "a list of other things than numbers or strings"};
  } else {
    e.value = TomlOther{n.is_date_time() || n.is_date() ? "a date" : "a time"};
  }
  return e;
}

class Flattener {
 public:
  explicit Flattener(std::string_view file) : file_(file) {}
  std::vector<TomlEntry> out;

  void add(TomlEntry e) {
    key_bytes_ += e.key.size();
    if (key_bytes_ > kMostKeyBytes)
      bad_request("{}: too large for a spec: its keys, each with its tables' names, take more than {} bytes",
                  file_, kMostKeyBytes);
    out.push_back(std::move(e));
  }
  void flatten(const toml::table& t, const std::string& prefix) {
    for (auto&& [k, node] : t) {
      std::string key = prefix.empty() ? unhide(k.str()) : prefix + "." + unhide(k.str());
      if (const toml::table* sub = node.as_table()) {
        add({.key = key, .value = TomlTable{}, .line = line_of(node), .text = {}});
        flatten(*sub, key);
      } else if (const toml::array* list = node.as_array(); list && list->is_array_of_tables()) {
        // Of a list of [[key]] toml++ knows no line; its first table's stands for it.
        add({.key = key, .value = TomlTables{list->size()}, .line = line_of(list->front()), .text = {}});
        for (size_t i = 0; i < list->size(); i++) {
          const std::string one = fmt::format("{}[{}]", key, i + 1);
          add({.key = one, .value = TomlTable{}, .line = line_of((*list)[i]), .text = {}});
          flatten(*(*list)[i].as_table(), one);
        }
      } else {
        add(entry_of(std::move(key), node));
      }
    }
  }

 private:
  std::string_view file_;
  size_t key_bytes_ = 0;
};

bool plain_key_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}

std::string escaped(std::string_view s, size_t limit) {
  std::string out;
  for (char c : s.substr(0, limit)) {
    auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (u < 0x20 || u >= 0x7f)
      out += fmt::format("\\x{:02x}", u);
    else
      out += c;
  }
  if (s.size() > limit) out += "...";
  return out;
}

std::string one_line(std::string_view s, size_t limit) {
  std::string out;
  for (char c : s.substr(0, limit)) {
    auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u >= 0x7f)
      out += fmt::format("\\x{:02x}", u);
    else
      out += c;
  }
  return out;
}

// A table, or what is wrong and where.
struct Parsed {
  toml::table table;
  std::string wrong;
  int line = 0;
};
Parsed parse(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the mark that some editors write
  if (int line = line_of_unreadable(text)) return {.table = {}, .wrong = "not a text in UTF-8", .line = line};
  try {
    return {.table = toml::parse(hide_unicode(text)), .wrong = "", .line = 0};
  } catch (const toml::parse_error& e) {
    std::string wrong = one_line(unhide(e.description()), 200);  // it escapes what it quotes itself
    if (wrong.find("value type") != std::string::npos)
      wrong += "; text stands in quotes, as in key = \"auto\"";
    return {.table = {}, .wrong = wrong, .line = int(e.source().begin.line)};
  } catch (const BrokenAssertion&) {
    return {.table = {},
            .wrong = "a value somewhere in it breaks off, such as a date before its time",
            .line = 1};
  }
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

}  // namespace

std::vector<TomlEntry> parse_toml(std::string_view text, std::string_view file) {
  if (text.size() > kMostTomlBytes || size_t(std::count(text.begin(), text.end(), '.')) > kMaxDots)
    bad_request("{}: too large for a spec: {} bytes; at most {} bytes and {} dots", file, text.size(),
                kMostTomlBytes, kMaxDots);
  const Parsed parsed = parse(text);
  if (!parsed.wrong.empty()) bad_request("{}:{}: not TOML: {}", file, parsed.line, parsed.wrong);
  Flattener flat(file);
  flat.flatten(parsed.table, "");
  std::vector<TomlEntry> out = std::move(flat.out);
  std::stable_sort(out.begin(), out.end(),
                   [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; });
  return out;
}

std::string read_small(const fs::path& path, uint64_t most) {
  std::error_code ec;  // a size that cannot be had is read_text's to report
  if (auto bytes = fs::file_size(path, ec); !ec && bytes > most)
    bad_request("{}: {} bytes are too many for this kind of file; at most {}", path.string(), bytes, most);
  return read_text(path);
}

std::vector<TomlEntry> parse_set(std::string_view assignment) {
  size_t eq = assignment.find('=');
  std::string_view key = trimmed(assignment.substr(0, eq));
  if (eq == std::string_view::npos || key.empty())
    bad_request("--set: {} is not section.key=value, such as batch.micro=4", shown(assignment));
  std::string_view value = trimmed(assignment.substr(eq + 1));
  bool plain = std::all_of(key.begin(), key.end(), [](char c) { return plain_key_char(c) || c == '.'; });
  bool printable =
      std::none_of(value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (!plain || !printable || assignment.size() > 65536)
    bad_request("--set: {} is not section.key=value, such as batch.micro=4", shown(assignment));
  if (line_of_unreadable(assignment)) bad_request("--set: {}: {} is not a text in UTF-8", key, shown(value));
  if (value.empty()) bad_request("--set: {}: no value given; an empty string is {}=\"\"", key, key);

  std::vector<TomlEntry> out;
  const Parsed parsed = parse(fmt::format("v = {}\n", value));
  bool quoted = value.front() == '"' || value.front() == '\'' || value.front() == '[' || value.front() == '{';
  if (parsed.wrong.empty() && parsed.table.size() == 1) {
    const toml::node& n = *parsed.table.get("v");
    if (const toml::table* t = n.as_table()) {
      Flattener flat("--set");
      flat.add({.key = std::string(key), .value = TomlTable{}, .line = 0, .text = {}});
      flat.flatten(*t, std::string(key));
      out = std::move(flat.out);
    } else {
      out.push_back(entry_of(std::string(key), n));
    }
  } else if (quoted) {
    bad_request("--set: {}: {} is not a TOML value: {}", key, shown(value),
                parsed.wrong.empty() ? "more than one value" : parsed.wrong);
  } else {
    out.push_back({.key = std::string(key), .value = std::string(value), .line = 0, .text = {}});
  }
  for (TomlEntry& e : out) e.line = 0;
  out.front().text = std::string(value);
  return out;
}

std::string toml_string(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (u < 0x20 || u == 0x7f)
      out += fmt::format("\\u{:04x}", u);
    else
      out += c;
  }
  return out + '"';
}

std::string toml_number(double d) {
  std::string s = fmt::format("{}", d);
  return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;  // "n" of inf and nan
}

std::string shown(std::string_view s) {
  return '"' + escaped(s, 80) + '"';
}
std::string shown_key(std::string_view s) {
  bool plain = !s.empty() && s.size() <= 80 && std::all_of(s.begin(), s.end(), [](char c) {
    return plain_key_char(c) || c == '.' || c == '[' || c == ']';
  });
  return plain ? std::string(s) : shown(s);
}

std::string shown(const TomlEntry& e) {
  struct Show {
    std::string operator()(const std::string& s) const { return shown(s); }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return fmt::format("{}", i); }
    std::string operator()(double d) const { return toml_number(d); }
    std::string operator()(const std::vector<double>& v) const {
      std::string s;
      for (size_t i = 0; i < std::min<size_t>(v.size(), 4); i++)
        s += (i ? ", " : "") + fmt::format("{}", v[i]);
      return "[" + s + (v.size() > 4 ? ", ...]" : "]");
    }
    std::string operator()(const std::vector<std::string>& v) const {
      std::string s;
      for (size_t i = 0; i < std::min<size_t>(v.size(), 4); i++) s += (i ? ", " : "") + shown(v[i]);
      return "[" + s + (v.size() > 4 ? ", ...]" : "]");
    }
    std::string operator()(const TomlLists& lists) const {
      std::string s;
      for (size_t i = 0; i < std::min<size_t>(lists.size(), 4); i++) s += (i ? ", " : "") + (*this)(lists[i]);
      return "[" + s + (lists.size() > 4 ? ", ...]" : "]");
    }
    std::string operator()(const TomlTable&) const { return "it"; }
    std::string operator()(const TomlOther&) const { return "it"; }
    std::string operator()(const TomlTables&) const { return "it"; }
  };
  return std::visit(Show{}, e.value);
}

std::string_view kind_of(const TomlEntry& e) {
  static constexpr std::string_view kKinds[] = {"a string", "true or false", "a whole number", "a number",
                                                "a list",   "a list",        "a section"};
  if (auto* o = std::get_if<TomlOther>(&e.value)) return o->kind;
  if (std::holds_alternative<TomlTables>(e.value)) return "a list of tables";
  if (std::holds_alternative<TomlLists>(e.value)) return "a list of lists";
  return kKinds[e.value.index()];
}

}  // namespace trireme
