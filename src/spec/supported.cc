#include "spec/supported.h"

#include <algorithm>
#include <functional>

#include "spec/complaint.h"
#include "spec/walk.h"

namespace trireme {
namespace {

// A value to try: its text, and how it is put into its field.
struct Candidate {
  std::string text;
  std::function<void(FieldRef)> put;
};

// Of choices and of true and false all; of whole numbers the smallest few, where limits are.
std::vector<Candidate> candidates_of(const FieldInfo& info, FieldRef ref) {
  std::vector<Candidate> out;
  if (std::holds_alternative<std::string*>(ref))
    for (std::string_view c : info.rule.choices)
      out.push_back({std::string(c), [c](FieldRef r) { *std::get<std::string*>(r) = c; }});
  if (std::holds_alternative<bool*>(ref))
    for (bool b : {false, true})
      out.push_back({b ? "true" : "false", [b](FieldRef r) { *std::get<bool*>(r) = b; }});
  constexpr int64_t kTried = 4;
  if (std::holds_alternative<int64_t*>(ref))
    for (auto n = int64_t(info.rule.low); n <= std::min(info.rule.high, info.rule.low + kTried - 1); n++)
      out.push_back({std::to_string(n), [n](FieldRef r) { *std::get<int64_t*>(r) = n; }});
  return out;
}

// The defaults alone, with each axis at 2, and with experts: what is refused only for want of another axis is
// not a limit of the version.
std::vector<RunSpec> surroundings() {
  std::vector<RunSpec> out(2);
  out[1].train.device = "cuda", out[1].train.sum_order = "auto";  // what runs on GPUs
  for (auto axis : {&LayoutSpec::dp, &LayoutSpec::tp, &LayoutSpec::pp, &LayoutSpec::cp, &LayoutSpec::ep}) {
    out.emplace_back();
    out.back().layout.*axis = 2;
  }
  out.emplace_back().model.experts = 12;  // beside which ep is something
  return out;
}

bool refused(RunSpec run, const std::string& key, const Candidate& value) {
  Walk walk(
      [&](const FieldInfo& info, FieldRef ref) {
        if (info.key == key) value.put(ref);
      },
      [](const std::string&, std::string_view) {});
  run.visit(walk);
  const std::vector<Problem> all = unsupported_of(run);
  return std::any_of(all.begin(), all.end(), [&](const Problem& p) { return p.keys.front() == key; });
}

std::string joined_by_or(const std::vector<std::string>& values) {
  if (values.size() == 1) return values[0] + " only";
  std::string out;
  for (size_t i = 0; i < values.size(); i++)
    out += (i == 0 ? "" : i + 1 < values.size() ? ", " : " or ") + values[i];
  return out;
}

}  // namespace

std::map<std::string, std::string> limits_of_version() {
  std::map<std::string, std::string> limits;
  const std::vector<RunSpec> beside = surroundings();
  RunSpec any;
  Walk walk(
      [&](const FieldInfo& info, FieldRef ref) {
        const std::vector<Candidate> all = candidates_of(info, ref);
        std::vector<std::string> run;
        for (const Candidate& c : all)
          if (std::any_of(beside.begin(), beside.end(),
                          [&](const RunSpec& r) { return !refused(r, info.key, c); }))
            run.push_back(c.text);
        if (run.size() < all.size() && !run.empty()) limits[info.key] = joined_by_or(run);
      },
      [](const std::string&, std::string_view) {});
  any.visit(walk);
  return limits;
}

std::string why_not_run(const RunSpec& run) {
  for (const std::vector<Problem>& all : {problems_of(run), unsupported_of(run)})
    if (!all.empty()) return text_of(run, all[0]);
  return "";
}

}  // namespace trireme
