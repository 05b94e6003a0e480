#include "spec/run_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/error_lines.h"
#include "spec/complaint.h"
#include "spec/hf_config.h"
#include "spec/identity.h"
#include "spec/kind.h"
#include "spec/lr_rule.h"
#include "spec/nearest.h"
#include "spec/reader.h"
#include "spec/size_rule.h"
#include "spec/supported.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme {
namespace {

// The architecture comes first: it sets the defaults that the other keys of [model] override.
ModelSpec start_from_arch(Reader& reader) {
  const TomlEntry* e = reader.given("model.arch");
  const std::string* arch = e ? std::get_if<std::string>(&e->value) : nullptr;
  if (!arch) return ModelSpec();
  if (std::string why = ModelSpec::refusal(*arch); !why.empty()) {
    reader.problem("model.arch", why);
    return ModelSpec();
  }
  return ModelSpec::of(*arch);
}

// model.from: what its config.json says. Null on a problem, which is then reported.
bool start_from_folder(Reader& reader, ModelSpec& model) {
  const TomlEntry* e = reader.given("model.from");
  const std::string* from = e ? std::get_if<std::string>(&e->value) : nullptr;
  if (!from || from->empty()) return false;
  try {
    model = model_from_hf(fs::path(*from) / "config.json");
  } catch (const ErrorLines& err) {
    for (const std::string& line : err.lines) reader.problem("model.from", line);
    return false;
  } catch (const Error& err) {
    reader.problem("model.from", err.what());
    return false;
  }
  model.from = *from;
  return true;
}

// Keys beside model.from may repeat what its config.json says, not change it; but how much is dropped in
// training is the run's to say.
void must_agree(Reader& reader, const ModelSpec& given, const ModelSpec& folder) {
  std::vector<FieldText> a = fields_of(given), b = fields_of(folder);
  for (size_t i = 0; i < a.size(); i++) {
    std::string key = "model." + a[i].key;
    if (a[i].value != b[i].value && !a[i].key.ends_with("_pdrop") && reader.given(key) && !reader.failed(key))
      reader.problem(key,
                     fmt::format("{} contradicts {} in model.from; remove the line", a[i].value, b[i].value));
  }
}

struct Wanted : LoadOptions {
  bool runnable = false;  // unsupported_of() is reported too
};

// Reports contradictions, one line per key.
void report_problems(Reader& reader, const RunSpec& asked, const RunSpec& run, const Wanted& options) {
  const ComplaintSource from{.asked = asked,
                             .run = run,
                             .check =
                                 [&](const RunSpec& r) {
                                   std::vector<Problem> all = problems_of(r);
                                   return all.empty() && options.runnable ? unsupported_of(r) : all;
                                 },
                             .given = [&](const std::string& key) -> std::optional<std::string> {
                               const TomlEntry* e = reader.given(key);
                               return e ? std::optional(shown(*e)) : std::nullopt;
                             },
                             .given_by_set =
                                 [&](const std::string& key) {
                                   const TomlEntry* e = reader.given(key);
                                   return e && e->line == 0;
                                 }};
  const bool clean = reader.clean();
  std::vector<Problem> wrong = from.check(run);
  std::erase_if(wrong, [&](const Problem& p) { return reader.any_failed(p.keys); });
  std::vector<Complaint> lines = complaints_of(from, wrong);
  if (options.nearest && clean && !lines.empty()) lines.back().text += nearest_layout_text(run);
  for (const Complaint& c : lines) reader.problem(c.key, c.text);
}

// The rules for whole numbers apply as soon as all keys are read: what is checked are numbers.
void settle_sizes(const Reader& reader, RunSpec& run) {
  RunSpec sized = run;
  sized.model.finish(sized.data.seq_len);
  try {
    apply_size_rule(sized, reader.given("batch.micro") != nullptr);
  } catch (const Error&) {  // no count of such a model; what is wrong with it is reported later
    const RunSpec plain;
    sized.batch = plain.batch, sized.train.steps = plain.train.steps,
    sized.optimizer.warmup = plain.optimizer.warmup;
  }
  run.batch = sized.batch;
  run.train.steps = sized.train.steps;
  run.optimizer.warmup = sized.optimizer.warmup;
}

void read_run(Reader& reader, RunSpec& run, const Wanted& options) {
  bool from_folder = options.read_from && start_from_folder(reader, run.model);
  if (!from_folder) run.model = start_from_arch(reader);
  const double of_folder = run.model.init_std;
  ask_for_rules(run);
  if (from_folder) run.model.init_std = of_folder;
  ModelSpec folder = run.model;
  reader.read(run);
  reader.report_unknown();
  if (from_folder) {  // 0 = not given
    for (auto field :
         {&ModelSpec::kv_heads, &ModelSpec::head_dim, &ModelSpec::ffn, &ModelSpec::max_positions})
      if (run.model.*field == 0) run.model.*field = folder.*field;
  }
  settle_sizes(reader, run);
  const RunSpec asked = run;
  run.model.finish(run.data.seq_len);
  if (from_folder) must_agree(reader, run.model, folder);
  report_problems(reader, asked, run, options);
}

// `limit`: what of its values this version runs; empty = all.
std::string with_comment(const std::string& line, const FieldText& f, const std::string& limit) {
  std::string unit = f.unit.empty() ? "" : fmt::format("[{}] ", f.unit);
  std::string values;
  if (!f.rule.choices.empty()) values = allowed(f);
  if (f.type.find('"') != std::string_view::npos) values = f.type;  // a word among numbers stands in quotes
  if (!limit.empty()) values += fmt::format("{}this version: {}", values.empty() ? "" : "; ", limit);
  if (!values.empty()) values = fmt::format(" ({})", values);
  return fmt::format("{:<36} # {}{}{}\n", line, unit, f.help, values);
}

// A run file: [section], then key = value, deeper keys dotted. With comments, the keys in `derived` are
// commented out: what they follow from may be edited without contradicting them.
std::string as_toml(const std::vector<FieldText>& fields, bool comments,
                    const std::set<std::string>& derived = {}) {
  std::string out, section;
  std::map<std::string, std::string> limits;
  if (comments) limits = limits_of_version();
  for (const FieldText& f : fields) {
    size_t dot = f.key.find('.');
    std::string head = f.key.substr(0, dot), rest = f.key.substr(dot + 1);
    if (head != section) {
      if (!section.empty()) out += '\n';
      out += fmt::format("[{}]", head) + (comments ? fmt::format("  # {}", f.section_help) : "") + '\n';
      section = head;
    }
    std::string line = fmt::format("{}{} = {}", derived.count(f.key) ? "# " : "", rest, f.value);
    out += comments ? with_comment(line, f, limits[f.key]) : line + '\n';
  }
  return out;
}

RunSpec defaults() {
  RunSpec run;
  ask_for_rules(run);
  run.model.finish(run.data.seq_len);
  return run;
}

// Keys that have no value of their own until finish(), the architecture or a rule gives them one.
std::set<std::string> derived_keys() {
  std::set<std::string> keys = {"batch.micro"};  // follows the batch, unless given
  RunSpec unfinished;
  ask_for_rules(unfinished);
  std::vector<FieldText> own = fields_of(unfinished), finished = fields_of(defaults());
  for (size_t i = 0; i < own.size(); i++)
    if (own[i].value != finished[i].value) keys.insert(own[i].key);
  std::vector<FieldText> llama = fields_of(ModelSpec());
  for (std::string_view arch : kArchs) {
    std::vector<FieldText> other = fields_of(ModelSpec::of(arch));
    for (size_t i = 0; i < llama.size(); i++)
      if (llama[i].value != other[i].value && llama[i].key != "arch") keys.insert("model." + llama[i].key);
  }
  return keys;
}

}  // namespace

