// What is found of a machine, as keys of its cluster file.
#include "spec/found_topology.h"

#include <gtest/gtest.h>

#include "source_dir.h"

namespace trireme {
namespace {

ClusterSpec of_vendor() {
  ClusterSpec c;
  c.name = "h100", c.devices_per_node = 8, c.memory_bytes = 80;
  c.intra_node = {.latency = 1e-5, .bandwidth = 450e9};
  return c;
}
GpuFound gpu_of(double pcie, int links, double nvlink, int64_t memory) {
  return {.pci = "0000:1b:00.0",
          .name = "NVIDIA H100 80GB HBM3",
          .memory = memory,
          .pcie = pcie,
          .nvlinks = links,
          .nvlink = nvlink};
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
  c.nodes = 4;
  EXPECT_EQ(add_topology(c, {}), "");
  ClusterSpec one = of_vendor();
  one.devices_per_node = 1, one.intra_node = {};
  EXPECT_EQ(c, one);
}

// Vendors' machines are many, of one or several levels: this one is one, with adapters and without, and its
// file is one that is read.
TEST(FoundTopology, IsOneMachineOfAnyVendorsFile) {
  int files = 0, of_levels = 0;
  for (const auto& file : fs::directory_iterator(test::source_dir() / "configs/cluster")) {
    const ClusterSpec vendor = load_cluster(file.path());
    for (const bool adapter : {false, true}) {
      SCOPED_TRACE(file.path().string());
      ClusterSpec c = vendor;
      Topology t{.gpus = {gpu_of(63e9, 18, 450e9, 90), gpu_of(63e9, 18, 450e9, 90)}, .nics = {}};
      if (adapter) t.nics = {{.name = "a", .pci = {}, .link_layer = {}, .bandwidth = 50e9}};
      add_topology(c, t);
      EXPECT_EQ(c.nodes, 1);
      EXPECT_EQ(c.devices_per_node, 2);
      EXPECT_TRUE(c.tiers.empty());
      EXPECT_EQ(c.inter_node.bandwidth, adapter ? 50e9 : 0);
      if (!adapter) {
        EXPECT_FALSE(c.inter_node.known());
      }
      EXPECT_EQ(parse_cluster(save_cluster(c), "again"), c);
    }
    files++, of_levels += !vendor.tiers.empty();
  }
  EXPECT_GT(files, 5);
  EXPECT_GT(of_levels, 0);
}

// A link between nodes has what the vendor's levels have of latency and efficiency, and no cable of a torus.
TEST(FoundTopology, TakesWhatIsNotFoundOfALinkFromItsVendor) {
  const Topology t{.gpus = {gpu_of(63e9, 18, 450e9, 90)},
                   .nics = {{.name = "a", .pci = {}, .link_layer = {}, .bandwidth = 50e9}}};
  ClusterSpec c = of_vendor();
  c.nodes = 8;
  c.tiers = {{.name = "rack",
              .size = 8,
              .dims = {},
              .link = {.latency = 2e-6, .bandwidth = 400e9, .efficiency = 0.8}}};
  c.tiers[0].link.reduce_bandwidth = 300e9;
  ClusterSpec torus = c;
  torus.tiers[0].kind = "torus", torus.tiers[0].dims = {2, 4};
  add_topology(c, t), add_topology(torus, t);
  EXPECT_EQ(c.inter_node, (LinkSpec{.latency = 2e-6, .bandwidth = 50e9, .efficiency = 0.8}));
  EXPECT_EQ(torus.inter_node, (LinkSpec{.bandwidth = 50e9}));
}

// The GPU that was measured is not the bus's first, nor are all of its kind.
TEST(FoundTopology, KeepsTheKindThatWasMeasured) {
  auto gpu = [](const char* pci, const char* name) { return GpuFound{.pci = pci, .name = name}; };
  const Topology all{.gpus = {gpu("0000:1b:00.0", "NVIDIA A2"), gpu("0000:9a:00.0", "NVIDIA H200"),
                              gpu("0000:ab:00.0", "NVIDIA H200")},
                     .nics = {}};
  Topology t = all;
  EXPECT_EQ(keep_alike(t, "00000000:AB:00.0"), "NVIDIA H200");
  ASSERT_EQ(t.gpus.size(), 2u);
  EXPECT_EQ(t.gpus[0].pci, "0000:9a:00.0");
  for (const char* other : {"0000:ac:00.0", "", "nonsense", "0001:ab:00.0"}) {
    t = all;
    EXPECT_EQ(keep_alike(t, other), "") << other;
    EXPECT_TRUE(t.gpus.empty()) << other;
  }
}

TEST(FoundTopology, KnowsItsVendorsFile) {
  EXPECT_EQ(vendor_file_of("NVIDIA H200"), "h200-sxm-8");
  EXPECT_EQ(vendor_file_of("NVIDIA H100 80GB HBM3"), "h100-sxm-8");
  EXPECT_EQ(vendor_file_of("NVIDIA H100 PCIe"), "h100-pcie-8");
  EXPECT_EQ(vendor_file_of("NVIDIA H100 NVL"), "");
  EXPECT_EQ(vendor_file_of("NVIDIA A100-SXM4-80GB"), "a100-sxm-8");
  EXPECT_EQ(vendor_file_of("Tesla T4"), "");
  EXPECT_EQ(vendor_file_of("NVIDIA H200 NVL"), "");
  EXPECT_EQ(vendor_file_of("NVIDIA GH200 480GB"), "");
  EXPECT_EQ(vendor_file_of("NVIDIA GB200"), "gb200-nvl72");
  EXPECT_EQ(vendor_file_of("NVIDIA B200"), "b200-sxm-8");
}

}  // namespace
}  // namespace trireme
