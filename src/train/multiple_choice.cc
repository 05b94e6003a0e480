#include "train/multiple_choice.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

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

std::vector<ScoredText> texts_of(const Tokenizer& tokenizer, const std::vector<ChoiceQuestion>& questions,
                                 int64_t context) {
  std::vector<ScoredText> texts;
  for (const ChoiceQuestion& q : questions)
    for (size_t c = 0; c < q.choices.size(); c++) {
      ScoredText t = scored_text(tokenizer, q.prompt, q.choices[c]);
      if (t.scored > context)
        bad_request("question of line {}: choice {} has {} tokens, but the model sees {} at once", q.line, c,
                    t.scored, context);
      texts.push_back(std::move(t));
    }
  return texts;
}

}  // namespace

ChoiceBatches::ChoiceBatches(const Tokenizer& tokenizer, std::vector<ChoiceQuestion> questions,
                             const RunSpec& run, int64_t context)
    : questions_(std::move(questions)), batches_(texts_of(tokenizer, questions_, context), run, context) {}

ChoiceResult ChoiceBatches::run(StageRunner& runner, const std::function<void(int64_t)>& progress) const {
  ChoiceResult r;
  r.truncated = batches_.truncated();
  const std::vector<double> all = batches_.run(runner, progress);
  auto next = all.begin();
  for (const ChoiceQuestion& q : questions_) {
    const auto n = int64_t(q.choices.size());
    r.scores.emplace_back().log_likelihood.assign(next, next + n);
    next += n;
    r.chance += 1.0 / double(n) / double(questions_.size());
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
