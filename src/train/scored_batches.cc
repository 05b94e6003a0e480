#include "train/scored_batches.h"

#include <algorithm>

namespace trireme {
namespace {

constexpr int64_t kSeqStep = 16;  // batches' lengths are multiples, so that few shapes have to be planned
constexpr int64_t kMostTexts = 64;

}  // namespace

ScoredBatches::ScoredBatches(std::vector<ScoredText> texts, const RunSpec& run, int64_t context) {
  for (size_t i = 0; i < texts.size(); i++) {
    ScoredText& t = texts[i];
    require(t.scored >= 1 && t.scored <= context, "a text with more scored tokens than the context");
    // A token is not an input of its own prediction: one more than the context fits.
    if (auto n = int64_t(t.tokens.size()); n > context + 1) {
      t.tokens.erase(t.tokens.begin(), t.tokens.begin() + (n - context - 1));
      truncated_++;
    }
    texts_.push_back({std::move(t), i});
  }
  std::stable_sort(texts_.begin(), texts_.end(),
                   [](const Text& a, const Text& b) { return a.text.tokens.size() > b.text.tokens.size(); });
  const int64_t budget = run.batch.micro * run.data.seq_len;
  for (size_t first = 0; first < texts_.size();) {
    int64_t longest = int64_t(texts_[first].text.tokens.size()) - 1;
    int64_t seq = std::min(context, (longest + kSeqStep - 1) / kSeqStep * kSeqStep);
    auto n = size_t(std::clamp<int64_t>(budget / seq, 1, kMostTexts));
    batches_.push_back({first, std::min(n, texts_.size() - first), seq});
    first += batches_.back().texts;
  }
}

std::vector<BatchShape> ScoredBatches::shapes() const {
  std::vector<BatchShape> all;
  for (const Batch& b : batches_) {
    BatchShape s{int64_t(b.texts), b.seq};
    if (std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
  }
  return all;
}

std::vector<double> ScoredBatches::run(StageRunner& runner,
                                       const std::function<void(int64_t)>& progress) const {
  std::vector<double> log_likelihoods(texts_.size());
  std::vector<double> losses;
  for (const Batch& b : batches_) {
    losses.assign(b.texts, 0);
    auto fill = [&](int64_t, int64_t, const HostBatch& h) {
      for (size_t i = 0; i < b.texts; i++) {
        const ScoredText& t = texts_[b.first + i].text;
        size_t n = t.tokens.size() - 1, row = i * size_t(b.seq);
        for (size_t s = 0; s < size_t(b.seq); s++) {
          h.tokens[row + s] = s < n ? t.tokens[s] : 0;
          h.targets[row + s] = s < n && s + size_t(t.scored) >= n ? t.tokens[s + 1] : -1;
          h.positions[row + s] = int32_t(s);
        }
      }
    };
    runner.evaluator().evaluate(int64_t(b.texts), b.seq, fill, losses);
    for (size_t i = 0; i < b.texts; i++) log_likelihoods[texts_[b.first + i].place] = -losses[i];
    if (progress) progress(int64_t(b.first + b.texts));
  }
  return log_likelihoods;
}

}  // namespace trireme
