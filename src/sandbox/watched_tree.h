// The processes of a sandbox, as the kernel reports them outside of it.
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace trireme {

struct TreeUse {
  int64_t tasks = 0;   // threads of all processes
  int64_t memory = 0;  // bytes: resident and not of a file
};

// Adds up `first` and all its descendants. Processes that end meanwhile are left out.
TreeUse tree_use(pid_t first);

// False if the kernel does not list a process's children (CONFIG_PROC_CHILDREN).
bool lists_children();

}  // namespace trireme
