// The machines of a run, as its start recorded them, or as far as its other files and a cluster file say.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "report/run_record.h"
#include "report/trace_facts.h"
#include "spec/cluster_spec.h"

namespace trireme {

struct MachineFacts {
  std::string device, host;  // "AMD EPYC 9555, 2 cores"; empty: not known
  int64_t ranks = 1, nodes = 1;
  double peak_flops = 0;              // FLOP/s per rank in the compute type; 0 = not known
  double bandwidth = 0, network = 0;  // bytes/s of one rank; 0 = not known
  int64_t memory = 0;                 // bytes of a device
  double price_per_hour = 0;          // per device
  std::string interconnect;
  std::map<std::string, std::string> versions;
  nlohmann::json start;  // the start event; null: the run recorded none
};

// cluster: null if unknown.
MachineFacts machine_facts(const RunRecord&, const TraceFacts&, const ClusterSpec* cluster);

}  // namespace trireme
