// docs/worked.md is what the program prints: every command of the page is run, every line under it found.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iomanip>
#include <map>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "process.h"
#include "source_dir.h"
#include "spec/cluster_spec.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

struct Question {
  std::vector<std::string> args;
  std::vector<std::string> answer;
  int line = 0;
};

// As a shell cuts it: what stands in double quotes is one word.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> all;
  std::istringstream in(line);
  while (in >> std::ws && !in.eof()) {
    std::string w;
    if (in.peek() == '"')
      in >> std::quoted(w);
    else
      in >> w;
    all.push_back(w);
  }
  return all;
}

// Blocks of a page that begin with "$ trireme "; files of the tree by their place.
std::vector<Question> questions_of(const fs::path& page) {
  std::vector<Question> all;
  bool block = false, asked = false, more = false;  // asked: in this block
  int number = 0;
  for (const std::string& line : lines_of(read_text(page))) {
    ++number;
    if (line.rfind("```", 0) == 0) {
      block = !block, asked = more = false;
      continue;
    }
    if (!block) continue;
    if (line.rfind("$ trireme ", 0) == 0) all.push_back({{}, {}, number}), asked = true;
    if (!asked) continue;
    if (line.rfind("$ ", 0) != 0 && !more) {
      all.back().answer.push_back(line);
      continue;
    }
    more = line.ends_with("\\");
    for (std::string w : words_of(line)) {
      if (w == "$" || w == "trireme" || w == "\\") continue;
      for (const char* folder : {"configs/", "data/"})
        if (w.rfind(folder, 0) == 0) w = (source_dir() / w).string();
      if (const size_t at = w.find("=configs/"); at != std::string::npos)
        w = w.substr(0, at + 1) + (source_dir() / w.substr(at + 1)).string();
      all.back().args.push_back(w);
    }
  }
  return all;
}

// Of a line that ends with "..." what stands before: behind it are times of this machine.
bool found(const std::string& line, const std::string& out) {
  const std::string all = "\n" + out;
  if (line.ends_with(" ...")) return all.find("\n" + line.substr(0, line.size() - 3)) != std::string::npos;
  return all.find("\n" + line + "\n") != std::string::npos;
}

void expect_answers(const char* page, size_t at_least) {
  TempFolder tmp;
  const std::vector<Question> all = questions_of(source_dir() / page);
  EXPECT_GE(all.size(), at_least);
  for (const Question& q : all) {
    SCOPED_TRACE(fmt::format("{}:{}", page, q.line));
    EXPECT_FALSE(q.answer.empty());
    const Ran r = trireme(tmp.path(), q.args);
    ASSERT_EQ(r.code, 0) << r.err;
    for (const std::string& line : q.answer)
      EXPECT_TRUE(found(line, r.out)) << line << "\nprinted:\n" << r.out;
  }
}

TEST(Worked, EveryAnswerIsThePrograms) {
  expect_answers("docs/worked.md", 35);
}

TEST(Worked, CasesAreWhatPlanSays) {
  expect_answers("docs/cases.md", 5);
}

TEST(Worked, SimulatedStepsAreWhatThePageSays) {
  expect_answers("docs/sim.md", 5);
}

