#include "source_dir.h"

#include <cstdlib>

namespace trireme::test {

std::filesystem::path source_dir() {
  const char* moved =
      std::getenv("TRIREME_SOURCE_DIR");  // tools/gpu_check runs tests where no tree was built
  return moved && *moved ? moved : TRIREME_SOURCE_DIR;
}

}  // namespace trireme::test
