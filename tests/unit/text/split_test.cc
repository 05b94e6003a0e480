#include "text/split.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "folder.h"
#include "text/regex_split.h"

namespace trireme {
namespace {

std::vector<std::string> words(SplitPattern pattern, std::string_view text) {
  std::vector<std::string> out;
  split_words(pattern, text, [&](std::string_view w) { out.emplace_back(w); });
  return out;
}
std::vector<std::string> words(std::string_view text) {
  return words(SplitPattern::gpt2, text);
}

// The published pattern, run by an engine that was written by others.
class Oracle {
 public:
  explicit Oracle(std::string_view pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(PCRE2_SPTR(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &at,
                          nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Oracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  std::vector<std::string> words(const std::string& text) const {
    std::vector<std::string> out;
    for (size_t at = 0; at < text.size();) {
      int n = pcre2_match(code_, PCRE2_SPTR(text.data()), text.size(), at, 0, match_, nullptr);
      EXPECT_GT(n, 0);
      if (n <= 0) break;
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_);
      EXPECT_EQ(span[0], at);
      out.push_back(text.substr(span[0], span[1] - span[0]));
      at = span[1];
    }
    return out;
  }
  bool matches(const std::string& text) const {
    return pcre2_match(code_, PCRE2_SPTR(text.data()), text.size(), 0, 0, match_, nullptr) > 0;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};
struct Known {
  SplitPattern pattern;
  std::string_view regex;
};
constexpr Known kKnown[] = {{SplitPattern::gpt2, kGpt2Pattern},
                            {SplitPattern::llama3, kLlama3Pattern},
                            {SplitPattern::qwen2, kQwen2Pattern}};

// Code points on which the engine's Unicode version has the same opinion as ours.
std::vector<uint32_t> agreed(CharClass kind) {
  Oracle letter("^\\p{L}"), number("^\\p{N}"), space("^\\s");
  std::vector<uint32_t> out;
  for (uint32_t code = 1; code < 0x110000; code++) {
    if ((code >= 0xD800 && code < 0xE000) || char_classes()[code] != kind) continue;
    // Every code point where people write, a sample of the vast planes beyond.
    if (code > 0x3100 && code % 31) continue;
    std::string c;
    append_utf8(c, code);
    CharClass theirs = letter.matches(c)   ? CharClass::letter
                       : number.matches(c) ? CharClass::number
                       : space.matches(c)  ? CharClass::space
                                           : CharClass::other;
    if (theirs == kind) out.push_back(code);
  }
  return out;
}

TEST(Split, KnownTexts) {
  using V = std::vector<std::string>;
  EXPECT_EQ(words(""), V{});
  EXPECT_EQ(words("Hello world"), (V{"Hello", " world"}));
  EXPECT_EQ(words("it's they'll '"), (V{"it", "'s", " they", "'ll", " '"}));
  EXPECT_EQ(words("'LL"), (V{"'", "LL"}));
  EXPECT_EQ(words("''s"), (V{"''", "s"}));
  EXPECT_EQ(words("  x"), (V{" ", " x"}));
  EXPECT_EQ(words("x  "), (V{"x", "  "}));
  EXPECT_EQ(words("a\n\n  b"), (V{"a", "\n\n ", " b"}));
  EXPECT_EQ(words("a\nb"), (V{"a", "\n", "b"}));
  EXPECT_EQ(words("a \n"), (V{"a", " \n"}));
  EXPECT_EQ(words("x=12+y3"), (V{"x", "=", "12", "+", "y", "3"}));
  EXPECT_EQ(words(" 12 ab"), (V{" 12", " ab"}));
}

TEST(Split, KnownTextsOfLlamaAndQwen) {
  using V = std::vector<std::string>;
  const auto llama = SplitPattern::llama3, qwen = SplitPattern::qwen2;
  EXPECT_EQ(words(llama, "It'S 12345 (ok)\n\n  x\r\n"),
            (V{"It", "'S", " ", "123", "45", " (", "ok", ")\n\n", " ", " x", "\r\n"}));
  EXPECT_EQ(words(qwen, "a12\t\tb\t c"), (V{"a", "1", "2", "\t", "\tb", "\t", " c"}));
  EXPECT_EQ(words(qwen, "  \n \n  !"), (V{"  \n \n", " ", " !"}));
  EXPECT_EQ(words(llama, "'\u017fo 's'Ll"), (V{"'\u017f", "o", " '", "s", "'Ll"}));
  for (const Known& k : kKnown) EXPECT_EQ(known_pattern(k.regex), k.pattern);
  EXPECT_EQ(known_pattern("\\s+"), std::nullopt);
}

TEST(Split, EqualsThePatternOnRandomText) {
  std::vector<uint32_t> pools[] = {agreed(CharClass::letter), agreed(CharClass::number),
                                   agreed(CharClass::space), agreed(CharClass::other)};
  for (auto& pool : pools) ASSERT_GE(pool.size(), 20u);
  const std::string_view common = "   ''stmdrevelSL\n\r\tab12.,(";
  const Oracle oracles[] = {Oracle(kKnown[0].regex), Oracle(kKnown[1].regex), Oracle(kKnown[2].regex)};
  for (uint64_t round = 0; round < 6000; round++) {
    uint64_t key = rng_key(11, round, "split");
    std::string text;
    size_t length = below(key, 0, 40);
    for (uint64_t i = 1; i <= 3 * length; i += 3) {
      if (below(key, i, 2)) {
        text += common[below(key, i + 1, common.size())];
      } else {
        auto& pool = pools[below(key, i + 1, 4)];
        append_utf8(text, pool[below(key, i + 2, pool.size())]);
      }
    }
    const size_t k = round % std::size(kKnown);
    ASSERT_EQ(words(kKnown[k].pattern, text), oracles[k].words(text)) << k << testing::PrintToString(text);
  }
}

// A byte that is no UTF-8 is split as U+FFFD would be, and stays as it is.
TEST(Split, IllFormedBytesAreOther) {
  const Oracle oracles[] = {Oracle(kKnown[0].regex), Oracle(kKnown[1].regex), Oracle(kKnown[2].regex)};
  const std::string_view pieces[] = {"\xFF", "\x80", "\xC3", "\xF0\x9F", "a",
                                     " ",    "1",    "'s",   "\n",       "\xC3\xA9"};
  for (uint64_t round = 0; round < 2000; round++) {
    uint64_t key = rng_key(12, round, "split");
    std::string text, replaced;
    for (uint64_t i = 1; i <= below(key, 0, 12); i++) text += pieces[below(key, i, std::size(pieces))];
    std::vector<size_t> place;  // of each byte of text in `replaced`
    for (size_t at = 0; at < text.size();) {
      CodePoint c = code_point_at(text, at);
      for (uint32_t k = 0; k < c.bytes; k++) place.push_back(replaced.size() + (c.valid ? k : 0));
      c.valid ? (void)replaced.append(text, at, c.bytes) : append_utf8(replaced, 0xFFFD);
      at += c.bytes;
    }
    place.push_back(replaced.size());
    size_t begin = 0;
    std::vector<std::string> got;
    const size_t k = round % std::size(kKnown);
    for (const std::string& w : words(kKnown[k].pattern, text)) {
      got.push_back(replaced.substr(place[begin], place[begin + w.size()] - place[begin]));
      begin += w.size();
    }
    EXPECT_EQ(begin, text.size());
    ASSERT_EQ(got, oracles[k].words(replaced)) << testing::PrintToString(text);
  }
}

// A pattern without a matcher of its own gives the same through PCRE2, on bytes that are no UTF-8 too.
TEST(RegexSplit, EqualsTheMatchers) {
  const std::string_view pieces[] = {"\xFF", "\xC3", "\xF0\x9F", "a",      " ", "1",
                                     "'s",   "\n",   "\u00e9",   "\u0661", "!?"};
  for (const Known& k : kKnown) {
    RegexSplit regex(std::string(k.regex), "pattern");
    for (uint64_t round = 0; round < 500; round++) {
      uint64_t key = rng_key(13, round, "regex");
      std::string text;
      for (uint64_t i = 1; i <= below(key, 0, 20); i++) text += pieces[below(key, i, std::size(pieces))];
      std::vector<size_t> ends;
      regex.pieces(text, ends);
      std::vector<std::string> got;
      size_t begin = 0;
      for (size_t end : ends) got.push_back(text.substr(begin, end - begin)), begin = end;
      ASSERT_EQ(got, words(k.pattern, text)) << testing::PrintToString(text);
    }
  }
}

TEST(RegexSplit, ATextThatTakesTooLongIsRefused) {
  EXPECT_NE(refusal([] { RegexSplit("", "x"); }).find("1 to 4096 bytes"), std::string::npos);
  const std::string long_text(60, 'a');
  std::string gave_up = refusal([&] {
    std::vector<size_t> ends;
    RegexSplit("(a+)+b|(a+)+c", "x").pieces(long_text, ends);
  });
  EXPECT_NE(gave_up.find("gave up at character 0 of a text of 60 bytes"), std::string::npos) << gave_up;
}

}  // namespace
}  // namespace trireme
