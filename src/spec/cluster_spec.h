// The machines that a run is priced for: what `bench` measures of this one, or what a vendor states of
// another.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "spec/calibration.h"
#include "spec/field.h"

namespace trireme {

// Dense peak of one device, FLOP/s (a multiply-add is 2); 0 = not known, or the device has no such type.
struct Peaks {
  double f32 = 0, bf16 = 0, f16 = 0, fp8 = 0, fp4 = 0;
  bool operator==(const Peaks&) const = default;

  template <class V>
  void visit(V& v) {
    v("f32", f32, "FLOP/s", "dense peak of one device in f32; 0 = not known", between(0, 1e21));
    v("bf16", bf16, "FLOP/s", "dense peak of one device in bf16; 0 = not native", between(0, 1e21));
    v("f16", f16, "FLOP/s", "dense peak of one device in f16; 0 = not native: computed in f32",
      between(0, 1e21));
    v("fp8", fp8, "FLOP/s", "dense peak of one device in 8-bit floats; 0 = not native", between(0, 1e21));
    v("fp4", fp4, "FLOP/s", "dense peak of one device in 4-bit floats; 0 = not native", between(0, 1e21));
  }
};

// A message of n bytes between two ranks takes latency + n / bandwidth; what the other keys mean to a
// collective: cost/collective_time.h.
struct LinkSpec {
  double latency = 0, bandwidth = 0;
  double efficiency = 1, round = 0, message = 0, ramp = 0, reduce_bandwidth = 0;
  bool operator==(const LinkSpec&) const = default;
  bool known() const { return latency > 0 || bandwidth > 0; }

  template <class V>
  void visit(V& v) {
    v("latency", latency, "s", "of a short message between two ranks; 0 = not known", between(0, 10));
    v("bandwidth", bandwidth, "bytes/s", "of long messages, each way; 0 = not known", between(0, 1e18));
    v("efficiency", efficiency, "", "share of the bandwidth that long messages reach",
      Rule{.low = 0, .high = 1, .low_open = true});
    v("round", round, "s", "of a round of a collective that is under way; 0 = as latency", between(0, 10));
    v("message", message, "s", "of each message that a rank sends in all_to_all, beside its bytes",
      between(0, 10));
    v("ramp", ramp, "s", "of filling the pipe: n bytes take 2 sqrt(ramp n / bandwidth) longer",
      between(0, 10));
    v("reduce_bandwidth", reduce_bandwidth, "bytes/s",
      "of a device to and from switches that add up (in-switch reduction); 0 = they do not",
      between(0, 1e18));
  }
};

// A level above the node: rack, pod, ... Its link is what one *node* has, each way, to reach other units of
// this level, and its devices share it (a pod whose spine is oversubscribed gives a node less than its rack
// does).
inline constexpr std::string_view kTierKinds[] = {"switch", "torus"};
struct TierSpec {
  std::string name, kind = "switch";
  int64_t size = 1;  // units of the level below: nodes, racks, ...
  Numbers dims;      // of a torus, outer to inner; the product is `size`
  LinkSpec link;     // of a torus: of one cable, of which a node has two a dim
  bool operator==(const TierSpec&) const = default;
  bool torus() const { return kind == "torus"; }

  template <class V>
  void visit(V& v) {
    v("name", name, "", "of the level: rack, pod, ...");
    v("kind", kind, "", "how its units are joined", one_of(kTierKinds));
    v("size", size, "", "units of the level below in one of these: nodes in a rack, racks in a pod",
      between(1, 1e6));
    v("dims", dims, "", "of a torus: its sides, outer to inner; their product is size", between(1, 1e6));
    link.visit(v);
  }
};

// Where checkpoints are written.
struct StorageSpec {
  double bandwidth = 0;       // bytes/s, all machines' writes together
  double node_bandwidth = 0;  // bytes/s, one machine's writes
  double bytes = 0;           // capacity
  bool operator==(const StorageSpec&) const = default;

