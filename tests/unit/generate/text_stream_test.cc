#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "text/unicode.h"

namespace trireme {
namespace {

// All that was shown, piece by piece; a piece never has to be taken back.
struct Shown {
  std::string text;
  bool stopped;
  std::vector<std::string> pieces;
};
Shown run(const std::vector<std::string>& stops, const std::vector<std::string>& tokens) {
  TextStream s(stops);
  Shown out{};
  for (const std::string& t : tokens) out.pieces.emplace_back(s.push(t));
  out.pieces.emplace_back(s.finish());
  for (const std::string& p : out.pieces) out.text += p;
  EXPECT_EQ(out.text, s.text());
  out.stopped = s.stopped();
  return out;
}

TEST(TextStream, AStopStringAcrossTokens) {
  Shown s = run({"\nQ:"}, {"yes.", "\n", "Q", ": more", " and more"});
  EXPECT_EQ(s.text, "yes.");
  EXPECT_TRUE(s.stopped);
  EXPECT_EQ(s.pieces[0], "yes.");
  // What looked like one comes out once it is known not to be.
  s = run({"\nQ:"}, {"yes.", "\n", "Q", "uite"});
  EXPECT_EQ(s.text, "yes.\nQuite");
  EXPECT_FALSE(s.stopped);
  EXPECT_EQ(s.pieces[1], "");
  EXPECT_EQ(s.pieces[3], "\nQuite");
  // An unfinished one at the end of a text is text.
  EXPECT_EQ(run({"\nQ:"}, {"yes.", "\nQ"}).text, "yes.\nQ");
}

TEST(TextStream, OneThatBeginsWithinAnother) {
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "b", "c"}).text, "a");
  EXPECT_EQ(run({"ab c", "b"}, {"ab c"}).text, "a");  // the one whose last byte comes first
  EXPECT_EQ(run({"b", "ab"}, {"xab"}).text, "x");     // of those that end together the longest
  EXPECT_EQ(run({"x"}, {"x"}).text, "");
  EXPECT_EQ(run({}, {"x", "y"}).text, "xy");
}

TEST(TextStream, CharactersAreShownWhole) {
  const std::string euro = "\xE2\x82\xAC", face = "\xF0\x9F\x98\x80";
  Shown s = run({}, {"a\xE2", "\x82", "\xAC", "b" + face.substr(0, 3), face.substr(3)});
  EXPECT_EQ(s.text, "a" + euro + "b" + face);
  for (const std::string& p : s.pieces) EXPECT_TRUE(is_utf8(p)) << p;
  EXPECT_EQ(s.pieces[0], "a");
  EXPECT_EQ(s.pieces[2], euro);
  // What can be no character does not wait, and an open one at the end comes as it is.
  s = run({}, {"\x82", "\xFF", "\xE2\x82"});
  EXPECT_EQ(s.pieces[0], "\x82");
  EXPECT_EQ(s.pieces[1], "\xFF");
  EXPECT_EQ(s.text, "\x82\xFF\xE2\x82");
}

TEST(TextStream, RefusesAnEmptyStopString) {
  EXPECT_THROW(TextStream({"a", ""}), Error);
}

// Random texts of two letters and a two-byte character, random stop strings, random token borders: the same
// text as byte by byte, and as a plain search of the whole.
TEST(TextStream, TokenBordersMakeNoDifference) {
  int stopped = 0;
  for (uint64_t trial = 0; trial < 2000; trial++) {
    uint64_t key = rng_key(trial, 0, "text"), at = 0;
    auto random = [&](uint64_t n) { return below(key, at++, n); };
    const std::string alphabet[] = {"a", "b", "\xC3\xA9"};
    auto word = [&](uint64_t most) {
      std::string w;
      for (uint64_t n = 1 + random(most); n > 0; n--) w += alphabet[random(3)];
      return w;
    };
    std::vector<std::string> stops;
    for (uint64_t n = random(3); n > 0; n--) stops.push_back(word(5));
    std::string whole = word(40);
    std::vector<std::string> tokens;
    for (size_t i = 0; i < whole.size();) {
      size_t n = 1 + random(6);
      tokens.push_back(whole.substr(i, n));
      i += n;
    }
    size_t last = std::string::npos, begin = whole.size();
    for (const std::string& s : stops)
      if (size_t i = whole.find(s);
          i != std::string::npos && (i + s.size() < last || (i + s.size() == last && i < begin)))
        last = i + s.size(), begin = i;
    Shown got = run(stops, tokens);
    EXPECT_EQ(got.text, whole.substr(0, begin));
    EXPECT_EQ(got.stopped, last != std::string::npos);
    for (size_t i = 0; i + 1 < got.pieces.size(); i++) EXPECT_TRUE(is_utf8(got.pieces[i]));
    stopped += got.stopped;
  }
  EXPECT_GT(stopped, 300);
  EXPECT_LT(stopped, 1900);
}

}  // namespace
}  // namespace trireme
