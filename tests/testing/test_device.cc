#include "test_device.h"

#include <cstdlib>

namespace trireme::test {

namespace {
constexpr std::string_view kGraphs = "-graphs";
std::string named() {
  const char* name = std::getenv("TRIREME_TEST_DEVICE");
  return name && *name ? name : "cpu";
}
}  // namespace

std::string test_device() {
  const std::string name = named();
  return test_graphs() ? name.substr(0, name.size() - kGraphs.size()) : name;
}
bool test_graphs() {
  return named().ends_with(kGraphs);
}

}  // namespace trireme::test
