// Limits on parsing and rendering a template, and the current line for messages. Templates are untrusted
// input, so loops, texts and nesting are bounded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/visible.h"

namespace trireme::jinja {

inline constexpr size_t kMostSource = size_t(1) << 20;   // bytes of a template
inline constexpr int64_t kMostSteps = 2'000'000;         // nodes visited, values compared
inline constexpr size_t kMostText = size_t(16) << 20;    // bytes of any one text, the output among them
inline constexpr int64_t kMostMoved = int64_t(1) << 29;  // bytes that all text functions read and write
inline constexpr int kMostNesting = 64;                  // lists in lists
inline constexpr int kMostSyntax = 150;                  // expressions and statements inside each other
inline constexpr int kMostDepth = 400;                   // evaluations inside each other, macros among them
inline constexpr int64_t kMostRange = 100'000;           // as Jinja's sandbox

class Work {
 public:
  explicit Work(std::string name) : name_(std::move(name)) {}

  int line = 1;         // line of the node being evaluated
  bool strict = false;  // the use of an undefined value fails, as with jinja2's StrictUndefined

  void step(int64_t n = 1) {
    if ((steps_ += n) > kMostSteps) fail("takes more than {} steps", kMostSteps);
  }
  // For a function that reads or writes texts of these many bytes.
  void move(size_t bytes) {
    if (bytes > kMostText) fail("makes a text of more than {} bytes", kMostText);
    if ((moved_ += int64_t(bytes)) > kMostMoved) fail("moves more than {} bytes of text", kMostMoved);
  }
  template <class... A>
  [[noreturn]] void fail(fmt::format_string<A...> f, A&&... a) const {
    constexpr size_t kLongest = 1000;  // bytes of a message, which may have the template's own words
    const std::string what = fmt::format(f, std::forward<A>(a)...);
    bad_request("{}, line {}: {}", visible(name_), line, visible(std::string_view(what).substr(0, kLongest)));
  }

 private:
  std::string name_;  // the template's name, for messages
  int64_t steps_ = 0;
  int64_t moved_ = 0;
};

}  // namespace trireme::jinja
