// Evaluation: the training layers run forward alone. A result that is not finite ends it, with the cause.
#include <algorithm>
#include <cmath>
#include <optional>

#include "runtime/microbatch.h"
#include "runtime/nonfinite.h"
#include "runtime/post_validation.h"

namespace trireme {
namespace {

// Counts the logits of a pass that are not finite: a logit of -inf leaves the losses of all other targets
// finite.
class LogitsWatch final : public OpObserver {
 public:
  LogitsWatch(Device& device, const Tensor& count, const std::string_view& layer)
      : device_(device), count_(count), layer_(layer), next_(device.kernels().observe(this)) {}
  ~LogitsWatch() override { device_.kernels().observe(next_); }
  LogitsWatch(const LogitsWatch&) = delete;

  void before(std::string_view op) override {
    if (next_) next_->before(op);
  }
  void after(std::string_view op, const Cost& cost, const Outputs& outputs) override {
    if (next_) next_->after(op, cost, outputs);
    if (layer_ != "head" || op != "matmul") return;
    Kernels& k = device_.kernels();
    k.observe(nullptr);
    int64_t bad = 0;
    device_.upload(count_, &bad);
    k.run(CountNonfiniteArgs{.x = outputs.t[0], .count = count_});
    device_.download(&bad, count_);
    bad_ += bad;
    k.observe(this);
  }
  int64_t bad() const { return bad_; }