namespace {

RunSpec parse(std::vector<TomlEntry> entries, std::string_view file, std::span<const std::string> sets,
              const Wanted& options) {
  if (kind_of_spec(entries) == SpecKind::cluster)
    bad_request(
        "{} is a cluster file, which describes machines; right is a run file (`trireme config` prints one), "
        "which names machines by [cluster] file = {}",
        file, toml_string(file));
  std::vector<std::string> failures;
  for (const std::string& s : sets) {
    try {
      std::vector<TomlEntry> more = parse_set(s);
      entries.insert(entries.end(), more.begin(), more.end());
    } catch (const Error& err) {
      failures.push_back(err.what());
    }
  }
  Reader reader(std::move(entries), std::string(file));
  for (const std::string& f : failures) reader.failure(f);
  RunSpec run;
  read_run(reader, run, options);
  reader.raise();
  return run;
}

RunSpec load(const fs::path& path, std::span<const std::string> sets, const Wanted& options) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    std::string inside;
    for (const char* name : {"plan.toml", "run.toml"})  // the latter has a name for those who wrote it
      if (fs::is_regular_file(path / name, ec)) inside = ", such as " + (path / name).string();
    bad_request("{} is a folder; right is a run file{}", path.string(), inside);
  }
  const std::string file = path.string();
  std::vector<TomlEntry> entries = parse_toml(read_small(path, kMostTomlBytes), file);
  if (entries.empty() && sets.empty())
    bad_request("{}: the file has no keys; expected a run file, such as `trireme config` prints", file);
  return parse(std::move(entries), file, sets, options);
}

}  // namespace

