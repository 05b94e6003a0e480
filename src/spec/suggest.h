// What was meant by a misspelt name.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace trireme {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `known`, if it is near enough to be meant: at most a third of its length, and at most 4
// edits. Of dotted names the last part alone may match too ("lr", "train.lr" -> "optimizer.lr"). Empty if
// none.
std::string suggest(std::string_view name, std::span<const std::string> known);

// ", did you mean X?" with X = suggest(), or "".
std::string did_you_mean(std::string_view name, std::span<const std::string> known);

// The key of `known` that other programs call so: "top_k" is model.experts_per_token. Empty if there is none.
std::string elsewhere(std::string_view name, std::span<const std::string> known);

// "a, b, c"
std::string joined(std::span<const std::string_view> names);

}  // namespace trireme
