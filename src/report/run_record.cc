#include "report/run_record.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>

#include "base/counted.h"
#include "base/error.h"
#include "base/json_depth.h"
#include "base/progress.h"
#include "base/timed.h"
#include "spec/batch_ramp.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr int64_t kMostBytes = int64_t(256) << 20;  // read per file of lines, the newest
constexpr size_t kFirst = 2;                        // steps of a launch that timings leave out

double number_in(const json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number() ? it->get<double>() : kNoNumber;
}

// Seconds, rates and shares are not known if they are negative.
double amount_in(const json& j, const char* key) {
  const double v = number_in(j, key);
  return v >= 0 ? v : kNoNumber;
}

int64_t whole_in(const json& j, const char* key, int64_t otherwise = 0) {
  const auto it = j.find(key);
  if (it == j.end() || !it->is_number()) return otherwise;
  const double d = it->get<double>();
  return std::abs(d) < 9e15 ? it->get<int64_t>() : otherwise;
}

// Calls `take` with each whole line of the newest kMostBytes that is a JSON object. Returns how many were
// not.
int64_t read_lines(const fs::path& file, RunRecord& r, const std::function<void(const json&)>& take) {
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) return 0;
  const MappedFile mapped(file);
  std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  if (int64_t(text.size()) > kMostBytes) {
    text.remove_prefix(text.size() - size_t(kMostBytes));
    text.remove_prefix(std::min(text.size(), text.find('\n') + 1));
    r.notes.push_back(fmt::format("{}: {}; the newest {} are read", file.filename().string(),
                                  human_bytes(int64_t(mapped.bytes().size())), human_bytes(kMostBytes)));
  }
  int64_t damaged = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!line.empty()) {
      const json j = shallow_json(line);
      if (j.is_object())
        take(j);
      else
        damaged++;
    }
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  if (damaged > 0)
    r.notes.push_back(fmt::format("{}: {} not read (cut off or damaged)", file.filename().string(),
                                  counted(damaged, "line")));
  return damaged;
}

StepLine step_line(const json& j) {
  StepLine s;
  s.step = whole_in(j, "step");
  s.tokens = whole_in(j, "tokens");
  s.loss = number_in(j, "loss");
  s.grad_norm = number_in(j, "grad_norm");
  s.lr = number_in(j, "lr");
  s.step_s = amount_in(j, "step_s");
  s.tokens_per_s = amount_in(j, "tokens_per_s");
  s.mfu = amount_in(j, "mfu");
  s.hfu = amount_in(j, "hfu");
  s.data_s = amount_in(j, "data_s");
  s.comm_s = amount_in(j, "comm_s");
  s.eval_loss = number_in(j, "eval_loss");
  s.stall_s = amount_in(j, "checkpoint_stall_s");
  s.write_s = amount_in(j, "checkpoint_write_s");
  s.last_stall_s = amount_in(j, "last_checkpoint_stall_s");
  s.last_write_s = amount_in(j, "last_checkpoint_write_s");
  if (const auto skipped = j.find("skipped"); skipped != j.end() && skipped->is_boolean())
    s.skipped = skipped->get<bool>();
  if (const auto time = j.find("time"); time != j.end() && time->is_object()) {
    s.forward_s = amount_in(*time, "forward");
    s.backward_s = amount_in(*time, "backward");
    s.update_s = amount_in(*time, "update");
    s.norm_s = amount_in(*time, "norm");
    s.other_s = number_in(*time, "other");
  }
  if (const auto peak = j.find("peak_bytes"); peak != j.end() && peak->is_object()) {
    for (size_t i = 0; i < kBuckets; i++) s.peak[i] = whole_in(*peak, std::string(kBucketNames[i]).c_str());
    s.peak_total = whole_in(*peak, "total");
  }
  if (const auto wire = j.find("comm_bytes"); wire != j.end() && wire->is_object())
    for (const auto& [name, bytes] : wire->items())
      s.comm_bytes.emplace_back(name, whole_in(*wire, name.c_str()));
  if (const auto tasks = j.find("tasks"); tasks != j.end() && tasks->is_object())
    for (const auto& [name, score] : tasks->items())
      if (score.is_number()) s.tasks.emplace_back(name, score.get<double>());
  return s;
}

