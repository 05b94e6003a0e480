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

}  // namespace

DataLoader::DataLoader(TokenShard shard, const LoaderOptions& options)
    : DataLoader(one(std::move(shard)), {}, options) {}

std::vector<double> DataLoader::windows_of(const std::vector<Source>& sources) {
  std::vector<double> out;
  for (const Source& s : sources) out.push_back(double(s.windows));
  return out;
}

std::vector<DataLoader::Source> DataLoader::sources_of(std::vector<TokenShard> shards,
                                                       const LoaderOptions& options) {
  require(options.vocab >= 1 && options.seq_len >= 1, "DataLoader: vocab and seq_len must be at least 1");
  const int64_t seq = options.seq_len;
  std::vector<Source> out;
  for (TokenShard& s : shards) {
    // The first one's name is what a run of one shard has always had.
    Source source{.shard = std::move(s),
                  .order = out.empty() ? "data order" : fmt::format("data order {}", out.size())};
    if (options.separate || options.whole) source.shard.know_documents();
    if (options.whole) source.whole.emplace(source.shard, seq);
    source.windows = source.whole ? source.whole->count() : (source.shard.tokens() - 1) / seq;
    if (source.windows < 1 && options.whole)
      bad_request("{} has no document of two tokens or more to train on", source.shard.name());
    if (source.windows < 1)
      bad_request("{} has {} tokens; one sample of data.seq_len = {} needs {}", source.shard.name(),
                  source.shard.tokens(), seq, seq + 1);
    for (int64_t w = 0; (source.whole || source.shard.mask()) && w < source.windows; w++)
      source.targets.push_back(int32_t(source.whole ? source.whole->targets(source.shard, w)
                                                    : source.shard.targets(w * seq + 1, (w + 1) * seq + 1)));
    if (!source.targets.empty() &&
        std::all_of(source.targets.begin(), source.targets.end(), [](int32_t n) { return n == 0; }))
      bad_request(
          "{}: no place in its samples of data.seq_len = {} is a target of the loss; {}", source.shard.name(),
          seq, options.whole ? "give a data.seq_len that prompts and answers fit into" : "its mask is empty");
    out.push_back(std::move(source));
  }
  return out;
}

DataLoader::DataLoader(std::vector<TokenShard> shards, std::span<const double> weights,
                       const LoaderOptions& options)
    : options_(options),
      sources_(sources_of(std::move(shards), options)),
      mixture_(weights.empty() ? windows_of(sources_) : std::vector<double>(weights.begin(), weights.end())) {
  const BatchSpec& batch = options.batch;
  require(batch.global >= 1 && batch.micro >= 1 && options.dp >= 1, "DataLoader: an empty batch");
  require(mixture_.sources() == int64_t(sources_.size()), "DataLoader: one weight a shard");
  if (const int64_t divisor = divisor_of_batches(batch);
      divisor % batch.micro || divisor / batch.micro % options.dp)
    bad_request("{} = {} is not a multiple of layout.dp * batch.micro = {} * {}",
                batch.ramp.empty() ? "batch.global" : "the divisor of all batches", divisor, options.dp,
                batch.micro);
}

int64_t DataLoader::targets_of(Mixture& mixture, int64_t step) const {
  const int64_t batch = global_at(options_.batch, step);
  const bool all =
      std::all_of(sources_.begin(), sources_.end(), [](const Source& s) { return s.targets.empty(); });
  if (all) return batch * options_.seq_len;
  const int64_t first = samples_before(step - 1);
  int64_t n = 0;
  for (int64_t i = 0; i < batch; i++) {
    const Mixture::Draw at = draw(mixture, first + i);
    const Source& source = sources_[size_t(at.source)];
    n += source.targets.empty() ? options_.seq_len : source.targets[size_t(window(at))];
  }
  return n;
}

Range DataLoader::tokens_of(Mixture::Draw at) const {
  const Source& source = sources_[size_t(at.source)];
  const int64_t w = window(at);
  if (source.whole) return source.whole->tokens(w);
  return {w * options_.seq_len, (w + 1) * options_.seq_len};
}

std::string DataLoader::note(int64_t source) const {
  const Source& s = sources_[size_t(source)];
  if (s.targets.empty()) return "";
  int64_t targets = 0;
  for (int32_t n : s.targets) targets += n;
  const int64_t places = s.windows * options_.seq_len;
  std::string text = fmt::format("{}: {} of {} places in its samples are targets ({:.1f} %)", s.shard.name(),
                                 targets, places, 100 * double(targets) / double(places));
  if (s.whole) text += "; " + s.whole->note();
  return text;
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
  if (source.whole) return read_whole(source, window, tokens, targets, positions);
  const int64_t begin = window * options_.seq_len;
  source.shard.read(begin, tokens, options_.vocab);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  source.shard.read(begin + options_.seq_len, targets.last(1), options_.vocab);
  source.shard.keep_targets(begin + 1, targets);
  if (options_.separate)
    source.shard.positions(begin, positions);
  else
    std::iota(positions.begin(), positions.end(), 0);
}

void DataLoader::read_whole(const Source& source, int64_t window, std::span<int32_t> tokens,
                            std::span<int32_t> targets, std::span<int32_t> positions) const {
  size_t at = 0;
  for (const Range& piece : source.whole->pieces(window)) {
    const size_t n = size_t(piece.size());
    source.shard.read(piece.begin, tokens.subspan(at, n), options_.vocab);
    source.shard.read(piece.begin + 1, targets.subspan(at, n), options_.vocab);
    source.shard.keep_targets(piece.begin + 1, targets.subspan(at, n));
    std::iota(positions.begin() + long(at), positions.begin() + long(at + n), 0);
    at += n;
  }
  std::fill(tokens.begin() + long(at), tokens.end(), 0);
  std::fill(targets.begin() + long(at), targets.end(), -1);
  std::iota(positions.begin() + long(at), positions.end(), 0);
}

void check_shard(const fs::path& name, int64_t vocab) {
  check_content(TokenShard::open(name), vocab);
}

}  // namespace trireme
