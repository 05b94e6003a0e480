// What generators share: the list of one rank as it is written. Each chunk counts its own microbatches, so a
// generator says only "the next forward of this chunk"; weight gradients wait in the order of their I.
//
// Published sequences ask for a number of microbatches (a multiple of p, at least 2p). For any other number
// they are written for the next one that fits, and what is of microbatches too many is left out: what remains
// is in the same order, so nothing comes before what it needs.
#pragma once
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace trireme {

// A stage on a rank, with the microbatches [first, first + count) that pass through it there.
struct Chunk {
  int stage = 0, first = 0, count = 0;
  int forwards = 0, backwards = 0, weights = 0;  // written
};

class RankWriter {
 public:
  explicit RankWriter(std::vector<Action>& out) : out_(out) {}

  void f(Chunk& c) { put(Act::F, c, c.forwards++); }
  void b(Chunk& c) { put(Act::B, c, c.backwards++), c.weights++; }
  void i(Chunk& c) {
    waiting_.push_back({&c, c.backwards});
    put(Act::I, c, c.backwards++);
  }
  // The weight gradient that waits longest; or that waits longest of one chunk.
  void w() {
    const auto [c, mb] = waiting_.front();
    waiting_.pop_front();
    put(Act::W, *c, mb), c->weights++;
  }
  void w(Chunk& c) { put(Act::W, c, c.weights++); }
  bool w_waits() const { return !waiting_.empty(); }

  // Forward of one chunk and backward of the other, issued together.
  void f_and_b(Chunk& forward, Chunk& backward) {
    const bool both = forward.forwards < forward.count && backward.backwards < backward.count;
    overlap_ = both ? ++pairs_ : uint16_t(0);
    f(forward), b(backward);
    overlap_ = 0;
  }

 private:
  void put(Act kind, const Chunk& c, int mb) {
    if (mb < c.count) out_.push_back({kind, int16_t(c.stage), int16_t(c.first + mb), overlap_});
  }

  std::vector<Action>& out_;
  std::deque<std::pair<Chunk*, int>> waiting_;
  uint16_t overlap_ = 0, pairs_ = 0;
};

}  // namespace trireme
