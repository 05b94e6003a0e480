// The inside of a sandbox: what its two first processes do between clone() and execve().
//
// Both run in a copy of a process that may have had other threads, so they call the kernel and nothing else:
// no allocation, no lock. All they need is prepared in Isolation.
#pragma once
#include <linux/filter.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sandbox/sandbox.h"

namespace trireme {

// A part of the set-up that can fail. The parent turns it into a message.
enum class SandboxStep : int32_t {
  none,
  parent,
  propagation,
  base,
  roots,
  pivot,
  folder,
  bind,
  read_only,
  devices,
  scratch,
  detach,
  program,
  identity,
  fork,
  limits,
  capabilities,
  filter,
  execute
};
std::string_view name_of(SandboxStep);

// Written once by the first process: a failed step, or the end of the program.
struct SandboxReport {
  SandboxStep step = SandboxStep::none;
  int32_t error = 0;   // errno of the step
  int32_t place = -1;  // index in Isolation::binds, of a failed bind
  int32_t status = 0;  // the program's, as wait4() gives it
  int64_t cpu_us = 0;
};

struct Isolation {
  struct Bind {
    std::string from, to;  // "/old/usr/lib", "/new/usr/lib"
    bool folder = true;
  };
  struct Link {
    std::string target, at;
  };
  std::vector<std::string> folders;  // to make, parents first
  std::vector<Bind> binds;           // read-only
  std::vector<Link> links;           // such as /lib -> usr/lib
  std::vector<Bind> devices;
  std::string scratch_options;  // for the tmpfs at /tmp
  std::vector<sock_filter> filter;
  std::vector<const char*> argv, environment;  // ended by nullptr
  std::string_view program;
  SandboxLimits limits;
  bool other_user = false;  // the program has another user id than the caller
  unsigned user = 0;        // user and group of the program, as it sees them

  int go = -1;      // one byte comes once the user ids are mapped
  int report = -1;  // SandboxReport
  int output = -1;  // stdout and stderr
  int done = -1;    // fd 3 of the program
};

// The first process of the pid namespace. Returns never.
[[noreturn]] void run_isolated(const Isolation&);

}  // namespace trireme
