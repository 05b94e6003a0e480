#include "text/train_bpe.h"

#include <algorithm>
#include <memory>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/in_order.h"
#include "text/split.h"
#include "text/unicode.h"

namespace trireme {
namespace {

// About what a word takes in the table: its node, its bucket, and its bytes where they do not fit into the
// node.
int64_t bytes_of(std::string_view word) {
  return 72 + (word.size() > 15 ? int64_t(word.size()) + 17 : 0);
}

}  // namespace

size_t WordCounts::Hash::operator()(std::string_view s) const {
  return size_t(hash64(s.data(), s.size()));
}

void WordCounts::add(std::string_view text) {
  text = pipeline_.normalizer.apply(text, false, buffer_);
  split_words(pattern_, text, [&](std::string_view word) { add(word, 1); });
  drop_rarest();
}

void WordCounts::add(const WordCounts& other) {
  require(other.pattern_ == pattern_, "WordCounts::add(): counted with another pattern");
  for (const auto& [word, count] : other.counts_) add(word, count);
  dropped_ += other.dropped_;
  drop_rarest();  // only now: in which order a table lists its words must not matter
}

void WordCounts::add(std::string_view word, int64_t count) {
  if (auto it = counts_.find(word); it != counts_.end()) {
    it->second += count;
    return;
  }
  counts_.emplace(word, count);
  bytes_ += bytes_of(word);
}

// Where the words take too much, half of the memory comes free: first the words seen once, then those seen
// twice, and so on.
void WordCounts::drop_rarest() {
  if (bytes_ <= max_bytes_) return;
  for (int64_t rarest = 1; bytes_ > max_bytes_ / 2; rarest++) {
    for (auto it = counts_.begin(); it != counts_.end();) {
      if (it->second > rarest) {
        ++it;
        continue;
      }
      dropped_ += it->second;
      bytes_ -= bytes_of(it->first);
      it = counts_.erase(it);
    }
  }
}

void WordCounts::clear() {
  counts_.clear();
  bytes_ = dropped_ = 0;
}

void count_words(DocumentStream& stream, int threads, WordCounts& counts,
                 const std::function<void(int64_t bytes)>& progress) {
  struct Counted {
    DocumentBatch batch;
    std::unique_ptr<WordCounts> words;
  };
  auto worker = [&]() -> InOrder<Counted>::Work {
    return [&](Counted& c) {
      if (!c.words) c.words = std::make_unique<WordCounts>(counts.pattern());
      c.words->clear();
      std::string buffer;
      for (const DocumentPart& part : c.batch.parts) {
        if (part.held_out) continue;
        try {
          c.words->add(stream.text(c.batch, part, buffer));
        } catch (const Error&) {
          if (!stream.may_skip(part)) throw;
        }
      }
    };
  };
  int64_t bytes = 0;
  InOrder<Counted>::run(
      threads, [&](Counted& c) { return stream.next(c.batch); }, worker,
      [&](Counted& c) {
        counts.add(*c.words);
        if (progress) progress(bytes += int64_t(c.batch.bytes.size()));
      });
}

// Keeps the count of every adjacent pair and the words that hold it; a merge touches only those words. The
// heap is lazy: an entry whose count is out of date is pushed again with the right one when it comes up.
class BpeTrainer {
 public:
  BpeTrainer(const WordCounts& counts, const BpeOptions& options) : options_(options) {
    target_ = options.vocab_size - int32_t(options.specials.size());
    if (target_ < 256)
      bad_request("a vocabulary of {} is too small: 256 bytes and {} special tokens need {}",
                  options.vocab_size, options.specials.size(), 256 + options.specials.size());
    parts_.pipeline = Pipeline::of(counts.pattern());
    add_bytes();
    add_words(counts);
  }

  Tokenizer train() {
    for (const auto& [pair, index] : all_pairs_) push(pair, pairs_[index].count);
    std::pair<int64_t, uint64_t> best;
    while (int32_t(parts_.tokens.size()) < target_ && pop(best)) {
      merge(best.second);
      if (options_.progress && parts_.tokens.size() % 64 == 0)
        options_.progress(int32_t(parts_.tokens.size()), target_);
    }
    for (const std::string& s : options_.specials)
      parts_.added.push_back({.content = s, .id = int32_t(parts_.tokens.size())}), parts_.tokens.push_back(s);
    if (options_.progress) options_.progress(target_, target_);
    return Tokenizer(std::move(parts_));
  }

 private:
  using Pairs = PairMap<uint32_t>;
  struct Word {
    size_t begin;     // in symbols_
    uint32_t length;  // symbols left
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that held it when it was counted; some may have lost it since
    bool rose = false;            // its count went up in this merge
  };

