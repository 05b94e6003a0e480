#include "train/task_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/teller.h"

namespace trireme {
namespace {

// Texts of about one length; the last batch of a shape has places to spare.
struct TaskBatch {
  BatchShape shape;
  std::vector<size_t> texts;
};

int64_t inputs_of(const ScoredText& t) {
  return int64_t(t.tokens.size()) - 1;  // a token is not an input of its own prediction
}

std::vector<TaskBatch> batches_of(const RunSpec& run, const std::vector<ScoredText>& texts) {
  const std::vector<BatchShape> shapes = task_shapes(run);  // longest first
  std::vector<std::vector<size_t>> by_shape(shapes.size());
  for (size_t i = 0; i < texts.size(); i++) {
    size_t s = 0;
    while (s + 1 < shapes.size() && shapes[s + 1].seq >= inputs_of(texts[i])) s++;
    by_shape[s].push_back(i);
  }
  std::vector<TaskBatch> out;
  for (size_t s = 0; s < shapes.size(); s++)
    for (size_t first = 0; first < by_shape[s].size(); first += size_t(shapes[s].sequences)) {
      const size_t last = std::min(by_shape[s].size(), first + size_t(shapes[s].sequences));
      out.push_back(
          {shapes[s],
           {by_shape[s].begin() + std::ptrdiff_t(first), by_shape[s].begin() + std::ptrdiff_t(last)}});
    }
  return out;
}

void fill_batch(const TaskBatch& b, const std::vector<ScoredText>& texts, const HostBatch& h) {
  const auto seq = size_t(b.shape.seq);
  for (size_t i = 0; i < size_t(b.shape.sequences); i++) {
    const ScoredText* t = i < b.texts.size() ? &texts[b.texts[i]] : nullptr;
    const size_t n = t ? std::min(seq, size_t(inputs_of(*t))) : 0;
    const size_t skipped = t ? t->tokens.size() - 1 - n : 0;
    for (size_t s = 0; s < seq; s++) {
      const size_t row = i * seq + s;
      h.tokens[row] = s < n ? t->tokens[skipped + s] : 0;
      h.targets[row] = s < n && s + size_t(t->scored) >= n ? t->tokens[skipped + s + 1] : -1;
      h.positions[row] = int32_t(s);
    }
  }
}

// Values of a batch's texts on one rank.
using Pass = std::function<void(const TaskBatch&, std::span<double> each)>;

// Sums over the ranks of a replica, by text. Batch b is replica b % dp's, as in
// evaluate_shard().
std::vector<double> pass_over(StageRunner& runner, const RunSpec& run, const std::vector<ScoredText>& texts,
                              const Pass& pass) {
  const std::vector<TaskBatch> batches = batches_of(run, texts);
  const Sharing& s = runner.sharing();
  const size_t dp = size_t(s.dp), rounds = (batches.size() + dp - 1) / dp;
  size_t most = 0;
  for (const TaskBatch& b : batches) most = std::max(most, size_t(b.shape.sequences));
  std::vector<double> mine(rounds * most);
  for (size_t k = 0; k < rounds; k++) {
    const size_t number = k * dp + size_t(s.dp_rank);
    if (number >= batches.size() && !s.together()) continue;
    const TaskBatch& b = batches[std::min(number, batches.size() - 1)];
    std::vector<double> each(size_t(b.shape.sequences));
    pass(b, each);
    if (number < batches.size()) std::copy(each.begin(), each.end(), mine.begin() + std::ptrdiff_t(k * most));
  }
  std::vector<double> all = mine;
  if (runner.comms()) {
    all.resize(mine.size() * size_t(runner.comms()->world()));
    gather_bytes(runner.comms()->control(), std::as_bytes(std::span(mine)),
                 std::as_writable_bytes(std::span(all)));
  }
  std::vector<double> out(texts.size());
  for (size_t number = 0; number < batches.size(); number++)
    for (size_t i = 0; i < batches[number].texts.size(); i++)
      for (int part = 0; part < s.cp.size; part++) {
        const auto teller = size_t(teller_of(runner, int(number % dp), part));
        out[batches[number].texts[i]] += all[teller * mine.size() + number / dp * most + i];
      }
  return out;
}

std::vector<int32_t> next_tokens(StageRunner& runner, const RunSpec& run, const AnswerTask& task,
                                 const std::vector<ScoredText>& texts) {
  std::vector<int64_t> last;
  std::vector<int32_t> ids;
  const std::vector<double> found =
      pass_over(runner, run, texts, [&](const TaskBatch& b, std::span<double> each) {
        last.assign(each.size(), 0), ids.resize(each.size());
        for (size_t i = 0; i < b.texts.size(); i++) last[i] = inputs_of(texts[b.texts[i]]) - 1;
        runner.evaluator().most_likely_next(
            b.shape.sequences, b.shape.seq,
            [&](int64_t, int64_t, const HostBatch& h) { fill_batch(b, texts, h); }, last, task.vocab, ids);
        std::copy(ids.begin(), ids.end(), each.begin());
      });
  for (double id : found)
    if (id < 0) run_failed("a task's answer has logits that are not finite");
  return {found.begin(), found.end()};
}

}  // namespace

std::vector<double> score_texts(StageRunner& runner, const RunSpec& run,
                                const std::vector<ScoredText>& texts) {
  std::vector<double> losses = pass_over(runner, run, texts, [&](const TaskBatch& b, std::span<double> each) {
    runner.evaluator().evaluate(
        b.shape.sequences, b.shape.seq,
        [&](int64_t, int64_t, const HostBatch& h) { fill_batch(b, texts, h); }, each);
  });
  for (double& loss : losses) {
    if (!std::isfinite(loss)) run_failed("a task's text has a loss of {}", loss);
    loss = -loss;
  }
  return losses;
}

namespace {
bool any_leaves(StageRunner& runner, const std::function<bool()>& leave) {
  const int64_t mine = leave && leave() ? 1 : 0;
  return (runner.comms() ? agree_max(runner.comms()->control(), mine) : mine) > 0;
}
}  // namespace

std::optional<std::vector<AnswerTask::Tokens>> answer_prompts(StageRunner& runner, const RunSpec& run,
                                                              const AnswerTask& task,
                                                              const std::function<bool()>& leave) {
  std::vector<AnswerTask::Tokens> answers(task.prompts.size());
  std::vector<size_t> open(answers.size());
  std::iota(open.begin(), open.end(), size_t(0));
  while (!open.empty()) {
    if (any_leaves(runner, leave)) return std::nullopt;
    std::vector<ScoredText> texts;
    for (size_t p : open) {
      ScoredText t{task.prompts[p], 1};
      t.tokens.insert(t.tokens.end(), answers[p].begin(), answers[p].end());
      t.tokens.push_back(0);  // the place of the token to find
      texts.push_back(std::move(t));
    }
    const std::vector<int32_t> ids = next_tokens(runner, run, task, texts);
    std::vector<size_t> left;
    for (size_t i = 0; i < open.size(); i++) {
      AnswerTask::Tokens& answer = answers[open[i]];
      if (ids[i] == task.end_of_text) continue;
      answer.push_back(ids[i]);
      if (int64_t(answer.size()) < task.most_tokens && !task.ended(answer)) left.push_back(open[i]);
    }
    open = std::move(left);
  }
  return answers;
}

std::optional<TaskScores> score_task(StageRunner& runner, const RunSpec& run, const TrainTask& t,
                                     const std::function<bool()>& leave) {
  if (const auto* task = std::get_if<AnswerTask>(&t.task)) {
    const auto answers = answer_prompts(runner, run, *task, leave);
    return answers ? std::optional(task->score(*answers)) : std::nullopt;
  }
  const auto& likelihoods = std::get<LikelihoodTask>(t.task);
  return likelihoods.score(score_texts(runner, run, likelihoods.texts));
}

}  // namespace trireme
