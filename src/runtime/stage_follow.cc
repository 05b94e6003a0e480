// Inference on several ranks: rank 0 sends its calls to the others, and each does its part of the model.
#include <cstring>

#include "base/rounding.h"
#include "runtime/microbatch.h"

namespace trireme {
namespace {

// A message: the call, three numbers and the length of `ids`; then `ids` and `more`.
constexpr size_t kNumbers = 5;

std::string packed(const std::array<int64_t, kNumbers>& numbers, std::span<const int32_t> ids,
                   std::span<const int32_t> more) {
  std::string text;
  const auto put = [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  put(std::as_bytes(std::span(numbers)));
  put(std::as_bytes(ids));
  put(std::as_bytes(more));
  return text;
}

}  // namespace

void StageRunner::lead(Call call, const std::array<int64_t, 3>& n, std::span<const int32_t> ids,
                       std::span<const int32_t> more) {
  if (!divided() || comms_->rank() != 0 || !device_.has_data()) return;
  broadcast_text(comms_->control(),
                 packed({int64_t(call), n[0], n[1], n[2], int64_t(ids.size())}, ids, more));
}

void StageRunner::dismiss() {
  lead(Call::dismiss, {});
}

void StageRunner::follow() {
  require(divided() && comms_->rank() != 0, "rank 0 of inference is followed by the others");
  std::vector<float> logits;
  for (;;) {
    const std::string text = broadcast_text(comms_->control(), "");
    std::array<int64_t, kNumbers> n{};
    require(text.size() >= sizeof n, "a call of rank 0 is cut short");
    std::memcpy(n.data(), text.data(), sizeof n);
    std::vector<int32_t> all((text.size() - sizeof n) / sizeof(int32_t));
    if (!all.empty()) std::memcpy(all.data(), text.data() + sizeof n, all.size() * sizeof(int32_t));
    require(n[4] >= 0 && size_t(n[4]) <= all.size(), "a call of rank 0 is cut short");
    const std::span<const int32_t> ids = std::span(all).first(size_t(n[4])),
                                   more = std::span(all).subspan(ids.size());
    const auto rows = [&](size_t count) {
      logits.resize(count * size_t(run_.model.vocab));
      return std::span(logits);
    };
    switch (Call(n[0])) {
      case Call::open_cache:
        open_cache(n[1], n[2]);
        break;
      case Call::prefill:
        prefill(n[1], ids, rows(1));
        break;
      case Call::decode:
        decode(ids, more, rows(ids.size()));
        break;
      case Call::move_text:
        move_text(n[1], n[2], n[3]);
        break;
      case Call::evaluate: {
        const auto fill = [&](int64_t, int64_t, const HostBatch& b) {
          const size_t each = b.tokens.size();
          std::copy_n(ids.begin(), each, b.tokens.begin());
          std::copy_n(ids.begin() + int64_t(each), each, b.targets.begin());
          std::copy_n(ids.begin() + int64_t(2 * each), each, b.positions.begin());
        };
        evaluate(n[1], n[2], std::ref(fill));
        break;
      }
      case Call::dismiss:
        return;
    }
  }
}

// The place of the rank with the head and this part of a text, in the group that answers_ joins.
int StageRunner::answering_rank(int cp_part) const {
  static constexpr Axis kAnswers[] = {Axis::pp, Axis::cp};
  const Mesh& mesh = comms_->mesh();
  const std::vector<int> group = mesh.group(comms_->rank(), kAnswers);
  const auto at = std::find_if(group.begin(), group.end(), [&](int rank) {
    return mesh.coord(rank, Axis::pp) == sharing_.head_rank() && mesh.coord(rank, Axis::cp) == cp_part;
  });
  return int(at - group.begin());
}

// Every rank has rank 0's sequences. Ranks of cp take equal parts of them: positions without a target
// complete the last part. Losses are added in order of parts, so all ranks have the same sums.
StageRunner::TokenLoss StageRunner::evaluate_divided(int64_t sequences, int64_t seq, const FillBatch& fill,
                                                     std::span<double> each) {
  const auto rows = size_t(sequences * seq);
  std::vector<int32_t> ids(3 * rows);
  const HostBatch whole{.tokens = {ids.data(), rows},
                        .targets = {ids.data() + rows, rows},
                        .positions = {ids.data() + 2 * rows, rows}};
  if (device_.has_data()) fill(0, 0, whole);
  lead(Call::evaluate, {sequences, seq}, ids);
  const int64_t padded = round_up(seq, sharing_.cp.size);
  const auto complete = [&](int64_t, int64_t, const HostBatch& b) {
    for (int64_t i = 0; i < sequences * padded; i++) {
      const int64_t column = i % padded;
      const auto from = size_t(i / padded * seq + std::min(column, seq - 1));
      b.tokens[size_t(i)] = whole.tokens[from];
      b.targets[size_t(i)] = column < seq ? whole.targets[from] : -1;
      b.positions[size_t(i)] = whole.positions[from];
    }
  };
  std::vector<double> mine(size_t(sequences) + 3), all(mine.size() * size_t(comms_->world()));
  TokenLoss own;
  const bool finite =
      own_losses(sequences, padded, std::ref(complete), true, own, std::span(mine).first(size_t(sequences)));
  mine[size_t(sequences)] = own.sum;
  mine[size_t(sequences) + 1] = double(own.tokens);
  mine[size_t(sequences) + 2] = finite ? 0 : 1;
  gather_bytes(comms_->control(), std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  TokenLoss sum;
  bool all_finite = true;
  std::fill(each.begin(), each.end(), 0.0);
  const Mesh& mesh = comms_->mesh();
  for (int rank = 0; rank < comms_->world(); rank++) {
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
