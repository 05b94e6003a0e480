// Batches of tokens, as a pure function of (seed, global sample index): any split over replicas and
// microbatches draws the same samples, and a resumed run needs no more than its step.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "data/token_shard.h"

namespace trireme {

enum class SampleOrder { shuffled, sequential };
SampleOrder sample_order(std::string_view name);  // "shuffled", "sequential"; bad_request on others

struct LoaderOptions {
  int64_t vocab = 0;
  int64_t seq_len = 0;
  int64_t global = 1;  // sequences per step
  int64_t micro = 1;   // sequences per microbatch and replica
  int64_t dp = 1;      // replicas; global is a multiple of dp * micro
  SampleOrder order = SampleOrder::shuffled;
  uint64_t seed = 1;
};

// Documents are packed: window w is tokens [w * seq_len, (w + 1) * seq_len) of their concatenation, its
// targets are the same shifted by one, and what is left at the end is not used. Sample i (from 0) is window i
// mod n in sequential order; shuffled, it is element i mod n of a permutation that each epoch i / n draws
// anew.
class DataLoader {
 public:
  DataLoader(TokenShard,
             const LoaderOptions&);  // bad_request when the shard has not one window, or the split is uneven

  int64_t samples() const { return windows_; }  // in an epoch
  int64_t tokens() const { return shard_.tokens(); }
  int64_t microbatches() const {
    return options_.global / (options_.dp * options_.micro);
  }  // of a replica in a step
  int64_t targets_per_step() const { return options_.global * options_.seq_len; }
  const LoaderOptions& options() const { return options_; }
  const TokenShard& shard() const { return shard_; }

  // Global index of sample `row` of a microbatch: within a step, microbatches first, then replicas, then
  // rows. step from 1; the others from 0.
  int64_t sample(int64_t step, int64_t microbatch, int64_t dp_rank, int64_t row) const;
  int64_t window(int64_t sample) const;  // which window a sample is

  // One microbatch of one replica; each span is [micro, seq_len]. Allocates nothing. Positions count from 0
  // in each row. bad_request on an id outside the vocabulary.
  void get(int64_t step, int64_t microbatch, int64_t dp_rank, std::span<int32_t> tokens,
           std::span<int32_t> targets, std::span<int32_t> positions) const;
  // One window, 0 <= window < samples(); each span is [seq_len]. Evaluation reads them all in order.
  void get_window(int64_t window, std::span<int32_t> tokens, std::span<int32_t> targets,
                  std::span<int32_t> positions) const;

 private:
  TokenShard shard_;
  LoaderOptions options_;
  int64_t windows_ = 0;
};

// For the start of a run: opens a shard and looks at every id. bad_request as TokenShard::check_ids.
void check_shard(const fs::path& name, int64_t vocab);

}  // namespace trireme
