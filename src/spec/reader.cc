#include "spec/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error_lines.h"
#include "spec/suggest.h"

namespace trireme {
namespace {

constexpr size_t kMostTables = 100;             // in one list: each becomes a spec with all its keys
constexpr double kMaxExact = 9007199254740992;  // 2^53: whole doubles up to here are exact

bool in_range(double v, const Rule& r) {  // false for NaN
  return (r.low_open ? v > r.low : v >= r.low) && (r.high_open ? v < r.high : v <= r.high);
}

std::optional<double> number_of(const TomlEntry& e) {
  if (auto* i = std::get_if<int64_t>(&e.value)) return double(*i);
  if (auto* d = std::get_if<double>(&e.value)) return *d;
  return std::nullopt;
}
std::optional<int64_t> whole_of(const TomlEntry& e) {
  if (auto* i = std::get_if<int64_t>(&e.value)) return *i;
  auto* d = std::get_if<double>(&e.value);  // 1e6 is a float in TOML, and a fine number of steps
  if (d && *d == std::floor(*d) && std::abs(*d) <= kMaxExact) return int64_t(*d);
  return std::nullopt;
}

// Each sets the field from the entry, or says what is wrong with the value and leaves the field alone.
struct Assign {
  const TomlEntry& entry;
  const Rule& rule;

  std::string wrong_type() const {
    // --set batch.global=99999999999999999999: no number of TOML, so a bare word.
    const auto* s = std::get_if<std::string>(&entry.value);
    if (s && !s->empty() && s->find_first_not_of("0123456789") == s->npos && entry.text == *s)
      return out_of_range();
    return fmt::format("{} is {}", shown(entry), kind_of(entry));
  }
  bool asked_automatic() const {
    const auto* s = std::get_if<std::string>(&entry.value);
    return rule.automatic && s && *s == "auto";
  }
  std::string out_of_range() const { return fmt::format("{} is out of range", shown(entry)); }

