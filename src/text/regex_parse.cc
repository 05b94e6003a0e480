#include "text/regex_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/json_fields.h"

namespace trireme {
namespace {

constexpr int32_t kMostRepeats = 1000;
constexpr int kDeepest = 50;  // groups in groups

bool is_letter(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(uint32_t c) {
  return c >= '0' && c <= '9';
}
int hex_value(uint32_t c) {
  return is_digit(c)            ? int(c - '0')
         : c >= 'a' && c <= 'f' ? int(c - 'a') + 10
         : c >= 'A' && c <= 'F' ? int(c - 'A') + 10
                                : -1;
}

// The set with the other cases of its characters. Requires caseless_beyond_ascii().
CharSet with_other_cases(const CharSet& set) {
  std::vector<CodeRange> more;
  for (uint32_t c = 'a'; c <= 'z'; c++) {
    const uint32_t upper = c - 'a' + 'A';
    if (!set.contains(c) && !set.contains(upper)) continue;
    more.push_back({c, c});
    more.push_back({upper, upper});
    if (c == 's') more.push_back({0x17F, 0x17F});    // LATIN SMALL LETTER LONG S
    if (c == 'k') more.push_back({0x212A, 0x212A});  // KELVIN SIGN
  }
  return set | CharSet(std::move(more));
}

class PatternParser {
  using Kind = RegexNode::Kind;
  using Mode = RegexNode::Mode;

 public:
  PatternParser(std::string_view pattern, std::string_view what) : pattern_(pattern), what_(what) {}

  ParsedRegex parse() {
    RegexNode root = alternatives({}, 0);
    if (at_ < pattern_.size()) fail(at_, "a ) that closes nothing");
    refuse_joined(root);
    return {std::move(root), std::move(sets_)};
  }

 private:
  struct Flags {
    bool any_case = false;  // (?i)
    bool dot_all = false;   // (?m): . matches line ends, too
  };
  struct Class {
    CharSet set;
    bool negated = false;
  };
  // A character, or a set, after a backslash.
  struct Escape {
    uint32_t code = 0;
    std::optional<CharSet> set;
    bool negated = false;
  };

  [[noreturn]] void fail(size_t at, std::string_view construct) const {
    bad_request(
        "{} = {}: {} at byte {} is not supported: regular-expression engines read it differently, or not at "
        "all",
        what_, in_quotes(pattern_), construct, at);
  }
  bool ends() const { return at_ >= pattern_.size(); }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t peek() const { return ends() ? 0 : code_point_at(pattern_, at_).code; }
  uint32_t next() {
    const CodePoint c = code_point_at(pattern_, at_);
    at_ += c.bytes;
    return c.code;
  }

  // --- groups

  RegexNode alternatives(Flags flags, int depth) {
    if (depth > kDeepest) fail(at_, "a group nested so deep");
    RegexNode all{.kind = Kind::alternatives};
    do {
      all.children.push_back(sequence(flags, depth));
    } while (take("|"));
    return all.children.size() == 1 ? std::move(all.children[0]) : all;
  }

  RegexNode sequence(Flags flags, int depth) {
    RegexNode all{.kind = Kind::sequence};
    while (!ends() && !next_is("|") && !next_is(")")) {
      const size_t begin = at_;
      if (std::optional<Flags> rest = isolated_flags(flags)) {
        // They hold up to the end of the group, alternatives included: a(?i)b|c is a(?i:b|c).
        all.children.push_back(alternatives(*rest, depth + 1));
        break;
      }
      RegexNode one = term(flags, depth);
      const bool repeatable = one.kind != Kind::look && one.kind != Kind::text_begin &&
                              one.kind != Kind::text_end && one.kind != Kind::search_begin && !edge_;
      edge_ = false;
      all.children.push_back(repeats(std::move(one), begin, repeatable));
    }
    return all;
  }

  // The flags of "(?i)" at this place, which is then read; nullopt if it is something else.
  std::optional<Flags> isolated_flags(Flags flags) {
    const size_t begin = at_;
    if (take("(?") && read_flags(flags) && take(")")) return flags;
    at_ = begin;
    return std::nullopt;
  }
  bool read_flags(Flags& flags) {
    bool on = true, any = false;
    for (; !ends(); at_++) {
      const char c = pattern_[at_];
      if (c == '-' && on)
        on = false;
      else if (c == 'i')
        flags.any_case = on;
      else if (c == 'm')
        flags.dot_all = on;
      else
        break;
      any = any || c != '-';
    }
    return any;
  }

  RegexNode group(Flags flags, int depth) {
    const size_t begin = at_;
    RegexNode node{.kind = Kind::sequence};
    at_++;  // (
    if (take("?")) {
      if (take("=") || take("!")) {
        node.kind = Kind::look;
        node.negative = pattern_[at_ - 1] == '!';
      } else if (take("<=") || take("<!")) {
        node.kind = Kind::look;
        node.behind = true;
        node.negative = pattern_[at_ - 1] == '!';
      } else if (take(">")) {
        node.kind = Kind::atomic;
      } else if (!take(":") && !(read_flags(flags) && take(":"))) {
        const size_t end = at_ < pattern_.size() ? at_ + code_point_at(pattern_, at_).bytes : at_;
        fail(begin, "the group " + in_quotes(pattern_.substr(begin, end - begin)));
      }
    }
    node.children.push_back(alternatives(flags, depth + 1));
    if (!take(")")) fail(begin, "a group without an end");
    if (node.behind) {
      const Lengths n = lengths(node.children[0]);
      if (n.least != n.most) fail(begin, "a look-behind of more than one length");
    }
    return node;
  }

  // --- repeats

  RegexNode repeats(RegexNode one, size_t begin, bool repeatable) {
    const size_t at = at_;
    RegexNode node{.kind = Kind::repeat};
    auto bounds = [&](int32_t least, int32_t most) {
      node.least = least;
      node.most = most;
    };
    if (take("*"))
      bounds(0, -1);
    else if (take("+"))
      bounds(1, -1);
    else if (take("?"))
      bounds(0, 1);
    else if (next_is("{"))
      read_interval(node);
    else
      return one;
    if (!repeatable) fail(begin, "a repeat of an anchor");
    const bool interval = pattern_[at] == '{';
    bool again = false;
    if (next_is("?") && !(interval && node.least == node.most)) {
      at_++;
      node.mode = Mode::lazy;
    } else if (take("+")) {
      // After an interval, + is a repeat: x{1,3}+ is (?:x{1,3})+.
      again = interval;
      if (!interval) node.mode = Mode::possessive;
    }
    if (next_is("*") || next_is("+") || next_is("?") || next_is("{")) fail(at, "a repeat of a repeat");
    const bool many = node.most < 0 || node.most > 1;
    if (many && lengths(one).least == 0) fail(begin, "a repeat of something that can be empty");
    node.children.push_back(std::move(one));
    if (!again) return node;
    if (node.least == 0) fail(begin, "a repeat of something that can be empty");
    RegexNode outer{.kind = Kind::repeat, .least = 1, .most = -1};
    outer.children.push_back(std::move(node));
    return outer;
  }

  void read_interval(RegexNode& node) {
    const size_t begin = at_++;
    auto number = [&]() -> int32_t {
      int32_t n = -1;
      while (is_digit(peek()) && n <= kMostRepeats) n = std::max(n, 0) * 10 + int32_t(next() - '0');
      return n;
    };
    const int32_t least = number();
    const bool comma = take(",");
    const int32_t most = comma ? number() : least;
    if (!take("}") || (least < 0 && most < 0) || std::max(least, most) > kMostRepeats ||
        (most >= 0 && most < least))
      fail(begin, "a { that begins no interval {n}, {n,}, {,m} or {n,m} of at most 1000");
    node.least = std::max(least, 0);
    node.most = most;
  }

  struct Lengths {
    int64_t least = 0, most = 0;  // in characters; most kEndless: unbounded
  };
  static constexpr int64_t kEndless = int64_t(1) << 40;
  Lengths lengths(const RegexNode& n) const {
    Lengths out;
    auto capped = [](int64_t v) { return std::min(v, kEndless); };
    if (n.kind == Kind::chars) return {1, 1};
    if (n.kind == Kind::look) return {0, 0};
    if (n.kind == Kind::repeat) {
      const Lengths one = lengths(n.children[0]);
      return {capped(one.least * n.least), n.most < 0 ? kEndless : capped(one.most * n.most)};
    }
    if (n.kind == Kind::alternatives) out.least = kEndless;
    for (const RegexNode& child : n.children) {
      const Lengths one = lengths(child);
      out.least =
          n.kind == Kind::alternatives ? std::min(out.least, one.least) : capped(out.least + one.least);
      out.most = n.kind == Kind::alternatives ? std::max(out.most, one.most) : capped(out.most + one.most);
    }
    return out;
  }

  // --- characters and classes

  RegexNode term(Flags flags, int depth) {
    const size_t begin = at_;
    if (next_is("(")) return group(flags, depth);
    if (take("[")) {
      meets_ = hollow_ = false;
      Class c = char_class(0);
      // The engine then takes the characters beyond ASCII for none, or for all.
      if (meets_ && hollow_) fail(begin, "a class with && and a part without characters beyond ASCII");
      const std::optional<uint32_t> only = single(c);
      if (only) return literal(*only, flags, begin);
      if (flags.any_case) {
        if (!caseless_beyond_ascii(c.set)) fail(begin, "a class with letters beyond ASCII under (?i)");
        c.set = with_other_cases(c.set);
      }
      return chars(c.negated ? ~c.set : c.set);
    }
    if (next_is("\\")) return escaped_term(flags);
    const uint32_t c = next();
    if (c == '.') return chars(flags.dot_all ? CharSet::all() : ~CharSet::of('\n'));
    if (c == '^') return line_begin();
    if (c == '$') return line_end();
    if (c == '*' || c == '+' || c == '?') fail(begin, "a repeat of nothing");
    if (c == '{') fail(begin, "a { that repeats nothing");
    return literal(c, flags, begin);
  }

  RegexNode literal(uint32_t c, Flags flags, size_t begin) {
    CharSet set = CharSet::of(c);
    if (flags.any_case) {
      if (!caseless_beyond_ascii(set)) fail(begin, "a letter beyond ASCII under (?i)");
      set = with_other_cases(set);
    }
    RegexNode node = chars(set);
    if (is_letter(c)) node.letter = char(c | 0x20);
    node.any_case = flags.any_case;
    return node;
  }
  // The engine makes a class of one character a literal.
  static std::optional<uint32_t> single(const Class& c) {
    const auto& ranges = c.set.ranges();
    if (c.negated || ranges.size() != 1 || ranges[0].first != ranges[0].last) return std::nullopt;
    return ranges[0].first;
  }

  // Letters at the ends of what a node matches: bit k for kJoining[k], kPlain << k for one outside of (?i).
  struct Joins {
    uint32_t first = 0, last = 0;
    bool can_be_empty = true;
  };
  static constexpr std::string_view kJoining = "filst";
  static constexpr uint32_t kPlain = 1 << 5;

  // Under (?i), the engine lets "ss" match one character, too (U+00DF), and so ff, fi, fl and st: how,
  // depends on its optimizer.
  void refuse_joined(uint32_t last, uint32_t first) const {
    for (std::string_view pair : {"ss", "ff", "fi", "fl", "st"}) {
      const uint32_t a = 1u << kJoining.find(pair[0]), b = 1u << kJoining.find(pair[1]);
      if ((last & a && first & (b | b * kPlain)) || (first & b && last & (a | a * kPlain)))
        fail(0, fmt::format("{:?} under (?i), which also matches a single character,", pair));
    }
  }
  Joins refuse_joined(const RegexNode& n) const {
    Joins all;
    if (n.kind == Kind::chars) {
      const size_t k = n.letter ? kJoining.find(n.letter) : std::string_view::npos;
      all.first = all.last = k == std::string_view::npos ? 0 : (n.any_case ? 1u : kPlain) << k;
      all.can_be_empty = false;
      return all;
    }
    if (n.kind == Kind::alternatives) all.can_be_empty = false;
    for (const RegexNode& child : n.children) {
      const Joins one = refuse_joined(child);
      if (n.kind == Kind::alternatives) {
        all = {all.first | one.first, all.last | one.last, all.can_be_empty || one.can_be_empty};
        continue;
      }
      refuse_joined(all.last, one.first);
      if (all.can_be_empty) all.first |= one.first;
      all.last = one.last | (one.can_be_empty ? all.last : 0);
      all.can_be_empty = all.can_be_empty && one.can_be_empty;
    }
    if (n.kind == Kind::repeat) {
      if (n.most < 0 || n.most > 1) refuse_joined(all.last, all.first);
      all.can_be_empty = all.can_be_empty || n.least == 0;
    }
    return n.kind == Kind::look ? Joins() : all;
  }

  RegexNode escaped_term(Flags flags) {
    const size_t begin = at_;
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (std::string_view("AzZGbB").find(c) != std::string_view::npos && c != '\0') {
      at_ += 2;
      if (c == 'b' || c == 'B') return word_edge(c == 'B');
      if (c == 'Z') return text_end_or_line();
      return {.kind = c == 'A' ? Kind::text_begin : c == 'z' ? Kind::text_end : Kind::search_begin};
    }
    Escape e = escape(word_chars);
    if (!e.set) return literal(e.code, flags, begin);
    if (flags.any_case && (!caseless_beyond_ascii(*e.set) || with_other_cases(*e.set) != *e.set))
      fail(begin, "a class with letters under (?i)");
    return chars(e.negated ? ~*e.set : *e.set);
  }

  // Reads what follows a backslash, in a class or outside. words: the set of \w there.
  Escape escape(CharSet (*words)()) {
    const size_t begin = at_++;
    if (ends()) fail(begin, "a \\ at the end");
    const uint32_t c = next();
    switch (c) {
      case 'd':
      case 'D':
        return {.set = digit_chars(), .negated = c == 'D'};
      case 's':
      case 'S':
        return {.set = space_chars(), .negated = c == 'S'};
      case 'w':
      case 'W':
        return {.set = words(), .negated = c == 'W'};
      case 'h':
      case 'H':
        return {.set = CharSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}), .negated = c == 'H'};
      case 'p':
      case 'P':
        return property(c == 'P', begin);
      case 'n':
        return {.code = '\n'};
      case 't':
        return {.code = '\t'};
      case 'r':
        return {.code = '\r'};
      case 'f':
        return {.code = '\f'};
      case 'v':
        return {.code = '\v'};
      case 'a':
        return {.code = 7};
      case 'e':
        return {.code = 27};
      case 'x':
        return {.code = take("{") ? hexadecimal(begin, 1, 6, "}") : hexadecimal(begin, 2, 2, "")};
      case 'u':
        return {.code = hexadecimal(begin, 4, 4, "")};
      default:
        if (is_letter(c) || is_digit(c) || c > 0x7E || c < 0x20)
          fail(begin, in_quotes(pattern_.substr(begin, at_ - begin)));
        return {.code = c};
    }
  }

