// The device that tests of whole steps run on: cpu, or what TRIREME_TEST_DEVICE names (tools/gpu_check);
// "far-graphs", "cuda-graphs": with launches kept (device/replay.h).
#pragma once
#include <string>

namespace trireme::test {

std::string test_device();
bool test_graphs();

}  // namespace trireme::test
