#include "comm/algorithms.h"

#include <algorithm>

namespace trireme {
namespace {

// Ranks that work together: member i is rank first + i * stride of the group and owns `count` blocks,
// first_block + i * block_stride, each `jump` further.
struct Team {
  int size, me;
  int first, stride;
  int first_block, block_stride, count, jump;
  int rank_of(int i) const { return first + i % size * stride; }
};

class Rounds {
 public:
  Rounds(const Team& team, int group_size, const BlockBuffer& buffer, PeerLink& link,
         AlgorithmScratch& scratch)
      : t_(team), size_(group_size), buffer_(buffer), link_(link), scratch_(scratch) {}

  void ring_reduce_scatter() {
    for (int i = 1; i < t_.size; i++) {
      blocks_of(scratch_.out, t_.me + t_.size - i, 1);
      blocks_of(scratch_.in, t_.me + 2 * t_.size - i - 1, 1);
      exchange(1, true);
    }
  }
  void ring_all_gather() {
    for (int i = 0; i + 1 < t_.size; i++) {
      blocks_of(scratch_.out, t_.me + t_.size - i, 1);
      blocks_of(scratch_.in, t_.me + 2 * t_.size - i - 1, 1);
      exchange(1, false);
    }
  }
  void halving_reduce_scatter() {
    for (int s = t_.size; s > 1; s = (s + 1) / 2) {
      const int d = (s + 1) / 2;
      blocks_of(scratch_.out, t_.me + d, s - d);
      blocks_of(scratch_.in, t_.me, s - d);
      exchange(d, true);
    }
  }
  void halving_all_gather() {
    // The sizes that halving went through, from the last: s is the smallest whose half is not yet `have`.
    for (int have = 1; have < t_.size;) {
      int s = t_.size;
      while ((s + 1) / 2 > have) s = (s + 1) / 2;
      const int d = (s + 1) / 2;
      blocks_of(scratch_.out, t_.me, s - d);
      blocks_of(scratch_.in, t_.me + d, s - d);
      exchange(t_.size - d, false);
      have = s;
    }
  }

 private:
  // The blocks of `members` members from `begin` on, around the end; neighbours in memory as one segment.
  void blocks_of(std::vector<Segment>& list, int begin, int members) {
    list.clear();
    for (int i = begin; i < begin + members; i++)
      for (int k = 0; k < t_.count; k++) {
        const Segment s = buffer_.block(t_.first_block + i % t_.size * t_.block_stride + k * t_.jump, size_);
        if (s.numel == 0) continue;
        if (!list.empty() && list.back().data + list.back().numel * size_of(buffer_.dtype) == s.data)
          list.back().numel += s.numel;
        else
          list.push_back(s);
      }
  }
  // To the member `distance` further, from the one as far before.
  void exchange(int distance, bool fold) {
    link_.exchange(t_.rank_of(t_.me + distance), scratch_.out, t_.rank_of(t_.me + t_.size - distance),
                   scratch_.in, fold);
  }

  const Team t_;
  int size_;
  const BlockBuffer& buffer_;
  PeerLink& link_;
  AlgorithmScratch& scratch_;
};

Team everybody(const GroupShape& g, int rank) {
  return {.size = g.size,
          .me = rank,
          .first = 0,
          .stride = 1,
          .first_block = 0,
          .block_stride = 1,
          .count = 1,
          .jump = 0};
}
// The ranks of one node; each stands for the blocks of its place in every node.
Team inside_node(const GroupShape& g, int rank) {
  return {.size = g.node,
          .me = rank % g.node,
          .first = rank / g.node * g.node,
          .stride = 1,
          .first_block = 0,
          .block_stride = 1,
          .count = g.nodes(),
          .jump = g.node};
}
Team across_nodes(const GroupShape& g, int rank) {
  return {.size = g.nodes(),
          .me = rank / g.node,
          .first = rank % g.node,
          .stride = g.node,
          .first_block = rank % g.node,
          .block_stride = g.node,
          .count = 1,
          .jump = 0};
}

int log2_up(int n) {
  int rounds = 0;
  for (; n > 1; n = (n + 1) / 2) rounds++;
  return rounds;
}

}  // namespace

void reduce_scatter_blocks(Algorithm a, const GroupShape& g, int rank, const BlockBuffer& buffer,
                           PeerLink& link, AlgorithmScratch& scratch) {
  require(a != Algorithm::ordered, "ordered sums are the backend's");
  if (a == Algorithm::hierarchical) {
    Rounds(inside_node(g, rank), g.size, buffer, link, scratch).halving_reduce_scatter();
    return Rounds(across_nodes(g, rank), g.size, buffer, link, scratch).halving_reduce_scatter();
  }
  Rounds rounds(everybody(g, rank), g.size, buffer, link, scratch);
  a == Algorithm::ring ? rounds.ring_reduce_scatter() : rounds.halving_reduce_scatter();
}

void all_gather_blocks(Algorithm a, const GroupShape& g, int rank, const BlockBuffer& buffer, PeerLink& link,
                       AlgorithmScratch& scratch) {
  require(a != Algorithm::ordered, "gathering directly is the backend's");
  if (a == Algorithm::hierarchical) {
    Rounds(across_nodes(g, rank), g.size, buffer, link, scratch).halving_all_gather();
    return Rounds(inside_node(g, rank), g.size, buffer, link, scratch).halving_all_gather();
  }
  Rounds rounds(everybody(g, rank), g.size, buffer, link, scratch);
  a == Algorithm::ring ? rounds.ring_all_gather() : rounds.halving_all_gather();
}

int rounds_of(Collective c, std::string_view algorithm, const GroupShape& g) {
  if (g.size == 1) return 0;
  int half = 1;
  if (algorithm == name_of(Algorithm::ring)) half = g.size - 1;
  if (algorithm == name_of(Algorithm::halving)) half = log2_up(g.size);
  if (algorithm == name_of(Algorithm::hierarchical)) half = log2_up(g.node) + log2_up(g.nodes());
  return c == Collective::all_reduce ? 2 * half : half;
}

double link_seconds(const CommCall& c, const GroupShape& g, const LinkCost& link) {
  int64_t carried = c.wire;
  if (c.kind == Collective::broadcast || c.kind == Collective::reduce) carried = c.payload;
  if (c.kind == Collective::p2p) carried = std::max(c.wire, c.payload - c.wire);
  return link.alpha * rounds_of(c.kind, c.algorithm, g) + link.beta * double(carried);
}

double call_seconds(const CommCall& c, const GroupShape& g, const CommOptions& o) {
  if (g.size == 1) return 0;
  const bool both = c.kind == Collective::all_reduce;
  if (both || c.kind == Collective::reduce_scatter || c.kind == Collective::all_gather) {
    Algorithm how = Algorithm::ordered;
    for (Algorithm a : {Algorithm::ring, Algorithm::halving, Algorithm::hierarchical})
      if (name_of(a) == c.algorithm) how = a;
    return (both ? 2 : 1) * half_seconds(how, g, double(c.payload), o);
  }
  const bool inside = g.nodes() == 1;
  return link_seconds(c, g,
                      inside ? o.inside
                             : LinkCost{std::max(o.inside.alpha, o.across.alpha),
                                        std::max(o.inside.beta, g.node * o.across.beta)});
}

}  // namespace trireme
