#include "text/normal_form.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "text/unicode.h"

namespace trireme {
namespace {

// Syllables of Hangul are composed by arithmetic (Unicode Standard, section 3.12): L + V + T.
constexpr uint32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00, kLs = 19, kVs = 21, kTs = 28;
constexpr uint32_t kNone = ~uint32_t(0);

struct Tables {
  // Per code point, 0 = stands for itself and begins a segment that nothing before it reaches into;
  // kSpecial = may change, or may join what is before it.
  static constexpr uint8_t kSpecial = 255;
  std::vector<uint8_t> kind;                       // kSpecial or 0
  std::vector<uint8_t> combining;                  // class
  std::unordered_map<uint64_t, uint32_t> joined;   // first << 32 | second -> code
  std::unordered_map<uint32_t, uint64_t> divided;  // code -> first << 32 | second

  Tables() : kind(0x110000), combining(0x110000) {
    for (const CombiningRange& r : combining_ranges())
      for (uint32_t c = r.first; c <= r.last; c++) combining[c] = r.kind, kind[c] = kSpecial;
    for (const Decomposition& d : decompositions()) {
      divided.emplace(d.code, uint64_t(d.first) << 32 | d.second);
      if (d.composes) joined.emplace(uint64_t(d.first) << 32 | d.second, d.code);
      if (!d.composes) kind[d.code] = kSpecial;
      if (d.composes && d.second) kind[d.second] = kSpecial;
    }
    std::fill(&kind[kV], &kind[kV] + kVs, kSpecial);
    std::fill(&kind[kT], &kind[kT] + kTs, kSpecial);
  }
};
const Tables& tables() {
  static const Tables t;
  return t;
}

void decompose(const Tables& t, uint32_t code, std::u32string& out) {
  if (code - kS < kLs * kVs * kTs) {
    uint32_t s = code - kS;
    out += char32_t(kL + s / (kVs * kTs));
    out += char32_t(kV + s % (kVs * kTs) / kTs);
    if (s % kTs) out += char32_t(kT + s % kTs);
    return;
  }
  auto it = t.divided.find(code);
  if (it == t.divided.end()) {
    out += char32_t(code);
    return;
  }
  decompose(t, uint32_t(it->second >> 32), out);
  if (uint32_t(it->second)) decompose(t, uint32_t(it->second), out);
}

uint32_t compose(const Tables& t, uint32_t a, uint32_t b) {
  if (a - kL < kLs && b - kV < kVs) return kS + ((a - kL) * kVs + (b - kV)) * kTs;
  if (a - kS < kLs * kVs * kTs && (a - kS) % kTs == 0 && b - kT - 1 < kTs - 1) return a + (b - kT);
  auto it = t.joined.find(uint64_t(a) << 32 | b);
  return it == t.joined.end() ? kNone : it->second;
}

// Orders runs of marks by class, then joins each character to the last starter where nothing stands between.
void reorder_and_compose(const Tables& t, std::u32string& s) {
  for (size_t i = 0; i < s.size();) {
    size_t end = i;
    while (end < s.size() && t.combining[s[end]]) end++;
    if (end > i + 1)
      std::stable_sort(s.begin() + ptrdiff_t(i), s.begin() + ptrdiff_t(end),
                       [&](char32_t a, char32_t b) { return t.combining[a] < t.combining[b]; });
    i = end + (end == i);
  }
  size_t to = 0, starter = s.size();  // none yet
  int last = -1;                      // class of the character kept last after the starter; -1 = none
  for (size_t i = 0; i < s.size(); i++) {
    const uint32_t c = s[i];
    const int k = t.combining[c];
    const uint32_t both = starter < to && last < k ? compose(t, s[starter], c) : kNone;
    if (both != kNone) {
      s[starter] = both;
      continue;
    }
    if (k == 0) starter = to;
    last = k == 0 ? -1 : k;
    s[to++] = char32_t(c);
  }
  s.resize(to);
}

}  // namespace

bool surely_nfc(std::string_view text) {
  const uint8_t* kind = tables().kind.data();
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < 0x80) {
      at++;
      continue;
    }
    CodePoint c = code_point_at(text, at);
    if (c.valid && kind[c.code]) return false;
    at += c.bytes;
  }
  return true;
}

void append_nfc(std::string& out, std::string_view text) {
  const Tables& t = tables();
  std::u32string segment;
  // A segment is a character that nothing reaches across from before, and all that may join or pass it.
  size_t kept = 0, begin = 0;  // text before `kept` is in out; a segment could begin at `begin`
  for (size_t at = 0; at < text.size();) {
    CodePoint c = code_point_at(text, at);
    if (!c.valid || !t.kind[c.code]) {
      begin = c.valid ? at : at + c.bytes;
      at += c.bytes;
      continue;
    }
    out.append(text, kept, begin - kept);
    segment.clear();
    for (at = begin; at < text.size();) {
      c = code_point_at(text, at);
      if (!c.valid || (at > begin && !t.kind[c.code])) break;
      decompose(t, c.code, segment);
      at += c.bytes;
    }
    reorder_and_compose(t, segment);
    for (char32_t code : segment) append_utf8(out, code);
    kept = begin = at;
  }
  out.append(text, kept);
}

bool is_word_char(uint32_t code) {
  auto ranges = word_ranges();
  auto it = std::upper_bound(ranges.begin(), ranges.end(), code,
                             [](uint32_t c, const CodeRange& r) { return c < r.first; });
  return it != ranges.begin() && code <= std::prev(it)->last;
}

}  // namespace trireme
