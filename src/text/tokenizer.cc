#include "text/tokenizer.h"

#include <utility>

#include "base/error.h"
#include "text/encoder.h"
#include "text/unicode.h"

namespace trireme {

Tokenizer::Tokenizer(Parts parts)
    : tokens_(std::move(parts.tokens)),
      model_tokens_(int32_t(tokens_.size())),
      merges_(std::move(parts.merges)),
      added_(std::move(parts.added)),
      ignore_merges_(parts.ignore_merges) {
  of_byte_.fill(-1);
  std::vector<bool> outside(tokens_.size());  // added tokens are found by their content only
  for (const AddedToken& t : added_) {
    if (t.content.empty() || !is_utf8(t.content)) bad_request("added token {} is empty or not UTF-8", t.id);
    if (t.id < 0 || t.id > vocab_size())
      bad_request("added token {:?} has id {}; the next free id is {}", t.content, t.id, vocab_size());
    if (t.id == vocab_size())
      tokens_.push_back(t.content);
    else if (tokens_[size_t(t.id)] != t.content)
      bad_request("added token {:?} has id {}, which is the token {:?}", t.content, t.id,
                  tokens_[size_t(t.id)]);
    if (t.id < model_tokens_) outside[size_t(t.id)] = true;
    (t.normalized ? normalized_ : raw_).add(t);
  }
  for (int32_t id = 0; id < model_tokens_; id++) {
    const std::string& bytes = tokens_[size_t(id)];
    if (bytes.size() == 1 && !outside[size_t(id)]) of_byte_[uint8_t(bytes[0])] = id;
    if (ignore_merges_ && !outside[size_t(id)]) whole_.emplace(bytes, id);
  }
  for (int b = 0; b < 256; b++)
    if (of_byte_[size_t(b)] < 0) bad_request("the vocabulary has no token for the byte 0x{:02X}", b);
  for (size_t rank = 0; rank < merges_.size(); rank++) {
    const Merge& m = merges_[rank];
    auto known = [&](int32_t id) { return id >= 0 && id < model_tokens_; };
    if (!known(m.left) || !known(m.right) || !known(m.result) ||
        tokens_[size_t(m.left)] + tokens_[size_t(m.right)] != tokens_[size_t(m.result)])
      bad_request("merge {} ({}, {} -> {}) does not join two tokens to a third", rank, m.left, m.right,
                  m.result);
    *ranks_.insert(ranks_.key(m.left, m.right)).first = {uint32_t(rank), m.result};
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  Encoder(*this).encode(text, specials, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) text += token(id);
  return text;
}

std::string_view Tokenizer::token(int32_t id) const {
  if (id < 0 || id >= vocab_size()) bad_request("{} is no token: ids are 0 to {}", id, vocab_size() - 1);
  return tokens_[size_t(id)];
}

std::optional<int32_t> Tokenizer::find_added(std::string_view content) const {
  for (const AddedToken& t : added_)
    if (t.content == content) return t.id;
  return std::nullopt;
}

int32_t Tokenizer::end_of_text() const {
  auto id = find_added(kEndOfText);
  if (!id) bad_request("the tokenizer has no token {}", kEndOfText);
  return *id;
}

}  // namespace trireme
