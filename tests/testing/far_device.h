// A device whose memory the processor cannot reach, on a machine without one: the CPU's kernels, and memory
// at addresses that fault when anybody but the device touches them.
#pragma once
#include <functional>
#include <memory>

#include "device/device.h"

namespace trireme::test {

inline constexpr std::string_view kFarDevice = "far";

// With DeviceOptions::graphs it keeps launches (device/replay.h) as a list of them, by value: begin() to
// end() runs nothing, and anything else that is asked of it meanwhile is an error, as on a GPU.
//
// Not deterministic it takes gelu into products (Kernels::gelu_in_products), to the CPU's bits all the same.
//
// Its ranges are device memory as device_memory.h has it. An op that is given memory of the host is an error;
// numbers, scratch and streams are the CPU's, so a run books what it books there.
// keeping: called where what was kept becomes a graph, and may throw there.
std::unique_ptr<Device> make_far_device(const DeviceOptions&, std::function<void()> keeping = {});
void no_room_for_a_graph();  // an Error that says so

}  // namespace trireme::test
