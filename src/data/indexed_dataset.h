// Megatron-LM's indexed dataset: a .bin of token ids, and a .idx that says where each sequence lies in it.
//
// .idx, little endian, without padding:
//   9 bytes  "MMIDIDX\0\0"
//   u64      version, 1
//   u8       element type of .bin (TokenType)
//   u64      s, the number of sequences
//   u64      d, the length of the list of documents (the number of documents + 1)
//   s x i32  elements of each sequence
//   s x i64  byte offset in .bin of each sequence
//   d x i64  document k is the sequences [list[k], list[k+1]); list[0] = 0, list[d-1] = s
//   s x i8   modes of multimodal data: may follow, not read
//   8 bytes  "TRIRXXH\0", u64 xxh3 of .bin, u64 xxh3 of all bytes of .idx before this record: may follow
//   8 bytes  "TRIRTOK\0" and u64, which vocabulary the ids are of (Tokenizer::fingerprint()): may follow
//   8 bytes  "TRIRMSK\0" and u64 xxh3 of the loss mask (loss_mask.h): may end the file
//            These records are ours; Megatron's reader does not look behind the documents
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace trireme {

// Element types by their code in the file; the two floating-point ones (6 and 7) hold no token ids.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };
int64_t size_of(TokenType);               // bytes per element
TokenType token_type_for(int64_t vocab);  // as Megatron chooses: u16 below 65,500 ids, else i32

inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr int64_t kIndexHeader = 34;  // bytes before the lengths
inline constexpr char kContentMagic[8] = {'T', 'R', 'I', 'R', 'X', 'X', 'H', '\0'};
inline constexpr char kVocabularyMagic[8] = {'T', 'R', 'I', 'R', 'T', 'O', 'K', '\0'};
inline constexpr char kMaskMagic[8] = {'T', 'R', 'I', 'R', 'M', 'S', 'K', '\0'};

// Record of a shard's bytes, written by `tokenize`.
struct ContentRecord {
  uint64_t bin = 0;   // xxh3 of .bin
  uint64_t idx = 0;   // xxh3 of the first `bytes` bytes of .idx
  int64_t bytes = 0;  // where the record begins in .idx
};

// A checked view of the bytes of a .idx, which must outlive it. Numbers in the file are not aligned.
class IndexView {
 public:
  // bad_request, naming `name`, unless every count, length, offset and document fits the two files.
  static IndexView parse(std::span<const std::byte> idx, int64_t bin_bytes, std::string_view name);

  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }                          // of all sequences
  std::optional<uint64_t> vocabulary() const { return vocabulary_; }  // nothing: the file does not say
  const std::optional<ContentRecord>& content() const { return content_; }
  std::optional<uint64_t> mask() const { return mask_; }  // xxh3 of the loss mask that the shard has
  bool contiguous() const { return contiguous_; }  // sequences lie in .bin in order, without gaps, from 0 on
  int64_t length(int64_t sequence) const { return load<int32_t>(lengths_, sequence); }  // elements
  int64_t offset(int64_t sequence) const { return load<int64_t>(offsets_, sequence); }  // bytes
  // First sequence of a document; of `documents()`, the end of the last.
  int64_t document_begin(int64_t document) const { return load<int64_t>(starts_, document); }

 private:
  template <class T>
  static T load(const std::byte* base, int64_t i) {
    T value;
    std::memcpy(&value, base + i * int64_t(sizeof(T)), sizeof(T));
    return value;
  }
  void check_sequences(int64_t bin_bytes, std::string_view name);
  void check_overlaps(std::string_view name) const;
  void check_documents(std::string_view name) const;

  TokenType type_ = TokenType::u16;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  std::optional<uint64_t> vocabulary_;
  std::optional<ContentRecord> content_;
  std::optional<uint64_t> mask_;
  bool contiguous_ = true;
  const std::byte *lengths_ = nullptr, *offsets_ = nullptr, *starts_ = nullptr;
};

}  // namespace trireme
