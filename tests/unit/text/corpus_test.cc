#include "text/corpus.h"
#include "text/king_james.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "folder.h"

namespace trireme {
namespace {

std::vector<std::string> paths(const Corpus& c) {
  std::vector<std::string> out;
  for (const CorpusFile& f : c.files) out.push_back(f.path);
  return out;
}
using V = std::vector<std::string>;

TEST(Corpus, GathersTextFilesSortedByPath) {
  TestFolder folder;
  folder.write("b.py", "bb");
  folder.write("a/z.py", "z");
  folder.write("a/deep/er/x.py", "xxx");
  folder.write("a.txt", "text");
  folder.write("B.py", "B");
  folder.write("empty.py", "");
  folder.write("bin.py", std::string_view("x\0y", 3));
  folder.write("far.py", std::string(10000, 'x') + std::string(1, '\0'));  // beyond what is looked at
  folder.write("latin.py", "caf\xE9");
  folder.write(".hidden.py", "h");
  folder.write(".git/x.py", "g");
  folder.write("site-packages/x.py", "s");
  folder.write("a/dist-packages/x.py", "s");
  fs::create_directory_symlink(folder.path(), folder.path() / "a/loop");
  fs::create_symlink(folder.path() / "nowhere", folder.path() / "broken.py");
  ASSERT_EQ(::mkfifo((folder.path() / "pipe.py").c_str(), 0600), 0);

  Corpus c = gather_corpus(folder.path(), {.extensions = {".py"}});
  EXPECT_EQ(paths(c), (V{"B.py", "a/deep/er/x.py", "a/z.py", "b.py", "far.py", "latin.py"}));
  EXPECT_EQ(c.bytes, 1 + 3 + 1 + 2 + 10001 + 4);
  EXPECT_EQ(c.skipped.binary, 1);
  EXPECT_EQ(to_text(c.skipped), "left out: 1 binary file (compressed, tables, or with bytes of value 0)");
  EXPECT_EQ(c.read(1), "xxx");
  EXPECT_EQ(paths(gather_corpus(folder.path(), {.extensions = {".txt"}})), (V{"a.txt"}));
  EXPECT_EQ(gather_corpus(folder.path(), {}).files.size(), 7u);
  Corpus small = gather_corpus(folder.path(), {.extensions = {".py"}, .max_file_bytes = 100});
  EXPECT_EQ(small.skipped.large, 1);
  EXPECT_EQ(small.files.size(), 5u);
}

TEST(Corpus, PathsAreRelativeHoweverTheRootIsNamed) {
  TestFolder folder;
  folder.write("in/a.py", "a");
  fs::path here = fs::current_path();
  fs::current_path(folder.path());
  for (const char* root : {".", "./", "in/..", "./in/../"})
    EXPECT_EQ(paths(gather_corpus(root, {})), (V{"in/a.py"})) << root;
  for (const char* root : {"in", "in/", "./in"})
    EXPECT_EQ(paths(gather_corpus(root, {})), (V{"a.py"})) << root;
  fs::current_path(here);
  fs::create_directory_symlink(folder.path() / "in", folder.path() / "link");
  Corpus c = gather_corpus(folder.path() / "link", {});
  EXPECT_EQ(paths(c), (V{"a.py"}));
  EXPECT_EQ(c.read(0), "a");
}

TEST(Corpus, RefusesWhatIsNoCorpus) {
  TestFolder folder;
  folder.write("a.txt", "a");
  EXPECT_NE(refusal([&] { gather_corpus(folder.path() / "no", {}); }).find("/no is not a folder"),
            std::string::npos);
  EXPECT_NE(refusal([&] { gather_corpus(folder.path() / "a.txt", {}); }).find("not a folder"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              gather_corpus(folder.path(), {.extensions = {".py", ".md"}});
            }).find(".py or .md"),
            std::string::npos);
  Corpus one = gather_corpus(folder.path(), {});
  EXPECT_NE(refusal([&] { hold_out(one, 0.5); }).find("single"), std::string::npos);
}

TEST(Corpus, HoldsOutByNameAlone) {
  Corpus all{.root = "r"};
  for (int i = 0; i < 2000; i++) all.files.push_back({fmt::format("lib/file{:04}.py", i), i}), all.bytes += i;
  auto [train, valid] = hold_out(all, 0.05);
  EXPECT_EQ(train.files.size() + valid.files.size(), 2000u);
  EXPECT_EQ(train.bytes + valid.bytes, all.bytes);
  EXPECT_GT(valid.files.size(), 60u);  // 100 expected, 10 the standard deviation
  EXPECT_LT(valid.files.size(), 140u);
  V held = paths(valid);
  EXPECT_TRUE(std::is_sorted(held.begin(), held.end()));
  for (const std::string& p : held) EXPECT_TRUE(held_out(p, 0.05));
  // Half of the folder gone: the other half falls as before.
  Corpus half{.root = "elsewhere", .files = {all.files.begin(), all.files.begin() + 1000}};
  V still = paths(hold_out(half, 0.05).second);
  held.resize(still.size());
  EXPECT_EQ(still, held);
  // Nested: what is held out at 5 % is at 10 %.
  for (const std::string& p : held) EXPECT_TRUE(held_out(p, 0.10));
}

TEST(Corpus, BothSidesHaveAFile) {
  Corpus two{.root = "r", .files = {{"a", 3}, {"b", 4}}, .bytes = 7};
  for (double fraction : {0.0, 1e-9, 0.5, 1.0}) {
    auto [train, valid] = hold_out(two, fraction);
    EXPECT_EQ(train.files.size(), 1u);
    EXPECT_EQ(valid.files.size(), 1u);
    EXPECT_EQ(train.bytes + valid.bytes, 7);
    EXPECT_EQ(train.bytes, train.files[0].bytes);
  }
}

TEST(Corpus, FindsTheStandardLibrary) {
  TestFolder folder;
  const std::string source(600000, '#');
  auto stdlib = [&](const std::string& name, int files) {
    for (int i = 0; i < files; i++) folder.write(fmt::format("{}/m{}.py", name, i), source);
  };
  stdlib("python3.9", 2);
  stdlib("python3.11", 2);
  stdlib("python3.12", 1);  // too little: a stripped-down one
  stdlib("python3", 3);
  stdlib("python3.x", 3);
  EXPECT_EQ(python_stdlib_folder(folder.path(), "false"), folder.path() / "python3.11");
  stdlib("other/lib", 2);
  fs::path other = folder.path() / "other/lib";
  EXPECT_EQ(python_stdlib_folder(folder.path() / "none", "echo " + other.string()), other);
  EXPECT_EQ(python_stdlib_folder(folder.path(), "echo " + other.string()), folder.path() / "python3.11");
  for (const char* command : {"false", "echo", "echo /no/such/folder", "exit 127"}) {
    std::string why = refusal([&] { python_stdlib_folder(folder.path() / "none", command); });
    EXPECT_NE(why.find("DEMO_TEXT=folder"), std::string::npos) << why;
  }
}

// The text of the package bible-kjv, from a program that prints 1,189 chapters as it does.
TEST(KingJames, WritesAFileForEachChapter) {
  TestFolder folder;
  const std::string whole =
      "for i in $(seq 1 1188); do echo \"1Sa$i:1 And verse: $i\"; done; printf 'Re22:20 Even so.\\nRe22:21 "
      "Amen.\\n'";
  const fs::path out = folder.path() / "text";
  ASSERT_TRUE(write_king_james(out, whole));
  EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 1189);
  EXPECT_EQ(read_text(out / "1Sa007.txt"), "And verse: 7\n");
  EXPECT_EQ(read_text(out / "Re022.txt"), "Even so.\nAmen.\n");
}

TEST(KingJames, WritesNothingOfOtherText) {
  TestFolder folder;
  const fs::path out = folder.path() / "text";
  for (const char* command : {"false", "/no/such/program 2>/dev/null", "echo Ge1:1 In the beginning", "echo",
                              "for i in $(seq 1 1189); do echo \"../x$i:1 a\"; done",
                              "for i in $(seq 1 1188); do echo \"Ge$i:1 a\"; done; echo usage: bible"}) {
    EXPECT_FALSE(write_king_james(out, command)) << command;
    EXPECT_FALSE(fs::exists(out)) << command;
  }
}

}  // namespace
}  // namespace trireme
