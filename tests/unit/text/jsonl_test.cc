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
                        "line 5: not a JSON object: the line ends in a string at byte 11",
                        "line 6: not a JSON object: a byte 0xFF that is not UTF-8 at byte 10"};
  for (int64_t i = 0; i < 5; i++) {
    std::string why = refusal([&] { lines.read(i); });
    EXPECT_NE(why.find(want[i]), std::string::npos) << why;
  }
  EXPECT_NE(refusal([] { JsonLines("/no/such.jsonl"); }).find("/no/such.jsonl"), std::string::npos);
}

std::string line_text(std::string_view line) {
  return json_text(line, "text", "here");
}

// Python's json.dumps() writes all of this with its defaults.
TEST(JsonLines, ReadsWhatPythonWrites) {
  for (const char* value :
       {"NaN", "Infinity", "-Infinity", "123456789012345678901234567890", "1e999", "-0.5E-3", "null", "[]",
        "{}", "[1, [NaN, {\"text\": \"no\"}], \"]\"]", "{\"text\": {\"a\": [true, false]}}"}) {
    EXPECT_EQ(line_text(fmt::format("{{\"text\": \"a\", \"x\": {}}}", value)), "a") << value;
    EXPECT_EQ(line_text(fmt::format("  {{ \"x\" :{} , \"text\":\"a\" }}\r", value)), "a") << value;
  }
  EXPECT_EQ(line_text(R"({"text": "\ud83d\ude00 \u00e9\n\"\\\/\b\f\r\t"})"),
            "\xF0\x9F\x98\x80 \xC3\xA9\n\"\\/\b\f\r\t");
  // Halves of a pair alone, the wrong way round, and before another escape.
  EXPECT_EQ(line_text(R"({"text": "a\ud83d"})"), "a\uFFFD");
  EXPECT_EQ(line_text(R"({"text": "\ude00\ud83dx"})"), "\uFFFD\uFFFDx");
  EXPECT_EQ(line_text(R"({"text": "\ud83d\u0041\ud83d\ud83d\ude00"})"), "\uFFFDA\uFFFD\xF0\x9F\x98\x80");
  EXPECT_EQ(line_text(R"({"text": 1, "text": "last"})"), "last");
  EXPECT_EQ(line_text("\xEF\xBB\xBF{\"text\": \"mark\"}"), "mark");
  EXPECT_EQ(line_text(R"({"te\u0078t": "escaped key"})"), "escaped key");
  EXPECT_EQ(
      line_text("{\"x\": " + std::string(100000, '[') + std::string(100000, ']') + ", \"text\": \"deep\"}"),
      "deep");
}

TEST(JsonLines, SaysWhyALineIsNoObject) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no { at byte 0"},
      {"[1]", "no { at byte 0"},
      {R"({"a": nan})", "no value at byte 6"},
      {R"({"a": 01})", "no } at byte 7"},
      {R"({"a": 1.})", "no value at byte 8"},
      {R"({"a": 1,})", "no string at byte 8"},
      {R"({"a": [1,]})", "no value at byte 9"},
      {R"({"a": [1})", "no ] at byte 8"},
      {R"({"a": {"b" 1}})", "no : at byte 11"},
      {R"({"a": {"b": 1, 2}})", "no string at byte 15"},
      {R"({a: 1})", "no string at byte 1"},
      {R"({"a": 1} x)", "text after the object at byte 9"},
      {R"({"a": "\x"})", "an unknown escape at byte 8"},
      {R"({"a": "\u12g4"})", "\\u without four digits at byte 11"},
      {"{\"a\": \"\t\"}", "a control character 0x09 at byte 7"},
      {R"({"a")", "the line ends before a : at byte 4"},
      {R"({"a": )", "the line ends before a value at byte 6"},
  };
  for (const auto& [line, why] : cases) {
    const std::string got = refusal([&] { line_text(line); });
    EXPECT_EQ(got, std::string("here: not a JSON object: ") + why) << line;
  }
}

TEST(JsonLines, AreKnownByNameAndByContent) {
  TestFolder folder;
  for (const char* name : {"a.jsonl", "a.JSONL", "b.x.NdJson", "c.jl"})
    EXPECT_TRUE(is_json_lines(name)) << name;
  for (const char* name : {"a.json", "jsonl", "a.jsonl.bak"}) EXPECT_FALSE(is_json_lines(name)) << name;
  auto looks = [&](std::string_view content, const char* key = "text") {
    return looks_like_json_lines(folder.write("f", content), key);
  };
  EXPECT_TRUE(looks("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
  EXPECT_TRUE(looks("\xEF\xBB\xBF\n {\"text\": \"a\", \"x\": NaN}\n\n"));
  EXPECT_TRUE(looks("{\"other\": 1}", ""));
  EXPECT_FALSE(looks("{\"other\": 1}"));
  EXPECT_FALSE(looks("{\"text\": 1}"));
  EXPECT_FALSE(looks("{\"text\": \"a\"}\nplain"));
  EXPECT_FALSE(looks("{\n  \"text\": \"a\"\n}\n"));
  EXPECT_FALSE(looks("[{\"text\": \"a\"}]"));
  EXPECT_FALSE(looks("text"));
  EXPECT_FALSE(looks(""));
}

}  // namespace
}  // namespace trireme
