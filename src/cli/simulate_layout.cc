#include "cli/simulate_layout.h"

#include <algorithm>
#include <sstream>

#include "base/error_lines.h"
#include "base/say.h"
#include "cli/plan_subject.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

// "tp=8 pp=16": keys of [layout]; micro and global of [batch], seq of [data]; or any key in full.
std::vector<std::string> sets_of_layout(const std::string& text) {
  std::vector<std::string> sets;
  std::istringstream words(text);
  for (std::string w; words >> w;) {
    const std::string key = w.substr(0, w.find('='));
    std::string full = key.find('.') == key.npos ? "layout." + key : key;
    if (key == "micro" || key == "global") full = "batch." + key;
    if (key == "seq") full = "data.seq_len";
    const auto same = [&](const std::string& set) { return set.starts_with(full + "="); };
    if (const auto at = std::find_if(sets.begin(), sets.end(), same); at != sets.end())
      bad_request("--layout: {} is given twice: {} and {}; expected one value", key,
                  at->substr(full.size() + 1), w.substr(std::min(w.size(), key.size() + 1)));
    sets.push_back(full + w.substr(key.size()));
  }
  return sets;
}

std::vector<std::string> sets_of(const SimulateRunRequest& q) {
  std::vector<std::string> sets = sets_of_layout(q.layout);
  sets.insert(sets.end(), q.run.sets.begin(), q.run.sets.end());
  return sets;
}

}  // namespace

void tell_unnamed(const RunSpec& run, const SimulateRunRequest& q) {
  const std::vector<std::string> sets = sets_of(q);
  std::string unnamed;
  const auto tell = [&](std::string_view key, std::string_view word, int64_t taken) {
    for (const std::string& set : sets)
      for (const TomlEntry& e : parse_set(set))
        if (e.key == key) return;
    unnamed += fmt::format("{}{}={}", unnamed.empty() ? "" : " ", word, taken);
  };
  tell("data.seq_len", "seq", run.data.seq_len);
  tell("batch.global", "global", run.batch.global);
  tell("batch.micro", "micro", run.batch.micro);
  if (!unnamed.empty()) say("note: --layout does not name, so these are taken: {}\n", unnamed);
}

RunSpec run_of_options(const SimulateRunRequest& q, ScaledRun& s) {
  RunSpec base;
  PlanSubject subject;
  subject.model = q.model;
  const SubjectModel model = model_of(subject);
  base.model = *model.shape;
  base.model.max_positions = 0;
  const ShapeExtras extras = extras_of(q.model, profile_of(q.software));
  s.window = extras.window;
  s.window_share = extras.window_share;
  s.expert_bias = extras.expert_bias;
  try {
    return parse_run(save_run(base), "--layout", sets_of(q));
  } catch (const ErrorLines& e) {  // a key of --layout is read as one of --set
    std::vector<std::string> lines = e.lines;
    const std::string_view set = "--set: ", layout = q.run.sets.empty() ? "--layout: " : "--layout, --set: ";
    for (std::string& line : lines)
      if (line.starts_with(set)) line.replace(0, set.size(), layout);
    throw ErrorLines(std::move(lines), e.fault);
  }
}

}  // namespace trireme::cli
