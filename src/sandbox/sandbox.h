// Runs untrusted Python programs, such as programs written by a model.
//
// Each program gets its own user, mount, pid, network and ipc namespaces. Its root file system has read-only
// library folders and one small tmpfs. A seccomp filter lists its system calls, and it has limits. When its
// first process ends, or a limit is reached, the kernel kills every process of the pid namespace. If the
// kernel does not allow this, there is no weaker mode: the constructor throws.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sandbox/interpreter.h"

namespace trireme {

struct SandboxLimits {
  double wall_s = 10;
  int64_t cpu_s = 5;             // per process, in whole seconds
  int64_t memory = 512ll << 20;  // bytes: address space of each process, and resident memory of all together
  int64_t processes = 16;        // threads included
  int64_t output = 1 << 20;      // bytes of stdout and stderr together
  int64_t files = 32ll << 20;    // bytes of /tmp, which is memory; also the largest file
};

// Why a program ended.
enum class SandboxEnd : uint8_t {
  completed,
  failed,
  crashed,
  wall_time,
  cpu_time,
  memory,
  processes,
  output
};
std::string_view name_of(SandboxEnd);

struct SandboxResult {
  SandboxEnd end = SandboxEnd::failed;
  int code = 0;        // failed: the exit code; crashed: the signal
  std::string output;  // stdout and stderr, at most SandboxLimits::output bytes
  double wall_s = 0;
  double cpu_s = 0;  // the first process and the children it waited for
};

// Thread-safe after construction: threads may run programs at the same time.
class Sandbox {
 public:
  // Throws Error if the kernel or a security module forbids a part of the sandbox. The message names the
  // part.
  explicit Sandbox(Interpreter);

  // Runs `program` to its end or to a limit. `completed` means that its last statement ended without an
  // exception: a program that leaves early by os._exit(0) or sys.exit() is `failed`.
  SandboxResult run(std::string_view program, const SandboxLimits& = {}) const;

  const Interpreter& interpreter() const { return interpreter_; }

 private:
  Interpreter interpreter_;
};

}  // namespace trireme
