// Learns the merges of a byte-level BPE tokenizer from text.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/document_stream.h"
#include "text/tokenizer.h"

namespace trireme {

// How often each word of a split occurs: all that training looks at.
class WordCounts {
 public:
  // The pattern is the one that the tokenizer will have. When the words take more than max_bytes of memory,
  // the rarest go.
  explicit WordCounts(SplitPattern pattern = SplitPattern::gpt2, int64_t max_bytes = int64_t(1) << 30)
      : pattern_(pattern), pipeline_(Pipeline::of(pattern)), max_bytes_(max_bytes) {}
  void add(std::string_view text);
  // The words of `other`, counted with the same pattern. In the same order the same words stay.
  void add(const WordCounts& other);
  void clear();

  SplitPattern pattern() const { return pattern_; }
  int64_t words() const { return int64_t(counts_.size()); }  // different ones
  int64_t dropped() const { return dropped_; }               // times that words that went had been seen

 private:
  friend class BpeTrainer;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const;
  };
  void add(std::string_view word, int64_t count);
  void drop_rarest();

  SplitPattern pattern_;
  Pipeline pipeline_;
  int64_t max_bytes_, bytes_ = 0, dropped_ = 0;
  std::string buffer_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> counts_;
};

// Counts the words of the documents that are not held out. What comes out does not depend on the number of
// threads.
void count_words(DocumentStream&, int threads, WordCounts&,
                 const std::function<void(int64_t bytes)>& progress);

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
