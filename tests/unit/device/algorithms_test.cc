// Files of algorithms: what is written is read, what is wrong is named by its line, and no bytes do harm.
#include "device/algorithms.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {
namespace {

KeptAlgorithms drawn(uint64_t seed) {
  KeptAlgorithms all;
  for (const char* title :
       {"cublasLt 130100 on NVIDIA H100 80GB HBM3, sm_90 of 132 multiprocessors, the fastest", "another"})
    for (uint64_t i = 0; i < 1 + seed % 5; i++) {
      KeptAlgorithms::Problem p{};
      KeptAlgorithms::Words w{};
      for (uint64_t k = 0; k < p.size(); k++) p[k] = int64_t(1e6 * uniform(seed, 100 * i + k)) - 5;
      for (uint64_t k = 0; k < w.size(); k++) w[k] = uint64_t(1.8e19 * uniform(seed, 100 * i + 50 + k));
      all.by_title[title][p] = w;
    }
  return all;
}

TEST(Algorithms, WhatIsWrittenIsRead) {
  for (uint64_t seed = 0; seed < 20; seed++) {
    KeptAlgorithms all = drawn(seed);
    all.by_title["another"][{std::numeric_limits<int64_t>::min()}] = {std::numeric_limits<uint64_t>::max()};
    EXPECT_TRUE(parse_algorithms(text_of(all), "f").by_title == all.by_title) << text_of(all);
  }
  EXPECT_TRUE(parse_algorithms("", "f").by_title.empty());
  EXPECT_EQ(text_of({}), "");
}

TEST(Algorithms, WhatIsWrongIsNamed) {
  const std::string good = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0 1\n";
  const auto why = [](const std::string& text) -> std::string {
    try {
      parse_algorithms(text, "algorithms.txt");
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(why("title\n" + good), "");
  EXPECT_EQ(why(good), "algorithms.txt:1: a problem before any title");
  EXPECT_EQ(why("title\n" + good + good),
            "algorithms.txt:3: this problem was there before under the same title");
  for (const char* line :
       {"1 2 3", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0",
        "1  2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0 1",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 x a b c d e f 0 1", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0 g",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 a b c d e f 0 11112222333344445", "\x01", "title \x7f", " t"})
    EXPECT_NE(why("title\n" + std::string(line) + "\n").find("algorithms.txt:2: \""), std::string::npos)
        << line << "\n"
        << why("title\n" + std::string(line));
  EXPECT_NE(why(std::string(kMostAlgorithmBytes + 1, 'a')).find("bytes; a file of algorithms has"),
            std::string::npos);
}

TEST(Algorithms, NoBytesDoHarm) {
  const std::string text = text_of(drawn(4));
  int read = 0;
  for (uint64_t seed = 0; seed < 2000; seed++) {
    std::string bytes = text;
    for (uint64_t k = 0; k < 1 + seed % 4; k++)
      bytes[size_t(uniform(seed, 2 * k) * double(bytes.size()))] =
          seed % 2 == 0 ? char(256 * uniform(seed, 2 * k + 1))
                        : "0123456789abcdef \n"[int(18 * uniform(seed, 2 * k + 1))];
    try {
      const KeptAlgorithms all = parse_algorithms(bytes, "f");
      EXPECT_TRUE(parse_algorithms(text_of(all), "again").by_title == all.by_title);
      read++;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_LT(read, 1900);
}

TEST(Algorithms, WhatIsNewGoesBeforeAndTheRestStays) {
  KeptAlgorithms all{{{"a", {{{1}, {1}}, {{2}, {2}}}}, {"b", {{{1}, {3}}}}}};
  merge(all, {{{"a", {{{2}, {9}}}}, {"c", {{{5}, {5}}}}}});
  EXPECT_TRUE(
      (all.by_title ==
       decltype(all.by_title){{"a", {{{1}, {1}}, {{2}, {9}}}}, {"b", {{{1}, {3}}}}, {"c", {{{5}, {5}}}}}));
}

}  // namespace
}  // namespace trireme