RunSpec parse_run(std::string_view toml, std::string_view file, std::span<const std::string> sets,
                  const LoadOptions& options) {
  return parse(parse_toml(toml, file), file, sets, {options});
}
RunSpec load_run(const fs::path& path, std::span<const std::string> sets, const LoadOptions& options) {
  return load(path, sets, {options});
}
RunSpec load_runnable(const fs::path& path, std::span<const std::string> sets) {
  return load(path, sets, {{.nearest = true}, true});
}

RunSpec resolve(RunSpec run, const Facts& facts) {
  run.model.finish(run.data.seq_len);
  PrecisionSpec& p = run.precision;
  if (p.compute == "auto") p.compute = facts.native_bf16 ? "bf16" : "f32";
  if (p.grads == "auto") p.grads = automatic_grads(run);
  if (p.reduce == "auto") p.reduce = p.compute == "bf16" ? "bf16" : "f32";
  apply_lr_rule(run);
  apply_init_rule(run.model);
  if (p.compute == "f32" && p.grads == "bf16")
    bad_request(
        "precision.grads: \"bf16\" gradients need bf16 compute, and this device has no native bf16; give "
        "\"auto\", or compute = \"bf16\"");
  return run;
}

Mesh mesh_of(const LayoutSpec& l) {
  std::vector<Axis> order;
  std::istringstream words(l.order);
  for (std::string w; words >> w;)
    for (Axis a : Mesh::kDefaultOrder)
      if (name_of(a) == w) order.push_back(a);
  return Mesh({.pp = int(l.pp), .dp = int(l.dp), .cp = int(l.cp), .tp = int(l.tp), .ep = int(l.ep)}, order);
}

std::string save_run(const RunSpec& run) {
  return as_toml(fields_of(run), false);
}
std::string save_changed(const RunSpec& run) {
  RunSpec plain;
  ModelSpec& m = plain.model;
  m = ModelSpec::of(run.model.arch);
  m.vocab = run.model.vocab, m.layers = run.model.layers, m.hidden = run.model.hidden;
  m.heads = run.model.heads;
  m.finish(run.data.seq_len);
  ask_for_rules(plain);
  static constexpr std::string_view kAlways[] = {"model.arch", "model.vocab", "model.layers", "model.hidden",
                                                 "model.heads"};
  const std::vector<FieldText> own = fields_of(run), given = fields_of(plain);
  std::vector<FieldText> said;
  for (size_t i = 0; i < own.size(); i++)
    if (own[i].value != given[i].value ||
        std::find(std::begin(kAlways), std::end(kAlways), own[i].key) != std::end(kAlways))
      said.push_back(own[i]);
  return as_toml(said, false);
}
void save_run(const RunSpec& run, const fs::path& path) {
  write_text_atomic(path, save_run(run));
}

std::vector<ConfigRow> config_rows() {
  std::vector<ConfigRow> rows;
  for (const FieldText& f : fields_of(defaults()))
    rows.push_back({.key = f.key,
                    .type = std::string(f.type),
                    .value = f.value,
                    .unit = std::string(f.unit),
                    .help = std::string(f.help),
                    .allowed = allowed(f)});
  return rows;
}

std::string config_table() {
  return as_toml(fields_of(defaults()), true, derived_keys());
}

}  // namespace trireme