 private:
  Device& device_;
  Tensor count_;
  const std::string_view& layer_;
  OpObserver* next_;
  int64_t bad_ = 0;
};

}  // namespace

StageRunner::TokenLoss StageRunner::evaluate(int64_t sequences, int64_t seq, const FillBatch& fill,
                                             std::span<double> each) {
  require(each.empty() || int64_t(each.size()) == sequences,
          "a sum of losses for each sequence, or for none");
  require(!post_ || !post_->under_way, "an evaluation wants weights that are settled");
  if (divided()) return evaluate_divided(sequences, seq, fill, each);
  // With other ranks the caller compares all ranks' sums first (train/trainer.h), since all must repeat the
  // pass.
  TokenLoss sum;
  const bool finite = own_losses(sequences, seq, fill, !comms_, sum, each);
  if (!comms_ && !finite) find_nonfinite_loss(sequences, seq, fill);
  return sum;
}

// Adds up the losses of this rank's part of the sequences; 0 on ranks without losses. Returns false if a sum
// is not finite or, with `watch`, a logit.
bool StageRunner::own_losses(int64_t sequences, int64_t seq, const FillBatch& fill, bool watch,
                             TokenLoss& sum, std::span<double> each) {
  Microbatch& m = microbatches_[0];
  load_batch(m, sequences, seq, 0, 0, fill, sharing_.layers.cp.place());
  Ctx ctx = context(m, false);
  if (divided() && ctx.groups.ep) ctx.groups.expert_rows = expert_rows(m.view.rows());
  std::optional<LogitsWatch> logits;
  if (watch && device_.has_data()) logits.emplace(device_, nonfinite_count_, layer_);
  forward_only(m, ctx);
  const bool finite_logits = !logits || logits->bad() == 0;
  logits.reset();
  if (token_loss_host_.size() < size_t(sequences * seq)) token_loss_host_.resize(size_t(sequences * seq));
  device_.download(token_loss_host_.data(), *m.token_loss);
  std::fill(each.begin(), each.end(), 0.0);
  const int64_t own = seq / sharing_.cp.size;
  for (int64_t i = 0; device_.has_data() && sharing_.pp.rank == sharing_.head_rank() && i < sequences * own;
       i++)
    if (staging_[size_t(sequences * seq + i)] >= 0) {
      double loss = token_loss_host_[size_t(i)];
      sum.sum += loss, sum.tokens++;
      if (!each.empty()) each[size_t(i / own)] += loss;
    }
  m.release();
  return finite_logits && std::isfinite(sum.sum);
}

void StageRunner::logits(std::span<const int32_t> tokens, std::vector<float>& out) {
  require(!divided(), "logits of all tokens are one rank's");
  Microbatch& m = microbatches_[0];
  int64_t seq = int64_t(tokens.size());
  load_batch(m, 1, seq, 0, 0,
             [&](int64_t, int64_t, const HostBatch& b) {
               for (size_t i = 0; i < tokens.size(); i++) {
                 b.tokens[i] = tokens[i];
                 b.targets[i] = -1;
                 b.positions[i] = int32_t(i);
               }
             },
             {});
  Ctx ctx = context(m, false);
  Owned y = ctx.activation({seq, run_.model.vocab}, DType::f32);
  ctx.logits = *y;
  forward_only(m, ctx);
  out.resize(size_t(seq * run_.model.vocab));
  device_.download(out.data(), *y);
  m.release();
}

void StageRunner::most_likely_next(int64_t sequences, int64_t seq, const FillBatch& fill,
                                   std::span<const int64_t> last, int64_t vocab, std::span<int32_t> ids) {
  require(!divided() && int64_t(last.size()) == sequences && int64_t(ids.size()) == sequences,
          "in training, a last token and an id of each sequence");
  require(!post_ || !post_->under_way, "generation wants weights that are settled");
  Microbatch& m = microbatches_[0];
  const ContextPlace place = sharing_.layers.cp.place();
  load_batch(m, sequences, seq, 0, 0, fill, place);
  const int64_t part = seq / place.size;
  std::vector<int64_t> rows(last.size());
  std::vector<bool> own(last.size());
  for (int64_t i = 0; i < sequences; i++)
    for (int64_t t = 0; t < part; t++)
      if (place.position(t, seq, place.rank) == last[size_t(i)]) {
        rows[size_t(i)] = i * part + t;
        own[size_t(i)] = true;
      }
  Ctx ctx = context(m, false);
  Owned y = ctx.activation({sequences, run_.model.vocab}, DType::f32);
  ctx.logits = *y;
  ctx.logits_rows = rows;
  forward_only(m, ctx);
  std::vector<float> logits(size_t(y->numel()));
  device_.download(logits.data(), *y);
  std::fill(ids.begin(), ids.end(), 0);
  for (size_t i = 0; device_.has_data() && sharing_.pp.rank == sharing_.head_rank() && i < ids.size(); i++) {
    if (!own[i]) continue;
    const std::span<const float> row =
        std::span(logits).subspan(i * size_t(run_.model.vocab), size_t(run_.model.vocab));
    const bool finite = std::all_of(row.begin(), row.end(), [](float f) { return std::isfinite(f); });
    ids[i] = finite ? int32_t(std::max_element(row.begin(), row.begin() + vocab) - row.begin()) : -1;
  }
  m.release();
}

// Names the first weight with a value that is not finite, of those that this rank stores.
void StageRunner::require_finite_weights(std::string_view what) const {
  std::vector<float> host;
  for (const Param* p : params_.held()) {
    const Range own = owned(*p);
    host.resize(size_t(own.size()));
    if (own.size() > 0) read_param(*p, "", host);
    int64_t bad = 0, first = -1;
    for (int64_t i = 0; i < own.size(); i++)
      if (!std::isfinite(host[size_t(i)])) {
        if (bad == 0) first = i;
        bad++;
      }
    if (bad > 0)
      run_failed(
          "{}: {} of {} values of the weight {} are not finite, the first of them {}; use another checkpoint "
          "or model",
          what, bad, own.size(), p->decl.name, host[size_t(first)]);
  }
}

// The weights first: an op's output only shows what a weight of it has caused. Then the forward pass once
// more, with every op's outputs checked.
void StageRunner::find_nonfinite_forward(std::string_view what, const std::function<void()>& forward) {
  require_finite_weights(what);
  NonfiniteFinder finder(device_, nonfinite_count_, {.what = std::string(what), .hint = ""}, layer_);
  OpObserver* before = device_.kernels().observe(&finder);
  forward();
  device_.kernels().observe(before);
  if (comms_) agree_max(comms_->control(), 0);  // a rank that found the cause reports first
  run_failed("{}: the result is not finite, yet no weight and no op's output shows it when run again", what);
}

void StageRunner::find_nonfinite_loss(int64_t sequences, int64_t seq, const FillBatch& fill) {
  find_nonfinite_forward("evaluation", [&] {
    Microbatch& m = microbatches_[0];
    load_batch(m, sequences, seq, 0, 0, fill, sharing_.layers.cp.place());
    Ctx ctx = context(m, false);
    if (divided() && ctx.groups.ep) ctx.groups.expert_rows = expert_rows(m.view.rows());
    forward_only(m, ctx);
    m.release();
  });
}

}  // namespace trireme
