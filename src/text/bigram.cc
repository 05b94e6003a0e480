#include "text/bigram.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trireme {

BigramModel::BigramModel(int32_t vocab)
    : vocab_(vocab), context_(size_t(vocab)), followers_(size_t(vocab)), precursors_(size_t(vocab)) {
  require(vocab >= 1, "BigramModel: vocab must be at least 1");
}

void BigramModel::add(std::span<const int32_t> tokens) {
  for (int32_t w : tokens) {
    require(w >= 0 && w < vocab_, "BigramModel::add(): an id outside the vocabulary");
    if (last_ >= 0) {
      auto [count, is_new] = pairs_.insert(pairs_.key(last_, w));
      ++*count;
      once_ += (*count == 1) - (*count == 2);
      twice_ += (*count == 2) - (*count == 3);
      context_[size_t(last_)]++;
      counted_++;
      followers_[size_t(last_)] += is_new;
      precursors_[size_t(w)] += is_new;
    }
    last_ = w;
  }
}

double BigramModel::discount() const {
  if (once_ == 0) return 0.1;
  return std::clamp(double(once_) / double(once_ + 2 * twice_), 0.1, 0.9);
}

double BigramModel::probability(int32_t prev, int32_t next) const {
  require(prev >= 0 && prev < vocab_ && next >= 0 && next < vocab_,
          "BigramModel: an id outside the vocabulary");
  const double lower = double(precursors_[size_t(next)] + 1) / double(pairs_.size() + size_t(vocab_));
  const int64_t context = context_[size_t(prev)];
  if (context == 0) return lower;
  const int64_t* pair = pairs_.find(pairs_.key(prev, next));
  const double d = discount();
  return ((pair ? double(*pair) - d : 0.0) + d * followers_[size_t(prev)] * lower) / double(context);
}

double BigramModel::unigram_probability(int32_t next) const {
  require(next >= 0 && next < vocab_, "BigramModel: an id outside the vocabulary");
  return double(context_[size_t(next)] + 1) / double(counted_ + vocab_);
}

void BigramModel::score_unigram(std::span<const int32_t> targets, BigramScore& score) const {
  for (int32_t w : targets) {
    if (w < 0) continue;
    score.nll -= std::log(unigram_probability(w));
    score.tokens++;
  }
}

void BigramModel::score(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                        BigramScore& score) const {
  require(tokens.size() == targets.size(), "BigramModel::score(): as many targets as tokens");
  for (size_t i = 0; i < tokens.size(); i++) {
    if (targets[i] < 0) continue;
    score.nll -= std::log(probability(tokens[i], targets[i]));
    score.tokens++;
  }
}

}  // namespace trireme
