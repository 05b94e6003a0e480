#include "tasks/harness_task.h"

#include <algorithm>

#include "base/error.h"
#include "spec/suggest.h"
#include "tasks/harness_score.h"
#include "tasks/python_regex.h"
#include "tasks/text_lines.h"
#include "tasks/yaml_json.h"
#include "text/json_line.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

// Fields of lm-evaluation-harness's TaskConfig and FewshotConfig. The original rejects other keys too.
const std::vector<std::string> kTaskKeys = {"task",
                                            "task_alias",
                                            "tag",
                                            "group",
                                            "group_alias",
                                            "dataset_path",
                                            "dataset_name",
                                            "dataset_kwargs",
                                            "custom_dataset",
                                            "training_split",
                                            "validation_split",
                                            "test_split",
                                            "fewshot_split",
                                            "process_docs",
                                            "doc_to_text",
                                            "doc_to_target",
                                            "doc_to_image",
                                            "doc_to_audio",
                                            "doc_to_choice",
                                            "unsafe_code",
                                            "process_results",
                                            "use_prompt",
                                            "description",
                                            "target_delimiter",
                                            "fewshot_delimiter",
                                            "fewshot_config",
                                            "num_fewshot",
                                            "metric_list",
                                            "output_type",
                                            "generation_kwargs",
                                            "repeats",
                                            "filter_list",
                                            "should_decontaminate",
                                            "doc_to_decontamination_query",
                                            "gen_prefix",
                                            "metadata"};
const std::vector<std::string> kFewshotKeys = {
    "sampler",       "split",         "samples",    "process_docs",      "fewshot_indices", "doc_to_text",
    "doc_to_choice", "doc_to_target", "gen_prefix", "fewshot_delimiter", "target_delimiter"};

// The keys of one task file, with messages that name file and key.
class TaskFile {
 public:
  TaskFile(ordered_json keys, fs::path file) : keys_(std::move(keys)), file_(std::move(file)) {}