  uint32_t hexadecimal(size_t begin, int least, int most, std::string_view end) {
    uint32_t code = 0;
    int digits = 0;
    for (int value; digits < most && (value = hex_value(peek())) >= 0; digits++) {
      code = code * 16 + uint32_t(value);
      at_++;
    }
    // \x80 and above is a byte, not a character.
    if (digits < least || !take(end) || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ||
        (end.empty() && most == 2 && code > 0x7F))
      fail(begin, "the character number " + in_quotes(pattern_.substr(begin, 12)));
    return code;
  }

  Escape property(bool negated, size_t begin) {
    size_t end = pattern_.find('}', at_);
    if (!take("{") || end == std::string_view::npos) fail(begin, "a \\p without {name}");
    if (take("^")) negated = !negated;
    const std::string_view name = pattern_.substr(at_, end - at_);
    at_ = end + 1;
    std::optional<CharSet> set = property_chars(name);
    if (!set) fail(begin, "the property " + in_quotes(name));
    return {.set = std::move(set), .negated = negated};
  }

  // After a [. The set is without the negation, which comes after (?i).
  Class char_class(int depth) {
    const size_t begin = at_ - 1;
    if (depth > kDeepest) fail(begin, "a class nested so deep");
    Class out{.negated = take("^")};
    std::optional<CharSet> met;  // the intersection of what stands before each &&
    CharSet part;
    bool first = true;  // in a part
    auto end_part = [&] {
      if (first) fail(at_, "a class, or a side of &&, without characters");
      if (!met) {
        met = part;
        return;
      }
      meets_ = true;
      const bool both = !beyond_ascii(*met).empty() && !beyond_ascii(part).empty();
      met = *met & part;
      hollow_ = hollow_ || (both && beyond_ascii(*met).empty());
    };
    for (;; first = false) {
      if (ends()) fail(begin, "a class without an end");
      if (next_is("]")) break;
      if (take("&&")) {
        end_part();
        part = {};
        first = true;
        if (ends() || next_is("]") || next_is("&")) fail(at_, "a side of && without characters");
      }
      part = part | class_item(first, depth);
    }
    end_part();
    at_++;
    out.set = std::move(*met);
    return out;
  }

