// Split patterns. Expected pieces are those of tokenizers 0.23.3: Split(Regex(pattern), "isolated").
#include "text/regex_split.h"

#include <gtest/gtest.h>

#include "folder.h"
#include "text/unicode.h"

namespace trireme {
namespace {

using SplitPieces = std::vector<std::string>;

SplitPieces isolated(const std::string& pattern, std::string_view text) {
  std::vector<size_t> ends;
  RegexSplit(pattern, "pattern").pieces(text, ends);
  SplitPieces out;
  size_t begin = 0;
  for (size_t end : ends) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}
std::string pattern_refusal(const std::string& pattern) {
  return refusal([&] { RegexSplit(pattern, "pre_tokenizer.pattern"); });
}

struct SplitCase {
  const char* pattern;
  std::string text;
  SplitPieces pieces;
};

// Syntax that PCRE2 or Rust's regex reads differently, and that is translated.
TEST(RegexSplit, MeansWhatItMeansToTheLibrary) {
  const std::string ki = "\xE0\xA4\x95\xE0\xA4\xBF";  // a letter and a combining mark
  const SplitCase cases[] = {
      {R"(a{1,2}+)", "aaaaa", {"aaaaa"}},
      {R"(\p{N}{1,3}+x)", "12345x1", {"12345x", "1"}},
      {R"(a{,2})", "aaaaa", {"aa", "aa", "a"}},
      {R"(a++b|a)", "aaab", {"aaab"}},
      {R"(\w+|\W)", ki, {ki}},
      {R"(\w)", "\xC2\xB2x", {"\xC2\xB2", "x"}},         // U+00B2 is a word character outside of a class
      {R"([\w]x)", "\xC2\xB2xax", {"\xC2\xB2x", "ax"}},  // and none inside
      {R"(\h+)", "bag\t", {"ba", "g\t"}},
      {R"(\v)", "\x0B\n", {"\x0B", "\n"}},
      {R"(\s)", "a\xE1\xA0\x8E\xC2\x85z", {"a\xE1\xA0\x8E", "\xC2\x85", "z"}},
      {R"(\d)", "1\xD9\xA3\xC2\xB2", {"1", "\xD9\xA3", "\xC2\xB2"}},
      {R"(.)", "\r\n\xE2\x80\xA8", {"\r", "\n", "\xE2\x80\xA8"}},
      {R"((?m:.)+)", "a\n", {"a\n"}},
      {R"(.+)", "a\nb", {"a", "\n", "b"}},
      {R"(a(?i)b|c)", "aB aC c C", {"aB", " ", "aC", " c C"}},
      {R"((?i:s)k)", "\xC5\xBFk Sk s\xE2\x84\xAA", {"\xC5\xBFk", " ", "Sk", " s\xE2\x84\xAA"}},
      {R"((?i:[sk]))", "\xC5\xBF\xE2\x84\xAA", {"\xC5\xBF", "\xE2\x84\xAA"}},
      {R"(^a)", "aa\na", {"a", "a\n", "a"}},
      {R"(a$)", "aa\na", {"a", "a", "\n", "a"}},
      {R"(a\Z)", "aa\n", {"a", "a", "\n"}},
      {R"(a\z)", "aa\n", {"aa\n"}},
      {R"(\G a)", " a ab a", {" a", " a", "b a"}},
      {R"(\b)", "ab cd", {"ab", " ", "cd"}},
      {R"((?=a))", "bab", {"b", "ab"}},
      {R"(x*)", "bxxab", {"b", "xx", "a", "b"}},
      {R"([a-z&&[^aeiou]]+)", "abcde&", {"a", "bcd", "e&"}},
      {R"([^(\s|[.,])]+)", "a (b|c).", {"a", " (", "b", "|", "c", ")."}},
      {R"([\w-])", "a-", {"a", "-"}},
      {R"(a]})", "a]}a", {"a]}", "a"}},
      {R"((?<=a)b|(?>ab?)c)", "abbac", {"a", "b", "b", "ac"}},
      {R"(\x{e9}|\u00e8)", "\xC3\xA9\xC3\xA8", {"\xC3\xA9", "\xC3\xA8"}},
      {R"(\p{^L}|\P{Lu})", "aA1", {"a", "A", "1"}},
      {R"([\p{Han}]+)", "\xE5\xAD\x97\xE6\xBC\xA2x", {"\xE5\xAD\x97\xE6\xBC\xA2", "x"}},
      {R"(\p{L})",
       "\xF0\x90\xB5\x80.\xEA\x9F\x8B",
       {"\xF0\x90\xB5\x80.", "\xEA\x9F\x8B"}},  // a letter in Unicode 16
  };
  for (const SplitCase& c : cases) {
    EXPECT_EQ(isolated(c.pattern, c.text), c.pieces) << c.pattern << " on " << testing::PrintToString(c.text);
  }
}

TEST(RegexSplit, BytesThatAreNoTextMatchAsTheReplacementCharacter) {
  EXPECT_EQ(isolated("\\p{So}", "a\xFF\xFE\xC3z"), (SplitPieces{"a", "\xFF", "\xFE", "\xC3", "z"}));
}

// Syntax that the translation does not cover.
TEST(RegexSplit, NamesWhatItDoesNotSupport) {
  const std::pair<const char*, const char*> cases[] = {
      {"\\Qa.b\\E", "\"\\Q\" at byte 0"},
      {"a\\Kb", "\"\\K\""},
      {"\\R", "\"\\R\""},
      {"\\X", "\"\\X\""},
      {"\\N", "\"\\N\""},
      {"\\101", "\"\\1\""},
      {"(a)\\1", "\"\\1\" at byte 3"},
      {"\\pL", "a \\p without {name}"},
      {"\\p{Greek}", "the property \"Greek\""},
      {"\\p{Script=Han}", "the property \"Script=Han\""},
      {"[[:alpha:]]", "a POSIX bracket"},
      {"[]a]", "without characters"},
      {"[a&&]", "without characters"},
      {"[^B[^\\H\\P{Hiragana}]&&[^5]]", "a class with && and a part without"},
      {"[\xC3\xA9&&\xC3\xA8]", "a class with && and a part without"},
      {"[a-c-e]", "a - after a range"},
      {"[a-\\d]", "a range that does not ascend"},
      {"[\\d-a]", "a - after a range"},
      {"[z-a]", "a range that does not ascend"},
      {"[a", "a class without an end"},
      {"\\xe9", "the character number"},
      {"\\x{110000}", "the character number"},
      {"a**", "a repeat of a repeat"},
      {"a{2}?", "a repeat of a repeat"},
      {"a{2", "a { that begins no interval"},
      {"a{3,2}", "a { that begins no interval"},
      {"a{1001}", "at most 1000"},
      {"{2}", "a { that repeats nothing"},
      {"*a", "a repeat of nothing"},
      {"^*", "a repeat of an anchor"},
      {"(?=a)+", "a repeat of an anchor"},
      {"(?:a?)+", "a repeat of something that can be empty"},
      {"(a|b*){2,}", "a repeat of something that can be empty"},
      {"a{0,3}+", "a repeat of something that can be empty"},
      {"(?<=a|bc)d", "a look-behind of more than one length"},
      {"(?<n>a)", "the group \"(?<\""},
      {"(?x)a b", "the group \"(?x\""},
      {"(?#c)a", "the group \"(?#\""},
      {"(?~a)", "the group \"(?~\""},
      {"(?s).", "the group \"(?s\""},
      {"(a", "a group without an end"},
      {"a)", "a ) that closes nothing"},
      {"(?i:ss)", "\"ss\" under (?i)"},
      {"(?i:s+)", "\"ss\" under (?i)"},
      {"(?i:(?:af)(?:b?i))", "\"fi\" under (?i)"},
      {"(?i:[s])t", "\"st\" under (?i)"},
      {"(?i:\xC3\x9F)", "a letter beyond ASCII under (?i)"},
      {"(?i:[\\p{L}])", "a class with letters beyond ASCII under (?i)"},
      {"(?i:\\w)", "a class with letters under (?i)"},
  };
  for (const auto& [pattern, why] : cases) {
    const std::string got = pattern_refusal(pattern);
    EXPECT_NE(got.find(why), std::string::npos) << pattern << ": " << got;
    EXPECT_EQ(got.rfind("pre_tokenizer.pattern = \"", 0), 0u) << got;
  }
  std::string many;
  for (int i = 0; i < 300; i++) append_utf8(many, uint32_t(0x4E00 + 2 * i)), many += '|';
  EXPECT_NE(pattern_refusal(many + "a").find("more than 256 kinds"), std::string::npos);
  EXPECT_EQ(pattern_refusal("[" + many + "]"), "");  // one set, one kind
}

// The patterns of published tokenizers that split.h has no matcher for.
TEST(RegexSplit, AcceptsTheSplitPatternsOfKnownTokenizers) {
  const char* patterns[] = {
      // cl100k and its descendants; o200k, Llama 4; Mistral's tekken; Kimi K2
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      // DeepSeek (several), Qwen 3.5, Bloom, Falcon, digits in groups from the right
      "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"(\s?\p{L}+)",
      R"(\s?\p{P}+)",
      R"([\r\n])",
      R"(\p{N})",
      "\\s?[A-Za-z\xC2\xB5\xC3\x80-\xC3\x96\xC3\x98-\xC3\xB6]+",
      R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      " ?[^(\\s|[.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C])]+",
      R"([0-9][0-9][0-9])",
      R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3})",
      R"(\d{1,3}(?=(?:\d{3})*\b))",
  };
  for (const char* pattern : patterns) EXPECT_EQ(pattern_refusal(pattern), "") << pattern;
}

}  // namespace
}  // namespace trireme