// docs/search.md: the table of best layouts is what its commands print, and so is the picture. Those of the
// larger models take half a minute: with WORKED_SWEEPS=all alone (`make test-slow`).
TEST(Worked, TheSearchsTableIsWhatSweepSays) {
  const bool whole = std::getenv("WORKED_SWEEPS") != nullptr;
  TempFolder tmp;
  std::map<std::string, std::map<std::string, std::string>> layouts;  // by model, by devices
  const std::string page = read_text(source_dir() / "docs/search.md");
  std::istringstream lines(page);
  int cells = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    trireme search --sweep") &&
        (whole || line.find(" llama3-8B ") != std::string::npos)) {
      std::vector<std::string> args;
      std::istringstream words(line);
      for (std::string w; words >> w;)
        if (w != "trireme") args.push_back(w == "docs/search-mix.svg" ? (tmp / "mix.svg").string() : w);
      const Ran r = trireme(tmp.path(), args);
      ASSERT_EQ(r.code, 0) << r.err;
      std::istringstream rows(r.out);
      const std::string model = r.out.substr(0, r.out.find(' '));
      for (std::string row; std::getline(rows, row);) {
        std::string devices;
        std::istringstream(row) >> devices;
        layouts[model][devices] = row;
      }
    }
    std::vector<std::string> columns;
    std::istringstream parts(line);
    for (std::string c; std::getline(parts, c, '|');)
      columns.push_back(c.size() > 2 ? c.substr(1, c.size() - 2) : "");
    if (columns.size() != 7 || !columns[1].ends_with(" k")) continue;
    for (const auto& [model, devices, layout] :
         {std::tuple{"llama3-8B", 2, 3}, {"llama3-70B", 2, 4}, {"llama3-405B", 5, 6}}) {
      if (!layouts.count(model)) continue;
      const std::string row = layouts[model][columns[size_t(devices)]] + ",",
                        want = " " + columns[size_t(layout)];
      EXPECT_NE(row.find(want + ","), std::string::npos) << want << " in " << row;
      cells++;
    }
  }
  EXPECT_EQ(cells, whole ? 15 : 5);
  if (whole) {
    EXPECT_TRUE(read_text(tmp / "mix.svg") == read_text(source_dir() / "docs/search-mix.svg"));
  }
}

nlohmann::json walls(std::vector<std::string> args) {
  TempFolder tmp;
  args.insert(args.begin(), {"estimate", "--json"});
  const Ran r = trireme(tmp.path(), args);
  EXPECT_EQ(r.code, 0) << r.err;
  return nlohmann::json::parse(r.out, nullptr, false);
}

TEST(Worked, JsonHasTheNumbersInFull) {
  const auto j = walls({"--parameters", "175e9", "--tokens", "300e9", "--cluster", "H100", "--gpus", "1024",
                        "--mfu", "0.4", "--price", "2"});
  EXPECT_DOUBLE_EQ(j["memory"]["state"]["value"], 2.8e12);
  EXPECT_DOUBLE_EQ(j["time"]["flops"]["value"], 3.15e23);
  const double seconds = 3.15e23 / (1024 * 989e12 * 0.4);
  EXPECT_NEAR(j["time"]["seconds"]["value"].get<double>() / seconds, 1, 1e-12);
  EXPECT_NEAR(j["cost"]["cost"]["value"].get<double>() / (seconds / 3600 * 1024 * 2), 1, 1e-12);
  EXPECT_NEAR(j["memory"]["zero3"]["saving"].get<double>(), 1024, 1e-9);
  EXPECT_DOUBLE_EQ(j["memory"]["zero3"]["traffic"], 1.5);
}

