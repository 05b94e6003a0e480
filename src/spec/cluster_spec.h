// The machines that a run is priced for: what `bench` measures of this one, or what a vendor states of
// another.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"
#include "spec/calibration.h"
#include "spec/field.h"

namespace trireme {

// Dense peak of one device, FLOP/s (a multiply-add is 2); 0 = not known, or the device has no such type.
struct Peaks {
  double f32 = 0, bf16 = 0;
  bool operator==(const Peaks&) const = default;

  template <class V>
  void visit(V& v) {
    v("f32", f32, "FLOP/s", "dense peak of one device in f32; 0 = not known", between(0, 1e21));
    v("bf16", bf16, "FLOP/s", "dense peak of one device in bf16; 0 = not native", between(0, 1e21));
  }
};

// A message of n bytes between two ranks takes latency + n / bandwidth.
struct LinkSpec {
  double latency = 0, bandwidth = 0;
  bool operator==(const LinkSpec&) const = default;

  template <class V>
  void visit(V& v) {
    v("latency", latency, "s", "of a short message between two ranks; 0 = not known", between(0, 10));
    v("bandwidth", bandwidth, "bytes/s", "of long messages, each way; 0 = not known", between(0, 1e18));
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
  double disk_bandwidth = 0;    // bytes/s of one machine's disk, each way, shared by its ranks
  double price_per_hour = 0;    // of one device, in any currency; 0 = not known
  double mtbf_hours = 50000;    // device-hours between failures
  int64_t threads = 0;          // CPU: threads that the numbers were measured with
  // What kernels reach here: one rank with all threads, and ranks of fewer threads together.
  Calibration alone, together;
  std::string source, date;  // "measured by bench" or a vendor's page; YYYY-MM-DD
  bool operator==(const ClusterSpec&) const = default;

  double mtbf_s(int64_t world) const { return mtbf_hours * 3600 / double(world < 1 ? 1 : world); }
  int64_t devices() const { return nodes * devices_per_node; }
  // "f32" | "bf16" | "f16" (which CPUs compute in f32); 0 = not known.
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
    v("price_per_hour", price_per_hour, "money per hour", "of one device, in any currency; 0 = not known",
      between(0, 1e9));
    v("mtbf_hours", mtbf_hours, "device-hours",
      "between failures that end a run: n devices fail n times as often (Llama 3 on H100s: 50,675)",
      Rule{.low = 0, .high = 1e12, .low_open = true});
    v("threads", threads, "threads", "CPU threads that the numbers were measured with", between(0, 65536));
    v.section("alone", alone, "what kernels reach on this machine with one rank of all threads (bench)");
    v.section("together", together, "what they reach with several ranks at once (bench)");
    v("source", source, "", "where the numbers are from");
    v("date", date, "YYYY-MM-DD", "when they were measured or read");
  }
};

// Errors as of load_run: all of them at once, FILE:LINE: key: problem, value, what is right.
ClusterSpec load_cluster(const fs::path&);
ClusterSpec parse_cluster(std::string_view toml, std::string_view file);
std::string save_cluster(const ClusterSpec&);
void save_cluster(const ClusterSpec&, const fs::path&);

}  // namespace trireme