void read_metrics(RunRecord& r) {
  std::map<int64_t, StepLine> lines;
  read_lines(r.folder / "metrics.jsonl", r, [&](const json& j) {
    StepLine s = step_line(j);
    if (s.step < 1) return;
    r.repeated += int64_t(!lines.insert_or_assign(s.step, std::move(s)).second);
  });
  for (auto& [step, line] : lines) r.steps.push_back(std::move(line));
  struct stat st;
  if (::stat((r.folder / "metrics.jsonl").c_str(), &st) == 0)
    r.changed = double(st.st_mtim.tv_sec) + double(st.st_mtim.tv_nsec) * 1e-9;
}

void read_events(RunRecord& r) {
  read_lines(r.folder / "events.jsonl", r, [&](const json& j) {
    RunEvent e;
    if (const auto kind = j.find("event"); kind != j.end() && kind->is_string())
      e.kind = kind->get<std::string>();
    const double time = number_in(j, "time");
    if (e.kind.empty() || !known(time)) return;
    e.time = time;
    e.step = whole_in(j, "step", -1);
    e.all = j;
    r.events.push_back(std::move(e));
  });
  std::stable_sort(r.events.begin(), r.events.end(),
                   [](const RunEvent& a, const RunEvent& b) { return a.time < b.time; });
  read_lines(r.folder / "spikes.jsonl", r, [&](const json& j) { r.spikes.push_back(j); });
}

void read_forecast(RunRecord& r) {
  const fs::path file = r.folder / "forecast.json";
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) return r.notes.push_back("forecast.json is missing: no forecast");
  const json all = shallow_json(read_text(file));
  const auto best = all.is_object() ? all.find("best") : all.end();
  if (!all.is_object() || best == all.end() || !best->is_object())
    return r.notes.push_back("forecast.json is not a forecast");
  r.forecast = *best;
}

void read_plan(RunRecord& r) {
  const fs::path file = r.folder / "plan.toml";
  try {
    r.run = load_run(file);
  } catch (const Error& e) {
    r.notes.push_back(fmt::format("plan.toml is not read: {}", e.what()));
  }
}

int64_t bytes_in(const fs::path& folder) {
  int64_t sum = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_regular_file(ec) && !ec) sum += int64_t(it->file_size(ec));
  return sum;
}

void find_checkpoints(RunRecord& r) {
  std::error_code ec;
  fs::path newest;
  for (fs::directory_iterator it(r.folder / "checkpoints", ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    constexpr std::string_view kBegin = "step-";
    if (!name.starts_with(kBegin) || name.find_first_not_of("0123456789", kBegin.size()) != name.npos ||
        name.size() > 20 || !fs::exists(it->path() / "manifest.json", ec))
      continue;
    r.checkpoints.push_back(std::strtoll(name.c_str() + kBegin.size(), nullptr, 10));
    if (newest.empty() || it->path() > newest) newest = it->path();
  }
  std::sort(r.checkpoints.begin(), r.checkpoints.end());
  if (!newest.empty()) r.checkpoint_bytes = bytes_in(newest);
}

void find_traces(RunRecord& r) {
  std::error_code ec;
  std::vector<std::pair<int64_t, fs::path>> later;
  constexpr std::string_view kLater = "trace-from-";
  for (fs::directory_iterator it(r.folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name == "trace.json") later.emplace_back(0, it->path());
    if (name.starts_with(kLater) && name.ends_with(".json"))
      later.emplace_back(std::strtoll(name.c_str() + kLater.size(), nullptr, 10), it->path());
  }
  std::sort(later.begin(), later.end());
  for (auto& [step, path] : later) r.traces.push_back(std::move(path));
}

// Whether a process holds a lock on the file, as the system lists locks: trying to lock it could turn away a
// run that starts in that moment.
bool held(const fs::path& lock) {
  struct stat st;
  if (::stat(lock.c_str(), &st) != 0) return false;
  std::error_code ec;
  if (!fs::exists("/proc/locks", ec)) return false;
  std::ifstream locks("/proc/locks");
  const std::string file = fmt::format(":{} ", st.st_ino);
  for (std::string line; std::getline(locks, line);)
    if (line.find("FLOCK") != line.npos && line.find(file) != line.npos) return true;
  return false;
}

}  // namespace