// A cluster file, its price and its name; sizes of one's own; a run file.
TEST(Worked, WallsTakeFilesAndSizes) {
  const std::string cluster = (source_dir() / "configs/cluster/h100-sxm-8.toml").string();
  const auto sized =
      walls({"--layers", "96",    "--hidden",       "12288", "--heads",   "96",    "--arch", "gpt2",
             "--vocab",  "50257", "--seq",          "2048",  "--cluster", cluster, "--tp",   "8",
             "--pp",     "2",     "--microbatches", "8",     "--gpus",    "64"});
  EXPECT_NEAR(sized["model"]["parameters"].get<double>() / 174.6e9, 1, 1e-3);
  EXPECT_NEAR(
      sized["time"]["flops_exact"]["value"].get<double>() / sized["time"]["flops"]["value"].get<double>(), 1,
      0.05);
  EXPECT_GT(sized["time"]["mfu"]["value"], 0.2);
  EXPECT_LT(sized["time"]["mfu"]["value"], 0.6);
  EXPECT_NEAR(sized["time"]["bubble"]["value"].get<double>(), 1.0 / 9, 1e-12);
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 2);
  const auto of_run = walls({file.string()});
  const Ran plan = trireme(tmp.path(), {"plan", file.string(), "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto best = nlohmann::json::parse(plan.out)["best"];
  EXPECT_EQ(of_run["model"]["parameters"].get<double>(), best["parameters"].get<double>());
  EXPECT_NEAR(of_run["time"]["mfu"]["value"].get<double>(), best["mfu"].get<double>(), 1e-12);
  EXPECT_NEAR(of_run["time"]["seconds"]["value"].get<double>() / best["run"]["seconds"].get<double>(), 1,
              1e-9);
}

TEST(Worked, WallsRefuseByName) {
  TempFolder tmp;
  const auto refused = [&](std::vector<std::string> args, const char* with) {
    args.insert(args.begin(), "estimate");
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find(with), std::string::npos) << r.err;
  };
  refused({}, "estimate: nothing is given");
  refused({"--model", "nessie"}, "no \"nessie\"; right are");
  refused({"--cluster", "K80", "--parameters", "1e9"}, "right are a cluster file");
  refused({"--parameters", "nan"}, "--parameters");
  refused({"--parameters", "1e9", "--mfu", "1.5"}, "--mfu");
  refused({"--parameters", "1e9", "--reach", "0.5"}, "--reach");
  refused({"--parameters", "1e9", "--gpus", "6", "--tp", "4"}, "no multiple of --tp 4");
  refused({"--layers", "4"}, "a shape needs these three");
  refused({"--layers", "4", "--hidden", "10", "--heads", "3"}, "no multiple of --heads 3");
  refused({"--model", "GPT3-175B", "--pp", "97", "--microbatches", "4"},
          "--pp = 97: more stages than layers");
}

TEST(Worked, SearchRefusesByName) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const auto refused = [&](std::vector<std::string> args, const char* with) {
    args.insert(args.begin(), {"search", "--cluster", "A100-80GB"});
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2) << r.out;
    EXPECT_NE(r.err.find(with), std::string::npos) << r.err;
  };
  const std::vector<std::string> named = {"--model", "llama3-8B", "--gpus",         "8",
                                          "--seq",   "4096",      "--global-batch", "8"};
  const auto with = [](std::vector<std::string> args, std::vector<std::string> more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  for (const char* chosen : {"--tp", "--pp", "--micro", "--microbatches", "--chunks"})
    refused(with(named, {chosen, "2"}), "there is no option");
  refused({file, "--model", "llama3-8B"}, "--model: RUN is a model already");
  refused({file, "--layers", "4"}, "--layers: RUN is a model already");
  refused({file, "--set", "precision.compute=fp8"}, "A100-80GB has no fp8");
  refused(with(named, {"--repair", "1e12"}), "--repair");
  refused(with(named, {"--parameters", "8e9"}), "--parameters: the model's shape says it already");
  refused(with(named, {"--layers", "8"}), "--layers: --model llama3-8B has its own");
  refused(with(named, {"--set", "layout.tp=2"}), "--set: layout.tp=2: it changes a run file's keys");
  refused({},
          "search: not said: the model (a run file, --model, or --layers, --hidden, --heads), how many "
          "(--gpus), tokens of a sequence (--seq), sequences of a step (--global-batch); such as --model "
          "llama3-8B --gpus 64 --seq 4096 --global-batch 512");
  refused(
      {"--largest", "--model", "llama3-8B"},
      "--largest: not said: how many (--gpus), tokens of a sequence (--seq); such as --gpus 64 --seq 4096");
  refused({"--model", "llama3-8B", "--gpus", "1048576", "--seq", "4096", "--global-batch", "1048576",
           "--restart", "1e6"},
          "nothing that they do stays");
}

