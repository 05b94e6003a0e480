// Ranks as threads of this process: each with a device of its own, a way to its peers, and one body of work.
#pragma once
#include <functional>
#include <memory>

#include "comm/comm_set.h"
#include "comm/options.h"
#include "device/device.h"

namespace trireme {

// Runs the body on `world` ranks at once, rank 0 on the calling thread; returns when all are done. Devices
// are made on the rank's thread. An error of one rank ends all of them: thrown here is the first one's, which
// names its rank where there are several. The body calls CommFactory::fail() before it leaves with an error
// while work of its own is under way.
using RankBody = std::function<void(Device&, CommFactory&)>;
void run_rank_threads(int world, std::string_view device, const DeviceOptions&, const RankBody&,
                      const CommOptions& = {});
// Devices that make_device() does not know. cores_each: of each rank, kept to by it and by all threads that
// it starts, where world x so many are all that there are (base/own_cores.h); 0 = as the system will. Of the
// other call: DeviceOptions::threads where they are to be bound.
using MakeDevice = std::function<std::unique_ptr<Device>()>;
void run_rank_threads(int world, const MakeDevice&, const RankBody&, const CommOptions& = {},
                      int cores_each = 0);

}  // namespace trireme
