#include "tasks/python_literal.h"

#include <charconv>
#include <string>

namespace trireme {
namespace {

using nlohmann::ordered_json;

class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  std::optional<ordered_json> whole() {
    std::optional<ordered_json> v = value(0);
    skip_blanks();
    if (at_ != text_.size()) return {};
    return v;
  }

 private:
  static constexpr int kMostDepth = 32;

  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos)
      at_++;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  std::optional<ordered_json> value(int depth) {
    skip_blanks();
    if (depth > kMostDepth || at_ == text_.size()) return {};
    if (take("[")) return items(']', depth);
    if (take("(")) return items(')', depth);
    if (text_[at_] == '\'' || text_[at_] == '"') return string();
    if (take("None")) return ordered_json(nullptr);
    if (take("True")) return ordered_json(true);
    if (take("False")) return ordered_json(false);
    return number();
  }
  std::optional<ordered_json> items(char close, int depth) {
    ordered_json list = ordered_json::array();
    for (;;) {
      skip_blanks();
      if (take(std::string_view(&close, 1))) return list;
      std::optional<ordered_json> v = value(depth + 1);
      if (!v) return {};
      list.push_back(std::move(*v));
      skip_blanks();
      if (take(",")) continue;
      if (!take(std::string_view(&close, 1))) return {};
      return list;
    }
  }
  std::optional<ordered_json> number() {
    const std::string_view rest = text_.substr(at_);
    int64_t i = 0;
    const auto whole = std::from_chars(rest.data(), rest.data() + rest.size(), i);
    double d = 0;
    const auto real = std::from_chars(rest.data(), rest.data() + rest.size(), d);
    if (whole.ec == std::errc() && whole.ptr == real.ptr) {
      at_ += size_t(whole.ptr - rest.data());
      return ordered_json(i);
    }
    if (real.ec != std::errc()) return {};
    at_ += size_t(real.ptr - rest.data());
    return ordered_json(d);
  }
  // A code point as UTF-8.
  static void append(std::string& s, uint32_t c) {
    if (c < 0x80) {
      s += char(c);
    } else if (c < 0x800) {
      s += char(0xc0 | (c >> 6));
      s += char(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      s += char(0xe0 | (c >> 12));
      s += char(0x80 | ((c >> 6) & 0x3f));
      s += char(0x80 | (c & 0x3f));
    } else {
      s += char(0xf0 | (c >> 18));
      s += char(0x80 | ((c >> 12) & 0x3f));
      s += char(0x80 | ((c >> 6) & 0x3f));
      s += char(0x80 | (c & 0x3f));
    }
  }
  bool hex(size_t digits, std::string& s) {
    uint32_t c = 0;
    const std::string_view rest = text_.substr(at_, digits);
    const auto r = std::from_chars(rest.data(), rest.data() + rest.size(), c, 16);
    if (rest.size() != digits || r.ptr != rest.data() + digits || c > 0x10ffff) return false;
    at_ += digits;
    append(s, c);
    return true;
  }
  bool escape(std::string& s) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kFrom = "nrtabfv0'\"\\";
    constexpr std::string_view kTo("\n\r\t\a\b\f\v\0'\"\\", 11);
    if (c == 'x') return hex(2, s);
    if (c == 'u') return hex(4, s);
    if (c == 'U') return hex(8, s);
    const size_t known = kFrom.find(c);
    if (known == std::string_view::npos) return false;
    s += kTo[known];
    return true;
  }
  std::optional<ordered_json> string() {
    const char quote = text_[at_++];
    std::string s;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote) return ordered_json(s);
      if (c != '\\')
        s += c;
      else if (!escape(s))
        return {};
    }
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<nlohmann::ordered_json> parse_python_literal(std::string_view text) {
  return Literal(text).whole();
}

}  // namespace trireme
