#include "text/normal_form.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/unicode.h"

namespace trireme {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  append_nfc(out, text);
  return out;
}

TEST(NormalForm, KnownTexts) {
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("cafe\u0301!"), "caf\u00e9!");
  EXPECT_EQ(nfc("\u0301e"), "\u0301e");
  EXPECT_EQ(nfc("\u212b\u2126"), "\u00c5\u03a9");                      // singletons
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");                    // order of marks
  EXPECT_EQ(nfc("\u1e0b\u0323"), "\u1e0d\u0307");                      // taken apart, ordered, joined anew
  EXPECT_EQ(nfc("\u1100\u1161\u11a8 \uac00\u11a8"), "\uac01 \uac01");  // Hangul
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");                            // excluded from composition
  EXPECT_EQ(nfc("a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");  // of the Unicode test suite
  EXPECT_EQ(nfc("e\xFF\u0301\xC3"), "e\xFF\u0301\xC3");  // nothing joins across a stray byte
  EXPECT_EQ(nfc("e\u0301\xFF"
                "e\u0301"),
            "\u00e9\xFF\u00e9");
}

// Twice is once; canonical equivalents become the same; what surely_nfc() passes stays.
TEST(NormalForm, HoldsItsLawsOnRandomText) {
  const uint32_t codes[] = {'a',    'e',    'q',     ' ',    0x300,  0x301, 0x323,  0x307,  0x315, 0x5AE,
                            0x1100, 0x1161, 0x11A8,  0xAC00, 0xAC01, 0xE9,  0x1E0B, 0x212B, 0x958, 0x93C,
                            0x1025, 0x102E, 0x1D15E, 0x344,  0x9C7,  0x9BE, 0x4E00, 0x1F600};
  int changed = 0, sure = 0;
  for (uint64_t round = 0; round < 5000; round++) {
    uint64_t key = rng_key(9, round, "nfc");
    std::string text;
    for (uint64_t i = 1; i <= below(key, 0, 12); i++)
      append_utf8(text, codes[below(key, i, std::size(codes))]);
    const std::string once = nfc(text);
    changed += once != text;
    ASSERT_EQ(nfc(once), once) << testing::PrintToString(text);
    if (surely_nfc(text)) {
      sure++;
      ASSERT_EQ(once, text);
    }
    size_t cut = once.find(' ');  // nothing reaches across a space
    if (cut != std::string::npos) {
      size_t there = text.find(' ');
      ASSERT_EQ(nfc(text.substr(0, there)) + nfc(text.substr(there)), once);
    }
  }
  EXPECT_GT(changed, 500);
  EXPECT_GT(sure, 50);
}

TEST(NormalForm, AMegabyteOfMarks) {
  std::string text = "a";
  for (int i = 0; i < 250000; i++) text += i % 2 ? "\u0301" : "\u0323";
  std::string got = nfc(text);
  EXPECT_EQ(nfc(got), got);
  EXPECT_EQ(got.substr(0, 3), "\u1ea1");
}

TEST(NormalForm, WordCharacters) {
  for (uint32_t c :
       {uint32_t('a'), uint32_t('Z'), uint32_t('0'), uint32_t('_'), 0xE9u, 0x301u, 0x4E00u, 0x200Du, 0x661u})
    EXPECT_TRUE(is_word_char(c)) << c;
  for (uint32_t c : {uint32_t(' '), uint32_t('-'), uint32_t('\''), 0x3001u, 0x1F600u, 0x10FFFFu, 0u})
    EXPECT_FALSE(is_word_char(c)) << c;
}

}  // namespace
}  // namespace trireme