  CharSet class_item(bool first, int depth) {
    const size_t begin = at_;
    if (take("[")) {
      if (next_is(":")) fail(begin, "a POSIX bracket [: :]");
      const Class inner = char_class(depth + 1);
      refuse_range(begin);
      if (!inner.negated) return inner.set;
      const CharSet set = ~inner.set;
      hollow_ = hollow_ || beyond_ascii(set).empty();
      return set;
    }
    if (next_is("-") && !first && !next_is("-]")) fail(begin, "a - that is not a range");
    const Escape low = class_char();
    if (low.set) {
      refuse_range(begin);
      return low.negated ? ~*low.set : *low.set;
    }
    if (!next_is("-") || next_is("-]")) return CharSet::of(low.code);
    at_++;
    if (ends() || next_is("[") || next_is("&&") || pattern_[begin] == '-')
      fail(begin, "a - that is not a range");
    const Escape high = class_char();
    if (high.set || high.code < low.code) fail(begin, "a range that does not ascend");
    refuse_range(begin);
    return CharSet({{low.code, high.code}});
  }
  static CharSet beyond_ascii(const CharSet& set) { return set & CharSet({{0x80, 0x10FFFF}}); }
  void refuse_range(size_t begin) const {
    if (next_is("-") && !next_is("-]")) fail(begin, "a - after a range or a class");
  }
  Escape class_char() {
    if (!next_is("\\")) return {.code = next()};
    return escape(class_word_chars);
  }

