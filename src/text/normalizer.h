// What a tokenizer does to a text before it splits it: nothing, NFC, and the substitutions of SentencePiece's
// models.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, SentencePiece's visible space

class Normalizer {
 public:
  void add_nfc() { steps_.push_back({Kind::nfc, {}, {}}); }
  void add_prepend(std::string text) { steps_.push_back({Kind::prepend, std::move(text), {}}); }
  // Every occurrence of `from`, which is not empty, from left to right.
  void add_replace(std::string from, std::string to) {
    steps_.push_back({Kind::replace, std::move(from), std::move(to)});
  }

  bool empty() const { return steps_.empty(); }
  bool has_prepend() const;
  // Whether a text may be normalized in pieces, divided where divide.h says.
  bool divisible(bool byte_level) const;
  bool removes(std::string_view text) const;  // no normalized text holds it

  // The text normalized: itself, or in `buffer`. A text that goes on where another ended has nothing put
  // before it.
  std::string_view apply(std::string_view text, bool continues, std::string& buffer) const;

 private:
  enum class Kind { nfc, prepend, replace };
  struct Step {
    Kind kind;
    std::string from, to;
  };
  std::vector<Step> steps_;
};

}  // namespace trireme
