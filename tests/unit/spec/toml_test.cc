#include "spec/toml.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "testing.h"

namespace trireme {
namespace {
using testing::error_of;

TEST(Toml, EntriesWithLines) {
  auto e = parse_toml("x = 1\n[a]\ny = \"s\"\nz.w = true\n\nl = [1, 2.5]\nf = 1.5\nd = 1979-05-27\n", "f");
  ASSERT_EQ(e.size(), 8u);
  std::vector<std::string> keys;
  for (auto& x : e) keys.push_back(x.key + ":" + std::to_string(x.line));
  EXPECT_EQ(keys,
            (std::vector<std::string>{"x:1", "a:2", "a.y:3", "a.z:4", "a.z.w:4", "a.l:6", "a.f:7", "a.d:8"}));
  EXPECT_EQ(std::get<int64_t>(e[0].value), 1);
  EXPECT_TRUE(std::holds_alternative<TomlTable>(e[1].value));
  EXPECT_EQ(std::get<std::string>(e[2].value), "s");
  EXPECT_EQ(std::get<bool>(e[4].value), true);
  EXPECT_EQ(std::get<std::vector<double>>(e[5].value), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(kind_of(e[7]), "a date");
}

TEST(Toml, ListsOfLists) {
  const auto e = parse_toml("a = [[1, 2], [3.5]]\nb = [[1], 2]\nc = [[\"x\"]]\nd = [[]]\n", "f");
  ASSERT_EQ(e.size(), 4u);
  EXPECT_EQ(std::get<TomlLists>(e[0].value), (TomlLists{{1, 2}, {3.5}}));
  EXPECT_EQ(shown(e[0]), "[[1, 2], [3.5]]");
  EXPECT_EQ(kind_of(e[0]), "a list of lists");
  EXPECT_TRUE(std::holds_alternative<TomlOther>(e[1].value));
  EXPECT_TRUE(std::holds_alternative<TomlOther>(e[2].value));
  EXPECT_EQ(std::get<TomlLists>(e[3].value), TomlLists{{}});
}

TEST(Toml, SyntaxErrorsNameFileAndLine) {
  std::string err = error_of([] { parse_toml("a = 1\nb = = 2\n", "run.toml"); });
  EXPECT_HAS(err, "run.toml:2: not TOML: ");
  EXPECT_HAS(error_of([] { parse_toml("a = auto\n", "run.toml"); }), "text stands in quotes");
  EXPECT_EQ(testing::lines_of(err).size(), 1u);
  const std::string quoted = error_of([] { parse_toml("a =\nb = 2\n", "run.toml"); });
  EXPECT_HAS(quoted, "'\\n'");
  EXPECT_EQ(quoted.find("\\\\"), std::string::npos) << quoted;
  EXPECT_HAS(error_of([] { parse_toml("a = 1\na = 2\n", "run.toml"); }), "run.toml:2: ");
  EXPECT_HAS(error_of([] { parse_toml("a = 99999999999999999999\n", "run.toml"); }), "run.toml:1: ");
  EXPECT_HAS(error_of([] { parse_toml("a = \"\xff\xfe\"\n", "run.toml"); }), "run.toml:1: ");
  EXPECT_HAS(error_of([] { parse_toml(std::string("a = \"\0\"", 7), "run.toml"); }), "run.toml:1: ");
}

// What once led toml++ into undefined behaviour, and what must go on to work.
TEST(Toml, BeyondAscii) {
  const std::string e = "\xc3\xa9", han = "\xe4\xbd\xa0", emoji = "\xf0\x9f\x98\x80";
  for (const std::string& c : {e, han, emoji, std::string("\xf4\x8f\xbf\xbf")}) {
    auto out = parse_toml("a=\"" + c + "\"#" + c + "\n'" + c + "' = '''x" + c + "\n'''\nm=\"\"\"" + c +
                              "\\\n  " + c + "\"\"\"\n",
                          "f");
    ASSERT_EQ(out.size(), 3u);
    EXPECT_EQ(std::get<std::string>(out[0].value), c);
    EXPECT_EQ(out[1].key, c);
    EXPECT_EQ(std::get<std::string>(out[1].value), "x" + c + "\n");
    EXPECT_EQ(std::get<std::string>(out[2].value), c + c);
    EXPECT_EQ(std::get<std::string>(parse_set("a.b=" + c + "/x").at(0).value), c + "/x");
    for (const char* form : {"a = %\n", "a = 3.3%12\n", "% = 1\n", "a=3b=c=\"2%\"\n", "a = 3[\"%\"]\n"}) {
      std::string text = form;
      text.replace(text.find('%'), 1, c);
      EXPECT_HAS(error_of([&] { parse_toml(text, "f"); }), "f:1: not TOML: ");
    }
  }
  EXPECT_EQ(std::get<std::string>(parse_toml("\xef\xbb\xbf\na = 'x'", "f")[0].value), "x");
  EXPECT_EQ(std::get<std::string>(parse_toml("a = \"\\u00e9\\ue0a9\"", "f")[0].value), e + "\xee\x82\xa9");
  EXPECT_HAS(error_of([] { parse_toml("\na = \"\\U0010fFa9\"", "f"); }),
             "f:2: not TOML: not a text in UTF-8");
  for (const char* bad :
       {"\xff", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x9f\x98"})
    EXPECT_HAS(error_of([&] { parse_toml(fmt::format("\na = '{}'", bad), "f"); }),
               "f:2: not TOML: not a text in UTF-8");
}

TEST(Toml, BrokenOffDates) {
  for (const char* v : {"1979-05-27T", "1979-05-27T`07:32:0Z", "1979-05-27t#", "1979-05-27 07:", "07:3",
                        "1979-05-27T07:32:00+"})
    EXPECT_HAS(error_of([&] { parse_toml(fmt::format("a = {}\n", v), "f"); }), "f:1: not TOML: ");
}

TEST(Toml, DeepNestingIsRefusedNotOverflowed) {
  std::string deep = "a = ", dotted = "a";
  for (int i = 0; i < 100000; i++) deep += "[", dotted += ".a";
  EXPECT_NE(error_of([&] { parse_toml(deep, "f"); }), "");
  EXPECT_HAS(error_of([&] { parse_toml(dotted + " = 1", "f"); }), "too large for a spec");
  std::string least = "a";  // as deep as is allowed
  for (int i = 0; i < 4096; i++) least += ".a";
  EXPECT_EQ(parse_toml(least + " = 1", "f").size(), 4097u);
  EXPECT_HAS(error_of([&] { parse_toml(std::string(2 << 20, '#'), "f"); }), "too large for a spec");
}

// A long key stands before each of its tables' keys.
TEST(Toml, KeysMayNotTakeTheSquareOfTheFile) {
  const std::string key(400'000, 'k');
  std::string list = key + " = [{}", section = "[" + key + "]\n", set = std::string(30'000, 'k') + "={a0=1";
  for (int i = 0; i < 100; i++) list += ",{}", section += fmt::format("a{} = 1\n", i);
  for (int i = 1; i < 1200; i++) set += fmt::format(",a{}=1", i);
  EXPECT_HAS(error_of([&] { parse_toml(list + "]", "f"); }), "f: too large for a spec: its keys");
  EXPECT_HAS(error_of([&] { parse_toml(section, "f"); }), "f: too large for a spec: its keys");
  EXPECT_HAS(error_of([&] { parse_set(set + "}"); }), "--set: too large for a spec: its keys");
  EXPECT_EQ(parse_toml("[" + key + "]\na = 1\n", "f").size(), 2u);
}

TEST(Toml, Sets) {
  auto one = [](const char* s) { return parse_set(s).at(0); };
  EXPECT_EQ(std::get<int64_t>(one("batch.micro=4").value), 4);
  EXPECT_EQ(one("batch.micro = 4 ").key, "batch.micro");
  EXPECT_EQ(std::get<double>(one("a.b=1e-3").value), 1e-3);
  EXPECT_EQ(std::get<bool>(one("a.b=true").value), true);
  EXPECT_EQ(std::get<std::string>(one("a.b=\"q s\"").value), "q s");
  EXPECT_EQ(std::get<std::string>(one("layout.order=tp pp dp cp").value), "tp pp dp cp");  // bare
  EXPECT_EQ(std::get<std::string>(one("layout.schedule=1f1b").value), "1f1b");
  EXPECT_EQ(std::get<std::string>(one("data.train=/tmp/a=b.bin").value), "/tmp/a=b.bin");
  EXPECT_EQ(std::get<std::vector<double>>(one("optimizer.betas=[0.9, 0.99]").value),
            (std::vector<double>{0.9, 0.99}));
  auto table = parse_set("batch={micro=2, global=8}");
  ASSERT_EQ(table.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<TomlTable>(table[0].value));
  EXPECT_EQ(table[0].line, 0);
}

TEST(Toml, BadSetsAreOneLineEach) {
  for (const char* s : {"", "=", "=4", "batch.micro", "a.b=", "a b=1", "a.b=\"open", "a.b=[1,", "a\nb=1",
                        "a.b=x\ny", "a.b=\xff"}) {
    std::string err = error_of([&] { parse_set(s); });
    EXPECT_EQ(testing::lines_of(err).size(), 1u) << s << ": " << err;
    EXPECT_HAS(err, "--set: ");
  }
}

TEST(Toml, NumbersAndStringsReadBack) {
  uint64_t key = rng_key(3, 0, "toml numbers");
  for (uint64_t i = 0; i < 2000; i++) {
    double d = (uniform(key, 2 * i) - 0.5) * std::pow(10.0, double(below(key, 2 * i + 1, 600)) - 300);
    auto e = parse_toml("x = " + toml_number(d), "f");
    ASSERT_TRUE(std::holds_alternative<double>(e[0].value)) << toml_number(d);
    EXPECT_EQ(std::get<double>(e[0].value), d);
  }
  EXPECT_EQ(toml_number(10000), "10000.0");
  for (std::string s : {std::string(), std::string("a\"b\\c"), std::string("tab\tline\nbell\a\x7f"),
                        std::string("\xc3\xbc"), std::string("# ' = [")}) {
    auto e = parse_toml("x = " + toml_string(s), "f");
    EXPECT_EQ(std::get<std::string>(e[0].value), s);
  }
}

TEST(Toml, ShownTextIsOneShortPrintableLine) {
  EXPECT_EQ(shown(std::string_view("a\n\"b\"\x01")), "\"a\\x0a\\\"b\\\"\\x01\"");
  EXPECT_EQ(shown(std::string(100000, 'x')), "\"" + std::string(80, 'x') + "...\"");
  EXPECT_EQ(shown_key("model.layers"), "model.layers");
  EXPECT_EQ(shown_key("a\nb"), "\"a\\x0ab\"");
}

}  // namespace
}  // namespace trireme