  template <class... A>
  [[noreturn]] void fail(const std::string& key, fmt::format_string<A...> f, A&&... a) const {
    const std::string fault = fmt::format(f, std::forward<A>(a)...);
    bad_request("{}: {}{}{}", file_.string(), key, fault.starts_with(':') ? "" : " ", fault);
  }
  // Null where the key is absent. Python functions are rejected.
  ordered_json get(const std::string& key) const { return checked(key, keys_.value(key, ordered_json())); }
  std::string text(const std::string& key, const std::string& otherwise = {}) const {
    const ordered_json v = get(key);
    if (v.is_null()) return otherwise;
    if (!v.is_string()) fail(key, "= {}: expected a text", v.dump());
    return v.get<std::string>();
  }
  int64_t integer(const std::string& key, int64_t otherwise) const {
    const ordered_json v = get(key);
    if (v.is_null()) return otherwise;
    if (!v.is_number_integer()) fail(key, "= {}: expected an integer", v.dump());
    return v.get<int64_t>();
  }
  int64_t integer_from(int64_t least, const std::string& key, int64_t otherwise) const {
    const int64_t v = integer(key, otherwise);
    if (v < least) fail(key, "= {}: expected an integer >= {}", v, least);
    return v;
  }
  void refuse_unknown(const std::vector<std::string>& known, const std::string& before) const {
    for (const auto& [key, value] : keys_.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        fail(before + key, ": no key of a task of lm-evaluation-harness{}", did_you_mean(key, known));
  }
  ordered_json checked(const std::string& key, const ordered_json& v) const {
    if (v.is_object() && v.contains("!tag"))
      fail(key, "= {}: Python functions are not supported", v["!tag"].get<std::string>());
    return v;
  }
  const fs::path& path() const { return file_; }
  const ordered_json& keys() const { return keys_; }

 private:
  ordered_json keys_;
  fs::path file_;
};

std::vector<ordered_json> read_documents(const fs::path& path) {
  const std::string text = read_text_or_gzip(path);
  const ordered_json whole = ordered_json::parse(text, nullptr, false);
  std::vector<ordered_json> docs;
  if (whole.is_array()) {
    docs.assign(whole.begin(), whole.end());
  } else {
    each_line(text, path.string(), [&](std::string_view line, const std::string& where) {
      docs.push_back(ordered_json::parse(line, nullptr, false));
      if (!docs.back().is_object()) bad_request("{}: not a JSON object: {}", where, json_fault(line));
    });
  }
  for (const ordered_json& d : docs)
    if (!d.is_object()) bad_request("{}: expected JSON objects, one per line or in a list", path.string());
  return docs;
}

// The documents of a split, from dataset_kwargs.data_files: a file, or files by split.
std::vector<ordered_json> documents(const TaskFile& t, const std::string& split) {
  const ordered_json kwargs = t.get("dataset_kwargs");
  const ordered_json files = kwargs.is_object() ? kwargs.value("data_files", ordered_json()) : ordered_json();
  if (t.text("dataset_path") != "json" || files.is_null())
    t.fail("dataset_path", "= {:?}: expected \"json\", with local files in dataset_kwargs.data_files",
           t.text("dataset_path"));
  ordered_json of_split = files.is_object() ? files.value(split, ordered_json()) : files;
  if (!files.is_object() && split != "train")
    t.fail("dataset_kwargs.data_files", "= {}: a file alone is the split \"train\", not {:?}", files.dump(),
           split);
  if (of_split.is_string()) of_split = ordered_json::array({of_split});
  if (!of_split.is_array() || of_split.empty())
    t.fail("dataset_kwargs.data_files", "= {}: no files for the split {:?}", files.dump(), split);
  std::vector<ordered_json> docs;
  for (const ordered_json& f : of_split) {
    if (!f.is_string()) t.fail("dataset_kwargs.data_files", "= {}: expected file names", files.dump());
    fs::path path = f.get<std::string>();
    if (path.is_relative() && !fs::exists(path)) path = t.path().parent_path() / path;
    for (ordered_json& d : read_documents(path)) docs.push_back(std::move(d));
  }
  if (docs.empty()) t.fail("dataset_kwargs.data_files", "= {}: no documents", of_split.dump());
  return docs;
}

std::vector<std::string> texts_of(const TaskFile& t, const std::string& key, const ordered_json& v) {
  std::vector<std::string> all;
  for (const ordered_json& one : v.is_array() ? v : ordered_json::array({v})) {
    if (!one.is_string()) t.fail(key, "= {}: expected texts", v.dump());
    all.push_back(one.get<std::string>());
  }
  return all;
}

HarnessMetric metric_of(const TaskFile& t, const ordered_json& entry, const std::vector<std::string>& known) {
  HarnessMetric m;
  if (!entry.is_object()) t.fail("metric_list", "= {}: expected maps", entry.dump());
  for (const auto& [key, v] : entry.items()) {
    t.checked("metric_list." + key, v);
    if (key == "metric" && v.is_string()) {
      m.name = v.get<std::string>();
    } else if (key == "regexes_to_ignore") {
      m.regexes_to_ignore = texts_of(t, "metric_list.regexes_to_ignore", v);
    } else if (key.starts_with("ignore_") && v.is_boolean()) {
      if (key == "ignore_case")
        m.ignore_case = v;
      else if (key == "ignore_punctuation")
        m.ignore_punctuation = v;
      else if (key == "ignore_numbers")
        m.ignore_numbers = v;
      else
        t.fail("metric_list", "{}: not supported", key);
    } else if (key == "aggregation") {
      const bool own =
          v == "mean" || v == m.name || (v.is_string() && m.name.find("per") != std::string::npos);
      if (!own) t.fail("metric_list.aggregation", "= {}: expected mean", v.dump());
    } else if (key != "higher_is_better" && key != "hf_evaluate") {
      t.fail("metric_list", "{}: not supported", key);
    }
  }
  if (std::find(known.begin(), known.end(), m.name) == known.end())
    t.fail("metric_list", "metric = {:?}: not supported for this output_type; use one of {}", m.name,
           fmt::join(known, ", "));
  return m;
}

void read_metrics(const TaskFile& t, HarnessTask& task) {
  std::vector<std::string> known = {"acc", "acc_norm", "acc_bytes"};
  std::vector<std::string> standard = {"acc", "acc_norm"};
  if (task.kind == HarnessTask::Kind::generate_until) standard = known = {"exact_match"};
  if (task.kind == HarnessTask::Kind::loglikelihood_rolling)
    standard = known = {"word_perplexity", "byte_perplexity", "bits_per_byte"};
  const ordered_json list = t.get("metric_list");
  if (list.is_null())
    for (const std::string& name : standard) task.metrics.push_back({.name = name});
  else
    for (const ordered_json& entry : list) task.metrics.push_back(metric_of(t, entry, known));
  for (const HarnessMetric& m : task.metrics) {
    const auto same = [&](const HarnessMetric& other) { return other.name == m.name; };
    if (std::count_if(task.metrics.begin(), task.metrics.end(), same) > 1)
      t.fail("metric_list", "metric = {:?}: given twice", m.name);
    for (const std::string& pattern : m.regexes_to_ignore)
      PythonRegex(pattern, t.path().string() + ": metric_list.regexes_to_ignore");
  }
  const ordered_json filters = t.get("filter_list");
  if (filters.is_null()) {
    task.filters.push_back({});
    return;
  }
  for (const ordered_json& f : filters) {
    if (!f.is_object() || !f.contains("name") || !f["name"].is_string() || !f.contains("filter") ||
        !f["filter"].is_array())
      t.fail("filter_list", "= {}: expected a name and a list of filters", f.dump());
    HarnessFilter filter{.name = f["name"].get<std::string>()};
    for (const HarnessFilter& other : task.filters)
      if (other.name == filter.name) t.fail("filter_list", "name = {:?}: given twice", filter.name);
    for (const ordered_json& function : f["filter"]) filter.functions.push_back(function);
    filter.where = fmt::format("{}: filter_list, {}", t.path().string(), filter.name);
    check_filter(filter);
    task.filters.push_back(std::move(filter));
  }
}

void read_generation(const TaskFile& t, HarnessTask& task) {
  const ordered_json g = t.get("generation_kwargs");
  task.until = {task.fields.fewshot_delimiter};
  if (g.is_null()) return;
  if (!g.is_object()) t.fail("generation_kwargs", "= {}: expected a map", g.dump());
  for (const auto& [key, v] : g.items()) {
    if (key == "until")
      task.until = texts_of(t, "generation_kwargs.until", v);
    else if ((key == "max_gen_toks" || key == "max_tokens" || key == "max_new_tokens") &&
             v.is_number_integer())
      task.most_tokens = TaskFile(g, t.path()).integer_from(1, key, 0);
    else if (key == "do_sample"     ? v == true
             : key == "temperature" ? v != 0 && g.value("do_sample", false)
                                    : key != "top_p")
      t.fail("generation_kwargs", "{} = {}: not supported; answers are the most likely tokens", key,
             v.dump());
  }
}

void read_examples(const TaskFile& t, HarnessTask& task) {
  const ordered_json own = t.get("fewshot_config");
  if (!own.is_null() && !own.is_object()) t.fail("fewshot_config", "= {}: expected a map", own.dump());
  const TaskFile config(own.is_null() ? ordered_json::object() : own, t.path());
  config.refuse_unknown(kFewshotKeys, "fewshot_config.");
  task.examples = {.text = own.contains("doc_to_text") ? config.get("doc_to_text") : task.fields.text,
                   .target = own.contains("doc_to_target") ? config.get("doc_to_target") : task.fields.target,
                   .choice = own.contains("doc_to_choice") ? config.get("doc_to_choice") : task.fields.choice,
                   .gen_prefix = config.text("gen_prefix", task.fields.gen_prefix),
                   .target_delimiter = config.text("target_delimiter", task.fields.target_delimiter),
                   .fewshot_delimiter = config.text("fewshot_delimiter", task.fields.fewshot_delimiter)};
  const std::string sampler = config.text("sampler", "default");
  if (sampler != "default" && sampler != "first_n")
    t.fail("fewshot_config.sampler", "= {:?}: not supported", sampler);
  task.first_n = sampler == "first_n";
  const std::string split = config.text("split", t.text("fewshot_split"));
  task.without_itself = split == t.text("test_split");
  if (task.fewshot == 0) return;
  const ordered_json samples = config.get("samples");
  if (split.empty() && samples.is_array()) {
    task.pool.assign(samples.begin(), samples.end());
    return;
  }
  std::string from = split;
  for (const char* key : {"training_split", "validation_split", "test_split"})
    if (from.empty()) from = t.text(key);
  task.pool = documents(t, from);
  const ordered_json indices = config.get("fewshot_indices");
  if (!indices.is_array()) return;
  std::vector<ordered_json> chosen;
  for (const ordered_json& i : indices) {
    if (!i.is_number_integer() || i < 0 || i >= task.pool.size())
      t.fail("fewshot_config.fewshot_indices", "= {}: out of range", i.dump());
    chosen.push_back(task.pool[i.get<size_t>()]);
  }
  task.pool = std::move(chosen);
}

}  // namespace

