// What a machine's kernel and NVML say of its GPUs, as keys of a cluster file.
#pragma once
#include "base/topology.h"
#include "spec/cluster_spec.h"

namespace trireme {

// Of the GPUs' count, memory, NVLinks (else PCIe) and the node's network adapters whatever is known: the
// least of the GPUs', the sum of the adapters'. A bandwidth alone is taken; a latency that the spec has
// stays. Returns where each is from: "8 GPUs; 450 GB/s of 18 NVLinks each (NVML); ..."; "" = no GPU was found.
std::string add_topology(ClusterSpec&, const Topology&);

// The file of configs/cluster that is of this GPU, by NVML's name of it; "" = none.
std::string_view vendor_file_of(std::string_view gpu);

}  // namespace trireme
