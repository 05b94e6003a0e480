#include "data/loader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "data/shard_content.h"

namespace trireme {

SampleOrder sample_order(std::string_view name) {
  if (name == "shuffled") return SampleOrder::shuffled;
  if (name == "sequential") return SampleOrder::sequential;
  bad_request("data.order is {:?}; it is \"shuffled\" or \"sequential\"", name);
}

namespace {

std::vector<TokenShard> one(TokenShard shard) {
  std::vector<TokenShard> shards;
  shards.push_back(std::move(shard));
  return shards;
}

// At least one each: too short a shard is refused by name later.
std::vector<double> windows_of(const std::vector<TokenShard>& shards, int64_t seq_len) {
  std::vector<double> out;
  for (const TokenShard& s : shards) out.push_back(double(std::max<int64_t>(1, (s.tokens() - 1) / seq_len)));
  return out;
}

}  // namespace

DataLoader::DataLoader(TokenShard shard, const LoaderOptions& options)
    : DataLoader(one(std::move(shard)), {}, options) {}

DataLoader::DataLoader(std::vector<TokenShard> shards, std::span<const double> weights,
                       const LoaderOptions& options)
    : options_(options),
      mixture_(weights.empty() ? windows_of(shards, options.seq_len)
                               : std::vector<double>(weights.begin(), weights.end())) {
  require(options.vocab >= 1 && options.seq_len >= 1, "DataLoader: vocab and seq_len must be at least 1");
  const BatchSpec& batch = options.batch;
  require(batch.global >= 1 && batch.micro >= 1 && options.dp >= 1, "DataLoader: an empty batch");
  require(mixture_.sources() == int64_t(shards.size()), "DataLoader: one weight a shard");
  if (const int64_t divisor = divisor_of_batches(batch);
      divisor % batch.micro || divisor / batch.micro % options.dp)
    bad_request("{} = {} is not a multiple of layout.dp * batch.micro = {} * {}",
                batch.ramp.empty() ? "batch.global" : "the divisor of all batches", divisor, options.dp,
                batch.micro);
  for (TokenShard& s : shards) {
    const int64_t windows = (s.tokens() - 1) / options.seq_len;
    if (windows < 1)
      bad_request("{} has {} tokens; one sample of data.seq_len = {} needs {}", s.name(), s.tokens(),
                  options.seq_len, options.seq_len + 1);
    // The first one's name is what a run of one shard has always had.
    std::string order = sources_.empty() ? "data order" : fmt::format("data order {}", sources_.size());
    if (options.separate) s.know_documents();
    sources_.push_back({std::move(s), windows, std::move(order)});
  }
}

int64_t DataLoader::sample(int64_t step, int64_t microbatch, int64_t dp_rank, int64_t row) const {
  const int64_t micro = options_.batch.micro;
  require(step >= 1 && microbatch >= 0 && microbatch < microbatches(step) && dp_rank >= 0 &&
              dp_rank < options_.dp && row >= 0 && row < micro,
          "DataLoader::sample() outside the batch");
  const int64_t within = (microbatch * options_.dp + dp_rank) * micro + row;
  int64_t at = 0;
  if (__builtin_add_overflow(samples_before(step - 1), within, &at))
    bad_request("step {} of {} sequences is beyond sample 2^63", step, global_at(options_.batch, step));
  return at;
}

int64_t DataLoader::samples_before(int64_t step) const {
  int64_t at = samples_until(options_.batch, step) - samples_until(options_.batch, place_.step);
  if (__builtin_add_overflow(at, place_.samples, &at))
    bad_request("step {} of {} sequences is beyond sample 2^63", step + 1, options_.batch.global);
  return at;
}

Mixture::Draw DataLoader::draw(Mixture& mixture, int64_t sample) const {
  Mixture::Draw d = mixture.at(sample);
  if (!place_.drawn.empty()) d.index += place_.drawn[size_t(d.source)];
  return d;
}

int64_t DataLoader::window(Mixture::Draw draw) const {
  const Source& source = sources_[size_t(draw.source)];
  int64_t epoch = draw.index / source.windows, position = draw.index % source.windows;
  if (options_.order == SampleOrder::sequential) return position;
  uint64_t key = rng_key(options_.seed, uint64_t(epoch), source.order);
  return int64_t(permute(key, uint64_t(position), uint64_t(source.windows)));
}

void DataLoader::get(int64_t step, int64_t microbatch, int64_t dp_rank, std::span<int32_t> tokens,
                     std::span<int32_t> targets, std::span<int32_t> positions) {
  const size_t seq = size_t(options_.seq_len), micro = size_t(options_.batch.micro), all = micro * seq;
  require(tokens.size() == all && targets.size() == all && positions.size() == all,
          "DataLoader::get(): each buffer holds [micro, seq_len]");
  for (size_t row = 0; row < micro; row++) {
    const Mixture::Draw at = draw(mixture_, sample(step, microbatch, dp_rank, int64_t(row)));
    read(sources_[size_t(at.source)], window(at), tokens.subspan(row * seq, seq),
         targets.subspan(row * seq, seq), positions.subspan(row * seq, seq));
  }
}

void DataLoader::get_window(int64_t window, std::span<int32_t> tokens, std::span<int32_t> targets,
                            std::span<int32_t> positions) const {
  read(sources_.front(), window, tokens, targets, positions);
}

void DataLoader::read(const Source& source, int64_t window, std::span<int32_t> tokens,
                      std::span<int32_t> targets, std::span<int32_t> positions) const {
  const size_t seq = size_t(options_.seq_len);
  require(window >= 0 && window < source.windows, "DataLoader: a window outside the shard");
  require(tokens.size() == seq && targets.size() == seq && positions.size() == seq,
          "DataLoader::get_window(): each buffer holds [seq_len]");
  const int64_t begin = window * options_.seq_len;
  source.shard.read(begin, tokens, options_.vocab);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  source.shard.read(begin + options_.seq_len, targets.last(1), options_.vocab);
  if (options_.separate)
    source.shard.positions(begin, positions);
  else
    std::iota(positions.begin(), positions.end(), 0);
}

void check_shard(const fs::path& name, int64_t vocab) {
  check_content(TokenShard::open(name), vocab);
}

}  // namespace trireme
