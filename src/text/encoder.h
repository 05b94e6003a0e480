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

  // An adjacent pair waiting to be merged; it is void when its symbols have changed since.
  struct Candidate {
    uint32_t rank, at;
    int32_t left, right;
  };
  // A symbol of a long word, linked with its living neighbours.
  struct Symbol {
    int32_t id, prev, next;  // id -1: merged into the one before; prev and next -1: none
  };

  void encode_words(std::string_view text, bool first, bool continues, std::vector<int32_t>& out);
  void encode_word(std::string_view word, std::vector<int32_t>& out);
  void merge_word(std::string_view word, std::vector<int32_t>& out);
  void merge_short(std::string_view word, std::vector<int32_t>& out);
  void merge_long(std::string_view word, std::vector<int32_t>& out);
  void push_candidate(int32_t at);

  const Tokenizer& tokenizer_;
  std::vector<Slot> cache_;
  std::string normal_, spaced_;  // buffers of the text normalized, and of a piece with metaspaces
  std::vector<int32_t> ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace trireme
