#include "runtime/evaluator.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/rounding.h"
#include "runtime/inference_calls.h"
#include "runtime/nonfinite.h"

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

TokenLoss Evaluator::evaluate(int64_t sequences, int64_t seq, const FillBatch& fill, std::span<double> each) {
  require(each.empty() || int64_t(each.size()) == sequences,
          "a sum of losses for each sequence, or for none");
  if (passes_.divided()) return evaluate_divided(sequences, seq, fill, each);
  // With other ranks the caller compares all ranks' sums first (train/trainer.h), since all must repeat the
  // pass.
  const bool alone = !passes_.comms();
  TokenLoss sum;
  const bool finite = own_losses(sequences, seq, fill, alone, sum, each);
  if (alone && !finite) find_nonfinite_loss(sequences, seq, fill);
  return sum;
}

// Adds up the losses of this rank's part of the sequences; 0 on ranks without losses. Returns false if a sum
// is not finite or, with `watch`, a logit.
bool Evaluator::own_losses(int64_t sequences, int64_t seq, const FillBatch& fill, bool watch, TokenLoss& sum,
                           std::span<double> each) {
  Device& device = passes_.device();
  const Sharing& sharing = passes_.sharing();
  const HostBatch host = passes_.load(sequences, seq, fill, sharing.layers.cp.place());
  Microbatch& m = passes_.loaded();
  Ctx ctx = passes_.forward_context();
  std::optional<LogitsWatch> logits;
  if (watch && device.has_data()) logits.emplace(device, memory_.nonfinite_count(), passes_.watch().layer);
  passes_.forward_only(ctx, forward_);
  const bool finite_logits = !logits || logits->bad() == 0;
  logits.reset();
  if (token_losses_.size() < size_t(sequences * seq)) token_losses_.resize(size_t(sequences * seq));
  device.download(token_losses_.data(), *m.token_loss);
  std::fill(each.begin(), each.end(), 0.0);
  const int64_t own = seq / sharing.cp.size;
  for (int64_t i = 0; device.has_data() && sharing.pp.rank == sharing.head_rank() && i < sequences * own; i++)
    if (host.targets[size_t(i)] >= 0) {
      double loss = token_losses_[size_t(i)];
      sum.sum += loss, sum.tokens++;
      if (!each.empty()) each[size_t(i / own)] += loss;
    }
  m.release();
  return finite_logits && std::isfinite(sum.sum);
}

void Evaluator::logits(std::span<const int32_t> tokens, std::vector<float>& out) {
  require(!passes_.divided(), "logits of all tokens are one rank's");
  const int64_t seq = int64_t(tokens.size()), vocab = passes_.run_spec().model.vocab;
  passes_.load(1, seq,
               [&](int64_t, int64_t, const HostBatch& b) {
                 for (size_t i = 0; i < tokens.size(); i++) {
                   b.tokens[i] = tokens[i];
                   b.targets[i] = -1;
                   b.positions[i] = int32_t(i);
                 }
               },
               {});
  Ctx ctx = passes_.forward_context();
  Owned y = ctx.activation({seq, vocab}, DType::f32);
  ctx.logits = *y;
  passes_.forward_only(ctx, forward_);
  if (ctx.device.has_data()) out.resize(size_t(seq * vocab));
  ctx.device.download(out.data(), *y);
  passes_.loaded().release();
}

