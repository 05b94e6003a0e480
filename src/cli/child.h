// Children of this program: the same program with other words.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/file.h"

namespace trireme::cli {

struct ChildFiles {
  fs::path out;         // takes stdout; empty: stdout goes to stderr
  bool append = false;  // keeps what the file has
  bool errors = false;  // stderr goes to `out` too
};
// Starts this program with the words after its name. stdin is empty. The kernel kills the child when the
// calling thread ends, so that a killed parent leaves no work behind. Throws Error (failed) if it cannot.
pid_t start_self(std::vector<std::string> words, const ChildFiles&);

// Passes the signal of this process on to a child, as one signal with a terminal's Ctrl-C, which reaches the
// child too (base/interrupt.h).
void pass_interrupt_on(pid_t);

// Waits for the child, and passes a signal on to it once. Returns the status of waitpid.
int wait_for_child(pid_t);

}  // namespace trireme::cli
