// The machines that a forecast prices, of a cluster file or of a device by name: what closed forms read of
// them.
#pragma once
#include <string>
#include <string_view>

#include "base/file.h"
#include "cost/device_curves.h"
#include "spec/cluster_spec.h"

namespace trireme {

struct SubjectDevice {
  std::string name, source;  // name: as data/score_constants.json has it, where it does; else the file's
  DeviceFigures figures;
  std::string curve;  // device of data/score_catalog.json whose products' and attention's rates these are
  double price_per_hour = 0, mtbf_hours = 0;
  std::string currency;  // the price's; empty = not stated
  std::string assumed;   // the link between nodes, where the cluster file has none: which, and whose it is
  std::string note;      // too_few_devices()
  int64_t machine = 0;   // devices that fail together; 0 = those that are near
  // Bytes/s between a device and the place where its optimizer state may wait; 0 = not known. host: the
  // host's memory, over the device's link, both ways at once. disk: the device's share of the machine's disk.
  double host = 0, disk = 0;
  // The machines with as many nodes as the devices need, for energy, checkpoints and kinds of devices.
  ClusterSpec site;
};
// Reads --cluster: a cluster file, or a device of data/score_catalog.json by name ("H100"). compute: the type
// whose peak is DeviceFigures::bf16. devices: the number of neighbouring devices that DeviceFigures::nic
// joins; 0 = all. With several [[kind]]s, figures, name and price are those of the kinds in use.
SubjectDevice device_of(const std::string& cluster, int64_t devices);
SubjectDevice device_of(const ClusterSpec&, std::string_view compute, int64_t devices);
// Completes the figures that closed forms need for n devices: attention without a measured rate gets a share
// of the peak. A missing figure is a bad_request that names the key. asked: the option, for errors.
void complete_figures(SubjectDevice&, int64_t devices, std::string_view asked);
// Whose rates products and attention have: "products and attention by A100-80GB's curves".
std::string curve_text(const SubjectDevice&);
// The note on a run in bf16 on a device of the catalog that has none; "" = it has, or the run is in another
// type.
std::string no_bf16_text(std::string_view device, std::string_view compute);
bool is_device_name(const std::string& cluster);
// load_cluster(); one without a name is called by its path.
ClusterSpec named_cluster(const fs::path&);

// Returns the cluster of a run file's cluster.file. If no such file exists, it is the shipped file or the
// device of data/score_catalog.json of that name, with as many nodes as `devices` need.
ClusterSpec cluster_called(const std::string& file, int64_t devices);

// Machines of several devices, or levels above machines: each device has separate memory.
bool has_own_devices(const ClusterSpec&);

}  // namespace trireme
