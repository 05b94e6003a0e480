// What the system says of the machine: /proc, /sys and control groups, read and not believed too far.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/file.h"

namespace trireme {

struct Machine {
  std::string cpu;                    // its name, "" = the system does not say
  std::set<std::string> flags;        // instruction sets by the kernel's names: "avx2", "avx512_bf16"
  int cores = 0;                      // of the machine
  int allowed = 0;                    // that this process may use (affinity); 0 = not known
  double quota = 0;                   // cores' worth of time that its control group may use; 0 = no limit
  int64_t memory = 0, available = 0;  // bytes; 0 = not known
  int64_t memory_limit = 0;           // of the control group, bytes; 0 = none
  std::string huge_pages;             // transparent ones: "always", "madvise", "never", "" = not known
  int numa_nodes = 1;
  std::string governor;  // of the clock: "performance", "powersave"; "" = not known
  double load = 0;       // runnable processes, mean of the last minute
};

// root: "/" but for tests. Files that are missing or hold something else leave their fact unknown.
Machine read_machine(const fs::path& root = "/");

// What other processes took of the machine's processors since this was made (a virtual machine's neighbours
// too, where the system counts them).
class OthersCpu {
 public:
  explicit OthersCpu(fs::path root = "/");
  double share() const;  // of the time of all cores, 0 to 1; 0 = the system does not say

 private:
  fs::path root_;
  double busy_ = 0, all_ = 0, own_ = 0;  // seconds until then: of all cores; of this process
};

// The chosen word of "always [madvise] never"; "" if there is none.
std::string chosen_word(std::string_view);

}  // namespace trireme
