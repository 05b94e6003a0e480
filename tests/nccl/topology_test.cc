// Topology from trees as /sys has them, and from a libnvidia-ml of the tests' own.
#include "base/topology.h"

#include <gtest/gtest.h>

#include <fstream>

namespace trireme {
namespace {

class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "trireme_topology_XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~Tree() { fs::remove_all(root_); }
  const fs::path& root() const { return root_; }
  void put(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }
  void device(const std::string& pci, const std::string& vendor, const std::string& kind,
              const std::string& speed, const std::string& lanes, const std::string& numa) {
    const fs::path at = fs::path("sys/bus/pci/devices") / pci;
    put(at / "vendor", vendor), put(at / "class", kind), put(at / "numa_node", numa);
    if (!speed.empty()) put(at / "max_link_speed", speed), put(at / "max_link_width", lanes);
  }
  void adapter(const std::string& name, const std::string& pci, const std::string& rate,
               const std::string& state) {
    const fs::path at = fs::path("sys/class/infiniband") / name;
    put(at / "ports/1/rate", rate), put(at / "ports/1/state", state),
        put(at / "ports/1/link_layer", "InfiniBand");
    fs::create_symlink(root_ / "sys/bus/pci/devices" / pci, root_ / at / "device");
  }

 private:
  fs::path root_;
};

// A node like a DGX, cut to two of its GPUs; a graphics card's sound, a bridge, an adapter whose cable is
// out.
void fill(Tree& t) {
  t.device("0000:1b:00.0", "0x10de", "0x030200", "32.0 GT/s PCIe", "16", "0");
  t.device("0000:43:00.0", "0x10de", "0x030200", "32.0 GT/s PCIe", "16", "1");
  t.device("0000:43:00.1", "0x10de", "0x040300", "32.0 GT/s PCIe", "16", "1");
  t.device("0000:05:00.0", "0x10de", "0x068000", "", "", "-1");
  t.device("0000:18:00.0", "0x15b3", "0x020700", "32.0 GT/s PCIe", "16", "0");
  t.device("0000:40:00.0", "0x15b3", "0x020700", "32.0 GT/s PCIe", "16", "1");
  t.device("0000:41:00.0", "0x15b3", "0x020700", "32.0 GT/s PCIe", "16", "1");
  t.adapter("mlx5_0", "0000:18:00.0", "400 Gb/sec (4X NDR)", "4: ACTIVE");
  t.adapter("mlx5_1", "0000:40:00.0", "400 Gb/sec (4X NDR)", "4: ACTIVE");
  t.adapter("mlx5_2", "0000:41:00.0", "10 Gb/sec (4X SDR)", "1: DOWN");
}

TEST(Topology, FromTheKernelsTree) {
  Tree tree;
  fill(tree);
  const Topology t = read_topology(tree.root());
  ASSERT_EQ(t.gpus.size(), 2u);
  EXPECT_EQ(t.gpus[0].pci, "0000:1b:00.0");
  EXPECT_EQ(t.gpus[1].numa, 1);
  EXPECT_DOUBLE_EQ(t.gpus[0].pcie, 32e9 / 8 * 128 / 130 * 16);  // 63 GB/s of PCIe 5
  ASSERT_EQ(t.nics.size(), 3u);
  EXPECT_EQ(t.nics[0].name, "mlx5_0");
  EXPECT_EQ(t.nics[0].pci, "0000:18:00.0");
  EXPECT_EQ(t.nics[1].numa, 1);
  EXPECT_DOUBLE_EQ(t.nics[0].bandwidth, 50e9);
  EXPECT_EQ(t.nics[2].bandwidth, 0);
  EXPECT_EQ(cluster_lines(t),
            "devices_per_node = 2\n[intra_node]\nbandwidth = 6.302e+10  # PCIe, as the slots say\n"
            "[inter_node]\nbandwidth = 1e+11  # 2 adapters of the node, as their ports say\n");
}

TEST(Topology, WithWhatNvmlSays) {
  Tree tree;
  fill(tree);
  Topology t = read_topology(tree.root());
  ASSERT_TRUE(ask_nvml(t, FAKE_NVML));
  ASSERT_EQ(t.gpus.size(), 2u);
  EXPECT_EQ(t.gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(t.gpus[0].memory, 85520809984);
  EXPECT_EQ(t.gpus[0].nvlinks, 18);
  EXPECT_DOUBLE_EQ(t.gpus[0].nvlink, 450e9);  // as configs/cluster/h100-sxm-8.toml
  EXPECT_EQ(t.gpus[1].nvlinks, 17);
  EXPECT_EQ(cluster_lines(t),
            "devices_per_node = 2\n[intra_node]\nbandwidth = 4.25e+11  # 17 NVLinks of a GPU, as NVML says\n"
            "[inter_node]\nbandwidth = 1e+11  # 2 adapters of the node, as their ports say\n");
}

// A container sees every board of the machine, and NVML those that it was given.
TEST(Topology, LeavesOutWhatNvmlDoesNotList) {
  Tree tree;
  fill(tree);
  tree.device("0000:5c:00.0", "0x10de", "0x030200", "32.0 GT/s PCIe", "16", "1");
  Topology t = read_topology(tree.root());
  ASSERT_EQ(t.gpus.size(), 3u);
  ASSERT_TRUE(ask_nvml(t, FAKE_NVML));
  ASSERT_EQ(t.gpus.size(), 2u);
  EXPECT_EQ(t.gpus[1].pci, "0000:43:00.0");
  ASSERT_NE(gpu_at(t, "0000:1B:00.0"), nullptr);
  EXPECT_EQ(gpu_at(t, "0000:1B:00.0")->pci, "0000:1b:00.0");
  EXPECT_EQ(gpu_at(t, "0000:5c:00.0"), nullptr);
}

TEST(Topology, OfNothingAndOfNonsense) {
  Tree tree;
  EXPECT_EQ(cluster_lines(read_topology(tree.root())), "");
  tree.device("0000:1b:00.0", "0x10de", "0x030000", "Unknown", "255", "x");
  tree.put("sys/class/infiniband/a/ports/1/rate", "1e300 Gb/sec");
  tree.put("sys/class/infiniband/a/ports/1/state", "4: ACTIVE");
  Topology t = read_topology(tree.root());
  ASSERT_EQ(t.gpus.size(), 1u);
  EXPECT_EQ(t.gpus[0].pcie, 0);
  EXPECT_EQ(t.gpus[0].numa, -1);  // of nonsense nothing is known
  for (const char* numa : {"-1", "", "1x", " 1", "99999999999", "0x1"}) {
    tree.device("0000:1b:00.0", "0x10de", "0x030000", "Unknown", "255", numa);
    EXPECT_EQ(read_topology(tree.root()).gpus[0].numa, -1) << numa;
  }
  tree.device("0000:1b:00.0", "0x10de", "0x030000", "Unknown", "255", "0");
  EXPECT_EQ(read_topology(tree.root()).gpus[0].numa, 0);
  EXPECT_EQ(t.nics[0].bandwidth, 0);
  EXPECT_EQ(cluster_lines(t), "devices_per_node = 1\n");
  EXPECT_FALSE(ask_nvml(t, "/nowhere/libnvidia-ml.so.1"));
  EXPECT_FALSE(ask_nvml(t, "libm.so.6"));
}

}  // namespace
}  // namespace trireme
