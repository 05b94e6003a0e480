// What a file or folder is and what is in it, as one JSON object; `inspect` prints it as such or as text.
#pragma once
#include <string>

#include "base/json.h"
#include "cli/cli.h"

namespace trireme::cli {

using Description = nlohmann::ordered_json;  // {"kind": ..., "path": ..., ...}

// Hashes files while at most kMostHashed bytes in all have been hashed, so that a header is shown in seconds;
// any number of bytes with `all`.
class FileHashes {
 public:
  explicit FileHashes(bool all = false) : all_(all) {}
  Description of(const fs::path& file);  // 16 hex digits; null: too large

 private:
  static constexpr int64_t kMostHashed = int64_t(4) << 30;
  bool all_;
  int64_t bytes_ = 0;
};

// A bad_request that says what was expected when it is nothing that trireme knows.
Description describe(const fs::path&, FileHashes);

// Indented "key  value" lines; lists of objects become tables. Keys that end in "bytes" are shown as people
// read them.
std::string as_text(const Description&);

bool is_cluster_file(const fs::path&);  // false where it is not there

// A table of a run folder: its forecast.json beside its metrics; empty where either lacks. Seconds are the
// median's of up to a thousand steps, without the first two.
Description forecast_and_measured(const fs::path& run);

// Of one kind each.
Description describe_checkpoint(const fs::path&);
Description describe_run(const fs::path&);
Description describe_hf_folder(const fs::path&, FileHashes&);
Description describe_safetensors(const fs::path&, FileHashes&);
Description describe_shard(const fs::path&, FileHashes&);
Description describe_trace(const fs::path&);

}  // namespace trireme::cli
