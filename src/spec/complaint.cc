#include "spec/complaint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "spec/suggest.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {
namespace {

constexpr int64_t kNear = 64;        // whole numbers tried on either side of a value
constexpr size_t kMostEachSide = 2;  // values shown, at most
constexpr size_t kMostValueBytes = 80;

// Calls visit(info, field) for one key of a run.
template <class Visit>
void visit_key(RunSpec& run, const std::string& key, const Visit& visit) {
  Walk walk(
      [&](const FieldInfo& info, FieldRef ref) {
        if (info.key == key) visit(info, ref);
      },
      [](const std::string&, std::string_view) {});
  run.visit(walk);
}

std::string value_of(RunSpec run, const std::string& key) {
  std::string value;
  visit_key(run, key, [&](const FieldInfo& info, FieldRef ref) { value = field_text(info, ref, "").value; });
  if (value.size() > kMostValueBytes) value = value.substr(0, kMostValueBytes) + "...";
  return value;
}

// The value of `key`: as written, else as it follows from the other keys.
std::string value_of(const ComplaintSource& from, const std::string& key) {
  const std::optional<std::string> given = from.given(key);
  std::string value = given ? *given : value_of(from.run, key);
  if (value.ends_with(".0")) value.resize(value.size() - 2);  // 5e5 is 500000 here
  return value;
}

std::string joined_text(std::string value, const std::string& text) {
  if (text.empty()) return value;
  return text.front() == ':' ? value + text : value + " " + text;
}

bool same(const Problem& a, const Problem& b) {
  return a.keys == b.keys;
}
bool among(const Problem& p, const std::vector<Problem>& all) {
  return std::any_of(all.begin(), all.end(), [&](const Problem& q) { return same(p, q); });
}

// Whole numbers near `value`, and those that the values of other keys suggest: they, their divisors, and
// their multiples next to `value`.
std::set<int64_t> whole_candidates(int64_t value, const std::vector<int64_t>& others) {
  std::set<int64_t> out;
  for (int64_t d = -kNear; d <= kNear; d++) out.insert(value + d);
  for (const int64_t other : others) {
    if (other < 1) continue;
    out.insert(other);
    out.insert(value / other * other);
    out.insert((value / other + 1) * other);
    for (int64_t d = 1; d <= kNear && d <= other; d++)
      if (other % d == 0) out.insert(d), out.insert(other / d);
  }
  for (int64_t n = 1; n <= kNear; n++) out.insert(n);
  return out;
}

// Tries values of one key in place of the requested value.
class Remedies {
 public:
  Remedies(const ComplaintSource& from, const std::vector<Problem>& all, const std::vector<Problem>& mine,
           const std::string& key)
      : from_(from), all_(all), mine_(mine), key_(key) {}

  // "1, 2 or 4"; empty: no value of those that were tried does.
  std::string text() {
    if (key_ == "model.arch" || key_ == "model.from") return "";  // they change the defaults of other keys
    RunSpec run = from_.run;
    visit_key(run, key_, [&](const FieldInfo& info, FieldRef ref) { try_values(info, ref); });
    std::string out;
    for (size_t i = 0; i < found_.size(); i++)
      out += (i == 0 ? "" : i + 1 < found_.size() ? ", " : " or ") + found_[i];
    return out;
  }

 private:
  bool works(const std::function<void(FieldRef)>& put) const {
    RunSpec run = from_.asked;
    visit_key(run, key_, [&](const FieldInfo&, FieldRef ref) { put(ref); });
    run.model.finish(run.data.seq_len);
    const std::vector<Problem> left = from_.check(run);
    return std::all_of(left.begin(), left.end(),
                       [&](const Problem& p) { return among(p, all_) && !among(p, mine_); });
  }

  void try_values(const FieldInfo& info, FieldRef ref) {
    if (auto** flag = std::get_if<bool*>(&ref)) {
      const bool other = !**flag;
      if (works([&](FieldRef r) { *std::get<bool*>(r) = other; })) found_.push_back(other ? "true" : "false");
    } else if (auto** whole = std::get_if<int64_t*>(&ref)) {
      try_whole(**whole, info.rule);
    } else if (std::holds_alternative<std::string*>(ref)) {
      for (std::string_view choice : info.rule.choices)
        if (works([&](FieldRef r) { *std::get<std::string*>(r) = choice; })) found_.push_back(shown(choice));
    }
  }

  void try_whole(int64_t value, const Rule& rule) {
    std::vector<int64_t> others;
    RunSpec run = from_.run;
    for (const Problem& p : mine_)
      for (const std::string& key : p.keys)
        if (key != key_)
          visit_key(run, key, [&](const FieldInfo&, FieldRef ref) {
            if (auto** n = std::get_if<int64_t*>(&ref)) others.push_back(**n);
          });
    std::vector<int64_t> below, above;
    for (const int64_t n : whole_candidates(value, others)) {
      if (n == value || n < 1 || double(n) < rule.low || double(n) > rule.high) continue;
      if (n > value && above.size() == kMostEachSide) break;
      if (works([&](FieldRef r) { *std::get<int64_t*>(r) = n; })) (n < value ? below : above).push_back(n);
    }
    if (below.size() > kMostEachSide) below.erase(below.begin(), below.end() - kMostEachSide);
    for (const auto& side : {below, above})
      for (const int64_t n : side) found_.push_back(fmt::format("{}", n));
  }

  const ComplaintSource& from_;
  const std::vector<Problem>&all_, &mine_;
  std::string key_;
  std::vector<std::string> found_;
};

bool has_remedy(const std::string& text) {
  for (const char* verb : {"give ", "remove ", "change "})
    if (text.find(verb) != std::string::npos) return true;
  return false;
}

}  // namespace

std::string text_of(const RunSpec& run, const Problem& p) {
  return fmt::format("{}: {}", p.keys.front(), joined_text(value_of(run, p.keys.front()), p.text));
}

std::vector<Complaint> complaints_of(const ComplaintSource& from, const std::vector<Problem>& all) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Problem>> by_key;
  for (const Problem& p : all) {
    auto it = p.keys.end();
    if (from.given_by_set) it = std::find_if(p.keys.begin(), p.keys.end(), from.given_by_set);
    if (it == p.keys.end())
      it = std::find_if(p.keys.begin(), p.keys.end(), [&](auto& k) { return from.given(k).has_value(); });
    const std::string& key = it == p.keys.end() ? p.keys.front() : *it;
    if (!by_key.contains(key)) order.push_back(key);
    by_key[key].push_back(p);
  }
  std::vector<Complaint> out;
  for (const std::string& key : order) {
    const std::vector<Problem>& mine = by_key[key];
    std::string text = value_of(from, key);
    bool own = false, remedy = false;  // the line speaks of the key's own value; it has a remedy
    for (const Problem& p : mine) {
      const std::string& front = p.keys.front();
      if (&p == &mine.front() && front == key)
        text = joined_text(text, p.text);
      else if (front == key)
        text += "; " + joined_text("it also", p.text);
      else
        text += fmt::format("{}{}", &p == &mine.front() ? ": " : "; ",
                            joined_text(front + " = " + value_of(from, front), p.text));
      own = own || front == key;
      remedy = remedy || has_remedy(p.text);
    }
    if (!remedy || !own || mine.size() > 1)
      if (const std::string values = Remedies(from, all, mine, key).text(); !values.empty())
        text += own ? fmt::format("; give {}", values)
                    : fmt::format("; {}give {} = {}", remedy ? "or " : "", key, values);
    out.push_back({key, text});
  }
  return out;
}

}  // namespace trireme
