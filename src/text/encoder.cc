#include "text/encoder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace trireme {
namespace {

constexpr size_t kShort = 64;  // bytes; up to here rescanning all pairs is faster than keeping them in order

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
    if (const int32_t id = tokenizer_.of_byte_[uint8_t(word[0])]; id >= 0) {
      out.push_back(id);
      return;
    }
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

// Looks up the pair of a symbol and the next one; if it can be merged, it waits at the end of its rank's run,
// or in a run of its own where it stands left of that end. Returns a run that waits anew; -1 = none.
int32_t Encoder::rank_pair(int32_t at) {
  Symbol& s = symbols_[size_t(at)];
  s.rank = kNever;
  if (s.next < 0) return -1;
  const auto* found =
      tokenizer_.ranks_.find(PairMap<Tokenizer::Ranked>::key(s.id, symbols_[size_t(s.next)].id));
  if (!found) return -1;
  s.rank = found->rank;
  const auto node = int32_t(nodes_.size());
  nodes_.push_back({at, -1});
  int32_t& newest = run_of_rank_[found->rank];
  if (newest >= 0) {
    Run& run = runs_[size_t(newest)];
    if (run.head >= 0 && nodes_[size_t(run.tail)].at < at) {
      nodes_[size_t(run.tail)].next = node;
      run.tail = node;
      return -1;
    }
    if (run.head < 0) {
      run.head = run.tail = node;
      return newest;
    }
  }
  newest = int32_t(runs_.size());
  runs_.push_back({found->rank, node, node});
  return newest;
}

void Encoder::push_run(int32_t run) {
  if (run < 0) return;
  heap_.push_back(run);
  std::push_heap(heap_.begin(), heap_.end(), LaterRun{*this});
}

// Takes the waiting pair of lowest rank, the leftmost of equals. It may be void by now.
int32_t Encoder::pop_pair() {
  Run& run = runs_[size_t(heap_.front())];
  const Node node = nodes_[size_t(run.head)];
  run.head = node.next;
  // Mostly the next of the same run follows, and the heap stays as it is.
  const LaterRun later{*this};
  const bool stays = run.head >= 0 && (heap_.size() < 2 || !later(heap_[0], heap_[1])) &&
                     (heap_.size() < 3 || !later(heap_[0], heap_[2]));
  if (stays) return node.at;
  const int32_t top = heap_.front();
  const bool empty = run.head < 0;
  std::pop_heap(heap_.begin(), heap_.end(), later);
  if (empty)
    heap_.pop_back();
  else
    heap_.back() = top, std::push_heap(heap_.begin(), heap_.end(), later);
  return node.at;
}

// The same for a long word. Pairs that wait stand in runs of one rank, from left to right, and a small heap
// orders the runs: a megabyte of one letter is few runs, walked through once each, not a heap of a million.
void Encoder::merge_long(std::string_view word, std::vector<int32_t>& out) {
  if (word.size() > size_t(1) << 30)
    bad_request("a single word of {} bytes: no text, or in need of cutting", word.size());
  ids_.resize(word.size());
  const auto n = int32_t(tokenizer_.first_symbols(word, ids_.data()));
  if (run_of_rank_.empty()) run_of_rank_.assign(tokenizer_.merges_.size(), -1);
  symbols_.resize(size_t(n));
  for (int32_t i = 0; i < n; i++)
    symbols_[size_t(i)] = {ids_[size_t(i)], i - 1, i + 1 < n ? i + 1 : -1, kNever};
  for (int32_t i = 0; i < n; i++)
    if (const int32_t run = rank_pair(i); run >= 0) heap_.push_back(run);
  std::make_heap(heap_.begin(), heap_.end(), LaterRun{*this});
  while (!heap_.empty()) {
    const uint32_t rank = runs_[size_t(heap_.front())].rank;
    const int32_t at = pop_pair();
    Symbol& left = symbols_[size_t(at)];
    if (left.rank != rank) continue;  // one of the two was merged meanwhile
    Symbol& right = symbols_[size_t(left.next)];
    left.id = tokenizer_.merges_[rank].result;
    right.rank = kNever;
    left.next = right.next;
    if (left.next >= 0) symbols_[size_t(left.next)].prev = at;
    push_run(rank_pair(at));
    if (left.prev >= 0) push_run(rank_pair(left.prev));
  }
  for (int32_t i = 0; i >= 0; i = symbols_[size_t(i)].next) out.push_back(symbols_[size_t(i)].id);
  for (const Run& r : runs_) run_of_rank_[r.rank] = -1;
  runs_.clear(), nodes_.clear();
}

}  // namespace trireme