// Two answers at once, and an option that the answer does not read, are errors.
TEST(Worked, EachSubcommandGivesOneAnswer) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const auto refused = [&](const std::vector<std::string>& args, const std::string& with) {
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2) << r.out;
    EXPECT_NE(r.err.find(with), std::string::npos) << with << "\n" << r.err;
  };
  refused({"plan", file, "--axes", "--explain"}, "--explain and --axes: each is an answer of its own");
  refused({"plan", file, "--axes-ranks", "2"}, "--axes-ranks: it needs --axes");
  refused({"search", file, "--largest", "--sweep", "gpus=1..2"}, "--sweep and --largest: each is an answer");
  refused({"search", file, "--largest", "--out", "x"}, "--out: --largest does not read it");
  refused({"search", file, "--mix-svg", "x"}, "--mix-svg: only --sweep reads it");
  refused({"search", file, "--best", "3"}, "--best: only --all and --json list layouts");
  refused({"search", file, "--loss", "2"}, "--loss: only --by loss reads it");
  refused({"simulate", file, "--save", "3"}, "--save: only --fail reads it");
  refused({"simulate", file, "--restart", "3"}, "--restart: only --fail reads it");
  refused({"estimate", "--roofline", "--cluster", "H100", "--price", "2"},
          "--price: --roofline does not read it");
  refused({"estimate", "--context", "100"}, "--context requires --roofline");
}

// The options of `plan` that became subcommands name them, wherever they stand.
TEST(Worked, MovedOptionsNameTheirSubcommand) {
  TempFolder tmp;
  for (const auto& [option, to] : {std::pair{"--search", "`trireme search`"},
                                   {"--sweep=gpus=1..2", "`trireme search --sweep`"},
                                   {"--largest", "`trireme search --largest`"},
                                   {"--walls", "`trireme estimate`"},
                                   {"--roofline", "`trireme estimate --roofline`"}}) {
    const Ran r = trireme(tmp.path(), {"plan", "run.toml", "--model", "llama3-8B", option});
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find(to), std::string::npos) << r.err;
    EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  }
}

TEST(Worked, HelpOfPlanFitsAScreen) {
  TempFolder tmp;
  const std::vector<std::string> lines = lines_of(trireme(tmp.path(), {"plan", "--help"}).out);
  EXPECT_LE(lines.size(), 24u);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
}

// precision of a run file is what its search prices.
TEST(Worked, SearchTakesTheTypesOfTheRun) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const auto best = [&](std::vector<std::string> sets) {
    std::vector<std::string> args = {"search", file, "--cluster", "H100", "--json"};
    for (const std::string& s : sets) args.insert(args.end(), {"--set", s});
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 0) << r.err;
    return nlohmann::json::parse(r.out)["best"];
  };
  const auto products = [](const nlohmann::json& b) { return b["tolls_s"]["products"].get<double>(); };
  const auto half = best({"precision.compute=bf16", "batch.global=1", "batch.micro=1"});
  const auto eight = best({"precision.compute=fp8", "batch.global=1", "batch.micro=1"});
  const auto wide =
      best({"precision.compute=bf16", "precision.grads=f32", "batch.global=1", "batch.micro=1"});
  EXPECT_NE(products(half), products(eight));
  EXPECT_GT(wide["memory"]["states"].get<double>(), half["memory"]["states"].get<double>());
}

// State waits in the host's memory, where the cluster says what that takes and the device has its own.
TEST(Worked, SearchOffloadsToTheHostWhereItsLinkIsKnown) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const fs::path shipped = source_dir() / "configs/cluster/h100-sxm-8.toml", unknown = tmp / "unknown.toml";
  std::string text = read_text(shipped);
  const size_t at = text.find("host_bandwidth");
  ASSERT_NE(at, std::string::npos);
  write_text_atomic(unknown, text.substr(0, at) + text.substr(text.find('\n', at) + 1));
  const auto searched = [&](const fs::path& cluster, std::vector<std::string> more) {
    std::vector<std::string> args = {"search",         file,
                                     "--largest",      "--cluster",
                                     cluster.string(), "--json",
                                     "--gpus",         "8",
                                     "--set",          "precision.compute=bf16",
                                     "--set",          "train.device=cuda"};
    for (const std::string& s : more) args.insert(args.end(), {"--set", s});
    return trireme(tmp.path(), args);
  };
  const std::vector<std::string> to_host = {"layout.offload=state", "layout.offload_to=host"};
  for (const auto& [cluster, more, offloads] :
       {std::tuple{shipped, to_host, true}, std::tuple{shipped, std::vector<std::string>(), true},
        std::tuple{shipped, std::vector<std::string>{"train.device=cpu"}, false},
        std::tuple{unknown, std::vector<std::string>(), false}}) {
    const Ran r = searched(cluster, more);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.out.find("\"state offloaded\"") != std::string::npos, offloads) << r.out;
  }
  const Ran none = searched(unknown, to_host);
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--largest: layout.offload_to = \"host\", and " + unknown.string() +
                          " says nothing of host_bandwidth"),
            std::string::npos)
      << none.err;
}

