#include "train/multiple_choice.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

constexpr int64_t kSeqStep = 16;  // batches' lengths are multiples, so that few shapes have to be planned
constexpr int64_t kMostTexts = 64;

Accuracy accuracy(const std::vector<ChoiceQuestion>& questions, const std::vector<ChoiceScore>& scores,
                  int64_t ChoiceScore::*pick) {
  auto n = double(scores.size());
  double right = 0;
  for (size_t i = 0; i < scores.size(); i++) right += scores[i].*pick == questions[i].answer;
  double p = right / n;
  return {p, n > 1 ? std::sqrt(p * (1 - p) / (n - 1)) : std::nan("")};
}

// The first of the largest.
int64_t best(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

}  // namespace

ChoiceBatches::ChoiceBatches(const Tokenizer& tokenizer, std::vector<ChoiceQuestion> questions,
                             const RunSpec& run, int64_t context)
    : questions_(std::move(questions)) {
  for (size_t q = 0; q < questions_.size(); q++)
    for (size_t c = 0; c < questions_[q].choices.size(); c++) {
      ScoredText t = scored_text(tokenizer, questions_[q], c);
      if (t.scored > context)
        bad_request("question of line {}: choice {} has {} tokens, but the model sees {} at once",
                    questions_[q].line, c, t.scored, context);
      // A token is not an input of its own prediction: one more than the context fits.
      if (auto n = int64_t(t.tokens.size()); n > context + 1) {
        t.tokens.erase(t.tokens.begin(), t.tokens.begin() + (n - context - 1));
        truncated_++;
      }
      texts_.push_back({std::move(t), q, c});
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

std::vector<BatchShape> ChoiceBatches::shapes() const {
  std::vector<BatchShape> all;
  for (const Batch& b : batches_) {
    BatchShape s{int64_t(b.texts), b.seq};
    if (std::find(all.begin(), all.end(), s) == all.end()) all.push_back(s);
  }
  return all;
}

ChoiceResult ChoiceBatches::run(StageRunner& runner, const std::function<void(int64_t)>& progress) const {
  ChoiceResult r;
  r.truncated = truncated_;
  for (const ChoiceQuestion& q : questions_) {
    r.scores.emplace_back().log_likelihood.resize(q.choices.size());
    r.chance += 1.0 / double(q.choices.size()) / double(questions_.size());
  }
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
    runner.evaluate(int64_t(b.texts), b.seq, fill, losses);
    for (size_t i = 0; i < b.texts; i++) {
      const Text& t = texts_[b.first + i];
      r.scores[t.question].log_likelihood[t.choice] = -losses[i];
    }
    if (progress) progress(int64_t(b.first + b.texts));
  }
  for (size_t q = 0; q < questions_.size(); q++) {
    std::vector<double> values = r.scores[q].log_likelihood;
    r.scores[q].raw = best(values);
    for (size_t c = 0; c < values.size(); c++) values[c] /= double(questions_[q].choices[c].size());
    r.scores[q].per_byte = best(values);
  }
  r.raw = accuracy(questions_, r.scores, &ChoiceScore::raw);
  r.per_byte = accuracy(questions_, r.scores, &ChoiceScore::per_byte);
  return r;
}

}  // namespace trireme
