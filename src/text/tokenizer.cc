#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/printable.h"
#include "text/encoder.h"
#include "text/unicode.h"

namespace trireme {
namespace {

// The byte that <0x00> to <0xFF> spell; -1 for other tokens.
int byte_spelled(std::string_view token) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
  return high < 16 && low < 16 ? int(16 * high + low) : -1;
}

std::string replace_all(std::string_view text,
                        const std::vector<std::pair<std::string, std::string>>& pairs) {
  Normalizer n;
  for (const auto& [from, to] : pairs) n.add_replace(from, to);
  std::string buffer;
  return std::string(n.apply(text, false, buffer));
}

}  // namespace

Tokenizer::Tokenizer(Parts parts)
    : tokens_(std::move(parts.tokens)),
      merges_(std::move(parts.merges)),
      added_(std::move(parts.added)),
      ignore_merges_(parts.ignore_merges),
      fuse_unk_(parts.fuse_unk),
      pipeline_(std::move(parts.pipeline)),
      unknown_(std::move(parts.unknown)),
      unknown_id_(parts.unknown_id) {
  index_added();
  index_symbols();
  index_merges();
}

void Tokenizer::index_added() {
  for (const std::string& token : tokens_) in_model_.push_back(!token.empty());
  for (const AddedToken& t : added_) {
    if (t.content.empty() || !is_utf8(t.content)) bad_request("added token {} is empty or not UTF-8", t.id);
    if (t.id < 0 || t.id >= kMostIds)
      bad_request("added token {:?} has id {}; ids are 0 to {}", t.content, t.id, kMostIds - 1);
    if (t.id >= vocab_size()) tokens_.resize(size_t(t.id) + 1);
    std::string& token = tokens_[size_t(t.id)];
    if (token.empty())
      token = t.content;
    else if (token != t.content)
      bad_request("added token {:?} has id {}, which is the token {:?}", t.content, t.id, token);
    std::string buffer;
    if (t.normalized)
      normalized_.add(t, pipeline_.normalizer.apply(t.content, false, buffer));
    else
      raw_.add(t, t.content);
  }
  in_model_.resize(tokens_.size());
  literal_.resize(tokens_.size());
  if (pipeline_.byte_level)
    for (const AddedToken& t : added_) literal_[size_t(t.id)] = true;
}

void Tokenizer::index_symbols() {
  of_byte_.fill(-1);
  if (!pipeline_.byte_level) of_code_.assign(0x110000, -1);
  std::string bytes;
  for (int32_t id = 0; id < vocab_size(); id++) {
    if (!in_model_[size_t(id)]) continue;
    std::string_view token = tokens_[size_t(id)];
    if (literal_[size_t(id)]) {
      // The library's model does not know which of its tokens are added: a word can be one of them.
      if (!unspell_bytes(token, bytes)) continue;
      literal_differs_ = literal_differs_ || bytes != token;
      token = bytes;
    }
    if (ignore_merges_) whole_.emplace(token, id);
    if (pipeline_.byte_level) {
      if (token.size() == 1) of_byte_[uint8_t(token[0])] = id;
      continue;
    }
    if (int b = byte_spelled(token); b >= 0) of_byte_[size_t(b)] = id;
    if (CodePoint c = code_point_at(token, 0); c.valid && c.bytes == token.size()) of_code_[c.code] = id;
  }
  if (pipeline_.byte_level) return;
  for (const std::string& token : tokens_) {
    int b = byte_spelled(token);
    decoded_.push_back(b >= 0 ? std::string(1, char(b)) : replace_all(token, pipeline_.decoder_replaces));
  }
}

void Tokenizer::index_merges() {
  bool cut_before_space = !pipeline_.byte_level && pipeline_.pre_tokenizer.empty() && !ignore_merges_;
  for (size_t rank = 0; rank < merges_.size(); rank++) {
    const Merge& m = merges_[rank];
    auto known = [&](int32_t id) { return id >= 0 && id < vocab_size() && in_model_[size_t(id)]; };
    if (!known(m.left) || !known(m.right) || !known(m.result) ||
        tokens_[size_t(m.left)] + tokens_[size_t(m.right)] != tokens_[size_t(m.result)])
      bad_request("merge {} ({}, {} -> {}) does not join two tokens to a third", rank, m.left, m.right,
                  m.result);
    *ranks_.insert(ranks_.key(m.left, m.right)).first = {uint32_t(rank), m.result};
    if (tokens_[size_t(m.right)].starts_with(kMetaspace) && !tokens_[size_t(m.left)].ends_with(kMetaspace))
      cut_before_space = false;
  }
  // Then the pieces between such places merge by themselves: words, where the file has only the whole text.
  if (cut_before_space) pipeline_.pre_tokenizer.add_before(std::string(kMetaspace), true);
}

