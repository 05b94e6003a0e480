#include "runtime/inference_calls.h"

#include <cstring>
#include <string>
#include <vector>

#include "runtime/cached_decoder.h"
#include "runtime/evaluator.h"

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

void lead(const StagePasses& passes, InferenceCall call, const std::array<int64_t, 3>& n,
          std::span<const int32_t> ids, std::span<const int32_t> more) {
  if (!passes.divided() || passes.comms()->rank() != 0 || !passes.device().has_data()) return;
  broadcast_text(passes.comms()->control(),
                 packed({int64_t(call), n[0], n[1], n[2], int64_t(ids.size())}, ids, more));
}

void follow(const StagePasses& passes, Evaluator& evaluator, CachedDecoder& decoder) {
  require(passes.divided() && passes.comms()->rank() != 0, "rank 0 of inference is followed by the others");
  std::vector<float> logits;
  for (;;) {
    const std::string text = broadcast_text(passes.comms()->control(), "");
    std::array<int64_t, kNumbers> n{};
    require(text.size() >= sizeof n, "a call of rank 0 is cut short");
    std::memcpy(n.data(), text.data(), sizeof n);
    std::vector<int32_t> all((text.size() - sizeof n) / sizeof(int32_t));
    if (!all.empty()) std::memcpy(all.data(), text.data() + sizeof n, all.size() * sizeof(int32_t));
    require(n[4] >= 0 && size_t(n[4]) <= all.size(), "a call of rank 0 is cut short");
    const std::span<const int32_t> ids = std::span(all).first(size_t(n[4])),
                                   more = std::span(all).subspan(ids.size());
    const auto rows = [&](size_t count) {
      logits.resize(count * size_t(passes.run_spec().model.vocab));
      return std::span(logits);
    };
    switch (InferenceCall(n[0])) {
      case InferenceCall::open_cache:
        decoder.open_cache(n[1], n[2]);
        break;
      case InferenceCall::prefill:
        decoder.prefill(n[1], ids, rows(1));
        break;
      case InferenceCall::decode:
        decoder.decode(ids, more, rows(ids.size()));
        break;
      case InferenceCall::move_text:
        decoder.move_text(n[1], n[2], n[3]);
        break;
      case InferenceCall::evaluate: {
        const auto fill = [&](int64_t, int64_t, const HostBatch& b) {
          const size_t each = b.tokens.size();
          std::copy_n(ids.begin(), each, b.tokens.begin());
          std::copy_n(ids.begin() + int64_t(each), each, b.targets.begin());
          std::copy_n(ids.begin() + int64_t(2 * each), each, b.positions.begin());
        };
        evaluator.evaluate(n[1], n[2], std::ref(fill));
        break;
      }
      case InferenceCall::dismiss:
        return;
    }
  }
}

}  // namespace trireme
