// `trireme tokenize`: mixed texts, any number of threads, and a signal in the middle.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <system_error>

#include "base/json.h"
#include "data/token_shard.h"
#include "folder.h"
#include "process.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace trireme::test {
namespace {

// Lines that are all different, of about `bytes`.
std::string prose(int64_t bytes, int seed) {
  std::string text;
  for (int i = seed; int64_t(text.size()) < bytes; i++)
    text += "line " + std::to_string(i) + " of " + std::to_string(i % 1000 * 7919 % 1000) +
            ", the oars rise and fall.\n";
  return text;
}

std::vector<int32_t> tokens_of(const fs::path& shard) {
  TokenShard s = TokenShard::open(shard);
  std::vector<int32_t> ids(size_t(s.tokens()));
  s.read(0, ids, 1 << 30);
  return ids;
}

TEST(Tokenize, MixedTextsOnAnyThreads) {
  TempFolder f;
  fs::create_directories(f / "texts/deep");
  for (int i = 0; i < 30; i++)
    write_text_atomic(f / fmt::format("texts/deep/{}.txt", i), prose(2000 + 100 * i, i));
  std::string lines;
  for (int i = 0; i < 400; i++)
    lines += "{\"body\": \"document " + std::to_string(i) + " \\u00e9\", \"n\": 1}\n";
  write_text_atomic(f / "texts/docs.jsonl", lines);
  write_text_atomic(f / "long.txt", prose(3'000'000, 1000));
  std::vector<std::string> first;
  for (const char* threads : {"1", "3"}) {
    Ran r = trireme(f.path(),
                    {"tokenize", (f / "texts").string(), (f / "long.txt").string(), "--key", "body", "--out",
                     (f / threads).string(), "--vocab", "400", "--threads", threads, "--special", "<|pad|>"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.out.find("MB/s on " + std::string(threads) + " thread"), std::string::npos) << r.out;
    EXPECT_NE(r.err.find("encode 100 %"), std::string::npos) << r.err;
    std::vector<std::string> now;
    for (const char* file : {"tokenizer.json", "train.bin", "train.idx", "valid.bin", "valid.idx"})
      now.push_back(read_text(f / threads / file));
    if (first.empty()) first = now;
    EXPECT_EQ(now == first, true) << "on " << threads << " threads";
  }
  EXPECT_EQ(TokenShard::open(f / "1/train").documents() + TokenShard::open(f / "1/valid").documents(), 431);
  EXPECT_NE(first[0].find("<|pad|>"), std::string::npos);
  // Again with that tokenizer: the same tokens.
  Ran again =
      trireme(f.path(), {"tokenize", (f / "texts").string(), (f / "long.txt").string(), "--key", "body",
                         "--out", (f / "again").string(), "--tokenizer", (f / "1/tokenizer.json").string()});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(tokens_of(f / "again/train"), tokens_of(f / "1/train"));
}

// A named file is encoded whatever is in it; and a key that is not there is told with those that are.
TEST(Tokenize, WhatIsHardlyTextAndAMissingKeyAreTold) {
  TempFolder f;
  write_text_atomic(f / "a.bin", prose(20'000, 0) + std::string("\0\0", 2));
  write_text_atomic(f / "b.bin", std::string("\0", 1) + prose(20'000, 0));
  Ran r = trireme(f.path(), {"tokenize", (f / "a.bin").string(), (f / "b.bin").string(), "--out",
                             (f / "out").string(), "--vocab", "300"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("note: " + (f / "b.bin").string() + " has bytes of value 0"), std::string::npos)
      << r.err;
  EXPECT_EQ(r.err.find((f / "a.bin").string()), std::string::npos) << "its first 8 KiB are text";
  write_text_atomic(f / "docs.jsonl", "{\"body\": \"x\", \"id\": 3}\n");
  r = trireme(f.path(), {"tokenize", (f / "docs.jsonl").string(), "--out", (f / "docs").string()});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("no key \"text\"; it has \"body\", \"id\"; --key names the one"), std::string::npos)
      << r.err;
}

// One token per byte, then <|end|>, which no known name is.
void write_tokenizer(const fs::path& path) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int b = 0; b < 256; b++) vocab[spell_bytes(std::string(1, char(b)))] = b;
  const nlohmann::json end = {{"id", 256}, {"content", "<|end|>"}, {"special", true}};
  const nlohmann::json file = {
      {"added_tokens", nlohmann::json::array({end})},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  write_text_atomic(path, file.dump());
}

// Documents under any name, what is left out of them, and the token that closes them.
TEST(Tokenize, DocumentsAndTheirEnd) {
  TempFolder f;
  fs::create_directories(f / "tok");
  write_tokenizer(f / "tok/tokenizer.json");
  auto run = [&](const std::string& text, std::vector<std::string> more) {
    std::vector<std::string> words = {
        "tokenize", (f / text).string(),  "--tokenizer", (f / "tok/tokenizer.json").string(),
        "--out",    (f / "out").string(), "--hold-out",  "0"};
    words.insert(words.end(), more.begin(), more.end());
    return trireme(f.path(), words);
  };
  using Ids = std::vector<int32_t>;
  const std::string lines = "{\"text\":\"a\",\"x\":NaN}\n{\"text\":\"b<|end|>\"}\n";
  write_text_atomic(f / "d.json", lines);
  Ran r = run("d.json", {});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--end-of-text"), std::string::npos) << r.err;
  r = run("d.json", {"--end-of-text", "<|end|>", "--special-tokens"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("documents: closed by <|end|> (id 256)"), std::string::npos) << r.out;
  EXPECT_EQ(tokens_of(f / "out/train"), (Ids{'a', 256, 'b', 256, 256}));
  // The new folder names the token, so a run with it knows which one ends a text.
  EXPECT_EQ(Tokenizer::load(f / "out/tokenizer.json").find_end_of_text(), 256);
  write_text_atomic(f / "d.JSONL", lines + "{\"text\":\n");
  r = run("d.JSONL", {"--end-of-text", "", "--skip-bad-lines"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("skipped: 1 bad line; the first: " + (f / "d.JSONL").string() +
                       ", line 3: not a JSON object"),
            std::string::npos)
      << r.out;
  EXPECT_EQ(tokens_of(f / "out/train"), (Ids{'a', 'b', '<', '|', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(run("d.JSONL", {"--end-of-text", ""}).code, 2);
  write_text_atomic(f / "tok/tokenizer_config.json", R"({"eos_token": "<|end|>", "chat_template": "x"})");
  write_text_atomic(f / "mark.txt",
                    "\xEF\xBB\xBF"
                    "ab");
  r = run("mark.txt", {});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(tokens_of(f / "out/train"), (Ids{'a', 'b', 256}));
  EXPECT_NE(read_text(f / "out/tokenizer_config.json").find("chat_template"), std::string::npos);
  const std::pair<const char*, std::string> foreign[] = {{"d.jsonl.gz", "\x1F\x8B\x08"},
                                                         {"d.jsonl.zst", "\x28\xB5\x2F\xFD"},
                                                         {"d.parquet", "PAR1"},
                                                         {"wide.txt", "\xFF\xFE"},
                                                         {"list.json", "[{\"text\": \"a\"}]"}};
  for (const auto& [name, content] : foreign) {
    write_text_atomic(f / name, content + lines);
    r = run(name, {});
    EXPECT_EQ(r.code, 2) << name;
    EXPECT_EQ(r.err.rfind("trireme: " + (f / name).string() + " is ", 0), 0u) << r.err;
  }
}

// Lines of JSON are drawn each for itself, and of few perhaps none.
TEST(Tokenize, NothingHeldOutIsTold) {
  TempFolder f;
  write_text_atomic(f / "docs.jsonl", "{\"text\": \"the oars rise\"}\n{\"text\": \"and fall\"}\n");
  const Ran r = trireme(f.path(), {"tokenize", (f / "docs.jsonl").string(), "--out", (f / "out").string(),
                                   "--hold-out", "0.001"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("note: no document was held out (--hold-out 0.001 of 2)"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(f / "out/valid.bin"));
}

// A tokenizer that others need, and a vocabulary that the text is too short for.
TEST(Tokenize, AReplacedTokenizerAndAShortTextAreTold) {
  TempFolder f;
  write_text_atomic(f / "t.txt", prose(3000, 1));
  const auto run = [&](const char* vocab) {
    Ran r = trireme(f.path(), {"tokenize", (f / "t.txt").string(), "--out", (f / "out").string(), "--vocab",
                               vocab, "--hold-out", "0"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.err;
  };
  std::string err = run("300");
  EXPECT_NE(err.find("tokens to train on for a vocabulary of 300, "), std::string::npos) << err;
  EXPECT_EQ(err.find("replaced a different tokenizer"), std::string::npos) << err;
  EXPECT_EQ(run("300").find("replaced a different tokenizer"), std::string::npos) << "the same one";
  err = run("310");
  EXPECT_NE(err.find((f / "out/tokenizer.json").string() + ": replaced a different tokenizer"),
            std::string::npos)
      << err;
  write_text_atomic(f / "t.txt", prose(60000, 1));
  err = run("300");
  EXPECT_EQ(err.find("tokens to train on for"), std::string::npos) << err;
}

TEST(Tokenize, ExtensionsAreTakenWithAndWithoutTheirDot) {
  TempFolder f;
  make_folders(f / "texts");
  write_text_atomic(f / "texts/a.md", "\xE9" + prose(20'000, 0));
  write_text_atomic(f / "texts/b.txt", prose(20'000, 1));
  std::vector<std::vector<int32_t>> ids;
  for (const char* ext : {"md", ".md"}) {
    const fs::path out = f / (std::string("out") + ext);
    const Ran r = trireme(f.path(), {"tokenize", "--ext", ext, (f / "texts").string(), "--out", out.string(),
                                     "--vocab", "300", "--hold-out", "0", "--key", "body"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find("note: --key: not used, since no TEXT is JSON Lines\n"), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("--ext"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("note: 1 file with bytes that are not UTF-8"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("a.md (Latin-1"), std::string::npos) << r.err;
    ids.push_back(tokens_of(out / "train"));
  }
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_LT(ids[0].size(), 20'001u);
}

// A folder that cannot be written ends it before minutes of learning, not behind them.
TEST(Tokenize, ATakenPlaceIsToldBeforeItLearns) {
  TempFolder f;
  write_text_atomic(f / "text.txt", prose(3000, 0));
  make_folders(f / "taken/tokenizer.json");
  for (const char* out : {"text.txt", "taken"}) {
    Ran r = trireme(f.path(), {"tokenize", (f / "text.txt").string(), "--out", (f / out).string()});
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_NE(r.err.find((f / out).string()), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("count words"), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("learn merges"), std::string::npos) << r.err;
  }
  EXPECT_EQ(read_text(f / "text.txt"), prose(3000, 0));
}

// Ids of one tokenizer in a run of another: `train` and `eval` end in one line with both files, `inspect`
// tells.
TEST(Tokenize, ShardsOfAnotherTokenizerAreRefused) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(20'000, 1));
  write_text_atomic(f / "b.txt", prose(20'000, 1) + "entirely other words, words, words");
  for (const char* name : {"a", "b"}) {
    Ran r = trireme(f.path(), {"tokenize", (f / (std::string(name) + ".txt")).string(), "--out",
                               (f / name).string(), "--vocab", name[0] == 'a' ? "300" : "301"});
    ASSERT_EQ(r.code, 0) << r.err;
  }
  write_text_atomic(f / "run.toml",
                    fmt::format(R"(model = {{ layers = 1, heads = 2, hidden = 32, vocab = 320 }}
data = {{ train = "{0}/a/train", valid = "{0}/a/valid", tokenizer = "{0}/a/tokenizer.json", seq_len = 16 }}
batch = {{ micro = 2, global = 2 }}
train = {{ steps = 1, dir = "{0}/run" }}
)",
                                f.path().string()));
  const std::string run = (f / "run.toml").string(), other = (f / "b/train").string();
  Ran good = trireme(f.path(), {"train", run});
  ASSERT_EQ(good.code, 0) << good.err;
  const std::string own = (f / "a/tokenizer.json").string();
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"train", run, "--set", "data.train=" + other},
        std::vector<std::string>{"eval", run, "--data", other}}) {
    Ran bad = trireme(f.path(), verb);
    EXPECT_EQ(bad.code, 2) << bad.out << bad.err;
    EXPECT_NE(bad.err.find(other), std::string::npos) << bad.err;
    EXPECT_NE(bad.err.find(own), std::string::npos) << bad.err;
  }
  // No tokenizer is named: the one beside data.train is meant.
  const std::string none = "data.tokenizer=\"\"", trained = (f / "a/train").string();
  const auto expect_mixed = [&](const std::string& named) {
    for (const std::vector<std::string>& verb :
         {std::vector<std::string>{"train", run, "--set", none, "--set",
                                   "data.train=[\"" + trained + "\", \"" + other + "\"]"},
          std::vector<std::string>{"train", run, "--set", none, "--set", "data.valid=" + other},
          std::vector<std::string>{"eval", run, "--set", none, "--data", other}}) {
      Ran mixed = trireme(f.path(), verb);
      EXPECT_EQ(mixed.code, 2) << mixed.out << mixed.err;
      EXPECT_NE(mixed.err.find("another vocabulary"), std::string::npos) << mixed.err;
      EXPECT_NE(mixed.err.find(named), std::string::npos) << mixed.err;
    }
  };
  expect_mixed(own);
  Ran absent = trireme(f.path(), {"train", run, "--set", "data.tokenizer=\"nowhere.json\""});
  EXPECT_EQ(absent.code, 2) << absent.err;
  EXPECT_NE(absent.err.find("nowhere.json"), std::string::npos) << absent.err;

  // It is another's: what is learned from these shards would be read by it.
  write_text_atomic(own, read_text(f / "b/tokenizer.json"));
  Ran seen = trireme(f.path(), {"inspect", (f / "a").string(), "--json"});
  EXPECT_NE(seen.out.find("\"of_this_tokenizer\": false"), std::string::npos) << seen.out << seen.err;
  seen = trireme(f.path(), {"inspect", (f / "b").string(), "--json"});
  EXPECT_NE(seen.out.find("\"of_this_tokenizer\": true"), std::string::npos) << seen.out << seen.err;
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"train", run, "--set", none},
        std::vector<std::string>{"eval", run, "--set", none, "--data", (f / "a/valid").string()}}) {
    Ran foreign = trireme(f.path(), verb);
    EXPECT_EQ(foreign.code, 2) << foreign.out << foreign.err;
    for (const std::string& part : {trained, std::string("another vocabulary"), own})
      EXPECT_NE(foreign.err.find(part), std::string::npos) << foreign.err;
  }

  // One that cannot be read says nothing, and where there is none the shards are held against each other.
  write_text_atomic(own, "{}");
  Ran unread = trireme(f.path(), {"eval", run, "--set", none, "--data", (f / "a/valid").string()});
  EXPECT_EQ(unread.code, 0) << unread.err;
  fs::remove(own);
  expect_mixed(trained);

  // What the run was trained on may be half away where another shard is evaluated.
  fs::remove(f / "a/train.bin");
  Ran half = trireme(f.path(), {"eval", run, "--set", none, "--data", (f / "a/valid").string()});
  EXPECT_EQ(half.code, 0) << half.err;
}

TEST(Tokenize, TheEndOfASingleTextIsHeldOut) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(50'000, 1));
  Ran r = trireme(f.path(), {"tokenize", (f / "a.txt").string(), "--out", (f / "out").string(), "--vocab",
                             "300", "--hold-out", "0.2"});
  ASSERT_EQ(r.code, 0) << r.err;
  const double train = double(tokens_of(f / "out/train").size()),
               valid = double(tokens_of(f / "out/valid").size());
  EXPECT_NEAR(valid / (train + valid), 0.2, 0.02);
}

// What was held out before would pass for the held-out part of the new text.
TEST(Tokenize, AnOldValidShardIsNoneOfANewText) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(50'000, 1));
  write_text_atomic(f / "b.jsonl", "{\"text\": \"all of it is for training\"}\n");
  auto tokenize = [&](const char* text, const char* hold_out) {
    return trireme(f.path(), {"tokenize", (f / text).string(), "--out", (f / "out").string(), "--vocab",
                              "300", "--hold-out", hold_out});
  };
  ASSERT_EQ(tokenize("a.txt", "0.2").code, 0);
  const Files before = files_in(f.path());
  for (auto [text, share] : {std::pair("a.txt", "0"), {"b.jsonl", "0"}, {"b.jsonl", "0.001"}}) {
    Ran r = tokenize(text, share);
    EXPECT_EQ(r.code, 2) << text << share;
    EXPECT_NE(r.err.find("out/valid.bin is of an earlier run"), std::string::npos) << r.err;
    EXPECT_EQ(files_in(f.path()), before) << text << share;
  }
  fs::remove(f / "out/valid.bin");
  EXPECT_NE(tokenize("a.txt", "0").err.find("out/valid.idx is of an earlier run"), std::string::npos);
  fs::remove(f / "out/valid.idx");
  EXPECT_EQ(tokenize("a.txt", "0").code, 0);
  EXPECT_FALSE(fs::exists(f / "out/valid.bin"));
  EXPECT_EQ(tokenize("b.jsonl", "0.001").code, 0);
}

TEST(Tokenize, ASignalLeavesNothingHalfWritten) {
  TempFolder f;
  write_text_atomic(f / "a.txt", prose(20'000'000, 1));
  Process p(
      trireme_args({"tokenize", (f / "a.txt").string(), "--out", (f / "out").string(), "--threads", "1"}),
      f.path());
  ASSERT_TRUE(p.wait_for_err("count words"));
  p.send(SIGTERM);
  Ran r = p.wait();
  EXPECT_EQ(r.code, 3) << r.err;
  EXPECT_NE(r.err.find("interrupted: nothing was written"), std::string::npos) << r.err;
  std::error_code none;
  EXPECT_TRUE(!fs::exists(f / "out", none) || fs::is_empty(f / "out"));
}

}  // namespace
}  // namespace trireme::test
