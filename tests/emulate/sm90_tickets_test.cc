// Blocks of attention_sm90_backward.cu and attention_sm90_wide.cu that run at the same time add to dQ one
// after another: what a block adds to and how many others it waits for are the kernel's own functions; how
// blocks take turns is a step machine, for the emulation runs one block after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/cuda/attention_sm90.cuh"
#include "tensor/tensor.h"

namespace trireme::cuda {
namespace {

using Problem = AttentionProblem<bf16, float>;

struct DqAdd {
  int sums = 0, before = 0, n = 0;  // sums: of (sequence, head, step); n: the block of keys
};
struct KeysAtWork {
  std::vector<std::vector<DqAdd>> blocks;   // by ticket
  std::vector<std::vector<int>> ascending;  // of sums: the blocks of keys that add to them
};

template <int R, int kKeys>
KeysAtWork at_work(const Problem& p) {
  const int steps = int(ceil_div(p.seq, R)), pairs = p.batch * p.kv_heads;
  KeysAtWork all;
  all.ascending.resize(size_t(p.batch * p.heads * steps));
  for (int ticket = 0; ticket < int(ceil_div(p.keys, kKeys)) * pairs; ticket++) {
    const sm90::KeyBlockPlace at = sm90::block_of_ticket(ticket, p.batch, p.kv_heads);
    auto& adds = all.blocks.emplace_back();
    each_step<R, kKeys>(
        p, at.n, at.kv, [&](int q0, int rows) { return p.begin_of_rows(at.b, q0, rows); },
        [&](int h, int q0, int, const sm90::KeyBlocks& blocks) {
          const int sums = (at.b * p.heads + h) * steps + q0 / R;
          adds.push_back({sums, blocks.before(at.n), at.n});
          all.ascending[size_t(sums)].push_back(at.n);
        });
  }
  for (auto& of_sums : all.ascending) std::sort(of_sums.begin(), of_sums.end());
  return all;
}

// Blocks begin in the order of their tickets, when one of `slots` is free.
class Turns {
 public:
  Turns(const KeysAtWork& all, size_t slots)
      : all_(all), slots_(slots), done_(all.blocks.size()), counts_(all.ascending.size()) {}

  // The blocks that can go on now.
  std::vector<size_t> ready() const {
    std::vector<size_t> out;
    size_t begun = 0, unfinished = 0;
    for (; begun < done_.size(); begun++) {
      if (ended(begun)) continue;
      if (++unfinished > slots_) break;
      const DqAdd& next = all_.blocks[begun][done_[begun]];
      if (counts_[size_t(next.sums)] == next.before) out.push_back(begun);
    }
    return out;
  }
  // False where the order is another than that of the keys.
  bool go_on(size_t block) {
    const DqAdd& add = all_.blocks[block][done_[block]++];
    const size_t place = size_t(counts_[size_t(add.sums)]++);
    const auto& ascending = all_.ascending[size_t(add.sums)];
    return place < ascending.size() && ascending[place] == add.n;
  }
  bool all_ended() const {
    for (size_t block = 0; block < done_.size(); block++)
      if (!ended(block)) return false;
    return true;
  }
  const std::vector<size_t>& state() const { return done_; }

 private:
  bool ended(size_t block) const { return done_[block] == all_.blocks[block].size(); }

