#include "text/unicode.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"

namespace trireme {
namespace {

TEST(Unicode, EveryCodePointComesBackFromItsBytes) {
  for (uint32_t code = 0; code < 0x110000; code++) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text = "x";
    append_utf8(text, code);
    CodePoint c = code_point_at(text, 1);
    ASSERT_TRUE(c.valid) << code;
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.bytes, text.size() - 1);
    ASSERT_TRUE(is_utf8(text));
  }
}

TEST(Unicode, IllFormedBytesStandAlone) {
  const std::string bad[] = {"\x80",
                             "\xBF",
                             "\xC0\x80",
                             "\xC1\xBF",
                             "\xC3",
                             "\xC3(",
                             "\xE0\x80\x80",
                             "\xE0\x9F\xBF",
                             "\xE2\x82",
                             "\xE2(\xA1",
                             "\xED\xA0\x80",
                             "\xED\xBF\xBF",
                             "\xF0\x80\x80\x80",
                             "\xF0\x8F\xBF\xBF",
                             "\xF0\x9F\x98",
                             "\xF4\x90\x80\x80",
                             "\xF5\x80\x80\x80",
                             "\xFE",
                             "\xFF"};
  for (const std::string& text : bad) {
    CodePoint c = code_point_at(text, 0);
    EXPECT_FALSE(c.valid) << testing::PrintToString(text);
    EXPECT_EQ(c.bytes, 1u);
    EXPECT_FALSE(is_utf8(text));
  }
  EXPECT_TRUE(is_utf8("\xED\x9F\xBF \xEE\x80\x80 \xF4\x8F\xBF\xBF"));  // the neighbours of what is refused
}

TEST(Unicode, ClassesOfKnownCharacters) {
  const CharClass* classes = char_classes();
  for (uint32_t c :
       {0x61, 0x5A, 0xAA, 0xE9, 0x3B1, 0x416, 0x5D0, 0x4E2D, 0x3042, 0xAC00, 0x20000, 0x1C89, 0xA7CB})
    EXPECT_EQ(classes[c], CharClass::letter) << c;
  for (uint32_t c : {0x30, 0x39, 0xB2, 0xBD, 0x661, 0x2167, 0x3007, 0x10D40})
    EXPECT_EQ(classes[c], CharClass::number) << c;
  for (uint32_t c :
       {9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000})
    EXPECT_EQ(classes[c], CharClass::space) << c;
  for (uint32_t c : {0, 8, 14, 0x1F, 0x5F, 0x27, 0x7F, 0x301, 0x180E, 0x200B, 0x200D, 0x20E3, 0xD800, 0xFEFF,
                     0xFFFD, 0x1F600, 0x10FFFF})
    EXPECT_EQ(classes[c], CharClass::other) << c;
}

TEST(Unicode, RangesAreAscendingAndDisjoint) {
  uint32_t next = 0;
  for (const CategoryRange& r : category_ranges()) {
    ASSERT_GE(r.first, next);
    ASSERT_LE(r.first, r.last);
    next = r.last + 1;
  }
  EXPECT_LE(next, 0x110000u);
}

TEST(Unicode, StandInsAreGpt2s) {
  EXPECT_EQ(stand_in(' '), 0x120u);
  EXPECT_EQ(stand_in('\n'), 0x10Au);
  EXPECT_EQ(stand_in('!'), uint32_t('!'));
  EXPECT_EQ(stand_in('~'), uint32_t('~'));
  EXPECT_EQ(stand_in(0x7F), 0x121u);
  EXPECT_EQ(stand_in(0xA0), 0x142u);
  EXPECT_EQ(stand_in(0xAD), 0x143u);
  EXPECT_EQ(stand_in(0xFF), 0xFFu);
  std::set<uint32_t> seen;
  for (int b = 0; b < 256; b++) {
    seen.insert(stand_in(uint8_t(b)));
    EXPECT_EQ(byte_of_stand_in(stand_in(uint8_t(b))), b);
  }
  EXPECT_EQ(seen.size(), 256u);
  for (uint32_t code : {0x20u, 0x7Fu, 0xA0u, 0xADu, 0x144u, 0x10FFFFu})
    EXPECT_EQ(byte_of_stand_in(code), -1) << code;
}

TEST(Unicode, SpellingComesBack) {
  std::string bytes, back;
  for (uint64_t i = 0; i < 1000; i++) bytes += char(below(7, i, 256));
  std::string spelled = spell_bytes(bytes);
  EXPECT_TRUE(is_utf8(spelled));
  ASSERT_TRUE(unspell_bytes(spelled, back));
  EXPECT_EQ(back, bytes);
  EXPECT_FALSE(unspell_bytes("a b", back));    // a space stands for no byte
  EXPECT_FALSE(unspell_bytes("a\xC4", back));  // no UTF-8
}

}  // namespace
}  // namespace trireme
