#include "test_device.h"

#include <cstdlib>

namespace trireme::test {

std::string test_device() {
  const char* name = std::getenv("TRIREME_TEST_DEVICE");
  return name && *name ? name : "cpu";
}

}  // namespace trireme::test