  const KeysAtWork& all_;
  size_t slots_;
  std::vector<size_t> done_;  // of each block
  std::vector<int> counts_;
};

// Every order there is.
void go_every_way(const Turns& from, std::set<std::vector<size_t>>& seen, std::string& fault) {
  if (!fault.empty() || !seen.insert(from.state()).second) return;
  const std::vector<size_t> ready = from.ready();
  if (ready.empty() && !from.all_ended()) fault = "blocks wait for one another";
  for (size_t block : ready) {
    Turns next = from;
    if (!next.go_on(block)) fault = "dQ is added to in another order than that of the keys";
    go_every_way(next, seen, fault);
  }
}
std::string fault_of_a_way(Turns turns, uint32_t seed) {
  std::mt19937 draw(seed);
  for (;;) {
    const std::vector<size_t> ready = turns.ready();
    if (ready.empty()) return turns.all_ended() ? "" : "blocks wait for one another";
    if (!turns.go_on(ready[draw() % ready.size()])) return "dQ is added to in another order than the keys'";
  }
}

struct Case {
  int seq, keys, offset;
  bool causal;
  std::vector<int> documents;  // where they begin; in each further sequence 9 later, but the first
};
const Case kCases[] = {{500, 500, 0, true, {}},
                       {500, 500, 0, false, {}},
                       {64, 640, 576, true, {}},
                       {300, 460, 160, true, {}},
                       {460, 300, -160, true, {}},
                       {130, 400, 0, true, {}},
                       {600, 600, 0, true, {0, 1, 127, 128, 200, 385}},
                       {600, 600, 0, true, {0, 300}},
                       {520, 520, 0, true, {0, 128, 256, 384, 512}}};

Problem problem_of(const Case& c, int batch, int heads, int kv_heads, std::vector<int32_t>& first) {
  Problem p;
  p.seq = c.seq, p.keys = c.keys, p.offset = c.offset, p.causal = c.causal;
  p.batch = batch, p.heads = heads, p.kv_heads = kv_heads;
  first.clear();
  for (int b = 0; b < batch; b++)
    for (int i = 0; i < c.seq; i++) {
      int begin = 0;
      for (int d : c.documents)
        if (const int at = d == 0 ? 0 : d + 9 * b; at <= i) begin = std::max(begin, at);
      first.push_back(begin);
    }
  if (!c.documents.empty()) p.first = first.data();
  return p;
}
// f(blocks at work, rows of a step, keys of a block), by the steps and blocks that there are.
template <class F>
void with_every_step(const Problem& p, const F& f) {
  f(at_work<64, 128>(p), 64, 128);
  f(at_work<128, 128>(p), 128, 128);
  f(at_work<64, 64>(p), 64, 64);
}

TEST(Sm90Tickets, EveryQueryGetsAllTheKeysThatItSees) {
  for (const Case& c : kCases) {
    std::vector<int32_t> first;
    const Problem p = problem_of(c, 2, 2, 1, first);
    with_every_step(p, [&](const KeysAtWork& all, int rows, int keys) {
      const int steps = int(ceil_div(p.seq, rows));
      for (int b = 0; b < p.batch; b++)
        for (int h = 0; h < p.heads; h++)
          for (int i = 0; i < p.seq; i++) {
            const auto& adding = all.ascending[size_t((b * p.heads + h) * steps + i / rows)];
            EXPECT_EQ(std::adjacent_find(adding.begin(), adding.end()), adding.end());
            for (int j = p.begin_of(b, i); j < p.end_of(i); j = (j / keys + 1) * keys)
              ASSERT_TRUE(std::binary_search(adding.begin(), adding.end(), j / keys))
                  << c.seq << " " << c.keys << " row " << i << " key " << j;
          }
    });
  }
}

TEST(Sm90Tickets, NoOrderOfBlocksWaitsForeverOrAddsInAnother) {
  for (const Case& c : kCases) {
    std::vector<int32_t> first;
    with_every_step(problem_of(c, 1, 1, 1, first), [&](const KeysAtWork& all, int rows, int keys) {
      size_t adds = 0;
      for (const auto& block : all.blocks) adds += block.size();
      for (size_t slots : {1u, 2u, 3u, 100u}) {
        std::set<std::vector<size_t>> seen;
        std::string fault;
        go_every_way(Turns(all, slots), seen, fault);
        EXPECT_EQ(fault, "") << c.seq << " " << c.keys << " by " << rows << " and " << keys << ", slots "
                             << slots;
        EXPECT_GT(seen.size(), adds);
        if (slots == 1) {
          EXPECT_EQ(seen.size(), adds + 1);
        }
        // Four blocks that all add to eight sums, none ahead of the one before it: (8 + 4) over 4.
        if (&c == &kCases[1] && rows == 64 && keys == 128 && slots == 100) {
          EXPECT_EQ(seen.size(), 495u);
        }
      }
    });
  }
}

TEST(Sm90Tickets, NorDoesOneOfManyHeadsAndSequences) {
  for (const Case& c : kCases) {
    std::vector<int32_t> first;
    with_every_step(problem_of(c, 2, 4, 2, first), [&](const KeysAtWork& all, int rows, int keys) {
      for (size_t slots : {1u, 2u, 5u, 100u})
        for (uint32_t seed = 0; seed < 5; seed++)
          EXPECT_EQ(fault_of_a_way(Turns(all, slots), seed), "")
              << c.seq << " " << c.keys << " by " << rows << " and " << keys << ", slots " << slots
              << ", seed " << seed;
    });
  }
}

// The machine sees the faults that it is for.
TEST(Sm90Tickets, BlocksInAnotherOrderWouldWaitForever) {
  std::vector<int32_t> first;
  KeysAtWork all = at_work<128, 128>(problem_of(kCases[0], 1, 1, 1, first));
  std::reverse(all.blocks.begin(), all.blocks.end());
  EXPECT_EQ(fault_of_a_way(Turns(all, 1), 0), "blocks wait for one another");
  all = at_work<128, 128>(problem_of(kCases[1], 1, 1, 1, first));
  for (auto& block : all.blocks)
    for (DqAdd& add : block) add.before = 3 - add.before;
  EXPECT_EQ(fault_of_a_way(Turns(all, 100), 0), "dQ is added to in another order than the keys'");
}

}  // namespace
}  // namespace trireme::cuda
