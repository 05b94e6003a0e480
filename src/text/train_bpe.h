// Learns the merges of a byte-level BPE tokenizer from text.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace trireme {

// How often each word of GPT-2's split occurs: all that training looks at.
class WordCounts {
 public:
  void add(std::string_view text);
  int64_t words() const { return int64_t(counts_.size()); }  // different ones

 private:
  friend class BpeTrainer;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const;
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> counts_;
};

struct BpeOptions {
  int32_t vocab_size =
      4096;  // all told: 256 bytes, merges, specials; fewer when the text has no more pairs to merge
  std::vector<std::string> specials = {std::string(kEndOfText)};  // they get the last ids
  int64_t min_count = 2;                                          // pairs seen less often are not merged
  std::function<void(int32_t done, int32_t total)>
      progress;  // tokens so far and in the end; called now and then
};

// Ids: the 256 bytes in the order of their stand-ins (as in GPT-2), merges by rank, specials. Of the pairs
// seen most often the one of smallest ids goes first, so the same counts give the same tokenizer.
Tokenizer train_bpe(const WordCounts&, const BpeOptions&);
Tokenizer train_bpe(std::span<const std::string_view> texts, const BpeOptions&);

}  // namespace trireme