  template <class V>
  void visit(V& v) {
    v("bandwidth", bandwidth, "bytes/s",
      "writes to the storage of checkpoints, all machines together; 0 = not known", between(0, 1e18));
    v("node_bandwidth", node_bandwidth, "bytes/s", "one machine's writes to it; 0 = not known",
      between(0, 1e15));
    v("bytes", bytes, "bytes", "capacity of that storage; 0 = not known", between(0, 1e21));
  }
};

struct PowerSpec {
  double device = 0, node = 0;  // W under load: one device; a machine besides its devices
  double pue = 1;               // power of the site over power of its machines
  bool operator==(const PowerSpec&) const = default;
  bool known() const { return device > 0 || node > 0; }
  double watts(double devices, double nodes) const { return (devices * device + nodes * node) * pue; }

  template <class V>
  void visit(V& v) {
    v("device", device, "W", "one device under load; 0 = not known", between(0, 1e6));
    v("node", node, "W", "a machine under load besides its devices: CPUs, fans, network adapters",
      between(0, 1e7));
    v("pue", pue, "", "power usage effectiveness: power of the site over power of its machines",
      between(1, 10));
  }
};

// Machines of one kind, in a cluster of several kinds of devices.
struct KindSpec {
  std::string name;  // its device's
  int64_t nodes = 1;
  Peaks peak;
  int64_t memory_bytes = 0;
  double memory_bandwidth = 0, host_bandwidth = 0;
  double price_per_hour = 0, watts = 0;  // one device's
  bool operator==(const KindSpec&) const = default;

  template <class V>
  void visit(V& v) {
    v("name", name, "", "of this kind's device");
    v("nodes", nodes, "", "machines of this kind", between(1, 1e6));
    v.section("peak", peak, "peaks of a device of this kind");
    v("memory_bytes", memory_bytes, "bytes", "memory of one device of this kind", between(0, 1e15));
    v("memory_bandwidth", memory_bandwidth, "bytes/s", "to and from that memory", between(0, 1e18));
    v("host_bandwidth", host_bandwidth, "bytes/s", "between one device and the host's memory, each way",
      between(0, 1e15));
    v("price_per_hour", price_per_hour, "money per hour", "one device of this kind", between(0, 1e9));
    v("watts", watts, "W", "one device of this kind under load", between(0, 1e6));
  }
};

struct ClusterSpec {
  std::string name;
  int64_t nodes = 1, devices_per_node = 1;
  Peaks peak;
  int64_t memory_bytes = 0;     // of one device
  double memory_bandwidth = 0;  // bytes/s of one device
  LinkSpec intra_node;          // between two devices of one machine; of a CPU: between two rank threads
  LinkSpec intra_node_mpi;      // of a CPU: between two processes of one machine
  LinkSpec inter_node;          // of a machine to another, shared by its devices
  std::vector<TierSpec> tiers;  // levels above the node, nearest first, in the place of inter_node
  // Machines under one leaf switch (0 = all), and the factor by which less leaves it than arrives: groups
  // beyond a leaf have 1 / oversubscription of inter_node's bandwidth.
  int64_t leaf_nodes = 0;
  double oversubscription = 1;
  StorageSpec storage;
  PowerSpec power;
  // Kinds of machines. Then peaks, memory and rates above are those of the slowest member (settle_kinds).
  std::vector<KindSpec> kinds;
  double launch = 0;          // s, of every collective before its first round
  double disk_bandwidth = 0;  // bytes/s of one machine's disk, each way, shared by its ranks
  double host_bandwidth = 0;  // bytes/s between one device's memory and the host's, each way
  double price_per_hour = 0;  // per device, in any currency; 0 = not known
  std::string currency;       // price_per_hour's; empty = not stated
  std::string region;         // region of the price table (catalog/price_list.h)
  double mtbf_hours = 50000;  // device-hours between failures
  int64_t threads = 0;        // CPU: threads that the numbers were measured with
  double others = 0;          // CPU: share of the processors that other processes had meanwhile
  // What kernels reach here: one rank with all threads, and ranks of fewer threads together.
  Calibration alone, together;
  std::string source, date;  // "measured by bench" or a vendor's page; YYYY-MM-DD
  bool operator==(const ClusterSpec&) const = default;

