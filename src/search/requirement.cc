#include "search/requirement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "spec/suggest.h"

namespace trireme {
namespace {

struct KeyRow {
  std::string_view name;
  RequirementLevel level;
  int64_t (*number)(const SearchLayout&);         // null: a text key
  std::string_view (*text)(const SearchLayout&);  // null: a number
  std::string_view allowed;                       // values of a text key; numbers besides those >= 1
};

constexpr std::string_view kSchedules = "1f1b gpipe interleaved zb-h1 zb-h2 zb-v v-half v-min dualpipe-v";
std::string_view recompute_of(const SearchLayout& l) {
  return name_of(l.again);
}

using Level = RequirementLevel;
constexpr std::array kKeys = {
    KeyRow{"tp", Level::division, [](const SearchLayout& l) { return l.tp; }, nullptr, ""},
    KeyRow{"pp", Level::division, [](const SearchLayout& l) { return l.pp; }, nullptr, ""},
    KeyRow{"dp", Level::division, [](const SearchLayout& l) { return l.dp; }, nullptr, ""},
    KeyRow{"cp", Level::division, [](const SearchLayout& l) { return l.cp; }, nullptr, ""},
    KeyRow{"ep", Level::division, [](const SearchLayout& l) { return l.ep; }, nullptr, ""},
    KeyRow{"gpus", Level::division, [](const SearchLayout& l) { return l.gpus; }, nullptr, ""},
    KeyRow{"global", Level::division, [](const SearchLayout& l) { return l.global; }, nullptr, ""},
    KeyRow{"micro", Level::microbatch, [](const SearchLayout& l) { return l.micro; }, nullptr, ""},
    KeyRow{"microbatches", Level::microbatch, [](const SearchLayout& l) { return l.microbatches(); }, nullptr,
           ""},
    KeyRow{"schedule", Level::schedule, nullptr, [](const SearchLayout& l) { return l.schedule; },
           kSchedules},
    KeyRow{"chunks", Level::schedule, [](const SearchLayout& l) { return l.chunks; }, nullptr, ""},
    KeyRow{"recompute", Level::schedule, nullptr, recompute_of, "none selective full"},
    KeyRow{"zero", Level::sharding, [](const SearchLayout& l) { return int64_t(l.zero); }, nullptr,
           "0 1 2 3"},
    KeyRow{"shard_group", Level::sharding, [](const SearchLayout& l) { return l.shards; }, nullptr, "0"},
    KeyRow{"offload", Level::offload, nullptr,
           [](const SearchLayout& l) -> std::string_view { return l.offload ? "state" : "none"; },
           "none state"},
    KeyRow{"order", Level::order, nullptr, [](const SearchLayout& l) { return order_of(l.nearest); },
           "pp dp cp tp|dp pp cp tp|pp tp cp dp"},
};

const KeyRow* row_of(std::string_view key) {
  for (const KeyRow& row : kKeys)
    if (row.name == key) return &row;
  return nullptr;
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(at);
    std::string_view part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.emplace_back(part);
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string> allowed_of(const KeyRow& row) {
  if (row.allowed.empty()) return {};
  return split(row.allowed, row.allowed.find('|') == std::string_view::npos ? ' ' : '|');
}

bool is_number(const std::string& text, int64_t& n) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() && n >= 0;
}

// Numbers before texts, each ascending.
std::vector<std::string> sorted(const std::set<std::string>& values) {
  std::vector<std::string> all(values.begin(), values.end());
  std::sort(all.begin(), all.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  int64_t n = 0;
  if (!all.empty() && !is_number(all[0], n)) std::sort(all.begin(), all.end());
  return all;
}

void check_values(const Requirement& r, const KeyRow& row) {
  const std::vector<std::string> allowed = allowed_of(row);
  for (const std::string& value : r.values) {
    int64_t n = 0;
    const bool known = std::find(allowed.begin(), allowed.end(), value) != allowed.end();
    const bool closed = row.text || row.name == "zero";
    if (closed ? known : is_number(value, n) && (n > 0 || known)) continue;
    if (closed)
      bad_request("{} {}: {} = {}: expected {}", r.source, r.text, row.name, value, fmt::join(allowed, ", "));
    bad_request("{} {}: {} = {}: expected an integer >= {}", r.source, r.text, row.name, value,
                allowed.empty() ? 1 : 0);
  }
}

}  // namespace

std::vector<std::string> requirement_keys() {
  std::vector<std::string> all;
  for (const KeyRow& row : kKeys) all.emplace_back(row.name);
  return all;
}

// The last two are values of the run, which the search's caller takes.
static std::string keys_text() {
  return fmt::format("{}, precision, seq_len", fmt::join(requirement_keys(), ", "));
}

std::string value_of(std::string_view key, const SearchLayout& l) {
  const KeyRow* row = row_of(key);
  require(row != nullptr, "a key of requirements");
  return row->text ? std::string(row->text(l)) : std::to_string(row->number(l));
}

Requirement parse_requirement(std::string_view text, std::string source) {
  Requirement r{.text = std::string(text), .source = std::move(source)};
  const size_t condition = text.find(" if ");
  const std::string_view own = text.substr(0, condition);
  const size_t at = own.find_first_of("=<>!");
  const std::string_view form = at == own.npos ? "" : own.substr(at, own.find_first_not_of("=<>!", at) - at);
  using Form = std::pair<std::string_view, Requirement::Is>;
  static constexpr std::array<Form, 7> kForms = {{{"=", Requirement::Is::one_of},
                                                  {"==", Requirement::Is::one_of},
                                                  {"!=", Requirement::Is::none_of},
                                                  {"<", Requirement::Is::less},
                                                  {"<=", Requirement::Is::at_most},
                                                  {">", Requirement::Is::more},
                                                  {">=", Requirement::Is::at_least}}};
  const auto* found =
      std::find_if(kForms.begin(), kForms.end(), [&](const auto& f) { return form == f.first; });
  const std::string_view after = at == own.npos ? "" : own.substr(at + form.size());
  if (found == kForms.end() || after.empty())
    bad_request("{} {}: expected KEY=VALUE, KEY=VALUE,VALUE, KEY!=VALUE, or <, <=, >, >=; keys: {}", r.source,
                text, keys_text());
  r.is = found->second;
  r.key = split(own.substr(0, at), '\n').front();
  const KeyRow* row = row_of(r.key);
  if (!row) {
    const std::vector<std::string> keys = requirement_keys();
    const std::string near = suggest(r.key, keys);
    bad_request("{} {}: no key {}{}; keys: {}", r.source, text, r.key,
                near.empty() ? "" : ", did you mean " + near + "?", keys_text());
  }
  r.values = split(after, ',');
  r.level = row->level;
  check_values(r, *row);
  const bool compares = r.is != Requirement::Is::one_of && r.is != Requirement::Is::none_of;
  if (compares && (row->text || r.values.size() > 1))
    bad_request("{} {}: {} takes one number; {} takes = and !=", r.source, text, form, r.key);
  if (condition == text.npos) return r;
  r.only_if.push_back(parse_requirement(text.substr(condition + 4), r.source));
  r.level = std::max(r.level, r.only_if[0].level);
  return r;
}

bool Requirement::allows(const SearchLayout& l) const {
  if (!only_if.empty() && !only_if[0].allows(l)) return true;
  return allows_value(value_of(key, l));
}

bool Requirement::allows_value(const std::string& value) const {
  if (is == Is::one_of || is == Is::none_of) {
    const bool in = std::find(values.begin(), values.end(), value) != values.end();
    return in == (is == Is::one_of);
  }
  int64_t bound = 0;
  int64_t n = 0;
  is_number(values[0], bound);
  is_number(value, n);
  if (is == Is::less) return n < bound;
  if (is == Is::at_most) return n <= bound;
  return is == Is::more ? n > bound : n >= bound;
}

void refuse_contradiction(const std::vector<Requirement>& all) {
  const auto agree = [](const Requirement& a, const Requirement& b) {
    // A value that both allow is among their own, or next to a bound.
    for (const Requirement* r : {&a, &b})
      for (const std::string& value : r->values) {
        std::vector<std::string> tried = {value};
        if (int64_t n = 0; is_number(value, n)) {
          tried.push_back(std::to_string(n + 1));
          if (n > 0) tried.push_back(std::to_string(n - 1));
        }
        for (const std::string& v : tried)
          if (a.allows_value(v) && b.allows_value(v)) return true;
      }
    return a.is == Requirement::Is::none_of && b.is == Requirement::Is::none_of;
  };
  for (size_t i = 0; i < all.size(); i++)
    for (size_t j = 0; j < i; j++) {
      const Requirement& a = all[j];
      const Requirement& b = all[i];
      if (a.key != b.key || a.source != b.source || !a.only_if.empty() || !b.only_if.empty()) continue;
      if (!agree(a, b))
        bad_request("{0} {1} and {2} {3}: no layout has both; give one of the two", a.source, a.text,
                    b.source, b.text);
    }
}

bool meets(const std::vector<Requirement>& all, RequirementLevel level, const SearchLayout& l,
           RejectedValues& rejected) {
  for (size_t i = 0; i < all.size(); i++) {
    if (all[i].level != level || all[i].allows(l)) continue;
    rejected.resize(all.size());
    rejected[i].insert(value_of(all[i].key, l));
    return false;
  }
  return true;
}

std::string unmet_text(const std::vector<Requirement>& all, const RejectedValues& rejected) {
  // The innermost loop that a layout reached shows which requirement no layout meets.
  size_t at = all.size();
  for (size_t i = 0; i < rejected.size(); i++)
    if (!rejected[i].empty() && (at == all.size() || all[i].level >= all[at].level)) at = i;
  if (at == all.size()) return "no layout divides the model and the batch";
  const Requirement& r = all[at];
  std::string others;
  for (size_t i = 0; i < all.size(); i++)
    if (i != at && all[i].source != r.source && all[i].source != "--require") others = all[i].source;
  for (size_t i = 0; i < all.size(); i++)
    if (i != at && all[i].source == "--require" && all[i].level <= r.level)
      others += (others.empty() ? "" : ", ") + all[i].text;
  return fmt::format("{} {}: no layout{} has it; {} can be {}", r.source, r.text,
                     others.empty() ? "" : " with " + others, r.key, fmt::join(sorted(rejected[at]), ", "));
}

}  // namespace trireme
