// Runs whose data are poisoned in places (train.spikes).
#include <gtest/gtest.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/rng.h"
#include "data/shard_writer.h"
#include "ranks_run.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

constexpr int64_t kSteps = 150, kSeq = 13, kBatch = 6;
// Sequences of steps 100 to 103, in sequential order, are noise.
constexpr int64_t kPoisoned = 99 * kBatch * kSeq, kHealed = 103 * kBatch * kSeq;

// Tokens that follow from one another, 1 in 8 drawn; poison: all drawn, in the range [from, to).
void write_text(const fs::path& name, uint64_t seed, int64_t tokens, bool poison, int64_t from = kPoisoned,
                int64_t to = kHealed) {
  ShardWriter writer(name, 61);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  const uint64_t key = rng_key(seed, 0, "text");
  for (int64_t i = 1; i < tokens; i++) {
    const bool noise = poison && i >= from && i < to;
    const bool drawn = noise || below(key, uint64_t(i), 8) == 0;
    ids[size_t(i)] =
        drawn ? int32_t(below(key, uint64_t(1000000 + i), 61)) : (ids[size_t(i - 1)] * 5 + 7) % 61;
  }
  for (int64_t at = 0; at < tokens; at += 100)
    writer.add_document(std::span(ids).subspan(size_t(at), size_t(std::min<int64_t>(100, tokens - at))));
  writer.commit();
}

RunSpec spiked_run(const fs::path& folder, const char* name, bool poison, const char* spikes,
                   const RanksLayout& layout = {}) {
  RunSpec r = ranks_run(folder, layout, kSteps);
  const fs::path shard = folder / (poison ? "poisoned" : "clean");
  if (!fs::exists(shard.string() + ".idx")) write_text(shard, 1, (kSteps * kBatch + 1) * kSeq, poison);
  if (!fs::exists(folder / "held.idx")) write_text(folder / "held", 2, 40 * kSeq, false);
  r.data.train = shard.string();
  r.data.valid = (folder / "held").string();
  r.data.order = "sequential";
  r.optimizer.lr = 2e-2;
  r.train.dir = (folder / name).string();
  r.train.eval_every = 0;
  r.train.checkpoint_every.count = 10;
  r.train.keep = 100;
  r.train.spikes = spikes;
  r.train.spike_window = 24;
  return r;
}

std::vector<nlohmann::json> spikes_of(const RunSpec& run) {
  std::vector<nlohmann::json> out;
  const fs::path file = fs::path(run.train.dir) / "spikes.jsonl";
  for (const std::string& line : lines_of(fs::exists(file) ? read_text(file) : ""))
    out.push_back(nlohmann::json::parse(line));
  return out;
}

TEST(Spikes, PoisonIsSkippedAndNamed) {
  TempFolder tmp;
  const TrainSummary clean = train_here(spiked_run(tmp.path(), "clean-run", false, "skip"));
  EXPECT_LE(clean.skipped, 3);  // gradient norms of so small a run have outliers too
  const TrainSummary off = train_here(spiked_run(tmp.path(), "off", true, "off"));
  const RunSpec run = spiked_run(tmp.path(), "skip", true, "skip");
  std::string notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  const TrainSummary skipped = train_here(run, hooks);
  EXPECT_EQ(skipped.ending, Ending::done);
  EXPECT_NEAR(*skipped.eval_loss, *clean.eval_loss, 0.01 * *clean.eval_loss);
  EXPECT_GT(std::abs(*off.eval_loss - *clean.eval_loss), std::abs(*skipped.eval_loss - *clean.eval_loss));
  const std::vector<nlohmann::json> all = spikes_of(run);
  EXPECT_EQ(skipped.skipped, int64_t(all.size()));
  std::vector<nlohmann::json> spikes;
  for (const nlohmann::json& s : all)
    if (s["loss_z"] >= run.train.spike_z) spikes.push_back(s);
  ASSERT_EQ(spikes.size(), 4u);
  for (size_t i = 0; i < 4; i++) {
    EXPECT_EQ(spikes[i]["step"], 100 + int64_t(i));
    EXPECT_EQ(spikes[i]["reason"], "outlier");
    ASSERT_EQ(spikes[i]["sequences"].size(), size_t(kBatch));
    for (const auto& s : spikes[i]["sequences"]) {
      EXPECT_EQ(s["shard"], run.data.train.first());
      EXPECT_GE(s["tokens"][0], kPoisoned + int64_t(i) * kBatch * kSeq);
      EXPECT_LT(s["tokens"][1], kPoisoned + int64_t(i + 1) * kBatch * kSeq);
      EXPECT_EQ(s["documents"][0], s["tokens"][0].get<int64_t>() / 100);
    }
  }
  EXPECT_NE(notes.find("step 100: outlier: loss"), std::string::npos) << notes;

  // After a resume in the midst of it, and on other ranks: the same bits.
  const Outcome want = outcome_of(run.train.dir);
  for (int64_t step : {110, 120, 130, 140, 150})
    fs::remove_all(checkpoint_root(run.train.dir) / step_folder_name(step));
  train_here(run);
  expect_same(outcome_of(run.train.dir), want);
  EXPECT_EQ(spikes_of(run), all);
  for (const RanksLayout& layout : {RanksLayout{.dp = 3, .zero = 2}}) {
    const RunSpec ranks = spiked_run(tmp.path(), "ranks", true, "skip", layout);
    train_here(ranks);
    EXPECT_TRUE(outcome_of(ranks.train.dir).tensors == want.tensors);
    EXPECT_EQ(spikes_of(ranks), all);
  }
}

