#include "text/char_set.h"

#include <algorithm>
#include <string>

namespace trireme {
namespace {

constexpr uint32_t kLast = 0x10FFFF;

// The code points whose category is one of the first letters or two-letter names in `names`, as "L Nd".
CharSet of_categories(std::string_view names) {
  auto is_wanted = [&](Category c) {
    const std::string_view name = name_of(c);
    for (size_t at = 0; at < names.size(); at++) {
      if (names[at] == ' ') continue;
      const bool whole = at + 1 < names.size() && names[at + 1] != ' ';
      if (name.starts_with(names.substr(at, whole ? 2 : 1))) return true;
      at += whole;
    }
    return false;
  };
  std::vector<CodeRange> ranges;
  for (const CategoryRange& r : category_ranges())
    if (is_wanted(r.category)) ranges.push_back({r.first, r.last});
  return CharSet(std::move(ranges));
}

CharSet assigned() {
  return of_categories("L M N P S Z C");
}

struct Property {
  std::string_view name, categories;
};
constexpr Property kProperties[] = {
    {"l", "L"},         {"letter", "L"},
    {"lu", "Lu"},       {"uppercaseletter", "Lu"},
    {"ll", "Ll"},       {"lowercaseletter", "Ll"},
    {"lt", "Lt"},       {"titlecaseletter", "Lt"},
    {"lm", "Lm"},       {"modifierletter", "Lm"},
    {"lo", "Lo"},       {"otherletter", "Lo"},
    {"lc", "Lu Ll Lt"}, {"casedletter", "Lu Ll Lt"},
    {"m", "M"},         {"mark", "M"},
    {"mn", "Mn"},       {"nonspacingmark", "Mn"},
    {"mc", "Mc"},       {"spacingmark", "Mc"},
    {"me", "Me"},       {"enclosingmark", "Me"},
    {"n", "N"},         {"number", "N"},
    {"nd", "Nd"},       {"decimalnumber", "Nd"},
    {"nl", "Nl"},       {"letternumber", "Nl"},
    {"no", "No"},       {"othernumber", "No"},
    {"p", "P"},         {"punctuation", "P"},
    {"pc", "Pc"},       {"connectorpunctuation", "Pc"},
    {"pd", "Pd"},       {"dashpunctuation", "Pd"},
    {"ps", "Ps"},       {"openpunctuation", "Ps"},
    {"pe", "Pe"},       {"closepunctuation", "Pe"},
    {"pi", "Pi"},       {"initialpunctuation", "Pi"},
    {"pf", "Pf"},       {"finalpunctuation", "Pf"},
    {"po", "Po"},       {"otherpunctuation", "Po"},
    {"s", "S"},         {"symbol", "S"},
    {"sm", "Sm"},       {"mathsymbol", "Sm"},
    {"sc", "Sc"},       {"currencysymbol", "Sc"},
    {"sk", "Sk"},       {"modifiersymbol", "Sk"},
    {"so", "So"},       {"othersymbol", "So"},
    {"z", "Z"},         {"separator", "Z"},
    {"zs", "Zs"},       {"spaceseparator", "Zs"},
    {"zl", "Zl"},       {"lineseparator", "Zl"},
    {"zp", "Zp"},       {"paragraphseparator", "Zp"},
    {"cc", "Cc"},       {"control", "Cc"},
    {"cf", "Cf"},       {"format", "Cf"},
    {"co", "Co"},       {"privateuse", "Co"},
};
struct ScriptName {
  std::string_view name;
  Script script;
};
constexpr ScriptName kScripts[] = {{"han", Script::han},
                                   {"hangul", Script::hangul},
                                   {"hiragana", Script::hiragana},
                                   {"katakana", Script::katakana}};

}  // namespace

CharSet::CharSet(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](CodeRange a, CodeRange b) { return a.first < b.first; });
  for (CodeRange r : ranges)
    if (!ranges_.empty() && r.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, r.last);
    else
      ranges_.push_back(r);
}

bool CharSet::contains(uint32_t code) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code,
                                [](uint32_t c, CodeRange r) { return c < r.first; });
  return after != ranges_.begin() && code <= (after - 1)->last;
}

CharSet CharSet::operator|(const CharSet& o) const {
  std::vector<CodeRange> both = ranges_;
  both.insert(both.end(), o.ranges_.begin(), o.ranges_.end());
  return CharSet(std::move(both));
}
CharSet CharSet::operator&(const CharSet& o) const {
  return ~(~*this | ~o);
}
CharSet CharSet::operator~() const {
  CharSet out;
  uint32_t next = 0;
  for (CodeRange r : ranges_) {
    if (r.first > next) out.ranges_.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLast) out.ranges_.push_back({next, kLast});
  return out;
}
bool CharSet::operator==(const CharSet& o) const {
  return std::equal(ranges_.begin(), ranges_.end(), o.ranges_.begin(), o.ranges_.end(),
                    [](CodeRange a, CodeRange b) { return a.first == b.first && a.last == b.last; });
}

CharSet space_chars() {
  return of_categories("Z") | CharSet({{0x9, 0xD}, {0x85, 0x85}});
}
CharSet digit_chars() {
  return of_categories("Nd");
}
CharSet class_word_chars() {
  const CharSet circled({{0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}});
  return of_categories("L M Nd Nl Pc") | circled;
}
CharSet word_chars() {
  return class_word_chars() | CharSet({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
}

std::optional<CharSet> property_chars(std::string_view name) {
  std::string plain;
  for (char c : name)
    if (c != ' ' && c != '-' && c != '_') plain += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  for (const Property& p : kProperties)
    if (plain == p.name) return of_categories(p.categories);
  for (const ScriptName& s : kScripts) {
    if (plain != s.name) continue;
    const auto ranges = script_ranges(s.script);
    return CharSet({ranges.begin(), ranges.end()});
  }
  if (plain == "c" || plain == "other") return of_categories("C") | ~assigned();
  if (plain == "cn" || plain == "unassigned") return ~assigned();
  return std::nullopt;
}

bool caseless_beyond_ascii(const CharSet& set) {
  // Some letters, marks (U+0345), letter numbers (Roman) and symbols (circled letters) have another case.
  // Characters of the other categories have none.
  static const CharSet cased = of_categories("L M Nl So") & ~CharSet({{0, 0x7F}});
  return (set & cased).empty();
}

}  // namespace trireme
