#include "tasks/harness_score.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/counted.h"
#include "base/error.h"
#include "spec/suggest.h"
#include "tasks/python_regex.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

std::string strip(const std::string& s) {
  constexpr std::string_view kBlanks = " \t\n\r\v\f";
  const size_t begin = s.find_first_not_of(kBlanks);
  return begin == std::string::npos ? "" : s.substr(begin, s.find_last_not_of(kBlanks) - begin + 1);
}

// ASCII letters alone.
std::string in_case(std::string s, char first, int shift) {
  for (char& c : s)
    if (c >= first && c < first + 26) c = char(c + shift);
  return s;
}
std::string lower(std::string s) {
  return in_case(std::move(s), 'A', 32);
}
std::string upper(std::string s) {
  return in_case(std::move(s), 'a', -32);
}

std::string without(std::string s, std::string_view characters) {
  std::erase_if(s, [&](char c) { return characters.find(c) != std::string_view::npos; });
  return s;
}

// Python's len() of a text: characters.
double characters(const std::string& s) {
  return double(std::count_if(s.begin(), s.end(),
                              [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

const std::string kStandardPattern = "#### (\\-?[0-9\\.\\,]+)";

std::string regex_filter(const ordered_json& f, const std::string& answer, const std::string& where) {
  const PythonRegex regex(f.value("regex_pattern", kStandardPattern), where + ": regex_pattern");
  const std::string fallback = f.value("fallback", "[invalid]");
  const auto all = regex.find_all(answer);
  const int64_t select = f.value("group_select", int64_t(0));
  const int64_t at = select < 0 ? int64_t(all.size()) + select : select;
  if (all.empty()) return fallback;
  if (at < 0 || at >= int64_t(all.size()))
    bad_request("{}: group_select = {}: an answer has {}", where, select,
                counted(all.size(), "match", "matches"));
  const std::vector<std::string>& groups = all[size_t(at)];
  if (groups.size() == 1) return strip(groups[0]);
  const auto first =
      std::find_if(groups.begin(), groups.end(), [](const std::string& g) { return !g.empty(); });
  return strip(first == groups.end() ? fallback : *first);
}

bool all_texts(const ordered_json& map) {
  return map.is_object() &&
         std::all_of(map.begin(), map.end(), [](const ordered_json& v) { return v.is_string(); });
}

std::string normal_form_of(const HarnessMetric& m, const std::vector<PythonRegex>& ignored, std::string s) {
  for (const PythonRegex& r : ignored) s = r.remove_all(s);
  if (m.ignore_case) s = lower(std::move(s));
  if (m.ignore_punctuation) s = without(std::move(s), "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
  if (m.ignore_numbers) s = without(std::move(s), "0123456789");
  return s;
}

HarnessScore score_of(const std::string& metric, const std::string& filter,
                      const std::vector<double>& values) {
  const MeanOfTasks m = mean_of_tasks(values);
  return {metric, filter, m.mean, m.standard_error};
}

size_t first_of_largest(const std::vector<double>& values) {
  return size_t(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

void check_filter(const HarnessFilter& filter) {
  // Functions, and their arguments.
  static const std::map<std::string, std::vector<std::string>> kKnown = {
      {"regex", {"regex_pattern", "group_select", "fallback"}},
      {"remove_whitespace", {}},
      {"lowercase", {}},
      {"uppercase", {}},
      {"map", {"mapping_dict", "default_value"}},
      {"take_first", {}}};
  for (const ordered_json& f : filter.functions) {
    const bool named = f.is_object() && f.contains("function") && f["function"].is_string();
    const auto known = kKnown.find(named ? f["function"].get<std::string>() : "");
    if (known == kKnown.end())
      bad_request(
          "{}: {}: not supported; use regex, remove_whitespace, lowercase, uppercase, map, take_first",
          filter.where, f.dump());
    for (const auto& [key, value] : f.items()) {
      if (key == "function") continue;
      if (std::find(known->second.begin(), known->second.end(), key) == known->second.end())
        bad_request("{}: {}: no argument of {}{}", filter.where, key, known->first,
                    did_you_mean(key, known->second));
      const bool sound = key == "group_select" ? value.is_number_integer()
                         : key == "mapping_dict"
                             ? all_texts(value)
                             : value.is_string() || (key == "default_value" && value.is_null());
      if (!sound)
        bad_request("{}: {} = {}: expected {}", filter.where, key, value.dump(),
                    key == "group_select"   ? "an integer"
                    : key == "mapping_dict" ? "a map of texts"
                                            : "a text");
    }
    if (known->first == "regex")
      PythonRegex(f.value("regex_pattern", kStandardPattern), filter.where + ": regex_pattern");
    if (known->first == "map" && !f.contains("mapping_dict"))
      bad_request("{}: map: no mapping_dict", filter.where);
  }
}

std::string filtered_answer(const HarnessFilter& filter, const std::string& answer) {
  std::string s = answer;
  for (const ordered_json& f : filter.functions) {
    const std::string name = f.is_object() ? f.value("function", "") : "";
    if (name == "take_first") continue;  // there is one answer
    if (name == "regex")
      s = regex_filter(f, s, filter.where);
    else if (name == "remove_whitespace")
      s = strip(s);
    else if (name == "lowercase")
      s = lower(s);
    else if (name == "uppercase")
      s = upper(s);
    else if (name == "map")
      s = f["mapping_dict"].value(s, f.contains("default_value") && f["default_value"].is_string()
                                         ? f["default_value"].get<std::string>()
                                         : "None");
  }
  return s;
}

std::vector<HarnessScore> score_choices(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                                        const std::vector<std::vector<double>>& log_likelihoods) {
  std::vector<HarnessScore> scores;
  for (const HarnessMetric& m : task.metrics) {
    std::vector<double> right;
    for (size_t i = 0; i < requests.size(); i++) {
      const HarnessRequest& r = requests[i];
      std::vector<double> values = log_likelihoods[i];
      for (size_t c = 0; c < values.size(); c++) {
        if (m.name == "acc_norm") values[c] /= characters(r.choices[c]);
        if (m.name == "acc_bytes") values[c] /= double(r.choices[c].size());
      }
      const auto picked = int64_t(first_of_largest(values));
      right.push_back(std::find(r.right.begin(), r.right.end(), picked) != r.right.end());
    }
    scores.push_back(score_of(m.name, "none", right));
  }
  return scores;
}

std::vector<HarnessScore> score_texts(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                                      const std::vector<std::string>& texts) {
  std::vector<HarnessScore> scores;
  for (const HarnessFilter& filter : task.filters)
    for (const HarnessMetric& m : task.metrics) {
      std::vector<PythonRegex> ignored;
      for (const std::string& pattern : m.regexes_to_ignore)
        ignored.emplace_back(pattern, task.file + ": metric_list.regexes_to_ignore");
      std::vector<double> right;
      for (size_t i = 0; i < requests.size(); i++) {
        const std::string said = normal_form_of(m, ignored, filtered_answer(filter, texts[i]));
        const auto& answers = requests[i].answers;
        right.push_back(std::any_of(answers.begin(), answers.end(), [&](const std::string& a) {
          return normal_form_of(m, ignored, a) == said;
        }));
      }
      scores.push_back(score_of(m.name, filter.name, right));
    }
  return scores;
}

std::vector<HarnessScore> score_rolling(const HarnessTask& task, const std::vector<HarnessRequest>& requests,
                                        const std::vector<double>& log_likelihoods) {
  double sum = 0;
  double bytes = 0;
  double words = 0;
  const PythonRegex blanks("\\s+", task.file);
  for (size_t i = 0; i < requests.size(); i++) {
    const std::string& text = requests[i].continuations[0];
    sum += log_likelihoods[i];
    bytes += double(text.size());
    words += double(blanks.find_all(text).size() + 1);  // len(re.split(r"\s+", text))
  }
  std::vector<HarnessScore> scores;
  for (const HarnessMetric& m : task.metrics) {
    const double value = m.name == "word_perplexity"   ? std::exp(-sum / words)
                         : m.name == "byte_perplexity" ? std::exp(-sum / bytes)
                                                       : -sum / bytes / std::log(2.0);
    scores.push_back({m.name, "none", value, std::nan("")});
  }
  return scores;
}

}  // namespace trireme
