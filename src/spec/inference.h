// How ranks hold a model for evaluation and generation, which have no gradients and no optimizer.
#pragma once
#include <string_view>

#include "spec/run_spec.h"

namespace trireme {

struct InferenceLayout {
  int64_t tp = 1, pp = 1, cp = 1, ep = 1;
  int64_t dp() const;  // ranks with the same texts, so that ep divides their number
  int64_t ranks() const { return tp * pp * cp * dp(); }
  bool operator==(const InferenceLayout&) const = default;
};

// From "tp=2" or "tp=2,pp=2"; "run" takes the degrees of the run's own layout; "" = one rank. Error (request)
// for other texts.
InferenceLayout inference_layout(std::string_view text, const RunSpec&);

// The run in this layout, with nothing that only training needs: no ZeRO, no sequence parallelism, one chunk
// per pipeline rank, contiguous parts of sequences over cp. Error (request) if the layout does not divide the
// model, a line for each key.
RunSpec inference_run(const RunSpec&, const InferenceLayout&);

}  // namespace trireme
