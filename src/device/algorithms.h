// Which algorithms a library's products took on a kind of device, as text that outlives a process: in the run
// folder, so that a run that goes on takes the same, and where a user's runs find what others have timed.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace trireme {

struct KeptAlgorithms {
  using Problem = std::array<int64_t, 14>;  // what a product is: sizes, strides, alignments, types, epilogue
  using Words = std::array<uint64_t, 8>;    // what the library calls its algorithm
  using Of = std::map<Problem, Words>;
  // By title, a line that says of which library, on which kind of device, and how they were chosen.
  std::map<std::string, Of> by_title;
};

// A title stands on a line of its own, and behind it a line a problem: its 14 numbers in decimal, 8 words in
// hexadecimal. Errors (request) name file and line: no title before a problem, a line that is neither, a
// problem said twice of a title, more than kMostAlgorithmBytes.
inline constexpr size_t kMostAlgorithmBytes = size_t(16) << 20;
KeptAlgorithms parse_algorithms(std::string_view text, std::string_view file);
std::string text_of(const KeptAlgorithms&);

// What `now` says goes before.
void merge(KeptAlgorithms& into, const KeptAlgorithms& now);

}  // namespace trireme