// The host's link goes both ways at once, a disk of as many bytes/s a device does not: it takes twice as
// long.
TEST(Worked, TheHostsLinkTakesHalfAsLongAsADisk) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const fs::path disk = tmp / "disk.toml";
  std::string text = read_text(source_dir() / "configs/cluster/h100-sxm-8.toml");
  const size_t at = text.find("host_bandwidth");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, text.find('#', at) - at, "host_bandwidth = 64e9\ndisk_bandwidth = 512e9 ");
  write_text_atomic(disk, text);
  const auto waits = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"search", file, "--cluster", disk.string()};
    args.insert(args.end(), {"--json", "--confirm", "0", "--memory-share", "0.1"});  // 16 GB of states
    more.insert(more.end(),
                {"precision.compute=bf16", "train.device=cuda", "model.layers=20", "model.hidden=2048",
                 "model.heads=16", "model.kv_heads=16", "model.ffn=5504", "model.vocab=1000"});
    for (const std::string& s : more) args.insert(args.end(), {"--set", s});
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 0) << r.err;
    const auto best = nlohmann::json::parse(r.out)["best"];
    return best["tolls_s"]["offload"].get<double>();
  };
  const double host = waits({"layout.offload=state", "layout.offload_to=host"});
  EXPECT_GT(host, 0.1);
  EXPECT_EQ(waits({}), host);  // the faster is taken where nothing is said
  EXPECT_NEAR(waits({"layout.offload=state"}) / host, 2, 1e-9);
}

