#include "train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/named.h"
#include "comm/comm_set.h"
#include "optim/run_lr.h"
#include "spec/batch_ramp.h"
#include "spec/identity.h"
#include "spec/toml.h"
#include "train/batches.h"

namespace trireme {
namespace {

constexpr char kEnvironment = '!';  // begins the text of an error of the environment
constexpr char kDamage = '-';

// Empty, or the error with one of these marks.
std::string failure_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& e) {
    return fmt::format("{}{}", e.fault == Fault::environment ? kEnvironment : kDamage,
                       *e.what() ? e.what() : "unknown");
  }
}

// Empty, or the damage that the failure reports.
// Throws Error (environment) if the file could not be read: that says nothing about its content.
std::string damage_of(const std::string& failure) {
  if (failure.empty()) return "";
  if (failure[0] == kEnvironment) environment_failed("{}", failure.substr(1));
  return failure.substr(1);
}

// Empty, or the first damage that a rank found.
std::string damage_of(const fs::path& folder, Communicator& control) {
  const std::string mine = failure_of(
      [&] { Checkpoint::open(folder, Verify::sizes).verify_part(control.rank(), control.size()); });
  for (const std::string& failure : gather_texts(control, mine))
    if (!failure.empty()) return damage_of(failure);
  return "";
}

// The learning rates of the steps done are what a longer run would have had.
bool same_rates(const RunSpec& before, const RunSpec& after, int64_t steps) {
  const LrSchedule a = lr_schedule_of(before);
  const LrSchedule b = lr_schedule_of(after);
  if (a.shape == LrShape::constant && b.shape == LrShape::constant) return true;
  for (int64_t s = steps; s >= 1; s--)
    if (a.at(s) != b.at(s)) return false;
  return true;
}

// The spec that was saved may be invalid here, such as its layout on another device. If the hash of its
// identity is this run's, that is enough.
RunSpec saved_run_or(const RunSpec& run, const Checkpoint& c) {
  try {
    return saved_run(c);
  } catch (const Error&) {
    if (c.manifest().spec_hash != hash(run)) throw;
    return run;
  }
}

// In messages: how a run with these other settings keeps weights and moments.
std::string branch_hint(const RunSpec& run, const std::vector<std::string>& keys) {
  for (const std::string& k : keys)
    if (k.starts_with("model.") || k.starts_with("optimizer.name:"))
      return "weights and moments of another model or optimizer cannot be continued from";
  return fmt::format(
      "to continue from its weights and moments with other settings, give train.branch = \"{}\" (--branch) "
      "and "
      "another train.dir",
      run.train.dir);
}

// A checkpoint of a version that did not record the content of the data: the names must be the same.
void add_other_names(const RunSpec& saved, const RunSpec& run, std::vector<std::string>& keys) {
  if (saved.data.train == run.data.train) return;
  keys.push_back(fmt::format("data.train: {} -> {}", fmt::join(saved.data.train, ", "),
                             fmt::join(run.data.train, ", ")));
}

// The batches of the steps done are the same; those of later steps may differ.
void allow_later_batches(const RunSpec& saved, const RunSpec& run, std::vector<std::string>& keys,
                         std::vector<std::string>& notes) {
  const size_t erased = std::erase_if(keys, [](const std::string& k) {
    return k.starts_with("batch.ramp:") || k.starts_with("batch.global:");
  });
  if (erased == 0) return;
  notes.push_back(
      fmt::format("the batches of the steps done are the same, so the run continues with other "
                  "batches to come: {} instead of {}",
                  ramp_text(run.batch), ramp_text(saved.batch)));
}

// A name that no other file has.
fs::path free_name(const fs::path& wanted) {
  fs::path name = wanted;
  for (int i = 2; is_there(name); i++) name = fmt::format("{}.{}", wanted.string(), i);
  return name;
}

}  // namespace

FoundCheckpoint find_together(const std::vector<fs::path>& folders, Communicator& control) {
  const bool first = control.rank() == 0;
  FoundCheckpoint found;
  for (size_t i = 0;;) {
    // Faults that rank 0 finds without reading data need no other rank.
    while (first && i < folders.size()) {
      const std::string damage = damage_of(failure_of([&] { open_as_named(folders[i], Verify::sizes); }));
      if (damage.empty()) break;
      found.damaged.push_back(damage);
      i++;
    }
    const fs::path next = broadcast_text(control, first && i < folders.size() ? folders[i].string() : "");
    if (next.empty()) return found;
    const std::string damage = damage_of(next, control);
    if (damage.empty()) {
      found.folder = next;
      return found;
    }
    found.damaged.push_back(damage);
    i++;
  }
}

