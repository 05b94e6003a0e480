// Tests of Jinja, and methods of Python's texts, dicts and lists.
#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja/characters.h"
#include "text/jinja/functions.h"
#include "text/jinja/python_text.h"
#include "text/jinja/syntax.h"
#include "text/unicode.h"

namespace trireme::jinja {
namespace {

constexpr std::string_view kTests[] = {
    "==",          "!=",      "<",        "<=",     ">",        ">=",     "boolean", "callable",    "defined",
    "divisibleby", "eq",      "equalto",  "even",   "false",    "float",  "ge",      "greaterthan", "gt",
    "in",          "integer", "iterable", "le",     "lessthan", "lower",  "lt",      "mapping",     "ne",
    "none",        "number",  "odd",      "sameas", "sequence", "string", "true",    "undefined",   "upper"};

int64_t whole(const Value& v, Work& w) {
  return integer_of(v, "the test", w);
}

// Tests of the value alone.
bool passes_alone(std::string_view test, const Value& v, Work& w) {
  const bool real = std::holds_alternative<double>(v.data());
  if (test == "defined") return !v.is_undefined();
  if (test == "undefined") return v.is_undefined();
  if (test == "none") return v.is_none();
  if (test == "string") return v.is_string();
  if (test == "mapping") return v.mapping();
  if (test == "iterable" || test == "sequence")
    return v.is_undefined() || v.text() || v.sequence() || v.mapping() || (test == "iterable" && v.loop());
  if (test == "number") return v.is_number();
  if (test == "integer") return v.is_integer();
  if (test == "float") return real;
  if (test == "boolean") return v.is_boolean();
  if (test == "true") return v.is_boolean() && truth(v);
  if (test == "false") return v.is_boolean() && !truth(v);
  if (test == "callable") return v.callable();
  if (test == "odd") return whole(v, w) % 2 != 0;
  if (test == "even") return whole(v, w) % 2 == 0;
  require(test == "lower" || test == "upper", "a test that the table has");
  const std::string text = str_of(v, w);
  const std::string up = with_case(text, Case::upper), low = with_case(text, Case::lower);
  return up != low && text == (test == "lower" ? low : up);
}

bool compares(std::string_view test, const Value& v, const Value& other, Work& w) {
  if (test == "==" || test == "eq" || test == "equalto") return equal(v, other, w);
  if (test == "!=" || test == "ne") return !equal(v, other, w);
  if (test == "<" || test == "lt" || test == "lessthan") return less(v, other, w);
  if (test == ">" || test == "gt" || test == "greaterthan") return less(other, v, w);
  if (test == "<=" || test == "le") return less(v, other, w) || equal(v, other, w);
  if (test == ">=" || test == "ge") return less(other, v, w) || equal(v, other, w);
  if (test == "in") return contains(other, v, w);
  if (test == "sameas") return v.data().index() == other.data().index() && equal(v, other, w);
  require(test == "divisibleby", "a test that the table has");
  if (whole(other, w) == 0) w.fail("divisibleby 0");
  return whole(other, w) == -1 || whole(v, w) % whole(other, w) == 0;
}

// ---- methods ----
using Args = Arguments;

Value texts(std::vector<std::string> parts, Work& w) {
  std::vector<Value> out;
  for (std::string& part : parts) out.emplace_back(std::move(part));
  return Value::list(std::move(out), w);
}

std::vector<std::string> split_blanks(std::string_view text, int64_t most) {
  std::vector<std::string> out;
  for (;;) {
    text = strip(text, nullptr, true, false);
    if (text.empty()) return out;
    if (most >= 0 && int64_t(out.size()) == most) {
      out.emplace_back(strip(text, nullptr, false, true));
      return out;
    }
    size_t end = 0;
    while (end < text.size() && !blank_at(text, end)) end += character_at(text, end);
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

Value split(const std::string& s, const Args& a, bool from_right, Work& w) {
  a.bind("split()", {"sep", "maxsplit"}, 0, w);
  const Value *by = a.get(0, "sep"), *limit = a.get(1, "maxsplit");
  const int64_t most = limit ? integer_of(*limit, "split()", w) : -1;
  if (!by || by->is_none()) {
    if (from_right && most >= 0) w.fail("rsplit() by blanks with a limit is not supported");
    return texts(split_blanks(s, most), w);
  }
  const std::string& sep = text_of(*by, "split()", w);
  if (sep.empty()) w.fail("split() by an empty text");
  std::vector<std::string> parts;
  if (from_right) {
    size_t end = s.size();
    while (most < 0 || int64_t(parts.size()) < most) {
      const size_t at = end < sep.size() ? std::string::npos : s.rfind(sep, end - sep.size());
      if (at == std::string::npos) break;
      parts.push_back(s.substr(at + sep.size(), end - at - sep.size()));
      end = at;
    }
    parts.push_back(s.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return texts(std::move(parts), w);
  }
  size_t at = 0;
  for (size_t found = find_text(s, sep, 0);
       found != std::string::npos && (most < 0 || int64_t(parts.size()) < most);
       found = find_text(s, sep, at)) {
    parts.push_back(s.substr(at, found - at));
    at = found + sep.size();
  }
  parts.push_back(s.substr(at));
  return texts(std::move(parts), w);
}

Value splitlines(std::string_view s, const Args& a, Work& w) {
  a.bind("splitlines()", {"keepends"}, 0, w);
  const bool keep = a.get(0, "keepends") && truth(*a.get(0, "keepends"));
  auto line_end = [&](size_t at) -> size_t {  // its bytes, or 0
    const CodePoint c = code_point_at(s, at);
    if (c.code == '\r') return at + 1 < s.size() && s[at + 1] == '\n' ? 2 : 1;
    const bool ends = (c.code >= 10 && c.code <= 12) || (c.code >= 28 && c.code <= 30) || c.code == 0x85 ||
                      c.code == 0x2028 || c.code == 0x2029;
    return ends && c.valid ? c.bytes : 0;
  };
  std::vector<std::string> out;
  for (size_t begin = 0, at = 0; begin < s.size();) {
    while (at < s.size() && !line_end(at)) at += character_at(s, at);
    const size_t bytes = at < s.size() ? line_end(at) : 0;
    out.emplace_back(s.substr(begin, at - begin + (keep ? bytes : 0)));
    begin = at += bytes;
  }
  return texts(std::move(out), w);
}

// startswith(x) and endswith(x): x is a text or a tuple of texts.
bool has_end(const std::string& s, const Args& a, bool begin, Work& w) {
  const std::string_view name = begin ? "startswith()" : "endswith()";
  a.bind(name, {"prefix"}, 1, w);
  const Value& of = *a.get(0, "prefix");
  auto one = [&](const Value& v) {
    const std::string& part = text_of(v, name, w);
    return begin ? s.starts_with(part) : s.ends_with(part);
  };
  if (!of.sequence()) return one(of);
  return std::any_of(of.sequence()->items.begin(), of.sequence()->items.end(), one);
}

Value stripped(const std::string& s, const Args& a, std::string_view name, bool left, bool right, Work& w) {
  a.bind(name, {"chars"}, 0, w);
  const Value* of = a.get(0, "chars");
  const std::string* chars = of && !of->is_none() ? &text_of(*of, name, w) : nullptr;
  w.move(s.size() * (chars ? 1 + chars->size() / 64 : 1));
  return strip(s, chars, left, right);
}

bool all_of_class(std::string_view s, bool (*is)(uint32_t)) {
  for (size_t at = 0; at < s.size(); at += character_at(s, at))
    if (!is(code_point_at(s, at).code)) return false;
  return !s.empty();
}
bool is_digit(uint32_t c) {
  return c >= '0' && c <= '9';
}

Value find_in(const std::string& s, const Args& a, std::string_view name, Work& w) {
  a.bind(name, {"sub"}, 1, w);
  const std::string& part = text_of(*a.get(0, "sub"), name, w);
  if (name == "count") {
    if (part.empty()) return characters(s) + 1;
    int64_t n = 0;
    for (size_t at = find_text(s, part, 0); at != std::string::npos;
         at = find_text(s, part, at + part.size()))
      n++;
    return n;
  }
  size_t at = find_text(s, part, 0);
  if (name == "rfind")
    for (size_t next = at; next != std::string::npos && !part.empty(); next = find_text(s, part, at + 1)) {
      w.step();
      at = next;
    }
  if (at == std::string::npos && name == "index") w.fail("index(): {:?} is not in the text", part);
  return at == std::string::npos ? int64_t(-1) : characters(std::string_view(s).substr(0, at));
}

constexpr std::string_view kTextMethods[] = {
    "strip",   "lstrip", "rstrip",  "split",   "rsplit",     "splitlines",   "startswith",  "endswith",
    "replace", "upper",  "lower",   "title",   "capitalize", "join",         "find",        "rfind",
    "index",   "count",  "isdigit", "isalpha", "isspace",    "removeprefix", "removesuffix"};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr std::string_view kListMethods[] = {"index", "count"};
// Python has these too, and its sandbox does not let templates call them.
constexpr std::string_view kForbidden[] = {"append", "extend", "insert",  "pop",        "remove", "sort",
                                           "update", "clear",  "reverse", "setdefault", "popitem"};

template <class Names>
bool among(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value text_method(const std::string& s, std::string_view name, const Args& a, Work& w) {
  w.move(s.size());
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return stripped(s, a, name, name != "rstrip", name != "lstrip", w);
  if (name == "split" || name == "rsplit") return split(s, a, name == "rsplit", w);
  if (name == "splitlines") return splitlines(s, a, w);
  if (name == "startswith" || name == "endswith") return has_end(s, a, name == "startswith", w);
  if (name == "replace") {
    a.bind("replace()", {"old", "new", "count"}, 2, w);
    const Value* count = a.get(2, "count");
    return replaced(s, text_of(*a.get(0, "old"), "replace()", w), text_of(*a.get(1, "new"), "replace()", w),
                    count ? integer_of(*count, "replace()", w) : -1, w);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "count") return find_in(s, a, name, w);
  if (name == "join") {
    a.bind("join()", {"iterable"}, 1, w);
    return filtered("join", *a.get(0, "iterable"), {{s}, {}}, w);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    a.bind(name, {"affix"}, 1, w);
    const std::string& part = text_of(*a.get(0, "affix"), name, w);
    const bool front = name == "removeprefix";
    if (!(front ? s.starts_with(part) : s.ends_with(part))) return s;
    return front ? s.substr(part.size()) : s.substr(0, s.size() - part.size());
  }
  a.bind(name, {}, 0, w);
  if (name == "isdigit") return all_of_class(s, is_digit);
  if (name == "isalpha") return all_of_class(s, is_letter);
  if (name == "isspace") return !s.empty() && strip(s, nullptr, true, false).empty();
  return with_case(s, name == "upper"   ? Case::upper
                      : name == "lower" ? Case::lower
                      : name == "title" ? Case::title
                                        : Case::capitalize);
}

Value dict_method(const Value& self, std::string_view name, const Args& a, Work& w) {
  const Entries& entries = self.mapping()->entries;
  w.step(int64_t(entries.size()));
  if (name == "get") {
    a.bind("get()", {"key", "default"}, 1, w);
    const Value &key = *a.get(0, "key"), *otherwise = a.get(1, "default");
    if (const Value* found = key.text() ? find(entries, *key.text()) : nullptr) return *found;
    return otherwise ? *otherwise : Value(None());
  }
  a.bind(name, {}, 0, w);
  if (name == "copy") return self;
  std::vector<Value> out;
  for (const auto& [key, value] : entries) {
    if (name == "keys")
      out.emplace_back(key);
    else if (name == "values")
      out.push_back(value);
    else
      out.push_back(Value::list({key, value}, w, true));
  }
  return Value::list(std::move(out), w);
}

}  // namespace

bool is_test(std::string_view name) {
  return among(kTests, name);
}

bool passes(std::string_view test, const Value& v, const Arguments& arguments, Work& work) {
  work.step();
  static constexpr std::string_view kOfTwo[] = {
      "==", "!=", "<",  "<=", ">",  ">=",       "eq",          "equalto", "ge",
      "gt", "in", "le", "lt", "ne", "lessthan", "greaterthan", "sameas",  "divisibleby"};
  if (!among(kOfTwo, test)) {
    arguments.bind(test, {}, 0, work);
    return passes_alone(test, v, work);
  }
  arguments.bind(test, {"other"}, 1, work);
  return compares(test, v, *arguments.get(0, "other"), work);
}

bool is_method(const Value& v, std::string_view name) {
  if (v.text()) return among(kTextMethods, name);
  if (v.mapping()) return among(kDictMethods, name) || among(kForbidden, name);
  return v.sequence() && (among(kListMethods, name) || among(kForbidden, name));
}

Value call_method(const Value& self, std::string_view method, const Arguments& arguments, Work& work) {
  work.step();
  if (self.text()) return text_method(*self.text(), method, arguments, work);
  if (self.mapping() && among(kDictMethods, method)) return dict_method(self, method, arguments, work);
  if (self.sequence() && among(kListMethods, method)) {
    arguments.bind(method, {"value"}, 1, work);
    const std::vector<Value>& items = self.sequence()->items;
    int64_t n = 0, first = -1;
    for (size_t i = 0; i < items.size(); i++)
      if (equal(items[i], *arguments.get(0, "value"), work) && n++ == 0) first = int64_t(i);
    if (method == "index" && first < 0) work.fail("index(): the value is not in the list");
    return method == "index" ? first : n;
  }
  work.fail("{}.{}() is not supported: values of a template do not change", kind_name(self), method);
}

}  // namespace trireme::jinja