HarnessTask read_harness_task(const fs::path& path, int64_t fewshot) {
  const TaskFile t(read_yaml(path), path);
  for (const char* key :
       {"process_docs", "process_results", "use_prompt", "doc_to_image", "doc_to_audio", "custom_dataset"})
    if (!t.get(key).is_null()) t.fail(key, ": not supported");
  if (t.keys().contains("group") || t.get("task").is_array())
    t.fail("group", ": not supported; name one task's file");
  t.refuse_unknown(kTaskKeys, "");
  HarnessTask task{.name = t.text("task", path.stem().string()), .file = path.string()};
  const std::string kind = t.text("output_type", "generate_until");
  if (kind == "multiple_choice")
    task.kind = HarnessTask::Kind::multiple_choice;
  else if (kind == "generate_until")
    task.kind = HarnessTask::Kind::generate_until;
  else if (kind == "loglikelihood_rolling")
    task.kind = HarnessTask::Kind::loglikelihood_rolling;
  else
    t.fail("output_type", "= {:?}: expected multiple_choice, generate_until or loglikelihood_rolling", kind);
  task.description = t.text("description");
  task.fields = {.text = t.get("doc_to_text"),
                 .target = t.get("doc_to_target"),
                 .choice = t.get("doc_to_choice"),
                 .gen_prefix = t.text("gen_prefix"),
                 .target_delimiter = t.text("target_delimiter", " "),
                 .fewshot_delimiter = t.text("fewshot_delimiter", "\n\n")};
  task.fewshot = fewshot >= 0 ? fewshot : t.integer_from(0, "num_fewshot", 0);
  if (t.integer("repeats", 1) != 1) t.fail("repeats", ": not supported; one answer per question");
  const std::string split = t.text("test_split", t.text("validation_split"));
  if (split.empty()) t.fail("test_split", ": no test_split and no validation_split");
  task.docs = documents(t, split);
  read_examples(t, task);
  read_metrics(t, task);
  if (task.kind == HarnessTask::Kind::generate_until) read_generation(t, task);
  return task;
}

}  // namespace trireme
