// What a machine's kernel and NVML say of its GPUs, as keys of a cluster file.
#pragma once
#include "base/topology.h"
#include "spec/cluster_spec.h"

namespace trireme {

// Keeps the GPUs of the same name as the one at this address (gpu_at()), and returns it; "" = that is not
// found or has no name: none is kept.
std::string keep_alike(Topology&, const std::string& pci);

// Makes one machine of a spec, which may be a vendor's of many: nodes = 1, no tiers. Of the GPUs' count,
// memory, NVLinks (else PCIe) and the node's network adapters whatever is known: the least of the GPUs', the
// sum of the adapters'. A link that is not found goes; of one that is found the bandwidth is taken, and what
// else the spec has of it (latency, efficiency) stays: of inter_node that between its nodes. Returns where
// each is from: "8 GPUs on the bus; 450 GB/s of 18 NVLinks each, as NVML says; ..."; "" = no GPU was found:
// one is taken.
std::string add_topology(ClusterSpec&, const Topology&);

// The file of configs/cluster that is of this GPU, by NVML's name of it; "" = none.
std::string_view vendor_file_of(std::string_view gpu);

}  // namespace trireme
