#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "text/jinja/characters.h"
#include "text/unicode.h"

namespace trireme::jinja {
namespace {

using Kind = Token::Kind;

// Line ends as \n; if trimmed, none at the end.
std::string normalized(std::string_view source, Whitespace whitespace) {
  std::string out;
  for (size_t i = 0; i < source.size(); i++) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') i++;
    } else {
      out += source[i];
    }
  }
  if (whitespace == Whitespace::trimmed && out.ends_with('\n')) out.pop_back();
  return out;
}

bool begins_name(uint32_t c) {
  return c == '_' || is_letter(c);
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  Lexer(std::string source, Work& work, Whitespace whitespace)
      : source_(std::move(source)), work_(work), trimmed_(whitespace == Whitespace::trimmed) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag(at_);
      add_data(tag);
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      move_to(tag + 2);
      if (at_ < source_.size() && (source_[at_] == '-' || (source_[at_] == '+' && kind != '{')))
        move_to(at_ + 1);
      if (kind == '#')
        comment();
      else if (kind == '{' || !raw())
        expression(kind == '{');
    }
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  size_t next_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos; at = source_.find('{', at + 1))
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos)
        return at;
    return source_.size();
  }
  void move_to(size_t at) {
    line_ += int(std::count(source_.begin() + int64_t(at_), source_.begin() + int64_t(at), '\n'));
    at_ = at;
    work_.line = line_;
  }
  void add(Kind kind, std::string text, Value number = {}) {
    tokens_.push_back({kind, line_, std::move(text), std::move(number)});
  }

  // The text before a tag, without the blanks that the tag takes away.
  std::string_view before_tag(size_t tag) const {
    const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    if (tag == source_.size()) return text;
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (sign == '-') return strip(text, nullptr, false, true);
    if (!trimmed_ || sign == '+' || source_[tag + 1] == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // npos + 1 = 0
    const bool at_begin = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    return at_begin && strip(text.substr(line), nullptr, true, false).empty() ? text.substr(0, line) : text;
  }
  void add_data(size_t tag) {
    const std::string_view text = before_tag(tag);
    if (!text.empty()) add(Kind::data, std::string(text));
    move_to(tag);
  }
  // Behind a tag: "-" takes the blanks that follow, "+" nothing, and without a sign a block takes a line end.
  void after_tag(char sign, bool block) {
    size_t at = at_;
    if (sign == '-')
      while (at < source_.size() && blank_at(source_, at)) at += blank_at(source_, at);
    else if (trimmed_ && sign != '+' && block && at < source_.size() && source_[at] == '\n')
      at++;
    move_to(at);
  }
  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) work_.fail("a comment {{# is not closed");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    move_to(end + 2);
    after_tag(sign, true);
  }
  // Where source_[at] begins `name` and the end of its tag: the place behind, and the sign.
  bool tag_is(std::string_view name, size_t at, size_t& end, char& sign) const {
    auto blanks = [&] {
      while (at < source_.size() && blank_at(source_, at)) at += blank_at(source_, at);
    };
    blanks();
    if (source_.compare(at, name.size(), name) != 0) return false;
    at += name.size();
    blanks();
    sign = at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at++] : ' ';
    if (source_.compare(at, 2, "%}") != 0) return false;
    end = at + 2;
    return true;
  }
  bool raw() {
    size_t end = 0;
    char sign = ' ';
    if (!tag_is("raw", at_, end, sign)) return false;
    move_to(end);
    after_tag(sign == '-' ? '-' : '+', true);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const size_t inside = tag + 2 +
                            (tag + 2 < source_.size() &&
                             std::string_view("+-").find(source_[tag + 2]) != std::string_view::npos);
      if (!tag_is("endraw", inside, end, sign)) continue;
      add_data(tag);
      move_to(end);
      after_tag(sign, true);
      return true;
    }
    work_.fail("{{% raw %}} is not closed");
  }

  void expression(bool print) {
    const std::string_view end = print ? "}}" : "%}";
    add(print ? Kind::print : Kind::block, "");
    std::string open;  // brackets
    for (;;) {
      while (at_ < source_.size() && blank_at(source_, at_)) move_to(at_ + blank_at(source_, at_));
      if (at_ >= source_.size()) work_.fail("a tag is not closed by {}", end);
      const char sign = source_[at_];
      const size_t signs = sign == '-' || (sign == '+' && !print) ? 1 : 0;
      if (open.empty() && source_.compare(at_ + signs, 2, end) == 0) {
        add(print ? Kind::print_end : Kind::block_end, "");
        move_to(at_ + signs + 2);
        return after_tag(signs ? sign : ' ', !print);
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const CodePoint c = code_point_at(source_, at_);
    if (c.code == '"' || c.code == '\'') return text(char(c.code));
    if (is_digit(char(c.code)) && c.code < 128) return number();
    if (c.valid && begins_name(c.code)) {
      size_t end = at_ + c.bytes;
      while (end < source_.size()) {
        const CodePoint next = code_point_at(source_, end);
        if (!next.valid || !(begins_name(next.code) || (next.code < 128 && is_digit(char(next.code))))) break;
        end += next.bytes;
      }
      add(Kind::name, source_.substr(at_, end - at_));
      return move_to(end);
    }
    static constexpr std::array<std::string_view, 7> kLong = {"//", "**", "==", "!=", ">=", "<=", ""};
    for (std::string_view op : kLong)
      if (!op.empty() && source_.compare(at_, 2, op) == 0) return operation(op);
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(source_[at_]) == std::string_view::npos)
      work_.fail("unexpected character {:?}", std::string_view(source_).substr(at_, c.bytes));
    const char op = source_[at_];
    if (op == '(' || op == '[' || op == '{') open += op == '(' ? ')' : op == '[' ? ']' : '}';
    if (op == ')' || op == ']' || op == '}') {
      if (open.empty() || open.back() != op) work_.fail("unexpected {:?}", std::string_view(&op, 1));
      open.pop_back();
    }
    operation(std::string_view(source_).substr(at_, 1));
  }
  void operation(std::string_view op) {
    const size_t bytes = op.size();
    add(Kind::op, std::string(op));
    move_to(at_ + bytes);
  }

  void number() {
    size_t end = at_;
    bool real = false;
    std::string digits;
    auto take = [&] {
      for (; end < source_.size() && (is_digit(source_[end]) || source_[end] == '_'); end++)
        if (source_[end] != '_') digits += source_[end];
    };
    auto digit_at = [&](size_t i) { return i < source_.size() && is_digit(source_[i]); };
    take();
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      real = true, digits += '.', end++;
      take();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const bool sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+');
      if (digit_at(end + 1 + sign)) {
        real = true;
        digits += 'e';
        if (sign && source_[end + 1] == '-') digits += '-';
        end += 1 + sign;
        take();
      }
    }
    const char *begin = digits.data(), *last = begin + digits.size();
    int64_t whole = 0;
    double fraction = 0;
    const auto r = real ? std::from_chars(begin, last, fraction) : std::from_chars(begin, last, whole);
    if (r.ec != std::errc() || r.ptr != last) work_.fail("the number {} is not supported", digits);
    add(Kind::number, digits, real ? Value(fraction) : Value(whole));
    move_to(end);
  }

  // Appends the character of hex digits; false if they are malformed.
  bool hex(std::string& out, size_t at, size_t digits) const {
    if (at + digits > source_.size()) return false;
    uint32_t code = 0;
    const char* begin = source_.data() + at;
    const auto r = std::from_chars(begin, begin + digits, code, 16);
    if (r.ptr != begin + digits || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    append_utf8(out, code);
    return true;
  }
  void text(char quote) {
    std::string out;
    size_t at = at_ + 1;
    for (; at < source_.size() && source_[at] != quote; at++) {
      if (source_[at] != '\\' || at + 1 == source_.size()) {
        out += source_[at];
        continue;
      }
      const char c = source_[++at];
      constexpr std::string_view kNames = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t i = kNames.find(c); i != std::string_view::npos) {
        out += kMeant[i];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!hex(out, at + 1, digits)) work_.fail("the escape \\{} in a text is malformed", c);
        at += digits;
      } else if (c >= '0' && c <= '7') {
        uint32_t code = 0;
        size_t end = at;
        for (; end < source_.size() && end < at + 3 && source_[end] >= '0' && source_[end] <= '7'; end++)
          code = code * 8 + uint32_t(source_[end] - '0');
        append_utf8(out, code);
        at = end - 1;
      } else if (c == 'N') {
        work_.fail("the escape \\N in a text is not supported");
      } else if (c != '\n') {
        out += {'\\', c};
      }
    }
    if (at >= source_.size()) work_.fail("a text is not closed by {}", quote);
    add(Kind::text, std::move(out));
    move_to(at + 1);
  }

  const std::string source_;
  Work& work_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  const bool trimmed_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, Work& work, Whitespace whitespace) {
  if (source.size() > kMostSource) work.fail("the template is longer than {} bytes", kMostSource);
  return Lexer(normalized(source, whitespace), work, whitespace).run();
}

}  // namespace trireme::jinja
