#include "text/king_james.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/error.h"
#include "text/corpus.h"

namespace trireme {

namespace {

constexpr size_t kChapters = 1189, kMostBytes = 16 << 20;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

struct Verse {
  std::string book;  // "Ge", "1Sa"
  int chapter = 0;
  std::string_view text;
};

// Returns a verse without a book for any other line.
Verse verse_of(std::string_view line) {
  const size_t colon = line.find(':'), blank = line.find(' ');
  if (colon == line.npos || blank == line.npos || blank < colon || colon > 8) return {};
  size_t digits = colon;
  while (digits > 0 && is_digit(line[digits - 1])) digits--;
  if (digits == 0 || digits == colon || colon - digits > 4) return {};
  Verse v{.book = std::string(line.substr(0, digits)), .text = line.substr(blank + 1)};
  for (const char c : v.book)
    if (!is_digit(c) && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z')) return {};
  for (size_t i = digits; i < colon; i++) v.chapter = 10 * v.chapter + (line[i] - '0');
  return v;
}

}  // namespace

bool write_king_james(const fs::path& folder, const std::string& command) {
  const std::string all = output_of(command, kMostBytes);
  std::map<std::string, std::string> chapters;  // by file
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const Verse v = verse_of(std::string_view(all).substr(begin, end - begin));
    if (v.book.empty()) return false;
    std::string& chapter = chapters[fmt::format("{}{:03}.txt", v.book, v.chapter)];
    chapter += v.text;
    chapter += '\n';
    begin = end + 1;
  }
  if (chapters.size() != kChapters) return false;
  make_folders(folder);
  for (const auto& [name, text] : chapters) {
    std::ofstream file(folder / name, std::ios::binary);
    file << text << std::flush;
    if (!file) run_failed("cannot write {}", (folder / name).string());
  }
  return true;
}

}  // namespace trireme