// The picture of docs/plan.md is the program's, and its numbers those of --json.
TEST(Worked, RooflineIsDrawnAsThePageShows) {
  TempFolder tmp;
  const std::string svg = (tmp / "roofline.svg").string();
  const Ran r =
      trireme(tmp.path(), {"estimate", "--roofline", "--model", "llama3-70B", "--cluster", "H100", "--tp",
                           "8", "--gpus", "64", "--microbatches", "8", "--svg", svg, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(read_text(svg), read_text(source_dir() / "docs/roofline.svg"));
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_NEAR(j["ridge"].get<double>(), 989.0 / 3.35, 1e-9);
  int all = 0;
  for (const auto& p : j["memory"]) {
    const double flops = p["flops"], bytes = p["bytes"], seconds = p["seconds"];
    const double least = std::max(flops / 989e12, bytes / 3.35e12);
    if (p["part"].get<std::string>() != "all") {
      EXPECT_NEAR(seconds / least, 1, 1e-12);
      continue;
    }
    all++;
    EXPECT_GE(seconds, least * (1 - 1e-12));  // its parts, each at its own roof
    EXPECT_EQ(p["bound_by"].get<std::string>() == "compute", p["phase"].get<std::string>() != "decode");
  }
  EXPECT_EQ(all, 3);
  EXPECT_EQ(j["network"].size(), 4u);
  EXPECT_NEAR(j["kv_cache_bytes"].get<double>(), 2.0 * 2 * 80 * 8 * 128 * 4096, 1);
}

TEST(Worked, RooflineRefusesByName) {
  TempFolder tmp;
  const auto refused = [&](std::vector<std::string> args, const char* with) {
    args.insert(args.begin(), "estimate");
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find(with), std::string::npos) << r.err;
  };
  refused({"--roofline"}, "no shape of a model");
  refused({"--roofline", "--parameters", "7e9", "--cluster", "H100"}, "no shape of a model");
  refused({"--roofline", "--model", "llama3-8B"}, "on which device?");
  refused({"--roofline", "--model", "llama3-8B", "--cluster", "H100", "--tp", "5"},
          "--tp: 5 does not divide");
  refused({"--roofline", "--model", "llama3-8B", "--cluster", "H100", "--tp", "4", "--gpus", "6"},
          "--gpus: 6");
}

// What --explain says of the real step is what plan counts of it, in layouts of 1 to 8 ranks.
TEST(Worked, ExplainAnswersFromTheRealStep) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"layout.dp=3", "layout.zero=3"},
      {"layout.tp=3", "model.ffn=54"},
      {"layout.pp=2", "layout.dp=3", "layout.zero=1", "batch.micro=1", "layout.schedule=zb-h1"},
      {"layout.pp=2", "layout.tp=3", "batch.micro=1", "layout.schedule=gpipe", "layout.recompute=full",
       "model.ffn=54"}};
  for (const auto& layout : layouts) {
    std::vector<std::string> args = {"plan", file, "--json"};
    for (const std::string& key : layout) args.insert(args.end(), {"--set", key});
    SCOPED_TRACE(fmt::format("{}", layout.empty() ? "one rank" : layout[0]));
    const Ran plan = trireme(tmp.path(), args);
    ASSERT_EQ(plan.code, 0) << plan.err;
    const auto best = nlohmann::json::parse(plan.out)["candidates"][0];
    args.push_back("--explain");
    const Ran r = trireme(tmp.path(), args);
    ASSERT_EQ(r.code, 0) << r.err;
    const auto j = nlohmann::json::parse(r.out);
    for (const char* bucket : {"weights", "grads", "optimizer"})
      EXPECT_EQ(j["parameters"][bucket], best["state"].value(bucket, 0)) << bucket;
    EXPECT_EQ(j["activations"]["peak"], best["memory"]["activations"]);
    EXPECT_EQ(j["computing"]["compute_s"], best["compute_s"]);
    std::map<std::string, int64_t> calls, wire;
    for (const auto& m : j["synchronise"]) {
      const auto what = m["collective"].get<std::string>();
      const auto group = m["group"].get<std::string>();
      // Messages are p2p there; words about the step itself are not counted.
      if (what == "send" || what == "recv" || group == "control" || group == "settle") continue;
      calls[what] += m["calls"].get<int64_t>(), wire[what] += m["wire"].get<int64_t>();
    }
    for (const auto& [what, counted] : best["wire"].items()) {
      if (what == "p2p") continue;
      EXPECT_EQ(calls[what], counted["calls"].get<int64_t>()) << what;
      EXPECT_EQ(wire[what], counted["bytes"].get<int64_t>()) << what;
    }
    const auto held = j["activations"]["in_flight"].get<std::vector<int>>();
    std::vector<int> want(held.size(), 1);
    if (layout.size() >= 5) want = layout[1] == "layout.tp=3" ? std::vector{6, 6} : std::vector{2, 2};
    EXPECT_EQ(held, want);
  }
  const Ran text = trireme(tmp.path(), {"plan", file, "--explain", "--set", "layout.dp=3"});
  for (const char* question : {"where do the parameters live?", "where do the activations live?",
                               "when do ranks synchronise?", "how much is computing?"})
    EXPECT_NE(text.out.find(question), std::string::npos) << text.out;
}

nlohmann::json json_of_verb(const char* verb, const fs::path& folder, std::vector<std::string> args) {
  args.insert(args.begin(), {verb, "--json"});
  const Ran r = trireme(folder, args);
  EXPECT_EQ(r.code, 0) << r.err;
  return nlohmann::json::parse(r.out, nullptr, false);
}

nlohmann::json plan_json(const fs::path& home, std::vector<std::string> args) {
  args.insert(args.begin(), {"plan", "--json"});
  const Ran r = trireme(home, args);
  EXPECT_EQ(r.code, 0) << r.err;
  return nlohmann::json::parse(r.out, nullptr, false);
}
// Exact FLOPs over what the device's peak would have done in that time: heading and forecast of one machine.
double mfu_of_seconds(const nlohmann::json& j) {
  const auto& time = j["time"];
  const auto& device = j["device"];
  return time["flops_exact"]["value"].get<double>() / time["seconds"]["value"].get<double>() /
         device["flops"].get<double>() / device["gpus"].get<double>();
}