size_t Tokenizer::first_symbols(std::string_view word, int32_t* ids) const {
  int32_t seen = 0;  // negative once an id was -1
  size_t n = 0;
  if (of_code_.empty()) {
    for (; n < word.size(); n++) seen |= ids[n] = of_byte_[uint8_t(word[n])];
  } else {
    for (size_t at = 0; at < word.size();) {
      CodePoint c = code_point_at(word, at);
      if (int32_t id = c.valid ? of_code_[c.code] : -1; id >= 0)
        ids[n++] = id;
      else
        for (uint32_t k = 0; k < c.bytes; k++) seen |= ids[n++] = of_byte_[uint8_t(word[at + k])];
      at += c.bytes;
    }
  }
  return seen >= 0 ? n : first_symbols_with_unknown(word, ids);
}

// The order is the library's: `unknown` is written before the next character that has a token, or at the end.
// The bytes of a character without a token do not end a run of unknown characters.
size_t Tokenizer::first_symbols_with_unknown(std::string_view word, int32_t* ids) const {
  size_t n = 0;
  bool pending = false;
  auto no_token = [&](char byte) {
    if (unknown_id_ < 0) bad_request("the vocabulary has no token for the byte 0x{:02X}", uint8_t(byte));
    if (pending && !fuse_unk_) ids[n++] = unknown_id_;
    pending = true;
  };
  auto take = [&](int32_t id) {
    if (pending) ids[n++] = unknown_id_;
    pending = false;
    ids[n++] = id;
  };
  for (size_t at = 0; at < word.size();) {
    // A symbol of a byte-level vocabulary is a byte, of the others a character.
    const CodePoint c = of_code_.empty() ? CodePoint{.bytes = 1} : code_point_at(word, at);
    const std::string_view bytes = word.substr(at, c.bytes);
    at += c.bytes;
    if (of_code_.empty()) {
      const int32_t id = of_byte_[uint8_t(bytes[0])];
      id >= 0 ? take(id) : no_token(bytes[0]);
    } else if (const int32_t id = c.valid ? of_code_[c.code] : -1; id >= 0) {
      take(id);
    } else {
      auto missing =
          std::find_if(bytes.begin(), bytes.end(), [&](char b) { return of_byte_[uint8_t(b)] < 0; });
      if (missing != bytes.end())
        no_token(*missing);
      else
        for (char b : bytes) ids[n++] = of_byte_[uint8_t(b)];
    }
  }
  if (pending) ids[n++] = unknown_id_;
  return n;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  Encoder(*this).encode(text, specials, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) text += token(id);
  size_t strip = 0;
  while (strip < size_t(pipeline_.decoder_strips) && strip < text.size() && text[strip] == ' ') strip++;
  return strip ? text.substr(strip) : text;
}

std::string_view Tokenizer::token(int32_t id) const {
  if (id < 0 || id >= vocab_size()) bad_request("{} is no token: ids are 0 to {}", id, vocab_size() - 1);
  return (decoded_.empty() ? tokens_ : decoded_)[size_t(id)];
}

uint64_t Tokenizer::fingerprint() const {
  std::string all;
  for (const std::string& token : decoded_.empty() ? tokens_ : decoded_) {
    const auto n = uint32_t(token.size());
    all.append(reinterpret_cast<const char*>(&n), sizeof n).append(token);
  }
  return hash64(all.data(), all.size());
}

bool Tokenizer::lossless() const {
  const bool all_bytes = unknown_id_ < 0 || std::find(of_byte_.begin(), of_byte_.end(), -1) == of_byte_.end();
  return pipeline_.byte_level && pipeline_.normalizer.empty() && all_bytes && !literal_differs_ &&
         std::none_of(added_.begin(), added_.end(), [](const AddedToken& t) { return t.lstrip || t.rstrip; });
}

std::optional<int32_t> Tokenizer::find_added(std::string_view content) const {
  for (const AddedToken& t : added_)
    if (t.content == content) return t.id;
  return std::nullopt;
}

std::optional<int32_t> Tokenizer::find_end_of_text() const {
  if (!named_end_of_text_.empty()) {
    if (auto id = find_added(named_end_of_text_)) return id;
    const auto found = std::find(tokens_.begin(), tokens_.end(), named_end_of_text_);
    if (found == tokens_.end()) return std::nullopt;
    return int32_t(found - tokens_.begin());
  }
  for (std::string_view name :
       {kEndOfText, std::string_view("<|end_of_text|>"), std::string_view("</s>"), std::string_view("<eos>")})
    if (auto id = find_added(name)) return id;
  return std::nullopt;
}

int32_t Tokenizer::end_of_text() const {
  auto id = find_end_of_text();
  if (!id)
    bad_request("the tokenizer has no token {}",
                named_end_of_text_.empty() ? kEndOfText : printable(named_end_of_text_));
  return *id;
}

}  // namespace trireme
