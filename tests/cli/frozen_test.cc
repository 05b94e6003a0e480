// The command line as it was released: `--help` of the program and of each verb, and every key of a run file
// with its default. When a change is meant, write it down again with
//   build/release/tests/cli/test_cli_frozen --regenerate
// and commit tests/cli/frozen with it.
#include <gtest/gtest.h>

#include <cstring>

#include "process.h"
#include "source_dir.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

bool g_regenerate = false;

constexpr const char* kVerbs[] = {"demo",    "tokenize", "plan",   "simulate",   "train", "tune",
                                  "eval",    "generate", "chat",   "distill",    "bench", "convert",
                                  "inspect", "config",   "doctor", "completion", "score", "report",
                                  "scale",   "help",     "search", "estimate"};

void compare(const std::string& name, const std::string& now) {
  fs::path file = source_dir() / "tests/cli/frozen" / (name + ".txt");
  if (g_regenerate) return put_file(file, now);
  ASSERT_TRUE(fs::exists(file)) << file << " is missing; --regenerate writes it";
  EXPECT_EQ(read_text(file), now) << "if that is meant: test_cli_frozen --regenerate";
}

TEST(Frozen, HelpOfTheProgram) {
  TempFolder tmp;
  Ran r = trireme(tmp.path(), {"--help"});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.err, "");
  compare("help", r.out);
  EXPECT_EQ(trireme(tmp.path(), {"help"}).out, r.out);
}

TEST(Frozen, HelpOfEveryVerb) {
  TempFolder tmp;
  for (const char* verb : kVerbs) {
    Ran r = trireme(tmp.path(), {verb, "--help"});
    EXPECT_EQ(r.code, 0) << verb;
    EXPECT_EQ(r.err, "");
    EXPECT_NE(r.out.find(std::string("example: trireme ") + verb), std::string::npos) << verb;
    compare(std::string("help-") + verb, r.out);
  }
}

TEST(Frozen, HelpOfScale) {
  TempFolder tmp;
  for (const char* inner : {"plan", "run", "fit", "optimum"}) {
    Ran r = trireme(tmp.path(), {"scale", inner, "--help"});
    EXPECT_EQ(r.code, 0) << inner;
    EXPECT_NE(r.out.find(std::string("example: trireme scale ") + inner), std::string::npos) << inner;
    compare(std::string("help-scale-") + inner, r.out);
  }
}

// Sentences may be bettered; keys and defaults are a promise.
TEST(Frozen, KeysAndDefaultsOfARunFile) {
  TempFolder tmp;
  Ran r = trireme(tmp.path(), {"config"});
  EXPECT_EQ(r.code, 0);
  std::string now, section;
  for (std::string line : lines_of(r.out)) {
    size_t comment = line.find(" #");
    EXPECT_TRUE(line.empty() || comment != std::string::npos) << "no sentence: " << line;
    line = line.substr(0, comment);
    line.erase(line.find_last_not_of(' ') + 1);
    if (!line.empty()) now += line + "\n";
  }
  compare("keys", now);
  // What it prints is a run file.
  put_file(tmp / "all.toml", r.out);
  EXPECT_EQ(save_run(load_run(tmp / "all.toml")), save_run(parse_run("", "nothing")));
}

}  // namespace
}  // namespace trireme::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  trireme::test::g_regenerate = argc > 1 && !std::strcmp(argv[1], "--regenerate");
  return RUN_ALL_TESTS();
}
