#include "base/visible.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace trireme {
namespace {

TEST(Visible, NoControlByteIsLeft) {
  std::string every;
  for (int c = 0; c < 256; c++) every += char(c);
  for (const std::string& text : {visible(every), visible_lines(every)})
    for (char c : text)
      EXPECT_TRUE((c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t') << int(static_cast<unsigned char>(c));
  EXPECT_EQ(visible(every).find_first_of("\n\t"), std::string::npos);
  EXPECT_EQ(visible("\x1b[31mred\x1b]0;title\x07\r"), "\\x1b[31mred\\x1b]0;title\\x07\\x0d");
  EXPECT_EQ(visible("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(visible_lines("a\nb\tc\x7f"), "a\nb\tc\\u007f");
}

TEST(Visible, TextStaysAsItIs) {
  for (const char* text :
       {"", "plain \"quoted\" \\ text", "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", "\xc2\xa0"})
    EXPECT_EQ(visible(text), text);
}

// C1 controls (a terminal may obey U+009B as ESC [), marks that turn the direction of text, broken UTF-8.
TEST(Visible, WhatATerminalObeysIsEscaped) {
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            "\\u009b31m");
  EXPECT_EQ(visible("\xe2\x80\xae"), "\\u202e");
  EXPECT_EQ(visible("\xe2\x81\xa6"), "\\u2066");
  EXPECT_EQ(visible("\xe2\x80\xa8"), "\\u2028");
  EXPECT_EQ(visible("\xef\xbb\xbf"), "\\ufeff");
  for (const char* broken :
       {"\x80", "\xc3", "\xc0\x9b", "\xe0\x82\x9b", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xf4\x90\x80\x80"})
    EXPECT_EQ(visible(broken).find_first_not_of("\\x0123456789abcdef"), std::string::npos) << visible(broken);
}

TEST(Visible, ACharacterInPiecesWaitsForItsEnd) {
  EXPECT_EQ(whole_characters("ab"), 2u);
  EXPECT_EQ(whole_characters("a\xc3"), 1u);
  EXPECT_EQ(whole_characters("a\xc3\xa9"), 3u);
  EXPECT_EQ(whole_characters("a\xf0\x9f\x98"), 1u);
  EXPECT_EQ(whole_characters("\x80\x80\x80\x80"), 4u);
}

TEST(Visible, PrintedTextIsEscaped) {
  char* data = nullptr;
  size_t bytes = 0;
  std::FILE* f = ::open_memstream(&data, &bytes);
  print_text(f, "{}: {}\n", "a\x1b[0m", 3);
  std::fclose(f);
  EXPECT_EQ(std::string(data, bytes), "a\\x1b[0m: 3\n");
  std::free(data);
}

}  // namespace
}  // namespace trireme
