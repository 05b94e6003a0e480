// A byte-level tokenizer.json with the sections that a test needs.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/unicode.h"

namespace trireme {

// One token per byte that is not in `without`, by ascending stand-in, then one token per merge, then
// <|endoftext|>, which is only in added_tokens.
inline nlohmann::json byte_level_file(const std::vector<std::pair<std::string, std::string>>& merges = {},
                                      const std::set<int>& without = {}) {
  using Json = nlohmann::json;
  std::set<std::string> bytes;  // UTF-8 sorts as code points do
  for (int b = 0; b < 256; b++)
    if (!without.contains(b)) bytes.insert(spell_bytes(std::string(1, char(b))));
  Json vocab = Json::object(), pairs = Json::array();
  for (const std::string& b : bytes) vocab[b] = vocab.size();
  for (const auto& [left, right] : merges) {
    pairs.push_back({spell_bytes(left), spell_bytes(right)});
    vocab[spell_bytes(left + right)] = vocab.size();
  }
  const Json end = {{"id", vocab.size()}, {"content", "<|endoftext|>"}, {"special", true}};
  return {{"added_tokens", Json::array({end})},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs}}}};
}

// The same with a Split by a regular expression in place of GPT-2's.
inline nlohmann::json split_by(const std::string& regex,
                               const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  using Json = nlohmann::json;
  Json file = byte_level_file(merges);
  Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  file["pre_tokenizer"]["use_regex"] = false;
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", Json::array({split, file["pre_tokenizer"]})}};
  return file;
}

}  // namespace trireme