void Evaluator::most_likely_next(int64_t sequences, int64_t seq, const FillBatch& fill,
                                 std::span<const int64_t> last, int64_t vocab, std::span<int32_t> ids) {
  require(!passes_.divided() && int64_t(last.size()) == sequences && int64_t(ids.size()) == sequences,
          "in training, a last token and an id of each sequence");
  const Sharing& sharing = passes_.sharing();
  const ContextPlace place = sharing.layers.cp.place();
  const auto width = size_t(passes_.run_spec().model.vocab);
  passes_.load(sequences, seq, fill, place);
  const int64_t part = seq / place.size;
  std::vector<int64_t> rows(last.size());
  std::vector<bool> own(last.size());
  for (int64_t i = 0; i < sequences; i++)
    for (int64_t t = 0; t < part; t++)
      if (place.position(t, seq, place.rank) == last[size_t(i)]) {
        rows[size_t(i)] = i * part + t;
        own[size_t(i)] = true;
      }
  Ctx ctx = passes_.forward_context();
  Owned y = ctx.activation({sequences, int64_t(width)}, DType::f32);
  ctx.logits = *y;
  ctx.logits_rows = rows;
  passes_.forward_only(ctx, forward_);
  std::vector<float> logits(size_t(y->numel()));
  ctx.device.download(logits.data(), *y);
  std::fill(ids.begin(), ids.end(), 0);
  const bool has_logits = ctx.device.has_data() && sharing.pp.rank == sharing.head_rank();
  for (size_t i = 0; has_logits && i < ids.size(); i++) {
    if (!own[i]) continue;
    const std::span<const float> row = std::span(logits).subspan(i * width, width);
    const bool finite = std::all_of(row.begin(), row.end(), [](float f) { return std::isfinite(f); });
    ids[i] = finite ? int32_t(std::max_element(row.begin(), row.begin() + vocab) - row.begin()) : -1;
  }
  passes_.loaded().release();
}

void Evaluator::find_nonfinite_loss(int64_t sequences, int64_t seq, const FillBatch& fill) {
  find_nonfinite_forward("evaluation", memory_, passes_, [&] {
    passes_.load(sequences, seq, fill, passes_.sharing().layers.cp.place());
    Ctx ctx = passes_.forward_context();
    passes_.forward_only(ctx, forward_);
    passes_.loaded().release();
  });
}

// Every rank has rank 0's sequences. Ranks of cp take equal parts of them: positions without a target
// complete the last part. Losses are added in order of parts, so all ranks have the same sums.
TokenLoss Evaluator::evaluate_divided(int64_t sequences, int64_t seq, const FillBatch& fill,
                                      std::span<double> each) {
  CommSet& comms = *passes_.comms();
  const auto rows = size_t(sequences * seq);
  std::vector<int32_t> ids(3 * rows);
  const HostBatch whole{.tokens = {ids.data(), rows},
                        .targets = {ids.data() + rows, rows},
                        .positions = {ids.data() + 2 * rows, rows}};
  if (passes_.device().has_data()) fill(0, 0, whole);
  lead(passes_, InferenceCall::evaluate, {sequences, seq}, ids);
  const int64_t padded = round_up(seq, passes_.sharing().cp.size);
  const auto complete = [&](int64_t, int64_t, const HostBatch& b) {
    for (int64_t i = 0; i < sequences * padded; i++) {
      const int64_t column = i % padded;
      const auto from = size_t(i / padded * seq + std::min(column, seq - 1));
      b.tokens[size_t(i)] = whole.tokens[from];
      b.targets[size_t(i)] = column < seq ? whole.targets[from] : -1;
      b.positions[size_t(i)] = whole.positions[from];
    }
  };
  std::vector<double> mine(size_t(sequences) + 3), all(mine.size() * size_t(comms.world()));
  TokenLoss own;
  const bool finite =
      own_losses(sequences, padded, std::ref(complete), true, own, std::span(mine).first(size_t(sequences)));
  mine[size_t(sequences)] = own.sum;
  mine[size_t(sequences) + 1] = double(own.tokens);
  mine[size_t(sequences) + 2] = finite ? 0 : 1;
  gather_bytes(comms.control(), std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  TokenLoss sum;
  bool all_finite = true;
  std::fill(each.begin(), each.end(), 0.0);
  const Mesh& mesh = comms.mesh();
  for (int rank = 0; rank < comms.world(); rank++) {
    const std::span<const double> part = std::span(all).subspan(size_t(rank) * mine.size(), mine.size());
    all_finite = all_finite && part[size_t(sequences) + 2] == 0;
    if (mesh.coord(rank, Axis::tp) != 0 || mesh.coord(rank, Axis::dp) != 0) continue;
    sum.sum += part[size_t(sequences)];
    sum.tokens += int64_t(part[size_t(sequences) + 1]);
    for (size_t i = 0; i < each.size(); i++) each[i] += part[i];
  }
  if (!all_finite) find_nonfinite_loss(sequences, padded, std::ref(complete));
  return sum;
}

}  // namespace trireme