std::vector<const StepLine*> RunRecord::timed() const {
  std::vector<int64_t> firsts = {steps.empty() ? 0 : steps.front().step};
  for (const RunEvent& e : events)
    if (e.kind == "resume" && e.step >= 0) firsts.push_back(e.step + 1);
  // With batch.ramp the forecast describes a step of the last stage.
  const int64_t from = run && !run->batch.ramp.empty() ? batch_stages(*run).back().first : 0;
  std::vector<const StepLine*> out;
  for (const StepLine& s : steps) {
    if (s.step < from) continue;
    const bool first = std::any_of(firsts.begin(), firsts.end(),
                                   [&](int64_t f) { return s.step >= f && s.step < f + int64_t(kFirst); });
    if (known(s.step_s) && s.step_s > 0 && (!first || steps.size() < 4)) out.push_back(&s);
  }
  return out;
}

const RunEvent* RunRecord::last_event(std::string_view kind) const {
  const auto it =
      std::find_if(events.rbegin(), events.rend(), [&](const RunEvent& e) { return e.kind == kind; });
  return it == events.rend() ? nullptr : &*it;
}

const RunEvent* RunRecord::last_start() const {
  const auto it = std::find_if(events.rbegin(), events.rend(), starts);
  return it == events.rend() ? nullptr : &*it;
}

double RunRecord::forecast_number(std::string_view key) const {
  if (!forecast.is_object()) return kNoNumber;
  const auto it = forecast.find(std::string(key));
  return it != forecast.end() && it->is_number() ? it->get<double>() : kNoNumber;
}

RunRecord read_run_folder(const fs::path& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    bad_request("{}: not a folder; give the folder of a run (train.dir of its run file)", folder.string());
  RunRecord r;
  r.folder = folder.has_filename() ? folder : folder.parent_path();  // "runs/a/" is runs/a
  read_metrics(r);
  read_events(r);
  find_traces(r);
  if (r.steps.empty() && r.events.empty() && !fs::exists(folder / "plan.toml", ec) &&
      !fs::exists(folder / "lock", ec))
    bad_request("{}: no run has written here (no metrics.jsonl, no plan.toml); give train.dir of a run file",
                folder.string());
  read_plan(r);
  read_forecast(r);
  find_checkpoints(r);
  r.locked = held(folder / "lock");
  return r;
}

double median_of(const std::vector<const StepLine*>& steps, double StepLine::*number) {
  std::vector<double> all;
  for (const StepLine* s : steps)
    if (known(s->*number)) all.push_back(s->*number);
  return all.empty() ? kNoNumber : median(all);
}

SaveCosts save_costs(const RunRecord& r) {
  SaveCosts c;
  std::vector<double> stalls;
  for (const StepLine& s : r.steps) {
    c.steps_s += known(s.step_s) ? s.step_s : 0;
    for (double stall : {s.stall_s, s.last_stall_s})
      if (known(stall)) {
        c.stall_s += stall;
        stalls.push_back(stall);
      }
    for (double write : {s.write_s, s.last_write_s})
      if (known(write) && write > 0) {
        c.written++;
        c.write_s += write;
      }
  }
  c.saves = int64_t(stalls.size());
  c.stall_median = median(std::move(stalls));
  return c;
}

std::string time_text(double since_1970) {
  const time_t t = time_t(std::clamp(since_1970, 0.0, 4e11));
  tm parts{};
  char text[32] = "";
  if (::gmtime_r(&t, &parts)) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace trireme
