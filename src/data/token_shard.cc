#include "data/token_shard.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "data/raw_shard.h"

namespace trireme {
namespace {

fs::path with_suffix(const fs::path& stem, const char* suffix) {
  return stem.string() + suffix;
}

// Calls f(T{}) with the element type.
template <class F>
void with_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::u8:
      return f(uint8_t{});
    case TokenType::i8:
      return f(int8_t{});
    case TokenType::i16:
      return f(int16_t{});
    case TokenType::u16:
      return f(uint16_t{});
    case TokenType::i32:
      return f(int32_t{});
    case TokenType::i64:
      return f(int64_t{});
  }
  require(false, "an unknown element type got past the index");
}

template <class T>
T load(const std::byte* elements, int64_t i) {
  T value;
  std::memcpy(&value, elements + i * int64_t(sizeof(T)), sizeof(T));
  return value;
}

// One bit a type: ids below zero are huge when read as unsigned. Compilers vectorise the loop.
template <class T>
bool any_outside(const std::byte* elements, int64_t n, int64_t vocab) {
  using U = std::make_unsigned_t<T>;
  // Every id of a type that is narrower than the vocabulary fits, unless it is negative.
  const U last = U(std::min<uint64_t>(uint64_t(vocab) - 1, uint64_t(std::numeric_limits<T>::max())));
  U bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= U(load<U>(elements, i) > last);
  return bad != 0;
}

}  // namespace

ShardFiles shard_files(const fs::path& name) {
  if (name.extension() == ".npy" && fs::exists(name)) return {name, std::nullopt};
  bool is_bin = name.extension() == ".bin", is_idx = name.extension() == ".idx";
  fs::path stem = is_bin || is_idx ? fs::path(name).replace_extension() : name;
  fs::path bin = with_suffix(stem, ".bin"), idx = with_suffix(stem, ".idx");
  std::error_code none;
  bool has_bin = fs::exists(bin, none), has_idx = fs::exists(idx, none);
  if (has_bin && has_idx) return {bin, idx};
  if (has_bin && is_bin) return {bin, std::nullopt};
  if (has_bin)
    bad_request("{} is missing beside {}; if that holds raw tokens, name it with its .bin", idx.string(),
                bin.string());
  if (has_idx) bad_request("{} is missing beside {}", bin.string(), idx.string());
  bad_request("there is no token shard {}: neither {} nor its .idx exists; `trireme tokenize` makes one",
              name.string(), bin.string());
}

TokenShard TokenShard::open(const fs::path& name) {
  ShardFiles files = shard_files(name);
  TokenShard shard{MappedFile(files.bin)};
  int64_t bin_bytes = int64_t(shard.bin_.bytes().size());
  if (!files.idx) {
    const RawTokens raw = raw_tokens(shard.bin_.bytes(), files.bin.string());
    shard.type_ = raw.type;
    shard.raw_begin_ = raw.begin;
    shard.tokens_ = raw.tokens;
    return shard;
  }
  shard.idx_.emplace(*files.idx);
  shard.index_ = IndexView::parse(shard.idx_->bytes(), bin_bytes, files.idx->string());
  const IndexView& index = *shard.index_;
  shard.type_ = index.type();
  shard.tokens_ = index.tokens();
  if (index.mask()) {
    const fs::path mask = fs::path(files.bin).replace_extension(".mask");
    std::error_code none;
    if (!fs::exists(mask, none))
      bad_request("{} is missing: {} says that the shard has a loss mask", mask.string(),
                  files.idx->string());
    shard.mask_.emplace(mask);
    shard.targets_ = LossMask::parse(shard.mask_->bytes(), shard.tokens_, mask.string());
  }
  if (!index.contiguous()) {
    shard.starts_.reserve(size_t(index.sequences()) + 1);
    shard.starts_.push_back(0);
    for (int64_t i = 0; i < index.sequences(); i++)
      shard.starts_.push_back(shard.starts_.back() + index.length(i));
  }
  return shard;
}