  std::string operator()(std::string* f) const {
    std::string text;
    if (auto* s = std::get_if<std::string>(&entry.value))
      text = *s;
    else if (!entry.text.empty() && entry.text[0] != '[' && entry.text[0] != '{')
      text = entry.text;  // --set train.dir=123: a bare word is a string where one is wanted
    else
      return wrong_type();
    if (!rule.choices.empty() &&
        std::find(rule.choices.begin(), rule.choices.end(), text) == rule.choices.end()) {
      std::vector<std::string> known(rule.choices.begin(), rule.choices.end());
      std::string meant = suggest(text, known);
      return fmt::format("{} is not known{}", shown(text),
                         meant.empty() ? "" : ", did you mean \"" + meant + "\"");
    }
    if (text.find('\0') != std::string::npos) return fmt::format("{} holds a NUL byte", shown(text));
    *f = text;
    return "";
  }
  std::string operator()(bool* f) const {
    auto* b = std::get_if<bool>(&entry.value);
    if (!b) return wrong_type();
    *f = *b;
    return "";
  }
  std::string operator()(int64_t* f) const {
    if (asked_automatic()) {
      *f = kAutomaticCount;
      return "";
    }
    auto v = whole_of(entry);
    if (!v) return wrong_type();
    if (!in_range(double(*v), rule)) return out_of_range();
    *f = *v;
    return "";
  }
  std::string operator()(double* f) const {
    if (asked_automatic()) {
      *f = kAutomatic;
      return "";
    }
    auto v = number_of(entry);
    if (!v) return wrong_type();
    if (!std::isfinite(*v) || !in_range(*v, rule)) return out_of_range();
    *f = *v;
    return "";
  }
  std::string operator()(std::array<double, 2>* f) const {
    auto* v = std::get_if<std::vector<double>>(&entry.value);
    if (!v) return wrong_type();
    if (v->size() != 2) return fmt::format("{} has {} numbers", shown(entry), v->size());
    for (double d : *v)
      if (!std::isfinite(d) || !in_range(d, rule)) return out_of_range();
    *f = {(*v)[0], (*v)[1]};
    return "";
  }
  std::string operator()(Texts* f) const {
    Texts texts;
    if (auto* list = std::get_if<std::vector<std::string>>(&entry.value))
      texts.list = *list;
    else if (auto* none = std::get_if<std::vector<double>>(&entry.value); !none || !none->empty()) {
      std::string one;
      if (std::string wrong = (*this)(&one); !wrong.empty()) return wrong;
      texts = one;
    }
    for (const std::string& s : texts)
      if (s.empty() || s.find('\0') != std::string::npos)
        return fmt::format("{} has an empty or unprintable entry", shown(entry));
    *f = texts;
    return "";
  }
  std::string operator()(Numbers* f) const {
    auto* v = std::get_if<std::vector<double>>(&entry.value);
    if (!v) return wrong_type();
    for (double d : *v)
      if (!std::isfinite(d) || !in_range(d, rule)) return out_of_range();
    *f = *v;
    return "";
  }
  std::string operator()(Ramp* f) const {
    Ramp ramp;
    const auto* none = std::get_if<std::vector<double>>(&entry.value);
    const auto* lists = std::get_if<TomlLists>(&entry.value);
    if (!lists && !(none && none->empty())) return wrong_type();
    for (const std::vector<double>& pair : lists ? *lists : TomlLists()) {
      const bool whole = std::all_of(pair.begin(), pair.end(),
                                     [](double d) { return d >= 1 && d == std::floor(d) && d <= kMaxExact; });
      if (pair.size() != 2 || !whole)
        return fmt::format("{}: stage {} is not a pair of whole numbers from 1", shown(entry),
                           ramp.size() + 1);
      ramp.push_back({.value = int64_t(pair[0]), .until = int64_t(pair[1])});
    }
    *f = ramp;
    return "";
  }
  std::string operator()(CountOrAuto* f) const {
    if (auto* s = std::get_if<std::string>(&entry.value); s && *s == "auto") {
      *f = {.count = 0, .automatic = true};
      return "";
    }
    int64_t count = 0;
    std::string wrong = (*this)(&count);
    if (wrong.empty()) *f = {.count = count, .automatic = false};
    return wrong;
  }
  std::string operator()(NumberOrDynamic* f) const {
    if (auto* s = std::get_if<std::string>(&entry.value); s && *s == "dynamic") {
      *f = {.number = 0, .dynamic = true};
      return "";
    }
    double number = 0;
    std::string wrong = (*this)(&number);
    if (wrong.empty()) *f = {.number = number, .dynamic = false};
    return wrong;
  }
  std::string operator()(ExpertLoad* f) const {
    if (auto* s = std::get_if<std::string>(&entry.value); s && (*s == "untrained" || *s == "balanced")) {
      *f = *s == "untrained" ? ExpertLoad::of_untrained() : ExpertLoad();
      return "";
    }
    double number = 0;
    std::string wrong = (*this)(&number);
    if (wrong.empty()) *f = number;
    return wrong;
  }
};

// "model.rope_scaling.x" -> "model.rope_scaling", "model"; "tier[2].size" -> "tier[2]", "tier"
bool inside(const std::string& key, const std::string& ancestor) {
  return key.size() > ancestor.size() && key.compare(0, ancestor.size(), ancestor) == 0 &&
         (key[ancestor.size()] == '.' || key[ancestor.size()] == '[');
}

}  // namespace

Reader::Reader(std::vector<TomlEntry> entries, std::string file) : file_(std::move(file)) {
  for (TomlEntry& e : entries) {
    // A section named by --set model={...} adds to the file's.
    if (std::holds_alternative<TomlTable>(e.value) && entries_.count(e.key)) continue;
    entries_.insert_or_assign(e.key, std::move(e));
  }
}

const TomlEntry* Reader::given(const std::string& key) const {
  auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

void Reader::skip(const std::string& key) {
  skipped_.insert(key);
}

std::string Reader::place(const std::string& key) const {
  const TomlEntry* e = given(key);
  if (!e) return fmt::format("{}: {}", file_, key);
  if (e->line == 0) return fmt::format("--set: {}", shown_key(key));
  return fmt::format("{}:{}: {}", file_, e->line, shown_key(key));
}

void Reader::problem(const std::string& key, const std::string& text) {
  const TomlEntry* e = given(key);
  int line = !e ? INT_MAX - 1 : e->line == 0 ? INT_MAX : e->line;  // the file, then --set
  problems_.emplace_back(line, fmt::format("{}: {}", place(key), text));
  failed_.insert(key);
}

void Reader::problem(const std::vector<std::string>& keys, const std::string& text) {
  if (any_failed(keys)) return;
  for (const std::string& k : keys)
    if (const TomlEntry* e = given(k)) return problem(k, fmt::format("{}: {}", shown(*e), text));
  problem(keys.front(), text);
}
bool Reader::any_failed(const std::vector<std::string>& keys) const {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& k) { return failed(k); });
}

