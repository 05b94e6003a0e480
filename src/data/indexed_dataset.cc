#include "data/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/error.h"

namespace trireme {

static_assert(std::endian::native == std::endian::little,
              "token shards are little endian, and read in place");

int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  require(false, "size_of(TokenType): unknown type");
  return 0;
}

TokenType token_type_for(int64_t vocab) {
  return vocab < 65500 ? TokenType::u16 : TokenType::i32;
}

IndexView IndexView::parse(std::span<const std::byte> idx, int64_t bin_bytes, std::string_view name) {
  if (idx.size() >= 8 && std::memcmp(idx.data(), "TNTIDX\0\0", 8) == 0)
    bad_request("{} is an index of fairseq's old format; only Megatron's MMIDIDX is supported", name);
  if (idx.size() < sizeof(kIndexMagic) || std::memcmp(idx.data(), kIndexMagic, sizeof(kIndexMagic)) != 0)
    bad_request("{} is not a Megatron index: it does not begin with MMIDIDX", name);
  if (int64_t(idx.size()) < kIndexHeader)
    bad_request("{} is cut short: {} bytes, the header alone has {}", name, idx.size(), kIndexHeader);
  if (uint64_t version = load<uint64_t>(idx.data() + 9, 0); version != 1)
    bad_request("{} is of version {}; only version 1 is supported", name, version);
  auto code = uint8_t(idx[17]);
  if (code == 6 || code == 7)
    bad_request("{} says that its elements are floating-point; token ids are integers", name);
  if (code < 1 || code > 8) bad_request("{} has element type {}; known are 1 to 8", name, code);

  IndexView view;
  view.type_ = TokenType(code);
  uint64_t sequences = load<uint64_t>(idx.data() + 18, 0), starts = load<uint64_t>(idx.data() + 26, 0);
  uint64_t left = idx.size() - uint64_t(kIndexHeader);
  // Each count is held against the bytes that are there before it is multiplied.
  bool fits = sequences <= left / 12 && starts <= (left - 12 * sequences) / 8;
  uint64_t rest = fits ? left - 12 * sequences - 8 * starts : 0;
  constexpr uint64_t kRecord = sizeof(kVocabularyMagic) + 8;
  static_assert(sizeof(kMaskMagic) == sizeof(kVocabularyMagic));
  // The record that ends what is left, if it has this name.
  auto take_record = [&](const char* magic, std::optional<uint64_t>& value) {
    if (rest < kRecord) return;
    const std::byte* record = idx.data() + kIndexHeader + 12 * sequences + 8 * starts + rest - kRecord;
    if (std::memcmp(record, magic, sizeof(kVocabularyMagic)) != 0) return;
    value = load<uint64_t>(record + sizeof(kVocabularyMagic), 0);
    rest -= kRecord;
  };
  take_record(kMaskMagic, view.mask_);
  take_record(kVocabularyMagic, view.vocabulary_);
  constexpr uint64_t kContent = sizeof(kContentMagic) + 16;
  if (rest >= kContent) {
    const std::byte* record = idx.data() + kIndexHeader + 12 * sequences + 8 * starts + rest - kContent;
    if (std::memcmp(record, kContentMagic, sizeof(kContentMagic)) == 0) {
      view.content_ = {load<uint64_t>(record + 8, 0), load<uint64_t>(record + 16, 0), record - idx.data()};
      rest -= kContent;
    }
  }
  if (!fits || (rest != 0 && rest != sequences))
    bad_request("{} has {} bytes, which its counts of {} sequences and {} document borders do not add up to",
                name, idx.size(), sequences, starts);
  if (starts < 1) bad_request("{} has no document borders; even an empty one has the border 0", name);
  view.sequences_ = int64_t(sequences), view.documents_ = int64_t(starts) - 1;
  view.lengths_ = idx.data() + kIndexHeader;
  view.offsets_ = view.lengths_ + 4 * sequences;
  view.starts_ = view.offsets_ + 8 * sequences;
  view.check_sequences(bin_bytes, name);
  view.check_documents(name);
  return view;
}

void IndexView::check_sequences(int64_t bin_bytes, std::string_view name) {
  const int64_t size = size_of(type_);
  for (int64_t i = 0; i < sequences_; i++) {
    int64_t n = length(i), at = offset(i);
    if (n < 0) bad_request("{}: sequence {} has {} tokens", name, i, n);
    if (at < 0 || at > bin_bytes || n * size > bin_bytes - at)
      bad_request("{}: sequence {} ({} tokens of {} bytes from byte {} on) lies outside its .bin of {} bytes",
                  name, i, n, size, at, bin_bytes);
    contiguous_ = contiguous_ && at == tokens_ * size;
    tokens_ += n;
    if (tokens_ > bin_bytes / size)
      bad_request("{}: sequences 0 to {} overlap: together they have {} tokens, its .bin {}", name, i,
                  tokens_, bin_bytes / size);
  }
  if (!contiguous_) check_overlaps(name);
  // Sequences in order must fill the .bin: if not, the two files are of different shards.
  if (contiguous_ && tokens_ * size != bin_bytes)
    bad_request("{} describes {} bytes, and its .bin has {}: they do not belong together", name,
                tokens_ * size, bin_bytes);
}

// Sequences may be in the .bin in any order, but each token belongs to one of them.
void IndexView::check_overlaps(std::string_view name) const {
  const int64_t size = size_of(type_);
  std::vector<int64_t> by_offset;
  for (int64_t i = 0; i < sequences_; i++)
    if (length(i) > 0) by_offset.push_back(i);
  std::sort(by_offset.begin(), by_offset.end(), [&](int64_t a, int64_t b) { return offset(a) < offset(b); });
  for (size_t k = 1; k < by_offset.size(); k++) {
    const int64_t before = by_offset[k - 1], after = by_offset[k],
                  end = offset(before) + length(before) * size;
    if (end > offset(after))
      bad_request("{}: sequences {} and {} overlap: one ends at byte {}, the other begins at byte {}", name,
                  std::min(before, after), std::max(before, after), end, offset(after));
  }
}

void IndexView::check_documents(std::string_view name) const {
  if (document_begin(0) != 0)
    bad_request("{}: the first document begins at sequence {}, not 0", name, document_begin(0));
  for (int64_t d = 0; d < documents_; d++) {
    int64_t begin = document_begin(d), end = document_begin(d + 1);
    if (end < begin || end > sequences_)
      bad_request("{}: document {} is the sequences {} to {}, of {}", name, d, begin, end, sequences_);
  }
  // Megatron-LM asserts it, too. A tool that merges shards may have lost the rest.
  if (document_begin(documents_) != sequences_)
    bad_request("{}: its documents end at sequence {}, but it has {} sequences; make the index again", name,
                document_begin(documents_), sequences_);
}

}  // namespace trireme
