// What `plan` speaks of where there is no run file: a model, a device, and how many of them. Its options are
// added to the verb once, whatever wants them.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "catalog/cluster_device.h"
#include "cli/cli.h"
#include "cost/step_time.h"
#include "spec/software_profile.h"

namespace trireme::cli {

struct PlanSubject {
  std::string model, cluster;
  std::string arch;            // empty = llama
  std::string prices, region;  // price table and its region
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

struct ShapeExtras {
  int64_t window = 0;
  double window_share = 0;
  bool expert_bias = false;  // as StepCase's
};
// Sliding windows and biases of experts of --model NAME: no key of a run file has them. For a framework that
// runs them, these; for trireme, none, with a note that they are left out. So a model by name and its run
// file have one price.
ShapeExtras extras_of(const std::string& model, const SoftwareProfile&);

// A run file as it would start: layout and batch.micro chosen where it leaves them open, on the cluster file
// that --cluster names, else its own. A run on this machine's CPU has no cluster on a device by name
// (booked() is false): nothing can be chosen or booked.
struct PlannedRun {
  RunSpec run;
  ClusterSpec cluster;
  SubjectDevice device;
  std::string note;     // what was chosen
  PrecisionSpec asked;  // as the file has it
  bool booked() const { return !cluster.name.empty(); }
};
PlannedRun planned_run(RunRequest, const std::string& cluster, const Measuring& = {});
// What the run leaves open beside that: layout.schedule = "auto" or "file", layout.recompute = "auto".
void settle(PlannedRun&);

// Options of the subject that a run file replaces.
inline constexpr const char* kInPlaceOfRun[] = {
    "--model",        "--parameters", "--arch", "--layers",    "--hidden", "--heads", "--kv-heads",
    "--ffn",          "--vocab",      "--gpus", "--seq",       "--micro",  "--tp",    "--pp",
    "--microbatches", "--chunks",     "--zero", "--recompute", "--ep"};
// Rejects each of these options that is given. Options that the subcommand lacks count as not given.
void refuse_given(const CLI::App& verb, std::span<const char* const> names, std::string_view why);
// Rejects --parameters next to a model's shape.
void refuse_size_of_shape(const CLI::App& verb);
void refuse_sets_without_run(const RunRequest&);
// bad_request if the run trains adapters: `what` is for runs that train all weights.
void refuse_adapters(const RunSpec&, std::string_view what);

// Adds --prices and --region.
void add_price_options(CLI::App& verb, std::string& prices, std::string& region);

// A number from low to high; CLI::Range would take nan.
CLI::Validator number_between(double low, double high);
// Rejects an empty file name.
CLI::Validator named_file();

}  // namespace trireme::cli
