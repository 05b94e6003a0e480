#include "checkpoint/store.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <map>

#include "base/error.h"
#include "checkpoint/named.h"
#include "checkpoint/safetensors_writer.h"

namespace trireme {
namespace {

constexpr std::string_view kStepPrefix = "step-", kPartSuffix = ".part";

std::string utc_now() {
  std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
  return text;
}

// Newest first.
std::vector<int64_t> steps_in(const fs::path& root) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(root))
    if (auto step = step_of_folder_name(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

Checkpoint open_step(const fs::path& root, int64_t step, Verify verify) {
  return open_as_named(root / step_folder_name(step), verify);
}

bool is_whole(const NamedTensor& t) {
  return t.part() == whole(t.global);
}

// Entry names and shapes of a file of parts, and the metadata that says where they lie.
struct Entries {
  std::vector<SafetensorsItem> items;
  Metadata metadata;
  std::map<std::string, const NamedTensor*> source;  // by entry name
};

Entries entries_of(std::span<const NamedTensor> tensors) {
  Entries out;
  for (const NamedTensor& t : tensors) {
    std::string why = why_not_part(t.part(), t.global);
    require(why.empty(), t.name + ": " + why);
    require(t.host_data.contiguous() && t.host_data.numel() == t.range.size(),
            t.name + ": a part is saved from range.size() elements in a row");
    std::string entry = t.name;
    for (int i = 1; !out.source.emplace(entry, &t).second; i++) entry = fmt::format("{}#{}", t.name, i);
    bool whole_box = t.range == Range{0, t.box.extent.numel()};
    out.items.push_back({entry, t.host_data.dtype, whole_box ? t.box.extent : Shape{t.range.size()}});
    if (!is_whole(t) || entry != t.name)
      out.metadata.emplace(entry, part_to_json(t.name, t.global, t.part()));
  }
  return out;
}

}  // namespace

Checkpoint open_as_named(const fs::path& folder, Verify verify) {
  Checkpoint c = Checkpoint::open(folder, verify);
  const std::optional<int64_t> named = step_of_folder_name(folder.filename().string());
  if (named && c.manifest().step != *named)
    bad_request("{}: {} says step {}; the folder was renamed", folder.string(), kManifestName,
                c.manifest().step);
  return c;
}

std::vector<fs::path> checkpoints_in(const fs::path& root) {
  std::vector<fs::path> out;
  for (int64_t step : steps_in(root)) out.push_back(root / step_folder_name(step));
  return out;
}

std::string step_folder_name(int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

std::optional<int64_t> step_of_folder_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return {};
  std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (step < 0 || step_folder_name(step) != name) return {};
  return step;
}

CheckpointFile write_parts(const fs::path& folder, std::string_view file_name,
                           std::span<const NamedTensor> tensors, const std::function<void()>& after_tensor) {
  Entries entries = entries_of(tensors);
  SafetensorsWriter file(folder / file_name, std::move(entries.items), entries.metadata);
  for (const SafetensorsItem& item : file.items()) {
    const NamedTensor& t = *entries.source.at(item.name);
    const Tensor& data = t.host_data;
    if (t.xxh3 && *t.xxh3 != hash64(data.data, size_t(data.bytes())))
      run_failed("{} changed in memory before it was written: the memory is faulty", t.name);
    file.write(data.data, size_t(data.bytes()));
    if (after_tensor) after_tensor();
  }
  return {std::string(file_name), file.commit()};
}

CheckpointWriter::CheckpointWriter(const fs::path& root, int64_t step, PhaseHook hook)
    : step_(step), target_(root / step_folder_name(step)), hook_(std::move(hook)), part_(target_) {
  require(step >= 0, "a checkpoint's step is negative");
  phase("begin");
}

void CheckpointWriter::write(std::string_view file_name, std::span<const NamedTensor> tensors) {
  add(write_parts(folder(), file_name, tensors, [this] { phase(fmt::format("tensor:{}", tensors_++)); }));
}

fs::path CheckpointWriter::publish(Manifest m) {
  phase("data_flushed");
  m.step = step_, m.files = files_;
  if (m.saved_at.empty()) m.saved_at = utc_now();
  write_text_atomic(folder() / kManifestName, to_text(m));
  phase("manifest_written");
  part_.flush();
  phase("folder_flushed");
  part_.publish();
  phase("renamed");
  try {
    if (to_text(Checkpoint::open(target_).manifest()) != to_text(m)) bad_request("{} changed", kManifestName);
  } catch (const Error& e) {
    part_.withdraw();
    throw Error(
        fmt::format("{}: not saved: it reads back differently than it was written ({}); the disk or the "
                    "memory is faulty",
                    target_.string(), e.what()),
        fault_in_run(e.fault));
  }
  phase("verified");
  return target_;
}

fs::path save(const fs::path& root, const Manifest& manifest, std::span<const NamedTensor> tensors,
              const SaveOptions& options) {
  fs::path folder;
  {
    CheckpointWriter writer(root, manifest.step, options.phase);
    writer.write("rank-00000.safetensors", tensors);
    folder = writer.publish(manifest);
  }
  if (options.keep > 0) {
    const int64_t known_good[] = {manifest.step};
    prune(root, options.keep, known_good, Verify::hashes, options.keep_best ? best_step(root) : std::nullopt);
  }
  if (options.phase) options.phase("pruned");
  return folder;
}

Found find_newest(const fs::path& root, Verify verify) {
  Found found;
  for (int64_t step : steps_in(root)) {
    try {
      found.newest = open_step(root, step, verify);
      return found;
    } catch (const Error& e) {
      if (e.fault == Fault::environment) throw;
      found.damaged.push_back(e.what());
    }
  }
  return found;
}

std::vector<int64_t> prune(const fs::path& root, int keep, std::span<const int64_t> known_good, Verify verify,
                           std::optional<int64_t> also) {
  require(keep >= 1, "prune() would remove every checkpoint");
  std::vector<int64_t> removed;
  for (int complete = 0; int64_t step : steps_in(root)) {
    if (complete == keep) {
      if (step == also) continue;
      remove_published(root / step_folder_name(step));
      removed.push_back(step);
      continue;
    }
    try {
      if (std::find(known_good.begin(), known_good.end(), step) == known_good.end())
        open_step(root, step, verify);
      complete++;
    } catch (const Error&) {
      // Damaged: it does not count. find_newest() is where its reason is told.
    }
  }
  if (!removed.empty()) sync_folder(root);
  return removed;
}

std::vector<std::string> remove_leftovers(const fs::path& root) {
  std::vector<std::string> removed;
  for (const std::string& name : names_in(root)) {
    if (!name.starts_with(kStepPrefix) || !name.ends_with(kPartSuffix)) continue;
    remove_tree(root / name);
    removed.push_back(name);
  }
  return removed;
}

}  // namespace trireme
