// ladder.json: the items of a ladder's folder, in the order in which they can run.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "scaling/ladder.h"

namespace trireme {

struct LadderEntry {
  std::string name, after;
  std::string file;  // its run file, inside the ladder's folder
  std::string dir;   // its train.dir
  bool point = false;
  int64_t size = 0;
  int64_t steps = 0;
  double parameters = 0, tokens = 0, flops = 0;
};

inline constexpr std::string_view kLadderFile = "ladder.json";

// Writes FOLDER/ladder.json and a run file per item.
// Throws Error (request) if the folder has another ladder.
void write_ladder(const fs::path& folder, const LadderDesign&, const std::vector<LadderItem>&);

// Throws Error (request): one line with file, entry, key, value and what is allowed. Each entry follows the
// one that it branches from; names are plain file names.
std::vector<LadderEntry> read_ladder(const fs::path& folder);

}  // namespace trireme
