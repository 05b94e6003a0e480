#include "source_dir.h"

namespace trireme::test {

std::filesystem::path source_dir() {
  return TRIREME_SOURCE_DIR;
}

}  // namespace trireme::test