void Reader::section(const std::string& key) {
  sections_.insert(key);
  const TomlEntry* e = given(key);
  if (e && !std::holds_alternative<TomlTable>(e->value))
    problem(key, fmt::format("{} is {}; it is a section: write [{}]", shown(*e), kind_of(*e), key));
}

// A list has as many tables as were given; without any it stays as it was.
size_t Reader::tables(const std::string& key, size_t size) {
  sections_.insert(key);
  const TomlEntry* e = given(key);
  if (!e) return size;
  const auto* list = std::get_if<TomlTables>(&e->value);
  if (list && list->count <= kMostTables) return list->count;
  if (list) {
    problem(key, fmt::format("{} tables in the list; give at most {}", list->count, kMostTables));
    return size;
  }
  const auto* none = std::get_if<std::vector<double>>(&e->value);
  if (none && none->empty()) return 0;
  problem(key, fmt::format("{} is {}; it is a list of tables: write [[{}]] above the keys of each", shown(*e),
                           kind_of(*e), key));
  return size;
}

void Reader::field(const FieldInfo& info, FieldRef ref) {
  fields_.insert(info.key);
  const TomlEntry* e = given(info.key);
  if (!e || skipped_.count(info.key) || failed(info.key)) return;
  std::string wrong = std::visit(Assign{*e, info.rule}, ref);
  if (wrong.empty()) return;
  FieldText f = field_text(info, ref, "");
  const bool example =
      f.value != "\"\"" && f.value != "[]" && f.value != "\"auto\"";  // the former value may show nothing
  problem(info.key, fmt::format("{}; give {}{}{}", wrong, allowed(f), example ? ", such as " : "",
                                example ? f.value : ""));
}

void Reader::report_unknown() {
  constexpr int kMost = 50;  // of a file that is something else altogether
  std::vector<std::string> known(fields_.begin(), fields_.end()), sections;
  for (const std::string& s : sections_)
    if (s.find('[') == std::string::npos) sections.push_back(s);
  int reported = 0, more = 0;
  for (const auto& [key, entry] : entries_) {
    if (fields_.count(key) || sections_.count(key) || skipped_.count(key)) continue;
    // Keys of an unknown section, or below a key that is no section, need no line of their own.
    auto holds_key = [&k = key](const std::string& failed) { return inside(k, failed); };
    if (std::any_of(failed_.begin(), failed_.end(), holds_key)) continue;
    if (++reported > kMost) {
      more++;
      continue;
    }
    const bool table =
        std::holds_alternative<TomlTable>(entry.value) || std::holds_alternative<TomlTables>(entry.value);
    std::string meant = elsewhere(key, known);
    if (table || meant.empty()) meant = suggest(key, table ? sections : known);
    std::string hint = !meant.empty() ? fmt::format("did you mean {}?", meant)
                       : table && !sections.empty()
                           ? fmt::format("sections are {}", fmt::join(sections, ", "))
                           : std::string("see all keys with `trireme config`");
    problem(key, fmt::format("unknown {}, {}", table ? "section" : "key", hint));
  }
  if (more > 0) problems_.emplace_back(INT_MAX, fmt::format("{}: and {} more unknown keys", file_, more));
}

void Reader::raise() const {
  if (problems_.empty()) return;
  auto sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.first < b.first; });
  std::vector<std::string> lines;
  for (const auto& [line, text] : sorted) lines.push_back(text);
  throw ErrorLines(std::move(lines));
}

}  // namespace trireme
