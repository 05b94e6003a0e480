#include "text/encoder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace trireme {
namespace {

constexpr size_t kShort = 64;  // bytes; up to here rescanning all pairs is faster than keeping them in a heap
constexpr uint32_t kNever = ~uint32_t(0);

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

void Encoder::encode(std::string_view text, Specials specials, std::vector<int32_t>& out, Place place) {
  // A short text is not worth filling a table for.
  if (cache_.empty() && text.size() > 4096) cache_.resize(kSlots);
  auto on_token = [&](int32_t id) { out.push_back(id); };
  tokenizer_.raw_.cut(
      text, specials,
      [&](std::string_view piece) {
        // Everything put before a text is put before each piece between added tokens, as the peer does.
        bool continues = place == Place::continues && piece.data() == text.data();
        bool first = place == Place::begins && piece.data() == text.data();
        piece = tokenizer_.pipeline_.normalizer.apply(piece, continues, normal_);
        const char* begin = piece.data();
        tokenizer_.normalized_.cut(
            piece, specials,
            [&](std::string_view words) {
              encode_words(words, first && words.data() == begin, continues && words.data() == begin, out);
            },
            on_token);
      },
      on_token);
}

// One piece of normalized text without added tokens. `first`: it begins the document; `continues`: it goes on
// where an earlier piece was divided.
void Encoder::encode_words(std::string_view text, bool first, bool continues, std::vector<int32_t>& out) {
  const Pipeline& p = tokenizer_.pipeline_;
  if (!p.metaspace.empty()) {
    spaced_.clear();
    const bool prefix = !continues && (p.prefix == Pipeline::Prefix::always ||
                                       (p.prefix == Pipeline::Prefix::first && first));
    if (prefix && text[0] != ' ' && !text.starts_with(p.metaspace)) spaced_ = p.metaspace;
    for (char c : text)
      if (c == ' ')
        spaced_ += p.metaspace;
      else
        spaced_ += c;
    text = spaced_;
  }
  p.pre_tokenizer.split(text, [&](std::string_view word) { encode_word(word, out); });
}

void Encoder::encode_word(std::string_view word, std::vector<int32_t>& out) {
  if (word.size() == 1 && tokenizer_.of_code_.empty()) {
    out.push_back(tokenizer_.of_byte_[uint8_t(word[0])]);
    return;
  }
  if (cache_.empty() || word.size() > sizeof(Slot::word)) return merge_word(word, out);
  Slot& slot = cache_[hash64(word.data(), word.size()) & (kSlots - 1)];
  if (slot.length == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0) {
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return;
  }
  size_t before = out.size();
  merge_word(word, out);
  size_t count = out.size() - before;
  if (count > std::size(slot.ids)) return;
  std::copy(out.end() - ptrdiff_t(count), out.end(), slot.ids);
  std::memcpy(slot.word, word.data(), word.size());
  slot.length = uint8_t(word.size()), slot.count = uint8_t(count);
}

void Encoder::merge_word(std::string_view word, std::vector<int32_t>& out) {
  if (tokenizer_.ignore_merges_) {
    if (auto it = tokenizer_.whole_.find(word); it != tokenizer_.whole_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  if (word.size() <= kShort)
    merge_short(word, out);
  else
    merge_long(word, out);
}

// Merges the pair of lowest rank, the leftmost of equals, until none is left.
void Encoder::merge_short(std::string_view word, std::vector<int32_t>& out) {
  using Ranks = PairMap<Tokenizer::Ranked>;
  std::array<int32_t, kShort> ids;
  std::array<Tokenizer::Ranked, kShort> merge;  // of ids[i] and ids[i + 1]
  size_t n = tokenizer_.first_symbols(word, ids.data());
  auto look_up = [&](size_t i) {
    const auto* found = tokenizer_.ranks_.find(Ranks::key(ids[i], ids[i + 1]));
    merge[i] = found ? *found : Tokenizer::Ranked{kNever, 0};
  };
  for (size_t i = 0; i + 1 < n; i++) look_up(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; i++)
      if (merge[i].rank < merge[best].rank) best = i;
    if (merge[best].rank == kNever) break;
    ids[best] = merge[best].result;
    std::copy(ids.begin() + best + 2, ids.begin() + n, ids.begin() + best + 1);
    n--;
    if (best + 1 < n) std::copy(merge.begin() + best + 2, merge.begin() + n, merge.begin() + best + 1);
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + n);
}

void Encoder::push_candidate(int32_t at) {
  const Symbol& s = symbols_[size_t(at)];
  if (s.next < 0) return;
  int32_t right = symbols_[size_t(s.next)].id;
  const auto* found = tokenizer_.ranks_.find(PairMap<Tokenizer::Ranked>::key(s.id, right));
  if (found) heap_.push_back({found->rank, uint32_t(at), s.id, right});
}

// The same over a linked list and a heap: n log n, so that a megabyte of one letter is no trap.
void Encoder::merge_long(std::string_view word, std::vector<int32_t>& out) {
  auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  if (word.size() > size_t(1) << 30)
    bad_request("a single word of {} bytes: no text, or in need of cutting", word.size());
  ids_.resize(word.size());
  int32_t n = int32_t(tokenizer_.first_symbols(word, ids_.data()));
  symbols_.clear(), heap_.clear();
  for (int32_t i = 0; i < n; i++) symbols_.push_back({ids_[size_t(i)], i - 1, i + 1 < n ? i + 1 : -1});
  for (int32_t i = 0; i < n; i++) push_candidate(i);
  std::make_heap(heap_.begin(), heap_.end(), later);
  auto add = [&](int32_t at) {
    size_t before = heap_.size();
    push_candidate(at);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Candidate c = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[c.at];
    if (left.id != c.left || left.next < 0) continue;
    Symbol& right = symbols_[size_t(left.next)];
    if (right.id != c.right) continue;
    left.id = tokenizer_.merges_[c.rank].result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols_[size_t(left.next)].prev = int32_t(c.at);
    add(int32_t(c.at));
    if (left.prev >= 0) add(left.prev);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[size_t(i)].next) out.push_back(symbols_[size_t(i)].id);
}

}  // namespace trireme
