#include "text/jinja/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/characters.h"
#include "text/unicode.h"

namespace trireme::jinja {
namespace {

// Appends to a text that has a bound.
class Writer {
 public:
  explicit Writer(Work& work) : work_(work) {}
  void add(std::string_view s) {
    text += s;
    if (text.size() >= checked_ + kStride) check();
  }
  void check() {
    work_.move(text.size() - checked_);
    if (text.size() > kMostText) work_.move(text.size());
    checked_ = text.size();
  }
  std::string done() && {
    check();
    return std::move(text);
  }
  std::string text;

 private:
  static constexpr size_t kStride = 4096;
  Work& work_;
  size_t checked_ = 0;
};

bool printable(uint32_t code) {
  if (code < 128) return code >= 32 && code < 127;
  for (const CategoryRange& r : category_ranges())
    if (code <= r.last)
      return code >= r.first && r.category != Category::Cc && r.category != Category::Cf &&
             r.category != Category::Co && r.category != Category::Zl && r.category != Category::Zp &&
             r.category != Category::Zs;
  return false;
}

void add_quoted(Writer& out, std::string_view s) {
  const char quote =
      s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  out.text += quote;
  for (size_t at = 0; at < s.size();) {
    const CodePoint c = code_point_at(s, at);
    if (c.code == uint32_t(quote) || c.code == '\\')
      out.text += {'\\', char(c.code)};
    else if (c.code == '\n' || c.code == '\r' || c.code == '\t')
      out.text += c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t";
    else if (printable(c.code))
      out.text += s.substr(at, c.bytes);
    else if (c.code < 0x100)
      out.text += fmt::format("\\x{:02x}", c.code);
    else
      out.text += c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code) : fmt::format("\\U{:08x}", c.code);
    at += c.bytes;
  }
  out.text += quote;
  out.add("");
}

void add_repr(Writer& out, const Value& v, Work& work) {
  work.step();
  if (v.is_undefined()) return out.add("Undefined");
  if (v.is_none()) return out.add("None");
  if (v.is_boolean()) return out.add(truth(v) ? "True" : "False");
  if (v.is_integer()) return out.add(std::to_string(v.integer()));
  if (v.is_number()) return out.add(real_text(v.number()));
  if (v.text()) return add_quoted(out, *v.text());
  if (const Sequence* s = v.sequence()) {
    out.add(s->tuple ? "(" : "[");
    for (size_t i = 0; i < s->items.size(); i++) {
      if (i > 0) out.add(", ");
      add_repr(out, s->items[i], work);
    }
    return out.add(s->tuple ? (s->items.size() == 1 ? ",)" : ")") : "]");
  }
  if (const Mapping* m = v.mapping()) {
    out.add("{");
    for (size_t i = 0; i < m->entries.size(); i++) {
      if (i > 0) out.add(", ");
      add_quoted(out, m->entries[i].first);
      out.add(": ");
      add_repr(out, m->entries[i].second, work);
    }
    return out.add("}");
  }
  work.fail("a {} as text is not supported", kind_name(v));
}

void add_json_text(Writer& out, std::string_view s, bool ascii) {
  out.text += '"';
  for (size_t at = 0; at < s.size();) {
    const CodePoint c = code_point_at(s, at);
    constexpr std::string_view kShort = "\b\f\n\r\t", kNames = "bfnrt";
    if (c.code == '"' || c.code == '\\')
      out.text += {'\\', char(c.code)};
    else if (c.code < 32 && kShort.find(char(c.code)) != std::string_view::npos)
      out.text += {'\\', kNames[kShort.find(char(c.code))]};
    else if (c.code < 32 || (ascii && c.code >= 127 && c.code < 0x10000 && c.code != 127))
      out.text += fmt::format("\\u{:04x}", c.code);
    else if (ascii && c.code >= 0x10000)
      out.text += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c.code - 0x10000) >> 10),
                              0xDC00 + ((c.code - 0x10000) & 0x3FF));
    else
      out.text += s.substr(at, c.bytes);
    at += c.bytes;
  }
  out.text += '"';
  out.add("");
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Work& work) : style_(style), work_(work), out_(work) {}

  void add(const Value& v) {
    work_.step();
    if (v.is_none()) return out_.add("null");
    if (v.is_boolean()) return out_.add(truth(v) ? "true" : "false");
    if (v.is_integer()) return out_.add(std::to_string(v.integer()));
    if (v.is_number()) return out_.add(number(v.number()));
    if (v.text()) return add_json_text(out_, *v.text(), style_.ascii);
    if (const Sequence* s = v.sequence())
      return all('[', ']', s->items.size(), [&](size_t i) { add(s->items[i]); });
    if (const Mapping* m = v.mapping()) return add(*m);
    work_.fail("a value of kind {} cannot be written as JSON", kind_name(v));
  }
  std::string done() && { return std::move(out_).done(); }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return real_text(d);
  }
  void add(const Mapping& m) {
    std::vector<size_t> order(m.entries.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    if (style_.sorted)
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return m.entries[a].first < m.entries[b].first; });
    all('{', '}', order.size(), [&](size_t i) {
      add_json_text(out_, m.entries[order[i]].first, style_.ascii);
      out_.add(style_.key);
      add(m.entries[order[i]].second);
    });
  }
  void new_line() {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < level_; i++) out_.add(*style_.indent);
  }
  template <class Add>
  void all(char open, char close, size_t n, Add&& add_item) {
    out_.text += open;
    level_++;
    for (size_t i = 0; i < n; i++) {
      if (i > 0) out_.add(style_.item);
      new_line();
      add_item(i);
    }
    level_--;
    if (n > 0) new_line();
    out_.text += close;
    out_.add("");
  }

  const JsonStyle& style_;
  Work& work_;
  Writer out_;
  int level_ = 0;
};

}  // namespace

// The shortest digits that read back as the same number, with an exponent for sizes below 1e-4 or >= 1e16.
std::string real_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char digits[64];
  const double size = std::fabs(d);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, d, format).ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string repr_of(const Value& v, Work& work) {
  Writer out(work);
  add_repr(out, v, work);
  return std::move(out).done();
}

std::string str_of(const Value& v, Work& work) {
  check_defined(v, work);
  if (v.is_undefined()) return "";
  if (const std::string* s = v.text()) {
    work.move(s->size());
    return *s;
  }
  return repr_of(v, work);
}

std::string json_of(const Value& v, const JsonStyle& style, Work& work) {
  JsonWriter out(style, work);
  out.add(v);
  return std::move(out).done();
}

}  // namespace trireme::jinja
