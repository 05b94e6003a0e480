// Batches of tokens, as a pure function of (seed, global sample index): any split over replicas and
// microbatches draws the same samples, and a resumed run needs no more than its step.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/mixture.h"
#include "data/token_shard.h"
#include "data/whole_windows.h"
#include "mesh/shape.h"
#include "spec/batch_ramp.h"

namespace trireme {

enum class SampleOrder { shuffled, sequential };
SampleOrder sample_order(std::string_view name);  // "shuffled", "sequential"; bad_request on others

struct LoaderOptions {
  int64_t vocab = 0;
  int64_t seq_len = 0;
  BatchSpec batch = {.global = 1, .micro = 1};  // each batch of it is a multiple of dp * micro
  int64_t dp = 1;                               // replicas
  SampleOrder order = SampleOrder::shuffled;
  uint64_t seed = 1;
  bool separate = false;  // positions restart with each document
  bool whole = false;     // documents are not divided between windows (whole_windows.h); also separate
};

// Where a run's data continue after a branch: step `step` + 1 takes sample `samples` of the mixture, and the
// k-th sample (from 0) of a source is that source's sample drawn[source] + k. The default is a run that
// started afresh.
struct DataPlace {
  int64_t step = 0, samples = 0;
  std::vector<int64_t> drawn;  // by source; empty = zeros
  bool operator==(const DataPlace&) const = default;
};

// Documents are packed: window w is tokens [w * seq_len, (w + 1) * seq_len) of their concatenation, its
// targets are the same shifted by one, and what is left at the end is not used. A source's sample i (from 0)
// is window i mod n in sequential order; shuffled, it is element i mod n of a permutation that each epoch i /
// n draws anew. Of several sources, the mixture says of which the n-th sample of the run is, and the how
// maniest. Targets outside the shard's loss mask are -1. With `whole`, windows hold whole documents
// (whole_windows.h), and what they leave free has token 0 and target -1.
class DataLoader {
 public:
  // bad_request when a shard has not one window, or the split is uneven. Weights of the shards as Mixture
  // takes them; none = the windows of each, so that all end their epochs together.
  DataLoader(std::vector<TokenShard>, std::span<const double> weights, const LoaderOptions&);
  DataLoader(TokenShard, const LoaderOptions&);

  int64_t sources() const { return int64_t(sources_.size()); }
  int64_t samples(int64_t source = 0) const { return sources_[size_t(source)].windows; }  // in an epoch
  const TokenShard& shard(int64_t source = 0) const { return sources_[size_t(source)].shard; }
  const Mixture& mixture() const { return mixture_; }
  int64_t microbatches(int64_t step) const {  // each replica runs
    return global_at(options_.batch, step) / (options_.dp * options_.batch.micro);
  }
  // Targets of the step's global batch, on all ranks alike. The mixture is the caller's cursor: the loader's
  // own belongs to the thread that reads.
  int64_t targets_of(Mixture&, int64_t step) const;
  // The tokens of a sample in its shard's concatenation; of whole documents, from the first to the last.
  Range tokens_of(Mixture::Draw) const;
  // The shard's loss mask and packing in a sentence; "" for a shard without either.
  std::string note(int64_t source) const;
  const LoaderOptions& options() const { return options_; }

  // For the steps after place.step. Call before the first get().
  void start_at(DataPlace place) { place_ = std::move(place); }
  const DataPlace& place() const { return place_; }
  // Global index of sample `row` of a microbatch: within a step, microbatches first, then replicas, then
  // rows. step from 1; the others from 0.
  int64_t sample(int64_t step, int64_t microbatch, int64_t dp_rank, int64_t row) const;
  // Index of the first sample of step `step` + 1.
  int64_t samples_before(int64_t step) const;
  // The source of a sample of the mixture and its number there, with the places that a branch began at.
  Mixture::Draw draw(Mixture&, int64_t sample) const;
  // Which window of its source a source's sample is.
  int64_t window(Mixture::Draw) const;
  int64_t window(int64_t sample) const { return window(Mixture::Draw{0, sample}); }  // of one source alone

  // One microbatch of one replica; each span is [micro, seq_len]. Allocates nothing. Positions count from 0
  // in each row, or from where its document begins in it. bad_request on an id outside the vocabulary. One
  // thread at a time: the mixture walks on.
  void get(int64_t step, int64_t microbatch, int64_t dp_rank, std::span<int32_t> tokens,
           std::span<int32_t> targets, std::span<int32_t> positions);
  // One window of the first source, 0 <= window < samples(); each span is [seq_len]. Evaluation reads them
  // all in order.
  void get_window(int64_t window, std::span<int32_t> tokens, std::span<int32_t> targets,
                  std::span<int32_t> positions) const;

 private:
  struct Source {
    TokenShard shard;
    int64_t windows = 0;
    std::string order = {};  // name of its random numbers
    std::optional<WholeWindows> whole = {};
    std::vector<int32_t> targets = {};  // number per window; empty: seq_len each
  };
  static std::vector<Source> sources_of(std::vector<TokenShard>, const LoaderOptions&);
  static std::vector<double> windows_of(const std::vector<Source>&);
  void read_whole(const Source&, int64_t window, std::span<int32_t> tokens, std::span<int32_t> targets,
                  std::span<int32_t> positions) const;
  void read(const Source&, int64_t window, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<int32_t> positions) const;

  LoaderOptions options_;
  DataPlace place_;
  std::vector<Source> sources_;
  Mixture mixture_;
};

// Opens a shard and checks every id and its recorded content. bad_request as check_content (shard_content.h).
void check_shard(const fs::path& name, int64_t vocab);

}  // namespace trireme
