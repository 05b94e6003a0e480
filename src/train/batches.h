// Between data and the runner: batches of a run, windows of an evaluation.
#pragma once
#include <memory>
#include <optional>
#include <utility>

#include "data/prefetch.h"
#include "runtime/stage_runner.h"
#include "spec/toml.h"
#include "train/data_identity.h"

namespace trireme {

class Batches {
 public:
  // Opens the shards of data.train, and those of data.valid that exist. check: reads every byte, to check ids
  // against the vocabulary and to digest the content; once is enough for all ranks.
  explicit Batches(const RunSpec&, int dp_rank = 0, bool check = true);

  // ---- content; `check` was true, or take_content() was called ----
  const DataContent& content() const { return content_; }
  // The content as text, for other ranks. take_content() is the counterpart on a rank that did not check: it
  // compares a sample of this rank's files, which may be copies on another machine. bad_request if they
  // differ.
  std::string content_text() const;
  void take_content(const std::string&);
  // run_failed, naming the file, if a training shard changed on disk since the start, or the held-out shard.
  // Costs one stat() per file unless a file was touched.
  void check_training();
  void check_valid(const std::string& name);
  FillBatch training();  // reads on demand and calls check_training() once a second; this object outlives it
  // Where the steps to come begin in the data (a branch); before training_from().
  void start_at(const DataPlace& place);
  // Samples of each shard drawn up to the end of `step`.
  std::vector<int64_t> drawn_by_shard(int64_t step);
  // A sequence of a step, by its index in the global batch: shard, tokens, documents.
  struct NamedSequence {
    std::string shard;
    int64_t first_token = 0, last_token = 0;
    int64_t first_document = 0, last_document = 0;
  };
  NamedSequence sequence(int64_t step, int64_t index);
  // From step `first` on, data.prefetch microbatches ahead by a thread of its own (0: as training()). Once.
  FillBatch training_from(int64_t first);
  // Targets of the global batch of a step: the divisor of its loss, on every rank.
  int64_t targets_of(int64_t step);
  const std::vector<std::string>& valid() const { return valid_; }  // shards that exist

  // Sequences drawn from each shard in the first `steps` steps; nothing where there is one shard.
  std::vector<std::pair<std::string, int64_t>> drawn(int64_t steps);
  std::vector<std::string> notes() const;  // loss masks, packing, and the shares of a mixture

 private:
  void watch();
  void look();
  // Stamps of the shards before they are opened: of data.train, and by name of data.valid.
  struct Stamps {
    explicit Stamps(const RunSpec&);
    std::vector<ShardStamps> train;
    std::map<std::string, ShardStamps> valid;
  };

  RunSpec run_;
  int dp_rank_;
  Stamps stamps_;
  DataContent content_;
  DataLoader loader_;
  Mixture count_;  // a second cursor: the loader's is the reading thread's
  std::vector<std::string> valid_;
  std::vector<WatchedShard> watched_;  // one per shard of data.train
  std::map<std::string, WatchedShard> watched_valid_;
  double looked_s_ = 0;                // time of the last check_training()
  std::unique_ptr<Prefetcher> ahead_;  // last: it stops before what it reads from goes
};

// Sequential windows of seq_len tokens, a last partial one dropped.
class EvalWindows {
 public:
  EvalWindows(const RunSpec&, const fs::path& shard);
  int64_t count() const { return loader_.samples(); }
  FillBatch from(int64_t first) const;  // windows first, first + 1, ...; this object outlives it

 private:
  DataLoader loader_;
  int64_t seq_;
};

bool shard_exists(const fs::path& name);

// Runs `read`, whose errors concern the value of a key or option: each names both, "data.train: "x": why".
template <class Read>
auto naming_key(std::string_view key, std::string_view value, Read&& read) {
  try {
    return read();
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}: {}", key, shown(value), e.what()), e.fault);
  }
}

}  // namespace trireme
