#include "spec/suggest.h"

#include <algorithm>
#include <vector>

namespace trireme {
namespace {

std::string_view last_part(std::string_view name) {
  size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}
bool near(int distance, std::string_view meant) {
  return distance <= std::min(4, std::max(1, int(meant.size()) / 3));
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table: two edits back (for swaps), one back, and this one.
  std::vector<int> back2(b.size() + 1), back(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) back[j] = int(j);
  for (size_t i = 1; i <= a.size(); i++) {
    row[0] = int(i);
    for (size_t j = 1; j <= b.size(); j++) {
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, back[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], back2[j - 2] + 1);
    }
    std::swap(back2, back);
    std::swap(back, row);
  }
  return back[b.size()];
}

std::string suggest(std::string_view name, std::span<const std::string> known) {
  if (name.size() > 100) return "";
  std::string best;
  int best_distance = 1000;
  auto consider = [&](const std::string& k, int distance) {
    if (distance < best_distance) best = k, best_distance = distance;
  };
  // The right section first: of equally near names the one in the section that was written wins.
  for (const std::string& k : known)
    if (int d = edit_distance(name, k); near(d, last_part(k))) consider(k, d);
  for (const std::string& k : known)
    if (int d = edit_distance(last_part(name), last_part(k)); near(d, last_part(k))) consider(k, d + 1);
  return best;
}

std::string joined(std::span<const std::string_view> names) {
  std::string out;
  for (std::string_view n : names) out += (out.empty() ? "" : ", ") + std::string(n);
  return out;
}

}  // namespace trireme
