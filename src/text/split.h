// GPT-2's pre-tokenizer: cuts text into the words that BPE never merges across (Radford et al., 2019).
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Written by hand rather than left to a regular expression engine: the classes are those of one fixed Unicode
// version (16, as in the peer library), bytes that are no UTF-8 have a meaning (one `other` character each,
// as U+FFFD would be), and it is several times faster. The tests hold it against PCRE2 on random text.
#pragma once
#include <cstddef>
#include <string_view>

#include "text/unicode.h"

namespace trireme {

// End of the word that begins at text[begin]; begin < text.size(). Words cover the text without gaps.
size_t word_end(std::string_view text, size_t begin);

// Calls take(word) for every word of the text in order.
template <class Take>
void split_words(std::string_view text, Take&& take) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = word_end(text, begin);
    take(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace trireme