TEST(Spikes, ARollbackTakesTheNewestCheckpoint) {
  TempFolder tmp;
  const RunSpec run = spiked_run(tmp.path(), "run", true, "rollback");
  std::string notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  const TrainSummary summary = train_here(run, hooks);
  EXPECT_GE(summary.skipped, 4 + 9);  // steps 100 to 103, and 91 to 99, which the third takes back
  EXPECT_NE(notes.find("rolled back to the weights and moments of step 90"), std::string::npos) << notes;
  const double clean = *train_here(spiked_run(tmp.path(), "clean-run", false, "off")).eval_loss;
  EXPECT_NEAR(*summary.eval_loss, clean, 0.01 * clean);
  const Outcome want = outcome_of(run.train.dir);
  for (int64_t step : {100, 110, 120, 130, 140, 150})
    fs::remove_all(checkpoint_root(run.train.dir) / step_folder_name(step));
  train_here(run);
  expect_same(outcome_of(run.train.dir), want);
}

// In shuffled order a poisoned range comes in single sequences, here 18 of 900, over as many steps.
TEST(Spikes, ShuffledPoisonEndsNoRun) {
  TempFolder tmp;
  const auto run_of = [&](const char* name, const char* text, const char* spikes) {
    RunSpec r = spiked_run(tmp.path(), name, false, spikes);
    r.data.order = "shuffled";
    r.data.train = (tmp / text).string();
    r.train.spike_z = 4;
    return r;
  };
  const double clean = *train_here(run_of("clean-run", "clean", "off")).eval_loss;
  write_text(tmp / "ill", 1, (kSteps * kBatch + 1) * kSeq, true, kPoisoned, kPoisoned + 18 * kSeq);
  for (const char* spikes : {"skip", "rollback"}) {
    SCOPED_TRACE(spikes);
    const RunSpec run = run_of(spikes, "ill", spikes);
    const TrainSummary summary = train_here(run);
    EXPECT_GE(summary.skipped, 4);
    EXPECT_NEAR(*summary.eval_loss, clean, 0.01 * clean);
    const Outcome want = outcome_of(run.train.dir);
    for (int64_t step : {80, 90, 100, 110, 120, 130, 140, 150})
      fs::remove_all(checkpoint_root(run.train.dir) / step_folder_name(step));
    train_here(run);
    expect_same(outcome_of(run.train.dir), want);
  }
}

// Every step is an outlier or not finite: the limit ends it.
TEST(Spikes, TheLimitEndsARunThatIsLost) {
  TempFolder tmp;
  RunSpec run = spiked_run(tmp.path(), "run", false, "skip");
  run.optimizer.lr = 1e38;
  run.optimizer.warmup = 0;
  run.train.spike_limit = 3;
  run.train.checkpoint_every.count = 0;
  run.train.check_every = 0;
  try {
    train_here(run);
    ADD_FAILURE() << "a run of values that are not finite ended well";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run) << e.what();
  }
  EXPECT_EQ(spikes_of(run).size(), 3u);
}

}  // namespace
}  // namespace trireme::test
