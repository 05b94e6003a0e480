// The split patterns of GPT-2 (Radford et al., 2019), Llama 3 and Qwen 2: they cut text into the words that
// BPE never merges across.
//
// Written by hand rather than left to a regular expression engine: the classes are those of one fixed Unicode
// version (16, as in the peer library), bytes that are no UTF-8 have a meaning (one `other` character each,
// as U+FFFD would be), the time is linear in the text, and it is several times faster. The tests hold them
// against PCRE2 on random text.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

#include "text/unicode.h"

namespace trireme {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class SplitPattern { gpt2, llama3, qwen2 };
std::optional<SplitPattern> known_pattern(std::string_view regex);

// End of the word that begins at text[begin]; begin < text.size(). Words cover the text without gaps, and
// where one ends depends on nothing before it.
size_t word_end(std::string_view text, size_t begin);  // GPT-2
size_t word_end(SplitPattern, std::string_view text, size_t begin);

// Calls take(word) for every word of the text in order.
template <class Take>
void split_words(SplitPattern pattern, std::string_view text, Take&& take) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = word_end(pattern, text, begin);
    take(text.substr(begin, end - begin));
    begin = end;
  }
}
template <class Take>
void split_words(std::string_view text, Take&& take) {
  split_words(SplitPattern::gpt2, text, take);
}

// Runs of numbers, \p{N}, and what is between them; with `each`, every number is a piece of its own.
size_t digits_end(std::string_view text, size_t begin, bool each);

template <class Take>
void split_digits(std::string_view text, bool each, Take&& take) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = digits_end(text, begin, each);
    take(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace trireme