// --cluster is where the run is forecast, not only what the heading says.
TEST(Worked, WallsOfARunAreOfTheNamedCluster) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 2).string(), other = (tmp / "other.toml").string();
  ClusterSpec c = load_cluster(tmp / "cluster.toml");
  c.name.clear(), c.peak = {.f32 = 7e9, .bf16 = 11e9}, c.memory_bandwidth = 3e10, c.price_per_hour = 2;
  save_cluster(c, other);
  const auto here = walls({file}), there = walls({file, "--cluster", other});
  const auto plan = plan_json(tmp.path(), {file, "--set", "cluster.file=" + other})["best"];
  EXPECT_EQ(there["device"]["name"], other);  // a file without a name
  EXPECT_EQ(there["device"]["flops"], 11e9);  // compute = "auto" is what the named cluster can do
  EXPECT_NEAR(there["time"]["mfu"]["value"].get<double>(), plan["mfu"].get<double>(), 1e-12);
  const double seconds = plan["run"]["seconds"];
  EXPECT_NEAR(there["time"]["seconds"]["value"].get<double>() / seconds, 1, 1e-9);
  EXPECT_NEAR(there["cost"]["cost"]["value"].get<double>() / (seconds / 3600 * 2), 1, 1e-9);
  EXPECT_LT(seconds, here["time"]["seconds"]["value"].get<double>() / 2);
  // Nothing can be booked for a device by name: the closed form, of the run's layout.
  const auto named = walls({file, "--cluster", "H100", "--set", "layout.pp=2"});
  EXPECT_EQ(named["device"]["flops"], 989e12);
  EXPECT_NE(named["time"]["mfu"].dump().find("step = "), std::string::npos);
  for (const auto& j : {here, there, named})
    EXPECT_NEAR(mfu_of_seconds(j) / j["time"]["mfu"]["value"].get<double>(), 1, 1e-6);
  const auto drawn = json_of_verb("estimate", tmp.path(), {file, "--roofline", "--cluster", other});
  EXPECT_EQ(drawn["device"], other);
}

// Levels above the node are the far link, and the file has no name.
TEST(Worked, ClusterFilesWithTiersHaveAFarLink) {
  TempFolder tmp;
  std::string text = read_text(source_dir() / "configs/cluster/h200-sxm-8.toml");
  text.replace(text.find("name = \"h200-sxm-8\""), 19, "");
  const std::string file = (tmp / "pod.toml").string();
  put_file(file, text);
  const std::vector<std::string> model = {"--model", "llama3-70B", "--cluster", file, "--gpus", "64"};
  const auto with = [&](const char* verb, std::vector<std::string> more) {
    more.insert(more.end(), model.begin(), model.end());
    return json_of_verb(verb, tmp.path(), more);
  };
  const auto walled = with("estimate", {"--tp", "8"});
  EXPECT_EQ(walled["device"]["name"], file);
  const auto& sent = walled["time"]["gradients_sent"];
  // A ring over 8 machines, which all 8 devices of each share: launch, rounds, and bytes at 85 % of the link.
  const double moving = sent["seconds"].get<double>() - (24.2e-6 + 14 * 5e-6);
  EXPECT_NEAR(sent["value"].get<double>() / moving, 0.85 * 400e9 / 8, 1);
  EXPECT_NEAR(with("estimate", {"--roofline", "--tp", "8"})["far_ridge"].get<double>(), 989.4e12 / 50e9,
              1e-6);
  const auto found = with("search", {"--seq", "8192", "--global-batch", "128"});
  EXPECT_FALSE(found.dump().empty());
  const Ran text_of = trireme(tmp.path(), {"search", "--model", "llama3-70B", "--cluster", file, "--gpus",
                                           "64", "--seq", "8192", "--global-batch", "128"});
  EXPECT_NE(text_of.out.find("64 x " + file), std::string::npos) << text_of.out << text_of.err;
}

