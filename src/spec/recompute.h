// What of a block's activations the forward pass lets go, and the backward pass computes again
// (docs/recompute.md).
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "spec/run_spec.h"

namespace trireme {

// Tensors of a block by the names under which its layers save them, in the order in which they are made. They
// are: the first norm's output, q with k and v, attention's output before its projection, the residual stream
// behind attention, the second norm's output, the feed-forward's inner products, and their activation. In
// blocks of experts the last two are those of all rows and of the shared expert. Latent attention keeps what
// is compressed.
inline constexpr std::array<std::string_view, 7> kRecomputed = {"n1", "qkv", "o", "mid", "n2", "u", "a"};

struct Recompute {
  bool full = false;    // of the block nothing is kept but its input
  uint8_t tensors = 0;  // bit i: kRecomputed[i] is let go

  bool any() const { return full || tensors != 0; }
  bool has(std::string_view name) const;
  bool operator==(const Recompute&) const = default;
};

// Of names among kRecomputed; others are none.
Recompute recompute_of(const Texts& tensors);
// Of the n-th block of a stage. layout.recompute is not "auto".
Recompute recompute_of(const LayoutSpec&, int64_t n);

}  // namespace trireme
