#include "sanitized.h"

#include <cstdlib>

namespace trireme::test {

#ifdef TRIREME_SANITIZED
const bool kSanitized = true;
#else
const bool kSanitized = false;
#endif

int one_of(int optimised, int sanitized) {
  if (std::getenv("TRIREME_ALL_CASES")) return 1;
  return kSanitized ? sanitized : optimised;
}

}  // namespace trireme::test
