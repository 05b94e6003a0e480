#include "sanitized.h"

namespace trireme::test {

#ifdef TRIREME_SANITIZED
const bool kSanitized = true;
#else
const bool kSanitized = false;
#endif

}  // namespace trireme::test
