#include "base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

#include "base/printable.h"

namespace trireme {
namespace {

TEST(JsonDepth, CountsOpenBracketsOutsideOfStrings) {
  EXPECT_EQ(json_depth(""), 0);
  EXPECT_EQ(json_depth("1"), 0);
  EXPECT_EQ(json_depth("[]"), 1);
  EXPECT_EQ(json_depth(R"({"a": [1, {"b": 2}], "c": []})"), 3);
  EXPECT_EQ(json_depth(R"(["[[[", "\"[[[", "\\", [1]])"), 2);
  EXPECT_EQ(json_depth("]]]][["), 2);
  EXPECT_EQ(json_depth("\"[[["), 0);
  EXPECT_EQ(json_depth("\"\\"), 0);
  EXPECT_EQ(json_depth(std::string(100000, '[')), 100000);
}

TEST(Printable, OneShortLineOfAscii) {
  EXPECT_EQ(printable("a b~"), "a b~");
  EXPECT_EQ(printable(std::string_view("\0\n\x1b\x7f\xff", 5)), "\\x00\\x0a\\x1b\\x7f\\xff");
  EXPECT_EQ(printable(std::string(100, 'x')), std::string(100, 'x'));
  EXPECT_EQ(printable(std::string(101, 'x')), std::string(100, 'x') + "...");
}

}  // namespace
}  // namespace trireme
