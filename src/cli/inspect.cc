// trireme inspect PATH [OTHER]: what a file or folder is, and what is in it; of two cluster files, why they
// differ.
#include "cli/describe.h"
#include "cli/inspect_program.h"
#include "cost/compare_clusters.h"

namespace trireme::cli {
namespace {

Description json_of(const std::optional<double>& d) {
  return d ? Description(*d) : Description(nullptr);
}

Description compare_files(const std::string& a, const std::string& b) {
  for (const std::string& path : {a, b})
    if (!is_cluster_file(path))
      bad_request("{} is no cluster file: two are compared where both are, as configs/cluster/h100-p5.toml",
                  path);
  const ClusterSpec x = load_cluster(a), y = load_cluster(b);
  const ClusterComparison c = compare_clusters(x, y);
  Description d = {{"kind", "two cluster files"},
                   {"a", {{"path", a}, {"name", x.name}}},
                   {"b", {{"path", b}, {"name", y.name}}},
                   {"differences", Description::array()},
                   {"consequences", Description::array()}};
  for (const KeyDifference& k : c.differences)
    d["differences"].push_back(
        {{"key", k.key}, {"unit", k.unit}, {"a", k.a}, {"b", k.b}, {"ratio", json_of(k.ratio)}});
  for (const Consequence& k : c.consequences)
    d["consequences"].push_back({{"what", k.what},
                                 {"unit", k.unit},
                                 {"a", json_of(k.a)},
                                 {"b", json_of(k.b)},
                                 {"ratio", json_of(k.ratio())},
                                 {"how_a", k.how_a},
                                 {"how_b", k.how_b}});
  return d;
}

std::string shown_value(const Description& v) {
  if (v.is_null()) return "-";
  if (v.is_number()) return fmt::format("{:.4g}", v.get<double>());
  const std::string s = visible(v.get_ref<const std::string&>());
  return s.empty() ? "-" : s;
}

std::string comparison_text(const Description& d) {
  const auto name = [&](const char* side) {
    const std::string n = d[side]["name"];
    return visible(n.empty() ? d[side]["path"].get<std::string>() : n);
  };
  const auto ratio = [](const Description& r) {
    return r.is_null() ? std::string() : fmt::format("{:.3g} x", r.get<double>());
  };
  const std::string a = name("a"), b = name("b");
  std::string s = fmt::format("{:<60} {:>21} {:>21} {:>8}\n", "what differs", a, b, "ratio");
  for (const Description& k : d["differences"])
    s += fmt::format("{:<60} {:>21} {:>21} {:>8}\n",
                     k["key"].get<std::string>() +
                         (k["unit"] == "" ? "" : fmt::format(" [{}]", k["unit"].get<std::string>())),
                     shown_value(k["a"]), shown_value(k["b"]), ratio(k["ratio"]));
  s += fmt::format("\n{:<60} {:>21} {:>21} {:>8}\n", "what follows for training", a, b, "ratio");
  for (const Description& k : d["consequences"]) {
    const std::string unit = k["unit"];
    s += fmt::format("{:<60} {:>21} {:>21} {:>8}\n",
                     k["what"].get<std::string>() + (unit.empty() ? "" : fmt::format(" [{}]", unit)),
                     shown_value(k["a"]), shown_value(k["b"]), ratio(k["ratio"]));
    if (k["how_a"] != "" || k["how_b"] != "")
      s += fmt::format("{:<60} {:>21} {:>21}\n", "", shown_value(k["how_a"]), shown_value(k["how_b"]));
  }
  return s + "-: the file does not say enough, or has fewer nodes\n";
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "inspect",
      "what a file or folder is and what is in it: run folder, checkpoint, trace, Hugging Face "
      "folder, safetensors, tokenizer, token shard, run or cluster file; of two cluster files, what differs "
      "and what follows for training; with --program, every operation of a run's step\n"
      "example: trireme inspect runs/demo\n"
      "         trireme inspect configs/cluster/h100-p5.toml configs/cluster/h100-ethernet.toml\n"
      "         trireme inspect configs/run/demo.toml --program");
  auto path = std::make_shared<std::string>(), other = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false), hash = std::make_shared<bool>(false);
  auto program = std::make_shared<bool>(false);
  auto sets = std::make_shared<std::vector<std::string>>();
  verb->add_option("PATH", *path, "file or folder")->required();
  verb->add_option("OTHER", *other, "another cluster file, to compare with");
  verb->add_flag("--hash", *hash,
                 "hashes files of any size (default: xxh3 of the first 4 GiB of files, then -)")
      ->excludes("OTHER");
  CLI::Option* of_program =
      verb->add_flag("--program", *program,
                     "PATH is a run file: prints what each pipeline rank does in a step, operation by "
                     "operation: passes over layers, gathers, reductions, messages and what they wait for")
          ->excludes("OTHER");
  verb->add_option("--set", *sets, "with --program: section.key=value, in place of the file's")
      ->needs(of_program);
  verb->add_flag("--json", *json, "prints JSON");
  verb->callback([path, other, json, hash, program, sets] {
    if (*program) return print_programs({.file = *path, .sets = *sets, .json = *json});
    const Description d = other->empty() ? describe(*path, FileHashes(*hash)) : compare_files(*path, *other);
    if (*json)
      print_text("{}\n", d.dump(2, ' ', false, Description::error_handler_t::replace));
    else
      print_text("{}", other->empty() ? as_text(d) : comparison_text(d));
  });
}

}  // namespace trireme::cli