template <class Visit>
void TokenShard::visit_runs(int64_t begin, int64_t end, Visit&& visit) const {
  const std::byte* bin = bin_.bytes().data();
  const int64_t size = size_of(type_);
  if (starts_.empty()) {
    if (begin < end) visit(begin, bin + raw_begin_ + begin * size, end - begin);
    return;
  }
  // The last sequence that begins at or before `begin`; empty ones have no part of it.
  size_t i = size_t(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin()) - 1;
  for (; begin < end; i++) {
    int64_t stop = std::min(end, starts_[i + 1]);
    if (stop > begin)
      visit(begin, bin + index_->offset(int64_t(i)) + (begin - starts_[i]) * size, stop - begin);
    begin = std::max(begin, stop);
  }
}

template <class T>
void TokenShard::read_as(int64_t begin, std::span<int32_t> out, int64_t vocab) const {
  visit_runs(begin, begin + int64_t(out.size()), [&](int64_t first, const std::byte* elements, int64_t n) {
    int32_t* to = out.data() + (first - begin);
    if (any_outside<T>(elements, n, vocab)) [[unlikely]] {
      for (int64_t i = 0; i < n; i++)
        if (int64_t id = int64_t(load<T>(elements, i)); id < 0 || id >= vocab)
          refuse_id(first + i, id, vocab);
    }
    for (int64_t i = 0; i < n; i++) to[i] = int32_t(load<T>(elements, i));
  });
}

template <class T>
void TokenShard::check_as(int64_t vocab, int64_t begin, int64_t end) const {
  constexpr int64_t kBlock = int64_t(1) << 16;  // tokens between two looks at the result
  visit_runs(begin, end, [&](int64_t first, const std::byte* elements, int64_t n) {
    for (int64_t at = 0; at < n; at += kBlock) {
      int64_t m = std::min(kBlock, n - at);
      if (!any_outside<T>(elements + at * int64_t(sizeof(T)), m, vocab)) continue;
      for (int64_t i = at; i < at + m; i++)
        if (int64_t id = int64_t(load<T>(elements, i)); id < 0 || id >= vocab)
          refuse_id(first + i, id, vocab);
    }
  });
}

void TokenShard::read(int64_t begin, std::span<int32_t> out, int64_t vocab) const {
  require(begin >= 0 && int64_t(out.size()) <= tokens_ - begin, "TokenShard::read() outside the shard");
  require(vocab >= 1 && vocab <= int64_t(INT32_MAX) + 1, "TokenShard::read(): vocab out of range");
  with_type(type_, [&](auto t) { read_as<decltype(t)>(begin, out, vocab); });
}

void TokenShard::check_ids(int64_t vocab, int64_t begin, int64_t end) const {
  require(vocab >= 1, "TokenShard::check_ids(): vocab must be at least 1");
  with_type(type_, [&](auto t) { check_as<decltype(t)>(vocab, begin, end); });
}

TokenShard::Place TokenShard::place_of(int64_t token) const {
  if (!index_) return {0, token};
  for (int64_t d = 0; d < index_->documents(); d++) {
    int64_t length = 0;
    for (int64_t s = index_->document_begin(d); s < index_->document_begin(d + 1); s++)
      length += index_->length(s);
    if (token < length) return {d, token};
    token -= length;
  }
  require(false, "TokenShard::place_of() after the last token");
  return {};
}

void TokenShard::know_documents() {
  document_starts_.assign(1, 0);
  if (!index_) return;
  int64_t token = 0;
  for (int64_t d = 0; d < index_->documents(); d++) {
    for (int64_t s = index_->document_begin(d); s < index_->document_begin(d + 1); s++)
      token += index_->length(s);
    if (token > document_starts_.back() && token < tokens_) document_starts_.push_back(token);
  }
}

void TokenShard::positions(int64_t begin, std::span<int32_t> out) const {
  require(!document_starts_.empty(), "TokenShard::positions() before know_documents()");
  auto next = std::upper_bound(document_starts_.begin(), document_starts_.end(), begin);
  int64_t start = begin;
  for (size_t i = 0; i < out.size(); i++) {
    const int64_t token = begin + int64_t(i);
    if (next != document_starts_.end() && token == *next) start = *next++;
    out[i] = int32_t(token - start);
  }
}

void TokenShard::refuse_id(int64_t token, int64_t id, int64_t vocab) const {
  Place place = place_of(token);
  bad_request(
      "{}: token {} of document {} is {}, outside the vocabulary of {} (ids 0 to {}): tokenize with the "
      "model's own "
      "tokenizer, or raise model.vocab",
      name(), place.token, place.document, id, vocab, vocab - 1);
}

}  // namespace trireme
