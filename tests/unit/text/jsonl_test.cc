#include "text/jsonl.h"

#include <gtest/gtest.h>

#include "folder.h"

namespace trireme {
namespace {

TEST(JsonLines, ReadsDocuments) {
  TestFolder folder;
  fs::path path = folder.write("a.jsonl",
                               "{\"text\": \"one\\n\\u00e9\", \"id\": 1}\n"
                               "\n  \r\n"
                               "{\"id\": 2, \"text\": \"\"}\r\n"
                               "{\"text\": \"last, without an end\"}");
  JsonLines lines(path);
  ASSERT_EQ(lines.documents(), 3);
  EXPECT_EQ(lines.read(0), "one\n\xC3\xA9");
  EXPECT_EQ(lines.read(1), "");
  EXPECT_EQ(lines.read(2), "last, without an end");
  EXPECT_EQ(lines.bytes(), int64_t(fs::file_size(path)));
  EXPECT_EQ(JsonLines(folder.write("empty.jsonl", "")).documents(), 0);
  EXPECT_EQ(JsonLines(folder.write("other.jsonl", "{\"content\":\"x\"}\n"), "content").read(0), "x");
}

TEST(JsonLines, WrongLinesAreNamed) {
  TestFolder folder;
  JsonLines lines(folder.write(
      "a.jsonl", "\n{\"text\": 1}\n{\"txt\": \"x\"}\n[1]\n{\"text\": \"x\n{\"text\": \"\xFF\"}"));
  ASSERT_EQ(lines.documents(), 5);
  const char* want[] = {"a.jsonl, line 2: \"text\" is not a string",
                        "line 3: no key \"text\"; it has \"txt\"", "line 4: not a JSON object",
                        "line 5: not a JSON object", "line 6: not a JSON object"};
  for (int64_t i = 0; i < 5; i++) {
    std::string why = refusal([&] { lines.read(i); });
    EXPECT_NE(why.find(want[i]), std::string::npos) << why;
  }
  EXPECT_NE(refusal([] { JsonLines("/no/such.jsonl"); }).find("/no/such.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace trireme
