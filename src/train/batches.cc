#include "train/batches.h"

#include "base/timed.h"

namespace trireme {
namespace {

LoaderOptions options_of(const RunSpec& run, SampleOrder order) {
  return {.vocab = run.model.vocab,
          .seq_len = run.data.seq_len,
          .batch = run.batch,
          .dp = run.layout.dp,
          .order = order,
          .seed = uint64_t(run.train.seed),
          .separate = run.data.separate(),
          .whole = run.data.documents == "whole"};
}

constexpr double kLookEvery_s = 1;

// content: null, or where the checked content goes.
DataLoader open_training(const RunSpec& run, DataContent* content) {
  std::vector<TokenShard> shards;
  for (const std::string& name : run.data.train) {
    naming_key("data.train", name, [&] {
      shards.push_back(TokenShard::open(name));
      if (content) content->train.push_back(check_content(shards.back(), run.model.vocab));
    });
  }
  return DataLoader(std::move(shards), run.data.weights, options_of(run, sample_order(run.data.order)));
}

}  // namespace

bool shard_exists(const fs::path& name) {
  return fs::exists(name) || fs::exists(name.string() + ".bin") || fs::exists(name.string() + ".idx");
}

Batches::Stamps::Stamps(const RunSpec& run) {
  for (const std::string& name : run.data.train)
    naming_key("data.train", name, [&] { train.push_back(stamps_of(name)); });
  for (const std::string& name : run.data.valid)
    naming_key("data.valid", name, [&] {
      if (shard_exists(name)) valid[name] = stamps_of(name);
    });
}

Batches::Batches(const RunSpec& run, int dp_rank, bool check)
    : run_(run),
      dp_rank_(dp_rank),
      stamps_(run),
      loader_(open_training(run, check ? &content_ : nullptr)),
      count_(loader_.mixture()) {
  for (const std::string& name : run.data.valid) {
    if (!shard_exists(name)) continue;
    naming_key("data.valid", name, [&] {
      if (check) content_.valid[name] = check_content(TokenShard::open(name), run.model.vocab);
      EvalWindows(run, name);  // too short a shard is refused now, not at the first evaluation
    });
    valid_.push_back(name);
  }
  if (check) watch();
}

void Batches::watch() {
  for (int64_t i = 0; i < loader_.sources(); i++)
    watched_.emplace_back("data.train", stamps_.train.at(size_t(i)), content_.train.at(size_t(i)));
  for (const auto& [name, content] : content_.valid)
    if (auto at = stamps_.valid.find(name); at != stamps_.valid.end())
      watched_valid_.emplace(name, WatchedShard("data.valid", at->second, content));
}

std::string Batches::content_text() const {
  nlohmann::json samples = nlohmann::json::array();
  for (int64_t i = 0; i < loader_.sources(); i++) samples.push_back(hex64(sample_of(loader_.shard(i))));
  return nlohmann::json{{"content", to_json(content_, run_)}, {"samples", samples}}.dump();
}

void Batches::take_content(const std::string& text) {
  const nlohmann::json j = nlohmann::json::parse(text);
  content_ = data_content_of(j.at("content"), run_, "rank 0's data");
  for (int64_t i = 0; i < loader_.sources(); i++)
    if (j.at("samples").at(size_t(i)) != hex64(sample_of(loader_.shard(i))))
      bad_request("data.train = \"{}\": {} differs from rank 0's file: copy the same shard to every machine",
                  run_.data.train.list[size_t(i)], loader_.shard(i).name());
  watch();
}

void Batches::check_training() {
  looked_s_ = now_s();
  for (size_t i = 0; i < watched_.size(); i++) watched_[i].check_mapped(loader_.shard(int64_t(i)));
}

void Batches::check_valid(const std::string& name) {
  auto it = watched_valid_.find(name);
  if (it != watched_valid_.end()) it->second.check_named(name);
}

void Batches::look() {
  if (now_s() - looked_s_ > kLookEvery_s) check_training();
}

FillBatch Batches::training() {
  return [this](int64_t step, int64_t mb, const HostBatch& b) {
    loader_.get(step, mb, dp_rank_, b.tokens, b.targets, b.positions);
    look();
  };
}

FillBatch Batches::training_from(int64_t first) {
  if (run_.data.prefetch == 0 || first > run_.train.steps) return training();
  require(!ahead_, "one thread reads the data of a run");
  ahead_ = std::make_unique<Prefetcher>(loader_, Prefetcher::Options{.depth = run_.data.prefetch,
                                                                     .first_step = first,
                                                                     .last_step = run_.train.steps,
                                                                     .dp_rank = dp_rank_});
  return [this](int64_t step, int64_t mb, const HostBatch& b) {
    ahead_->get(step, mb, b.tokens, b.targets, b.positions);
    look();
  };
}

void Batches::start_at(const DataPlace& place) {
  require(!ahead_, "data are read ahead already");
  loader_.start_at(place);
}

int64_t Batches::targets_of(int64_t step) {
  return loader_.targets_of(count_, step);
}

std::vector<int64_t> Batches::drawn_by_shard(int64_t step) {
  const std::span<const int64_t> n = count_.drawn(loader_.samples_before(step));
  std::vector<int64_t> out(n.begin(), n.end());
  const std::vector<int64_t>& before = loader_.place().drawn;
  for (size_t i = 0; i < before.size(); i++) out[i] += before[i];
  return out;
}

Batches::NamedSequence Batches::sequence(int64_t step, int64_t index) {
  const Mixture::Draw draw = loader_.draw(count_, loader_.samples_before(step - 1) + index);
  const TokenShard& shard = loader_.shard(draw.source);
  NamedSequence s{.shard = run_.data.train.list[size_t(draw.source)]};
  const Range tokens = loader_.tokens_of(draw);
  s.first_token = tokens.begin;
  s.last_token = tokens.end - 1;
  s.first_document = shard.place_of(s.first_token).document;
  s.last_document = shard.place_of(s.last_token).document;
  return s;
}

std::vector<std::pair<std::string, int64_t>> Batches::drawn(int64_t steps) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (count_.sources() == 1) return out;
  const std::vector<int64_t> n = drawn_by_shard(steps);
  for (size_t i = 0; i < n.size(); i++) out.emplace_back(run_.data.train.list[i], n[i]);
  return out;
}

std::vector<std::string> Batches::notes() const {
  std::vector<std::string> out;
  for (int64_t i = 0; i < loader_.sources(); i++)
    if (const std::string note = loader_.note(i); !note.empty()) out.push_back(note);
  if (count_.sources() == 1) return out;
  const double all = double(samples_until(run_.batch, run_.train.steps));
  for (int64_t i = 0; i < count_.sources(); i++)
    out.push_back(fmt::format("mixture: {:6.2f} % {}, {} sequences, of which the run takes {:.3g} epochs",
                              100 * count_.share(i), run_.data.train.list[size_t(i)], loader_.samples(i),
                              all * count_.share(i) / double(loader_.samples(i))));
  return out;
}

EvalWindows::EvalWindows(const RunSpec& run, const fs::path& shard)
    : loader_(TokenShard::open(shard), options_of(run, SampleOrder::sequential)), seq_(run.data.seq_len) {}

FillBatch EvalWindows::from(int64_t first) const {
  return [this, first](int64_t, int64_t, const HostBatch& b) {
    size_t seq = size_t(seq_);
    for (size_t at = 0; at < b.tokens.size(); at += seq)
      loader_.get_window(first + int64_t(at / seq), b.tokens.subspan(at, seq), b.targets.subspan(at, seq),
                         b.positions.subspan(at, seq));
  };
}

}  // namespace trireme