// What `plan` settles before it forecasts, estimate settles too.
TEST(Worked, WallsSettleWhatTheRunLeavesOpen) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 2).string();
  const std::vector<std::vector<std::string>> open = {
      {"layout.pp=2", "layout.schedule=auto", "batch.micro=1"},
      {"layout.recompute=auto"},
      {"batch.micro=auto"},
      {"layout=auto", "layout.dp=2", "model.layers=4"},
      {"layout.pp=2", "layout.schedule=interleaved", "layout.chunks=2", "model.layers=4", "batch.micro=1"}};
  for (const auto& keys : open) {
    SCOPED_TRACE(keys.back());
    std::vector<std::string> args = {file};
    for (const std::string& key : keys) args.insert(args.end(), {"--set", key});
    const auto plan = plan_json(tmp.path(), args)["candidates"][0];
    const auto j = json_of_verb("estimate", tmp.path(), args);
    EXPECT_NEAR(j["time"]["mfu"]["value"].get<double>(), plan["mfu"].get<double>(), 1e-12);
    if (keys.front() == "layout.pp=2") {
      const bool plain = keys[1] == "layout.schedule=interleaved";
      EXPECT_EQ(j["time"].contains("bubble"), plain);
      if (plain) {
        EXPECT_NEAR(j["time"]["bubble"]["value"].get<double>(), 1.0 / (2 * 6 + 1), 1e-12);
      }
    }
    args.push_back("--roofline");
    EXPECT_TRUE(json_of_verb("estimate", tmp.path(), args).contains("ridge"));
  }
  const Ran r = trireme(tmp.path(), {"estimate", file, "--cluster", "H100", "--set", "layout=auto"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("layout = \"auto\" is chosen by booking steps"), std::string::npos) << r.err;
}

TEST(Worked, NothingThatARunFileSaysIsIgnored) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const auto refused = [&](std::vector<std::string> args, const std::string& with) {
    args.insert(args.begin(), "estimate");
    const Ran r = trireme(tmp.path(), args);
    EXPECT_EQ(r.code, 2) << with;
    EXPECT_NE(r.err.find(with), std::string::npos) << r.err;
  };
  for (const bool roofline : {false, true})
    for (const auto& [option, value] : {std::pair{"--gpus", "1024"},
                                        {"--tp", "8"},
                                        {"--seq", "8192"},
                                        {"--model", "llama3-8B"},
                                        {"--parameters", "7e9"},
                                        {"--micro", "3"}}) {
      std::vector<std::string> args = {file, option, value};
      if (roofline) args.emplace_back("--roofline");
      refused(args, std::string(option) + ": the run file has its own");
    }
  refused({file, "--microbatches", "3"}, "--microbatches: the run file has its own");
  refused({"--parameters", "7e9", "--svg", (tmp / "x.svg").string()}, "--svg: only --roofline reads it");
  refused({"--roofline", "--model", "llama3-8B", "--cluster", "H100", "--pp", "2"},
          "--pp: --roofline does not read it");
}

// Links that nobody knows: no 0 that would read as free.
TEST(Worked, ExplainSaysWhereTheWireIsNotKnown) {
  TempFolder tmp;
  const std::string file = tiny_run_file(tmp.path(), 1).string();
  const auto j = plan_json(tmp.path(), {file, "--explain", "--set", "layout.dp=3"})["computing"];
  EXPECT_TRUE(j["comm_s"].is_null() && j["exposed_comm_s"].is_null()) << j.dump();
  EXPECT_EQ(plan_json(tmp.path(), {file, "--explain"})["computing"]["comm_s"], 0.0);
  const Ran text = trireme(tmp.path(), {"plan", file, "--explain", "--set", "layout.dp=3"});
  EXPECT_NE(text.out.find("no alpha and beta of these links are known"), std::string::npos) << text.out;
}

}  // namespace
}  // namespace trireme::test
