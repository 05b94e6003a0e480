#include "spec/recompute.h"

#include "base/error.h"

namespace trireme {

bool Recompute::has(std::string_view name) const {
  for (size_t i = 0; i < kRecomputed.size(); i++)
    if (kRecomputed[i] == name) return (tensors >> i & 1) != 0;
  return false;
}

Recompute recompute_of(const Texts& tensors) {
  Recompute r;
  for (const std::string& name : tensors)
    for (size_t i = 0; i < kRecomputed.size(); i++)
      if (kRecomputed[i] == name) r.tensors = uint8_t(r.tensors | 1 << i);
  return r;
}

Recompute recompute_of(const LayoutSpec& l, int64_t n) {
  require(l.recompute != "auto", "what is computed again is decided before a run");
  if (l.recompute == "none") return {};
  if (l.recompute_blocks > 0 && n >= l.recompute_blocks) return recompute_of(l.recompute_rest);
  return l.recompute == "full" ? Recompute{.full = true} : recompute_of(l.recompute_tensors);
}

}  // namespace trireme
