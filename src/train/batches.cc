#include "train/batches.h"

namespace trireme {
namespace {

DataLoader open(const RunSpec& run, const fs::path& shard, SampleOrder order) {
  return DataLoader(TokenShard::open(shard), {.vocab = run.model.vocab,
                                              .seq_len = run.data.seq_len,
                                              .global = run.batch.global,
                                              .micro = run.batch.micro,
                                              .dp = run.layout.dp,
                                              .order = order,
                                              .seed = uint64_t(run.train.seed)});
}

}  // namespace

bool shard_exists(const fs::path& name) {
  return fs::exists(name) || fs::exists(name.string() + ".bin") || fs::exists(name.string() + ".idx");
}

Batches::Batches(const RunSpec& run) : loader_(open(run, run.data.train, sample_order(run.data.order))) {
  loader_.shard().check_ids(run.model.vocab);
  has_valid_ = !run.data.valid.empty() && shard_exists(run.data.valid);
  if (!has_valid_) return;
  check_shard(run.data.valid, run.model.vocab);
  EvalWindows(run, run.data.valid);  // too short a shard is refused now, not at the first evaluation
}

FillBatch Batches::training() const {
  return [this](int64_t step, int64_t mb, const HostBatch& b) {
    loader_.get(step, mb, 0, b.tokens, b.targets, b.positions);
  };
}

EvalWindows::EvalWindows(const RunSpec& run, const fs::path& shard)
    : loader_(open(run, shard, SampleOrder::sequential)), seq_(run.data.seq_len) {}

FillBatch EvalWindows::from(int64_t first) const {
  return [this, first](int64_t, int64_t, const HostBatch& b) {
    size_t seq = size_t(seq_);
    for (size_t at = 0; at < b.tokens.size(); at += seq)
      loader_.get_window(first + int64_t(at / seq), b.tokens.subspan(at, seq), b.targets.subspan(at, seq),
                         b.positions.subspan(at, seq));
  };
}

}  // namespace trireme
