#include "cli/disk_room.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "base/progress.h"
#include "cost/checkpoint_plan.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

int64_t bytes_under(const fs::path& folder) {
  std::error_code ec;
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code gone;  // a training run may remove it
    const auto size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) bytes += int64_t(size);
  }
  return bytes;
}

}  // namespace

fs::path nearest_existing(const fs::path& folder) {
  fs::path at = fs::absolute(folder).lexically_normal();
  std::error_code none;
  while (!fs::exists(at, none) && at.has_relative_path()) at = at.parent_path();
  return at;
}

int64_t free_bytes(const fs::path& folder) {
  struct statvfs v;
  // File systems without blocks, such as /proc, store no files.
  return ::statvfs(folder.c_str(), &v) == 0 && v.f_blocks > 0 ? int64_t(v.f_bavail) * int64_t(v.f_frsize)
                                                              : -1;
}

std::string disk_note(const RunSpec& run) {
  if (run.lora.active()) return "";  // checkpoints of adapters are small
  const int64_t free = free_bytes(nearest_existing(run.train.dir));
  if (free < 0) return "";
  const double one = double(checkpoint_bytes(run));
  const double all = one * double(run.train.keep + 1);
  const int64_t used = bytes_under(fs::path(run.train.dir) / "checkpoints");
  if (all <= double(free) + double(used)) return "";
  return fmt::format(
      "train.keep = {}: {} checkpoints of {} need {}, and the disk of train.dir = {} has {} for them; lower "
      "train.keep, or give a folder on another disk",
      run.train.keep, run.train.keep + 1, human_bytes(int64_t(one)),
      human_bytes(int64_t(std::min(all, 9e18))), toml_string(run.train.dir), human_bytes(free + used));
}

}  // namespace trireme::cli
