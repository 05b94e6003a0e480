#include "cli/controls.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "text/bigram.h"
#include "train/batches.h"

namespace trireme::cli {

Controls controls_of(const RunSpec& run) {
  BigramModel bigram{int32_t(run.model.vocab)};
  TokenShard train = TokenShard::open(run.data.train.first());
  std::vector<int32_t> ids(1 << 16);
  for (int64_t at = 0; at < train.tokens(); at += int64_t(ids.size())) {
    auto part = std::span(ids).first(size_t(std::min<int64_t>(int64_t(ids.size()), train.tokens() - at)));
    train.read(at, part, run.model.vocab);
    bigram.add(part);
  }
  EvalWindows windows(run, run.data.valid.first());
  size_t seq = size_t(run.data.seq_len);
  std::vector<int32_t> tokens(seq), targets(seq), positions(seq);
  BigramScore of_bigram;
  BigramScore of_unigram;
  for (int64_t i = 0; i < windows.count(); i++) {
    windows.from(i)(0, 0, {.tokens = tokens, .targets = targets, .positions = positions});
    bigram.score(tokens, targets, of_bigram);
    bigram.score_unigram(targets, of_unigram);
  }
  return {.uniform = std::log(double(run.model.vocab)),
          .unigram = of_unigram.mean(),
          .bigram = of_bigram.mean(),
          .tokens = of_bigram.tokens};
}

}  // namespace trireme::cli
