// The one exception type, and the two ways to raise it: a request that was wrong, and an invariant that
// broke.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

// The process exit code (DESIGN.md section 5), by the nature of a failure:
// 1 the run failed;
// 2 the request was wrong;
// 3 interrupted and resumable;
// 4 the environment failed (disk, memory, network, another process): the same command may succeed later.
enum class Fault { run = 1, request = 2, interrupted = 3, environment = 4 };
inline constexpr int kFaults = 5;  // codes below this one are valid

// The nature of a failed system call. Environment: an error that may disappear without a change of the
// request, such as EIO, ENOSPC, EDQUOT, ENOMEM, EMFILE, ESTALE, EHOSTUNREACH. Otherwise `other`.
Fault fault_of_errno(int error_number, Fault other);

// One clear line: what is wrong, the value, and what would be right.
struct Error : std::runtime_error {
  explicit Error(const std::string& msg, Fault fault = Fault::run) : std::runtime_error(msg), fault(fault) {}
  Fault fault;
};

// The user's input or file is wrong (exit code 2).
template <class... A>
[[noreturn]] void bad_request(fmt::format_string<A...> f, A&&... a) {
  throw Error(fmt::format(f, std::forward<A>(a)...), Fault::request);
}
// The run could not go on (exit code 1).
template <class... A>
[[noreturn]] void run_failed(fmt::format_string<A...> f, A&&... a) {
  throw Error(fmt::format(f, std::forward<A>(a)...), Fault::run);
}
// The environment failed (exit code 4).
template <class... A>
[[noreturn]] void environment_failed(fmt::format_string<A...> f, A&&... a) {
  throw Error(fmt::format(f, std::forward<A>(a)...), Fault::environment);
}
// A system call on a path or an option of the user failed with this errno: exit code 4 or 2 by its nature.
template <class... A>
[[noreturn]] void system_failed(int error_number, fmt::format_string<A...> f, A&&... a) {
  throw Error(fmt::format(f, std::forward<A>(a)...), fault_of_errno(error_number, Fault::request));
}
// The same for a call that no request can break: exit code 4 or 1.
template <class... A>
[[noreturn]] void system_failed_in_run(int error_number, fmt::format_string<A...> f, A&&... a) {
  throw Error(fmt::format(f, std::forward<A>(a)...), fault_of_errno(error_number, Fault::run));
}
// The fault of an error during a run that follows from an error with fault `cause`: the run's, unless the
// environment caused it.
inline Fault fault_in_run(Fault cause) {
  return cause == Fault::environment ? cause : Fault::run;
}
// An invariant of the program: a failure is a bug in trireme and names its place. Never reachable by bad
// input.
[[noreturn]] void invariant_failed(std::string_view msg, const char* file, int line);
inline void require(bool ok, std::string_view msg, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (!ok) [[unlikely]]
    invariant_failed(msg, file, line);
}

}  // namespace trireme
