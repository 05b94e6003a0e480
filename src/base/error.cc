#include "base/error.h"

namespace trireme {

void invariant_failed(std::string_view msg, const char* file, int line) {
  throw Error(fmt::format("internal error: {} ({}:{})", msg, file, line));
}

}  // namespace trireme
