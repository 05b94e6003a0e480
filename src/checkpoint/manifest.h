// What a checkpoint is made of, and where its run stood: manifest.json, the last file of a checkpoint to be
// written.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/hash.h"

namespace trireme {

inline constexpr int kCheckpointFormat = 1;
inline constexpr std::string_view kManifestName = "manifest.json";

struct CheckpointFile {
  std::string name;  // inside the checkpoint's folder
  FileDigest digest;
  bool operator==(const CheckpointFile&) const = default;
};

struct Manifest {
  int64_t step = 0;     // optimizer steps done
  int64_t tokens = 0;   // target tokens consumed
  int64_t samples = 0;  // sequences consumed: the data order continues here
  uint64_t seed = 0;
  uint64_t spec_hash = 0;  // of the run's spec
  std::string run_toml;    // the run's spec as text
  std::string saved_at;    // UTC, "2025-01-31T12:00:00Z"; filled in by save when empty
  nlohmann::json state = nlohmann::json::object();  // whatever else the trainer needs
  std::vector<CheckpointFile> files;                // filled in by save
  bool operator==(const Manifest&) const = default;
};

// The text begins with a checksum of the rest, so that no byte of it can change unseen:
//   {"xxh3": "0123456789abcdef",
//   "format": 1, ...}
std::string to_text(const Manifest&);
// `file` names the source in messages. Checks the checksum before it reads anything else.
Manifest parse_manifest(std::string_view text, std::string_view file);

}  // namespace trireme