  void add_bytes() {
    std::vector<uint32_t> order;
    for (int b = 0; b < 256; b++) order.push_back(uint32_t(b));
    std::sort(order.begin(), order.end(),
              [](uint32_t a, uint32_t b) { return stand_in(uint8_t(a)) < stand_in(uint8_t(b)); });
    for (uint32_t b : order) {
      of_byte_[b] = int32_t(parts_.tokens.size());
      parts_.tokens.emplace_back(1, char(b));
    }
    for (size_t id = 0; id < parts_.tokens.size(); id++) ids_.emplace(parts_.tokens[id], int32_t(id));
  }

  void add_words(const WordCounts& counts) {
    for (const auto& [text, count] : counts.counts_) {
      if (text.size() < 2) continue;
      if (text.size() > UINT32_MAX || words_.size() == UINT32_MAX)
        bad_request("too much text to learn merges from");
      words_.push_back({symbols_.size(), uint32_t(text.size()), count});
      for (char c : text) symbols_.push_back(of_byte_[uint8_t(c)]);
      const int32_t* s = &symbols_[words_.back().begin];
      for (size_t i = 0; i + 1 < text.size(); i++) change(s[i], s[i + 1], uint32_t(words_.size() - 1), count);
    }
    risen_.clear();
    for (Pair& p : pairs_) p.rose = false;
  }

  void change(int32_t left, int32_t right, uint32_t word, int64_t by) {
    uint64_t key = Pairs::key(left, right);
    auto [index, is_new] = index_.insert(key);
    if (is_new) {
      *index = uint32_t(pairs_.size());
      pairs_.emplace_back();
      all_pairs_.emplace_back(key, *index);
    }
    Pair& p = pairs_[*index];
    p.count += by;
    if (by < 0) return;
    if (p.words.empty() || p.words.back() != word) p.words.push_back(word);
    if (!std::exchange(p.rose, true)) risen_.push_back(key);
  }

  // Highest count first, then the smallest pair.
  void push(uint64_t pair, int64_t count) {
    if (count >= std::max<int64_t>(options_.min_count, 1)) heap_.emplace(count, ~pair);
  }
  bool pop(std::pair<int64_t, uint64_t>& best) {
    while (!heap_.empty()) {
      best = {heap_.top().first, ~heap_.top().second};
      heap_.pop();
      int64_t now = pairs_[*index_.find(best.second)].count;
      if (now == best.first) return true;
      push(best.second, now);
    }
    return false;
  }

  void merge(uint64_t key) {
    int32_t left = Pairs::left(key), right = Pairs::right(key);
    // Another pair may have made the same bytes before: then the token is there, and only the merge is new.
    std::string joined = parts_.tokens[size_t(left)] + parts_.tokens[size_t(right)];
    if (std::find(options_.specials.begin(), options_.specials.end(), joined) != options_.specials.end())
      return;
    auto [it, is_new] = ids_.emplace(joined, int32_t(parts_.tokens.size()));
    int32_t result = it->second;
    if (is_new) parts_.tokens.push_back(std::move(joined));
    parts_.merges.push_back({left, right, result});
    std::vector<uint32_t> words = std::move(pairs_[*index_.find(key)].words);
    pairs_[*index_.find(key)].words.clear();
    for (uint32_t w : words) merge_in(w, left, right, result);
    for (uint64_t pair : risen_) {
      Pair& p = pairs_[*index_.find(pair)];
      p.rose = false;
      push(pair, p.count);
    }
    risen_.clear();
  }

  // Joins every (left, right) of a word from left to right, and moves the counts of the pairs around it.
  void merge_in(uint32_t w, int32_t left, int32_t right, int32_t result) {
    Word& word = words_[w];
    int32_t* s = &symbols_[word.begin];
    uint32_t n = word.length, to = 0;
    for (uint32_t from = 0; from < n; to++) {
      if (from + 1 == n || s[from] != left || s[from + 1] != right) {
        s[to] = s[from++];
        continue;
      }
      change(left, right, w, -word.count);
      if (to > 0) change(s[to - 1], left, w, -word.count), change(s[to - 1], result, w, word.count);
      if (from + 2 < n)
        change(right, s[from + 2], w, -word.count), change(result, s[from + 2], w, word.count);
      s[to] = result;
      from += 2;
    }
    word.length = to;
  }

  const BpeOptions& options_;
  int32_t target_ = 0;
  Tokenizer::Parts parts_;
  int32_t of_byte_[256];
  std::unordered_map<std::string, int32_t> ids_;  // bytes -> id
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  Pairs index_;  // pair -> index in pairs_
  std::vector<Pair> pairs_;
  std::vector<std::pair<uint64_t, uint32_t>> all_pairs_;
  std::vector<uint64_t> risen_;
  std::priority_queue<std::pair<int64_t, uint64_t>> heap_;
};

Tokenizer train_bpe(const WordCounts& counts, const BpeOptions& options) {
  return BpeTrainer(counts, options).train();
}

Tokenizer train_bpe(std::span<const std::string_view> texts, const BpeOptions& options) {
  WordCounts counts;
  for (std::string_view text : texts) counts.add(text);
  return train_bpe(counts, options);
}

}  // namespace trireme
