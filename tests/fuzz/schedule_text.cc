// A schedule's text: what parses is printed and parsed back the same, and validate says yes or throws an
// Error.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "schedule/schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  using namespace trireme;
  try {
    const Schedule s = parse_schedule({reinterpret_cast<const char*>(data), size});
    if (parse_schedule(to_text(s)) != s) std::abort();
    validate(s);
  } catch (const Error&) {
  }
  return 0;
}
