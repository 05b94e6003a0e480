#include "device/algorithms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/printable.h"

namespace trireme {
namespace {

constexpr size_t kMostTitle = 200;

std::vector<std::string_view> words_of_line(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

template <class T>
bool is_number(std::string_view word, int base, T& to) {
  const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), to, base);
  return wrong == std::errc() && end == word.data() + word.size();
}

// A title begins with a letter, a problem with a number.
bool is_title(std::string_view line) {
  const bool letter = (line[0] >= 'a' && line[0] <= 'z') || (line[0] >= 'A' && line[0] <= 'Z');
  return letter && line.size() <= kMostTitle &&
         std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

KeptAlgorithms parse_algorithms(std::string_view text, std::string_view file) {
  if (text.size() > kMostAlgorithmBytes)
    bad_request("{}: {} bytes; a file of algorithms has {} at most", file, text.size(), kMostAlgorithmBytes);
  KeptAlgorithms all;
  KeptAlgorithms::Of* of = nullptr;
  for (int64_t number = 1; !text.empty(); number++) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    if (is_title(line)) {
      of = &all.by_title[std::string(line)];
      continue;
    }
    KeptAlgorithms::Problem problem{};
    KeptAlgorithms::Words algorithm{};
    const std::vector<std::string_view> words = words_of_line(line);
    bool right = words.size() == problem.size() + algorithm.size();
    for (size_t i = 0; right && i < problem.size(); i++) right = is_number(words[i], 10, problem[i]);
    for (size_t i = 0; right && i < algorithm.size(); i++)
      right = is_number(words[problem.size() + i], 16, algorithm[i]);
    if (!right)
      bad_request("{}:{}: \"{}\" is neither a title nor a problem's {} numbers and {} words in hexadecimal",
                  file, number, printable(line.substr(0, 80)), problem.size(), algorithm.size());
    if (!of) bad_request("{}:{}: a problem before any title", file, number);
    if (!of->emplace(problem, algorithm).second)
      bad_request("{}:{}: this problem was there before under the same title", file, number);
  }
  return all;
}

std::string text_of(const KeptAlgorithms& all) {
  std::string text;
  for (const auto& [title, of] : all.by_title) {
    text += title + "\n";
    for (const auto& [problem, algorithm] : of)
      text += fmt::format("{} {:x}\n", fmt::join(problem, " "), fmt::join(algorithm, " "));
  }
  return text;
}

void merge(KeptAlgorithms& into, const KeptAlgorithms& now) {
  for (const auto& [title, of] : now.by_title)
    for (const auto& [problem, algorithm] : of) into.by_title[title][problem] = algorithm;
}

}  // namespace trireme
