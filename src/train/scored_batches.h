// Log-likelihoods of texts: how probable are the last tokens of each, given the tokens before?
#pragma once
#include <functional>
#include <vector>

#include "runtime/booking.h"

namespace trireme {

struct ScoredText {
  std::vector<int32_t> tokens;
  int64_t scored = 0;  // the last ones
};

// Texts run in batches of about equal length, padded at their ends.
class ScoredBatches {
 public:
  // context: tokens that the model sees. A longer text loses its beginning.
  // Requires: no text has more scored tokens than the context.
  ScoredBatches(std::vector<ScoredText>, const RunSpec&, int64_t context);

  std::vector<BatchShape> shapes() const;  // for book_evaluation
  int64_t count() const { return int64_t(texts_.size()); }
  int64_t truncated() const { return truncated_; }

  // Returns the sum over its scored tokens for each text, in the order given, in nats.
  // progress: called with the number of texts done after each batch; what it throws ends the work.
  std::vector<double> run(StageRunner&, const std::function<void(int64_t done)>& progress = {}) const;

 private:
  struct Text {
    ScoredText text;
    size_t place;  // in the order given
  };
  struct Batch {
    size_t first, texts;
    int64_t seq;
  };
  std::vector<Text> texts_;  // longest first
  std::vector<Batch> batches_;
  int64_t truncated_ = 0;
};

}  // namespace trireme
