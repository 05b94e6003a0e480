// What is found of a machine, as keys of its cluster file.
#include "spec/found_topology.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

ClusterSpec of_vendor() {
  ClusterSpec c;
  c.name = "h100", c.devices_per_node = 8, c.memory_bytes = 80;
  c.intra_node = {.latency = 1e-5, .bandwidth = 450e9};
  return c;
}
GpuFound gpu_of(double pcie, int links, double nvlink, int64_t memory) {
  return {.pci = "0000:1b:00.0", .name = "NVIDIA H100 80GB HBM3", .memory = memory, .pcie = pcie, .nvlinks = links, .nvlink = nvlink};
}

TEST(FoundTopology, OfNvlinksAndAdapters) {
  ClusterSpec c = of_vendor();
  Topology t{.gpus = {gpu_of(63e9, 18, 450e9, 90), gpu_of(63e9, 17, 425e9, 85)}, .nics = {}};
  t.nics = {{.name = "a", .pci = {}, .link_layer = {}, .bandwidth = 50e9},
            {.name = "b", .pci = {}, .link_layer = {}, .bandwidth = 25e9},
            {.name = "c", .pci = {}, .link_layer = {}}};
  EXPECT_EQ(add_topology(c, t),
            "2 GPUs on the bus; memory as NVML says; 425 GB/s of 17 NVLinks each, as NVML says; 75 GB/s of 2 "
            "network adapters, as their ports say");
  EXPECT_EQ(c.devices_per_node, 2);
  EXPECT_EQ(c.memory_bytes, 85);
  EXPECT_EQ(c.intra_node.bandwidth, 425e9);
  EXPECT_EQ(c.intra_node.latency, 1e-5);  // the vendor's, which nothing found says
  EXPECT_EQ(c.inter_node.bandwidth, 75e9);
  EXPECT_EQ(parse_cluster(save_cluster(c), "again"), c);
}

// Without NVLink the vendor's link is not this machine's.
TEST(FoundTopology, OfSlotsAlone) {
  ClusterSpec c = of_vendor();
  EXPECT_EQ(add_topology(c, {.gpus = {gpu_of(63e9, 0, 0, 0), gpu_of(31e9, 0, 0, 0)}, .nics = {}}),
            "2 GPUs on the bus; 31 GB/s of PCIe, as the slots say");
  EXPECT_EQ(c.intra_node, (LinkSpec{.bandwidth = 31e9}));
  EXPECT_EQ(c.memory_bytes, 80);
}

TEST(FoundTopology, OfOneGpuAndOfNone) {
  ClusterSpec c = of_vendor();
  EXPECT_EQ(add_topology(c, {.gpus = {gpu_of(63e9, 18, 450e9, 0)}, .nics = {}}), "1 GPU on the bus");
  EXPECT_EQ(c.devices_per_node, 1);
  EXPECT_FALSE(c.intra_node.known());
  c = of_vendor();
  EXPECT_EQ(add_topology(c, {}), "");
  EXPECT_EQ(c, of_vendor());
}

TEST(FoundTopology, KnowsItsVendorsFile) {
  EXPECT_EQ(vendor_file_of("NVIDIA H200"), "h200-sxm-8");
  EXPECT_EQ(vendor_file_of("NVIDIA H100 80GB HBM3"), "h100-sxm-8");
  EXPECT_EQ(vendor_file_of("NVIDIA H100 PCIe"), "h100-pcie-8");
  EXPECT_EQ(vendor_file_of("NVIDIA H100 NVL"), "");
  EXPECT_EQ(vendor_file_of("NVIDIA A100-SXM4-80GB"), "a100-sxm-8");
  EXPECT_EQ(vendor_file_of("Tesla T4"), "");
}

}  // namespace
}  // namespace trireme