  RegexNode chars(const CharSet& set) {
    auto found = std::find(sets_.begin(), sets_.end(), set);
    const auto index = size_t(found - sets_.begin());
    if (found == sets_.end()) sets_.push_back(set);
    return {.kind = Kind::chars, .set = index};
  }

  // --- anchors that are more than one instruction

  RegexNode look(const CharSet& set, bool behind, bool negative) {
    RegexNode node{.kind = Kind::look, .behind = behind, .negative = negative};
    node.children.push_back(chars(set));
    return node;
  }
  static RegexNode either(RegexNode a, RegexNode b) {
    RegexNode node{.kind = Kind::alternatives};
    node.children.push_back(std::move(a));
    node.children.push_back(std::move(b));
    return node;
  }
  static RegexNode both(RegexNode a, RegexNode b) {
    RegexNode node{.kind = Kind::sequence};
    node.children.push_back(std::move(a));
    node.children.push_back(std::move(b));
    return node;
  }
  // At the beginning, and after each \n that does not end the text.
  RegexNode line_begin() {
    edge_ = true;
    RegexNode not_end = look(CharSet::all(), false, false);
    return either({.kind = Kind::text_begin}, both(look(CharSet::of('\n'), true, false), std::move(not_end)));
  }
  RegexNode line_end() {
    edge_ = true;
    return look(~CharSet::of('\n'), false, true);
  }
  // At the end, and before a \n that ends the text.
  RegexNode text_end_or_line() {
    edge_ = true;
    RegexNode node{.kind = Kind::look};
    node.children.push_back(
        either({.kind = Kind::text_end}, both(chars(CharSet::of('\n')), {.kind = Kind::text_end})));
    return node;
  }
  RegexNode word_edge(bool inside) {
    edge_ = true;
    const CharSet word = word_chars();
    return either(both(look(word, true, false), look(word, false, !inside)),
                  both(look(word, true, true), look(word, false, inside)));
  }

  std::string_view pattern_, what_;
  size_t at_ = 0;
  bool edge_ = false;    // the last term is an anchor
  bool meets_ = false;   // the class has an &&
  bool hollow_ = false;  // an intersection, or a negated class in the class, has nothing beyond ASCII
  std::vector<CharSet> sets_;
};

}  // namespace

ParsedRegex parse_regex(std::string_view pattern, std::string_view what) {
  return PatternParser(pattern, what).parse();
}

}  // namespace trireme
