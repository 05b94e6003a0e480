#include "data/loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace trireme {

SampleOrder sample_order(std::string_view name) {
  if (name == "shuffled") return SampleOrder::shuffled;
  if (name == "sequential") return SampleOrder::sequential;
  bad_request("data.order is {:?}; it is \"shuffled\" or \"sequential\"", name);
}

DataLoader::DataLoader(TokenShard shard, const LoaderOptions& options)
    : shard_(std::move(shard)), options_(options) {
  require(options.vocab >= 1 && options.seq_len >= 1, "DataLoader: vocab and seq_len must be at least 1");
  require(options.global >= 1 && options.micro >= 1 && options.dp >= 1, "DataLoader: an empty batch");
  if (options.global % options.micro || options.global / options.micro % options.dp)
    bad_request("batch.global = {} is not a multiple of layout.dp * batch.micro = {} * {}", options.global,
                options.dp, options.micro);
  windows_ = (shard_.tokens() - 1) / options.seq_len;
  if (windows_ < 1)
    bad_request("{} has {} tokens; one sample of data.seq_len = {} needs {}", shard_.name(), shard_.tokens(),
                options.seq_len, options.seq_len + 1);
}

int64_t DataLoader::sample(int64_t step, int64_t microbatch, int64_t dp_rank, int64_t row) const {
  require(step >= 1 && microbatch >= 0 && microbatch < microbatches() && dp_rank >= 0 &&
              dp_rank < options_.dp && row >= 0 && row < options_.micro,
          "DataLoader::sample() outside the batch");
  int64_t first = 0, within = (microbatch * options_.dp + dp_rank) * options_.micro + row;
  if (__builtin_mul_overflow(step - 1, options_.global, &first) ||
      __builtin_add_overflow(first, within, &first))
    bad_request("step {} of {} sequences is beyond sample 2^63", step, options_.global);
  return first;
}

int64_t DataLoader::window(int64_t sample) const {
  int64_t epoch = sample / windows_, position = sample % windows_;
  if (options_.order == SampleOrder::sequential) return position;
  uint64_t key = rng_key(options_.seed, uint64_t(epoch), "data order");
  return int64_t(permute(key, uint64_t(position), uint64_t(windows_)));
}

void DataLoader::get(int64_t step, int64_t microbatch, int64_t dp_rank, std::span<int32_t> tokens,
                     std::span<int32_t> targets, std::span<int32_t> positions) const {
  const size_t seq = size_t(options_.seq_len), all = size_t(options_.micro) * seq;
  require(tokens.size() == all && targets.size() == all && positions.size() == all,
          "DataLoader::get(): each buffer holds [micro, seq_len]");
  for (size_t row = 0; row < size_t(options_.micro); row++)
    get_window(window(sample(step, microbatch, dp_rank, int64_t(row))), tokens.subspan(row * seq, seq),
               targets.subspan(row * seq, seq), positions.subspan(row * seq, seq));
}

void DataLoader::get_window(int64_t window, std::span<int32_t> tokens, std::span<int32_t> targets,
                            std::span<int32_t> positions) const {
  const size_t seq = size_t(options_.seq_len);
  require(window >= 0 && window < windows_, "DataLoader::get_window() outside the shard");
  require(tokens.size() == seq && targets.size() == seq && positions.size() == seq,
          "DataLoader::get_window(): each buffer holds [seq_len]");
  const int64_t begin = window * options_.seq_len;
  shard_.read(begin, tokens, options_.vocab);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  shard_.read(begin + options_.seq_len, targets.last(1), options_.vocab);
  std::iota(positions.begin(), positions.end(), 0);
}

void check_shard(const fs::path& name, int64_t vocab) {
  TokenShard::open(name).check_ids(vocab);
}

}  // namespace trireme
