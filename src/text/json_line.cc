#include "text/json_line.h"

#include <fmt/format.h>

#include "text/unicode.h"

namespace trireme {
namespace {

constexpr size_t kKeysKept = 9;  // one more than a message shows

struct BrokenLine {
  std::string why;
};

class LineScanner {
 public:
  explicit LineScanner(std::string_view line) : line_(line) {
    if (line_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  void read(std::string_view key, JsonLine& out) {
    skip_blanks();
    if (peek() != '{') fail("no {");
    at_++;
    skip_blanks();
    if (!take('}')) {
      do {
        member(key, out);
        skip_blanks();
      } while (take(','));
      expect('}');
    }
    skip_blanks();
    if (at_ < line_.size()) fail("text after the object");
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw BrokenLine{fmt::format("{} at byte {}", what, at_)};
  }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= line_.size() || line_[at_] != c) return false;
    at_++;
    return true;
  }
  void expect(char c) {
    if (!take(c))
      fail(at_ < line_.size() ? fmt::format("no {}", c) : fmt::format("the line ends before a {}", c));
  }
  void skip_blanks() {
    while (at_ < line_.size() &&
           (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n'))
      at_++;
  }

  void member(std::string_view key, JsonLine& out) {
    skip_blanks();
    std::string name;
    string(&name);
    skip_blanks();
    expect(':');
    skip_blanks();
    const bool wanted = name == key;
    if (wanted) {
      out.has_key = true;
      out.is_string = peek() == '"';
      out.text.clear();
    }
    if (wanted && out.is_string)
      string(&out.text);
    else
      value();
    if (out.keys.size() < kKeysKept) out.keys.push_back(std::move(name));
  }

  // Passes over a value. Without recursion, so it may be nested as deep as the line is long.
  void value() {
    std::string open;  // [ and { that are not closed
    do {
      skip_blanks();
      if (peek() == '[' || peek() == '{') {
        open += line_[at_++];
        skip_blanks();
        if (peek() != close_of(open.back())) {
          if (open.back() == '{') name();
          continue;
        }
      } else {
        scalar();
      }
      // Behind a value, or in front of the end of an empty one.
      for (; !open.empty(); skip_blanks()) {
        skip_blanks();
        if (take(',')) {
          skip_blanks();
          if (open.back() == '{') name();
          break;
        }
        expect(close_of(open.back()));
        open.pop_back();
      }
    } while (!open.empty());
  }
  static char close_of(char open) { return open == '[' ? ']' : '}'; }
  void name() {
    string(nullptr);
    skip_blanks();
    expect(':');
  }

  void scalar() {
    if (peek() == '"') return string(nullptr);
    for (std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"})
      if (line_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return;
      }
    number();
  }
  void digits() {
    if (!is_digit(peek())) fail(at_ < line_.size() ? "no value" : "the line ends before a value");
    while (is_digit(peek())) at_++;
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  void number() {
    take('-');
    if (!take('0')) digits();
    if (take('.')) digits();
    if (peek() == 'e' || peek() == 'E') {
      at_++;
      if (peek() == '+' || peek() == '-') at_++;
      digits();
    }
  }

  static bool is_plain(char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; }
  // Decodes a string into *out; nullptr: passes over it.
  void string(std::string* out) {
    if (peek() != '"') fail(at_ < line_.size() ? "no string" : "the line ends before a string");
    at_++;
    while (peek() != '"') {
      if (at_ >= line_.size()) fail("the line ends in a string");
      const size_t begin = at_;
      while (at_ < line_.size() && is_plain(line_[at_])) at_++;
      if (at_ > begin) {
        if (out) out->append(line_, begin, at_ - begin);
        continue;
      }
      if (peek() == '\\') {
        escape(out);
        continue;
      }
      if (uint8_t(peek()) < 0x20) fail(fmt::format("a control character 0x{:02X}", uint8_t(peek())));
      const CodePoint c = code_point_at(line_, at_);
      if (!c.valid) fail(fmt::format("a byte 0x{:02X} that is not UTF-8", uint8_t(peek())));
      at_ += c.bytes;
      if (out) out->append(line_, begin, c.bytes);
    }
    at_++;
  }
  void escape(std::string* out) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    at_++;
    const char c = peek();
    if (size_t k = kEscapes.find(c); k != std::string_view::npos && at_ < line_.size()) {
      at_++;
      if (out) *out += kMeanings[k];
      return;
    }
    if (c != 'u') fail("an unknown escape");
    at_++;
    uint32_t code = four_digits();
    const bool high = code >= 0xD800 && code < 0xDC00;
    if (high && line_.substr(at_).starts_with("\\u")) {
      const size_t back = at_;
      at_ += 2;
      const uint32_t low = four_digits();
      if (low >= 0xDC00 && low < 0xE000)
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      else
        at_ = back;
    }
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;  // a half of a pair
    if (out) append_utf8(*out, code);
  }
  uint32_t four_digits() {
    uint32_t code = 0;
    for (int i = 0; i < 4; i++, at_++) {
      const char c = peek();
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("\\u without four digits");
      code = code * 16 + uint32_t(digit);
    }
    return code;
  }

  std::string_view line_;
  size_t at_ = 0;
};

}  // namespace

JsonLine read_json_line(std::string_view line, std::string_view key) {
  JsonLine out;
  try {
    LineScanner(line).read(key, out);
  } catch (const BrokenLine& e) {
    out = JsonLine{.error = e.why};
  }
  return out;
}

std::string json_fault(std::string_view line) {
  const std::string error = read_json_line(line, "").error;
  return error.empty() ? "a number that JSON does not have: NaN, Infinity, or beyond 1e308" : error;
}

}  // namespace trireme
