// The system calls that a program in the sandbox may make.
#pragma once
#include <linux/filter.h>

#include <vector>

namespace trireme {

// A seccomp filter. Listed calls are allowed. Sockets, ptrace and new namespaces fail with EPERM, other calls
// with ENOSYS. A call of another architecture kills the process. Empty: this processor is not supported.
std::vector<sock_filter> system_call_filter();

}  // namespace trireme