std::vector<std::string> set_aside_foreign(const fs::path& run_dir) {
  const std::vector<fs::path> all = checkpoints_in(checkpoint_root(run_dir));
  const bool none_is_ours = std::none_of(all.begin(), all.end(), [](const fs::path& folder) {
    std::error_code ec;
    const fs::file_type type = fs::status(folder / kManifestName, ec).type();
    return type == fs::file_type::regular || type == fs::file_type::not_found || type == fs::file_type::none;
  });
  std::vector<std::string> notes;
  if (!none_is_ours) return notes;
  for (const fs::path& folder : all) {
    const fs::path kept = free_name(folder.string() + ".damaged");
    fs::rename(folder, kept);
    notes.push_back(
        fmt::format("passed over a damaged checkpoint: {} is not a regular file; the folder is now {}",
                    (folder / kManifestName).string(), kept.string()));
  }
  const fs::path metrics = run_dir / "metrics.jsonl";
  if (!all.empty() && is_there(metrics)) {
    const fs::path kept = free_name(metrics.string() + ".damaged");
    fs::rename(metrics, kept);
    notes.push_back(fmt::format(
        "WARNING: no checkpoint is left, so the run starts at step 1; the metrics so far are now {}",
        kept.string()));
  }
  return notes;
}

std::vector<fs::path> branch_checkpoints(const std::string& from) {
  return naming_key("train.branch", from, [&] {
    const std::optional<NamedCheckpoint> named = checkpoint_named(from);
    if (named && !named->folder.empty()) return std::vector<fs::path>{named->folder};
    std::vector<fs::path> all;
    if (named) all = checkpoints_in(checkpoint_root(named->run));
    if (all.empty())
      bad_request(
          "holds no checkpoint; give a run folder, RUN@STEP, RUN@best, or the folder of a checkpoint");
    return all;
  });
}

std::vector<std::string> refuse_other_run(const RunSpec& run, const Checkpoint& c, const DataContent& data) {
  const RunSpec saved = saved_run_or(run, c);
  const nlohmann::json& state = c.manifest().state;
  const bool knows_data = state.is_object() && state.contains("data");
  std::vector<std::string> keys = diff_of_identity(saved, run);
  std::vector<std::string> notes;
  if (!knows_data) add_other_names(saved, run, keys);
  if (saved.train.steps != run.train.steps && same_rates(saved, run, c.manifest().step)) {
    std::erase_if(keys, [](const std::string& k) { return k.starts_with("train.steps:"); });
    notes.push_back(
        fmt::format("train.steps: {} -> {}: the learning rates of the {} steps done are the same, so "
                    "the run continues as one of {} steps",
                    saved.train.steps, run.train.steps, c.manifest().step, run.train.steps));
  }
  if (same_batches(saved.batch, run.batch, c.manifest().step)) allow_later_batches(saved, run, keys, notes);
  // Said where it is the reason: the end is part of the schedule.
  const bool replans = std::any_of(keys.begin(), keys.end(),
                                   [](const std::string& k) { return k.starts_with("train.steps:"); });
  const std::string why =
      replans ? fmt::format(
                    "; with optimizer.schedule = {} the learning rates of the {} steps done depend on "
                    "train.steps",
                    toml_string(run.optimizer.schedule), c.manifest().step)
              : "";
  if (!keys.empty())
    bad_request(
        "{} holds a checkpoint of another run ({}{}): for a new run choose another train.dir, or remove the "
        "checkpoints; {}",
        c.folder().string(), fmt::join(keys, "; "), why, branch_hint(run, keys));
  if (c.manifest().step > run.train.steps)
    bad_request("train.steps = {}: {} has {} steps already; give {} or more", run.train.steps,
                c.folder().string(), c.manifest().step, c.manifest().step);
  if (!knows_data) return notes;
  const std::string file = (c.folder() / kManifestName).string();
  for (std::string& note :
       compare_data(saved, data_content_of(state["data"], saved, file), run, data, c.folder().string()))
    notes.push_back(std::move(note));
  return notes;
}

std::vector<std::string> refuse_other_branch(const RunSpec& run, const Checkpoint& c) {
  refuse_other_model(run, c);
  const RunSpec saved = saved_run(c);
  const std::string& before = saved.optimizer.name;
  if (before != run.optimizer.name)
    bad_request(
        "optimizer.name = {}: the moments of {} (train.branch) are of {}; give that, or model.from with the "
        "converted weights",
        toml_string(run.optimizer.name), c.folder().string(), toml_string(before));
  if (c.manifest().step >= run.train.steps)
    bad_request("train.steps = {}: {} (train.branch) has {} steps already; give more", run.train.steps,
                c.folder().string(), c.manifest().step);
  const std::vector<std::string> keys = diff_of_identity(saved, run);
  if (keys.empty()) return {};
  return {
      fmt::format("settings that differ from those of {}: {}", c.folder().string(), fmt::join(keys, "; "))};
}

}  // namespace trireme