  double mtbf_s(int64_t world) const { return mtbf_hours * 3600 / double(world < 1 ? 1 : world); }
  int64_t devices() const { return nodes * devices_per_node; }
  // Above a tenth, what was measured is too slow to be held against a quiet run.
  bool disturbed() const { return others > 0.1; }
  // Returns bytes/s at which checkpoints are written, to storage or else to the machines' disks; 0 = not
  // known.
  double checkpoint_bandwidth() const;
  // Levels above the node: `tiers`, or leaves and all nodes, joined by inter_node; none of a single node.
  std::vector<TierSpec> levels() const;
  // What two levels make of it: the slowest that a node meets on its way to any other.
  LinkSpec between_nodes() const;
  // "f32" | "bf16" | "f16" (where it is not native, that of f32) | "fp8" | "fp4"; 0 = not known.
  double peak_flops(std::string_view dtype) const;

  template <class V>
  void visit(V& v) {
    v("name", name, "", "of the cluster");
    v("nodes", nodes, "", "machines", between(1, 1e6));
    v("devices_per_node", devices_per_node, "", "devices in a machine (a CPU machine is one)",
      between(1, 1024));
    v.section("peak", peak, "what a device can compute");
    v("memory_bytes", memory_bytes, "bytes", "memory of one device; 0 = not known", between(0, 1e15));
    v("memory_bandwidth", memory_bandwidth, "bytes/s", "to and from that memory; 0 = not known",
      between(0, 1e18));
    v.section("intra_node", intra_node, "between two devices of one machine");
    v.section("intra_node_mpi", intra_node_mpi,
              "between two MPI processes of one machine whose intra_node was measured by rank threads");
    v.section("inter_node", inter_node, "from a machine to the others, shared by its devices");
    v("disk_bandwidth", disk_bandwidth, "bytes/s",
      "to and from a machine's disk, shared by its ranks; 0 = not known", between(0, 1e15));
    v("host_bandwidth", host_bandwidth, "bytes/s",
      "of one device, to the host's memory and back, each way (PCIe, NVLink-C2C); 0 = not known, or a CPU",
      between(0, 1e15));
    v("price_per_hour", price_per_hour, "money per hour", "of one device, in any currency; 0 = not known",
      between(0, 1e9));
    v("currency", currency, "", "currency of price_per_hour, such as USD");
    v("region", region, "", "region whose price holds, of the price table; used if price_per_hour is 0");
    v("leaf_nodes", leaf_nodes, "", "machines under one leaf switch; 0 = all", between(0, 1e6));
    v("oversubscription", oversubscription, "",
      "bandwidth into a leaf switch over bandwidth out of it: groups beyond a leaf have inter_node's divided "
      "by it",
      between(1, 1000));
    v.section("storage", storage, "where checkpoints are written");
    v.section("power", power, "power of devices and machines");
    v("mtbf_hours", mtbf_hours, "device-hours",
      "between failures that end a run: n devices fail n times as often (Llama 3 on H100s: 50,675)",
      Rule{.low = 0, .high = 1e12, .low_open = true});
    v("threads", threads, "threads", "CPU threads that the numbers were measured with", between(0, 65536));
    v("others", others, "",
      "share of the processors that other processes had while the numbers were measured; above 0.1 they are "
      "those of a busy machine",
      between(0, 1));
    v.section("alone", alone, "what kernels reach on this machine with one rank of all threads (bench)");
    v.section("together", together, "what they reach with several ranks at once (bench)");
    v("source", source, "", "where the numbers are from");
    v("date", date, "YYYY-MM-DD", "when they were measured or read");
    v("launch", launch, "s", "of every collective before its first round: framework and library",
      between(0, 10));
    v.list("tier", tiers,
           "a level above the node (rack, pod, ...), nearest first: [[tier]] for each, in the place of "
           "inter_node");
    v.list("kind", kinds,
           "machines of one kind, in a cluster of several kinds of devices: [[kind]] for each, in the order "
           "of ranks");
  }
};

// Errors as of load_run: all of them at once, FILE:LINE: key: problem, value, what is right.
ClusterSpec load_cluster(const fs::path&);
ClusterSpec parse_cluster(std::string_view toml, std::string_view file);
std::string save_cluster(const ClusterSpec&);
void save_cluster(const ClusterSpec&, const fs::path&);

}  // namespace trireme
