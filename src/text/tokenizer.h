// Byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019), in the file format of the `tokenizers`
// library (tokenizer.json): what we export gives the same ids there, and the other way round.
//
// Text is bytes. If every byte has a token, decode() returns any text exactly, valid UTF-8 or not. Exceptions
// are files that change texts: they normalize (NFC), put a space before texts, or have added tokens that
// include adjacent spaces.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "text/added_tokens.h"
#include "text/pair_map.h"
#include "text/pipeline.h"

namespace trireme {

inline constexpr int32_t kMostIds = 1 << 24;  // ids of a file are smaller
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// Where in its document a text that is encoded stands.
enum class Place { begins, continues };

class Tokenizer {
 public:
  struct Merge {
    int32_t left, right, result;  // earlier merges go first
  };
  // The content of a tokenizer. tokens[id] is the token's bytes. It is empty if no token has that id: the id
  // is an unused row of a model. Without byte_level, tokens are characters as the file spells them, and
  // <0x00> to <0xFF> are the bytes. A vocabulary may lack tokens for some bytes. `added` is in ascending
  // order of ids. Each added token has the id of the same text in `tokens`, or an id that no token of
  // `tokens` has.
  struct Parts {
    std::vector<std::string> tokens;
    std::vector<Merge> merges;
    std::vector<AddedToken> added;
    bool ignore_merges = false;  // a word that is a token as a whole is that token, whatever the merges say
    Pipeline pipeline = Pipeline::of(SplitPattern::gpt2);
    std::string unknown;      // model.unk_token; stands for characters that have no token
    int32_t unknown_id = -1;  // its id in the vocabulary; -1: none, encode() rejects such characters
    bool fuse_unk = false;    // one `unknown` stands for a run of such characters
  };
  explicit Tokenizer(Parts);

  // Everything in a file from outside is checked; what is not supported is refused by name (bad_request).
  static Tokenizer load(const fs::path&);
  static Tokenizer parse(std::span<const std::byte>, std::string_view name);
  std::string to_json() const;       // tokenizer.json
  void save(const fs::path&) const;  // to_json(), published atomically
  // The tokenizer_config.json that lets `transformers` load a folder with our tokenizer.json in it.
  std::string config_json(int64_t max_positions) const;

  std::vector<int32_t> encode(std::string_view text, Specials = Specials::recognise) const;
  std::string decode(std::span<const int32_t> ids) const;  // bad_request on an id that is no token

  int32_t vocab_size() const { return int32_t(tokens_.size()); }  // the largest id + 1, unused ids included
  // Of the vocabulary: which token each id is. One number for files that say the same otherwise; what they
  // add to a text or cut it by is not in it.
  uint64_t fingerprint() const;
  // Bytes of a token; empty for an unused id. bad_request unless 0 <= id < vocab_size().
  std::string_view token(int32_t id) const;
  std::optional<int32_t> find_added(std::string_view) const;  // id of an added token by its content
  // The token that closes a document. If named_end_of_text(): that one. Otherwise the first that exists of
  // <|endoftext|>, <|end_of_text|>, </s>, <eos>.
  std::optional<int32_t> find_end_of_text() const;
  // eos_token of the tokenizer_config.json or special_tokens_map.json in the folder that load() read from;
  // "": none.
  const std::string& named_end_of_text() const { return named_end_of_text_; }
  int32_t end_of_text() const;  // bad_request when there is none
  const Pipeline& pipeline() const { return pipeline_; }
  // decode(encode(text)) is text, for every text that encode() takes.
  bool lossless() const;
  const std::vector<AddedToken>& added() const { return added_; }
  const std::vector<Merge>& merges() const { return merges_; }

 private:
  friend class Encoder;
  struct Ranked {
    uint32_t rank = 0;
    int32_t result = 0;
  };

  void index_symbols();
  void index_merges();
  void index_added();
  // Writes the ids of the characters, or bytes, that merging a word begins with: at most word.size().
  // bad_request if one has no token, and the tokenizer no `unknown` for it.
  size_t first_symbols(std::string_view word, int32_t* ids) const;
  size_t first_symbols_with_unknown(std::string_view word, int32_t* ids) const;

  std::vector<std::string> tokens_;   // as the model spells them; byte-level: their bytes
  std::vector<std::string> decoded_;  // their bytes; empty = tokens_
  std::vector<bool> in_model_;        // by id: in the file's model.vocab
  std::vector<Merge> merges_;
  std::vector<AddedToken> added_;
  bool ignore_merges_ = false, fuse_unk_ = false;
  Pipeline pipeline_;
  std::string unknown_, named_end_of_text_;
  int32_t unknown_id_ = -1;
  bool literal_differs_ = false;  // a literal token is reached by words that it does not decode to
  std::vector<bool> literal_;     // by id: added, so model.vocab has its content, not stand-ins of bytes
  std::vector<int32_t> of_code_;  // code point -> id, -1 where there is none; empty = byte-level
  std::array<int32_t, 256> of_byte_{};
  PairMap<Ranked> ranks_;
  std::map<std::string, int32_t, std::less<>> whole_;  // word -> id, filled when ignore_merges_
  AddedTokenFinder raw_, normalized_;
};

}  // namespace trireme
