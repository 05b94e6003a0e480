// Every line of an error names a key that was set, shows that key's own value, and lists valid values.
#include <regex>

#include "run_text.h"
#include "spec/complaint.h"
#include "spec/reader.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::lines_of;
using testing::wrong;

// "key=value" of a --set.
struct Set {
  std::string key, value;
  explicit Set(const std::string& text)
      : key(text.substr(0, text.find('='))), value(text.substr(text.find('=') + 1)) {}
};

const std::vector<std::vector<std::string>> kContradictions = {
    {"layout.dp=3", "batch.global=32"},
    {"batch.micro=5", "batch.global=32"},
    {"batch.global=30"},
    {"batch.ramp=[[12, 3]]", "batch.global=32", "batch.micro=8"},
    {"batch.ramp=[[40, 3]]", "batch.global=32"},
    {"model.hidden=100"},
    {"model.heads=5"},
    {"model.kv_heads=4"},
    {"model.head_dim=63"},
    {"model.max_positions=100"},
    {"data.seq_len=300", "model.max_positions=256"},
    {"model.arch=deepseek_v3", "model.experts=12"},
    {"model.arch=mixtral", "model.experts=1"},
    {"model.arch=mixtral", "model.layers=2", "model.dense_layers=2"},
    {"model.experts=8", "model.expert_groups=3"},
    {"model.experts_per_token=2"},
    {"model.q_rank=8"},
    {"model.kv_rank=32", "model.nope_head_dim=20"},
    {"model.rope_scaling.factor=2"},
    {"layout.tp=4"},
    {"layout.tp=5"},
    {"layout.cp=3"},
    {"layout.pp=4", "layout.chunks=2"},
    {"layout.dp=4", "layout.shard_group=3"},
    {"layout.sequence=true"},
    {"layout.chunks=2"},
    {"layout.ep=2"},
    {"layout.offload_mb=8"},
    {"layout.recompute_blocks=3"},
    {"layout.recompute_limit=1000"},
    {"optimizer.lr=1e-5", "optimizer.min_lr=1e-4"},
    {"optimizer.post_validation=calm"},
    {"precision.compute=f32", "precision.grads=bf16"},
    {"precision.initial_scale=0.5"},
    {"moe.aux_loss=0.1"},
    {"moe.bias_rate=0.1"},
    {"train.noise_scale=2", "batch.global=8"},
    {"data.weights=[1, 2]"},
    {"train.record_routing=1"},
    {"train.trace_steps=5-3"}};

TEST(Complaint, AKeyIsPrintedWithItsOwnValue) {
  for (const std::vector<std::string>& sets : kContradictions) {
    const std::string err = wrong("", sets);
    ASSERT_FALSE(err.empty()) << sets.front();
    for (const std::string& line : lines_of(err)) {
      const std::string prefix = "--set: ";
      ASSERT_TRUE(line.starts_with(prefix))
          << line;  // every key here is set, and so is the one that is named
      const std::string key = line.substr(prefix.size(), line.find(": ", prefix.size()) - prefix.size());
      const auto set = std::find_if(sets.begin(), sets.end(), [&](auto& s) { return Set(s).key == key; });
      ASSERT_NE(set, sets.end()) << line;
      std::string value = Set(*set).value;
      std::string after = line.substr(prefix.size() + key.size() + 2);
      if (after.starts_with('"')) value = '"' + value + '"';
      if (key.find("lr") == key.npos) {  // 1e-5 may be printed as 1e-05
        EXPECT_TRUE(after.starts_with(value)) << line;
      }
      EXPECT_EQ(line.find("this version"), line.npos) << line;
    }
  }
}

TEST(Complaint, EveryLineHasARemedy) {
  const std::regex remedy("give |remove |change |name |those are|at most");
  for (const std::vector<std::string>& sets : kContradictions)
    for (const std::string& line : lines_of(wrong("", sets)))
      EXPECT_TRUE(std::regex_search(line, remedy)) << line;
}

// "give layout.dp = 1, 2 or 4", "give 16, 24, 32 or 40": each of them is accepted.
TEST(Complaint, TheValuesThatItNamesWork) {
  const std::regex of_key("give ([a-z_]+\\.[a-z_.]+) = ([0-9]+(?:, [0-9]+)*(?: or [0-9]+)?)$");
  const std::regex of_itself("^--set: ([a-z_]+\\.[a-z_.]+): .* give ([0-9]+(?:, [0-9]+)*(?: or [0-9]+)?)$");
  int tried = 0;
  for (const std::vector<std::string>& sets : kContradictions) {
    const std::string err = wrong("", sets);
    std::smatch m;
    if (lines_of(err).size() != 1 ||
        (!std::regex_search(err, m, of_key) && !std::regex_search(err, m, of_itself)))
      continue;
    const std::string key = m[1], values = m[2];
    const std::regex number("[0-9]+");
    for (auto it = std::sregex_iterator(values.begin(), values.end(), number); it != std::sregex_iterator();
         ++it) {
      std::vector<std::string> better = sets;
      better.push_back(key + "=" + it->str());
      EXPECT_EQ(wrong("", better), "") << err;
      tried++;
    }
  }
  EXPECT_GE(tried, 12);
}

TEST(Complaint, OneLinePerKey) {
  for (const char* set : {"layout.tp=5", "layout.tp=4", "model.heads=5"})
    EXPECT_EQ(lines_of(wrong("", {set})).size(), 1u) << wrong("", {set});
  // Two faults of one key, and values that mend both.
  const std::string both =
      wrong("[model]\nheads = 4\nkv_heads = 4\nhidden = 64\nffn = 64\n", {"layout.tp=3"});
  EXPECT_HAS(both,
             "--set: layout.tp: 3 does not divide model.heads = 4; it also does not divide model.ffn = 64; "
             "give 1, 2 or 4");
}

TEST(Complaint, AKeyOfTheFileIsNamedWithItsLine) {
  EXPECT_HAS(wrong("[layout]\ndp = 3\n[batch]\nglobal = 32\nmicro = 8\n"),
             "run.toml:4: batch.global: 32 is not a multiple");
}

// An error names the key that --set changed, not the key of the file that it contradicts.
TEST(Complaint, TheKeyOfSetIsNamedBeforeKeysOfTheFile) {
  const std::string text = wrong("[batch]\nglobal = 32\n", {"batch.micro=5"});
  EXPECT_TRUE(text.starts_with("--set: batch.micro: 5: batch.global = 32 is not a multiple of dp * micro"))
      << text;
  EXPECT_TRUE(wrong("[batch]\nglobal = 32\nmicro = 5\n").starts_with("run.toml:2: batch.global: 32 is not"));
  EXPECT_TRUE(wrong("", {"model.top_k=2"}).ends_with("unknown key, did you mean model.experts_per_token?"));
}

}  // namespace
}  // namespace trireme
