// Encodes text with a tokenizer: the working memory that a thread reuses from text to text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace trireme {

// One per thread; the tokenizer outlives it. Words seen lately are remembered in a table of fixed size (1
// MiB), so that merges are worked out once for the words that fill most of a text.
class Encoder {
 public:
  explicit Encoder(const Tokenizer&);
  // Appends the ids of text to out. A text that continues a document, divided where divide.h allows, has the
  // ids that it has in the whole.
  void encode(std::string_view text, Specials, std::vector<int32_t>& out, Place = Place::begins);

 private:
  // A remembered word; one cache line, so a look-up touches one.
  struct alignas(64) Slot {
    int32_t ids[8];
    char word[30];
    uint8_t length = 0;  // 0 = empty
    uint8_t count = 0;
  };
  static_assert(sizeof(Slot) == 64);
  static constexpr size_t kSlots = size_t(1) << 14;

  // A symbol of a long word, linked with its living neighbours, and the rank of its pair with the next.
  struct Symbol {
    int32_t id, prev, next;  // prev and next -1: none
    uint32_t rank;           // kNever: no merge, no next, or merged into the one before
  };
  // Pairs of one rank that wait to be merged, from left to right: a list through nodes_.
  struct Run {
    uint32_t rank;
    int32_t head, tail;  // -1: none waits
  };
  struct Node {
    int32_t at, next;
  };
  static constexpr uint32_t kNever = ~uint32_t(0);
  struct LaterRun {
    const Encoder& e;
    bool operator()(int32_t a, int32_t b) const {
      const Run &x = e.runs_[size_t(a)], &y = e.runs_[size_t(b)];
      return x.rank != y.rank ? x.rank > y.rank : e.nodes_[size_t(x.head)].at > e.nodes_[size_t(y.head)].at;
    }
  };

  void encode_words(std::string_view text, bool first, bool continues, std::vector<int32_t>& out);
  void encode_word(std::string_view word, std::vector<int32_t>& out);
  void merge_word(std::string_view word, std::vector<int32_t>& out);
  void merge_short(std::string_view word, std::vector<int32_t>& out);
  void merge_long(std::string_view word, std::vector<int32_t>& out);
  int32_t rank_pair(int32_t at);
  void push_run(int32_t run);
  int32_t pop_pair();

  const Tokenizer& tokenizer_;
  std::vector<Slot> cache_;
  std::string normal_, spaced_;  // buffers of the text normalized, and of a piece with metaspaces
  std::vector<int32_t> ids_;
  std::vector<Symbol> symbols_;
  std::vector<Node> nodes_;
  std::vector<Run> runs_;
  std::vector<int32_t>
      run_of_rank_;            // the newest run of each rank; -1: none. Empty before the first long word
  std::vector<int32_t> heap_;  // runs in which some pair waits, the first one to be merged on top
};

}  // namespace trireme
