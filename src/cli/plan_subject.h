// What `plan` speaks of where there is no run file: a model, a device, and how many of them. Its options are
// added to the verb once, whatever wants them.
#pragma once
#include <optional>
#include <string>

#include "cli/cli.h"
#include "cost/step_time.h"

namespace trireme::cli {

struct PlanSubject {
  std::string model, cluster, arch = "llama";
  double parameters = 0;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  int64_t gpus = 0, seq = 0;
  void add_to(CLI::App& verb);
};

struct SubjectModel {
  std::string name;
  std::optional<ModelSpec> shape;  // finish()ed
  double parameters = 0;
};
// --model: a shape of data/score_catalog.json by name, a run file (its [model]), a Hugging Face config.json;
// or the shape of --layers, --hidden, ...; or --parameters alone. None of them: parameters = 0.
SubjectModel model_of(const PlanSubject&);

struct SubjectDevice {
  std::string name, source;  // name: as data/score_constants.json has it, where it does; else the file's
  DeviceFigures figures;
  std::string curve;  // device of data/score_catalog.json whose products' and attention's rates these are
  double price_per_hour = 0, mtbf_hours = 0;
  std::string assumed;  // the link between nodes, where the cluster file has none: which, and whose it is
  std::string note;     // too_few_devices()
  int64_t machine = 0;  // devices that fail together; 0 = those that are near
  // Bytes/s between a device and where its optimizer state may wait: the host's memory, over a link of its
  // own that goes both ways at once; its share of the machine's disk. 0 = nothing is said of it.
  double host = 0, disk = 0;
};
// --cluster: a cluster file, or a device of data/score_catalog.json by name ("H100"). compute: the type whose
// peak DeviceFigures::bf16 is. devices: so many, neighbours, are spoken of, and DeviceFigures::nic is of the
// levels that join them; 0 = all.
SubjectDevice device_of(const std::string& cluster, int64_t devices);
SubjectDevice device_of(const ClusterSpec&, std::string_view compute, int64_t devices);
// What the closed forms need of it for so many devices: attention of which no rate was measured gets a share
// of the peak; what else is missing is a bad_request that names the key. asked: the option, for errors.
void complete_figures(SubjectDevice&, int64_t devices, std::string_view asked);
// Whose rates products and attention have: "products and attention by A100-80GB's curves".
std::string curve_text(const SubjectDevice&);
bool is_device_name(const std::string& cluster);
// load_cluster(); one without a name is called by its path.
ClusterSpec named_cluster(const fs::path&);

// A run file as it would start: layout and batch.micro chosen where it leaves them open, on the cluster file
// that --cluster names, else its own. Of a device by name there is no cluster to choose on or to book for.
struct PlannedRun {
  RunSpec run;
  ClusterSpec cluster;
  SubjectDevice device;
  std::string note;     // what was chosen
  PrecisionSpec asked;  // as the file has it
};
PlannedRun planned_run(RunRequest, const std::string& cluster, const Measuring& = {});
// What the run leaves open beside that: layout.schedule = "auto" or "file", layout.recompute = "auto".
void settle(PlannedRun&);

// A number from low to high; CLI::Range would take nan.
CLI::Validator number_between(double low, double high);

}  // namespace trireme::cli
