// The device that tests of whole steps run on: cpu, or what TRIREME_TEST_DEVICE names (tools/gpu_check).
#pragma once
#include <string>

namespace trireme::test {

std::string test_device();

}  // namespace trireme::test
