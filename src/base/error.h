// The one exception type, and the two ways to raise it: a request that was wrong, and an invariant that
// broke.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

// What the process exit code will say (DESIGN.md section 5): 1 the run failed, 2 the request was wrong,
// 3 interrupted and resumable.
enum class Fault { run = 1, request = 2, interrupted = 3 };

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
// An invariant of the program: a failure is a bug in trireme and names its place. Never reachable by bad
// input.
[[noreturn]] void invariant_failed(std::string_view msg, const char* file, int line);
inline void require(bool ok, std::string_view msg, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (!ok) [[unlikely]]
    invariant_failed(msg, file, line);
}

}  // namespace trireme
