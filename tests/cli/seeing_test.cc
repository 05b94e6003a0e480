// Verbs and files that show: traces, event files, inspect, doctor, completion.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "base/json.h"
#include "process.h"
#include "sanitized.h"
#include "source_dir.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

using nlohmann::json;

json json_said(const Ran& r) {
  EXPECT_EQ(r.code, 0) << r.err;
  json j = json::parse(r.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << r.out;
  return j;
}

json inspected(const fs::path& home, const fs::path& what) {
  return json_said(trireme(home, {"inspect", what.string(), "--json"}));
}

// By op: calls, FLOPs, bytes read, bytes written.
using OpSums = std::map<std::string, std::tuple<int64_t, double, int64_t, int64_t>>;
struct TraceSums {
  std::map<int64_t, OpSums> ops;  // by step
  std::set<std::string> layers;
  double step_ns = 0, op_ns = 0;
};

// A trace added up. On the way: events are in the order they began, actions lie within their step, ops and
// waits within their action, and no two of a kind overlap.
TraceSums sums_of(const json& trace) {
  struct Interval {
    int64_t begin = 0, end = 0, step = 0;
    std::string action;
  };
  TraceSums sums;
  Interval step, action, leaf;
  double last = 0;
  for (const json& e : trace["traceEvents"]) {
    EXPECT_GE(e["ts"].get<double>(), last);
    last = e["ts"];
    if (e["ph"] != "X") continue;
    const json& args = e["args"];
    Interval now{.begin = std::llround(e["ts"].get<double>() * 1000),  // microseconds with three decimals
                 .step = args["step"],
                 .action = args["action"]};
    now.end = now.begin + std::llround(e["dur"].get<double>() * 1000);
    const bool is_step = e["cat"] == "step", is_action = e["cat"] == "action";
    Interval& before = is_step ? step : is_action ? action : leaf;
    const Interval& around = is_step ? now : is_action ? step : action;
    EXPECT_GE(now.begin, before.end) << e << " overlaps the one before";
    EXPECT_TRUE(now.begin >= around.begin && now.end <= around.end && now.step == around.step &&
                (is_action || now.action == around.action))
        << e << " is not inside";
    before = now;
    if (is_step) sums.step_ns += double(now.end - now.begin);
    if (e["cat"] != "op") continue;
    sums.op_ns += double(now.end - now.begin);
    sums.layers.insert(args["layer"].get<std::string>());
    auto& [calls, flops, read, written] = sums.ops[now.step][e["name"]];
    calls++, flops += args["flops"].get<double>();
    read += args["bytes_read"].get<int64_t>(), written += args["bytes_written"].get<int64_t>();
  }
  return sums;
}

// A port that was free a moment ago.
int free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof at;
  EXPECT_EQ(::bind(s, reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(::getsockname(s, reinterpret_cast<sockaddr*>(&at), &size), 0);
  ::close(s);
  return ntohs(at.sin_port);
}

// The reply to a request on loopback.
std::string got(int port, const std::string& path) {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{.sin_family = AF_INET,
                 .sin_port = htons(uint16_t(port)),
                 .sin_addr = {htonl(INADDR_LOOPBACK)},
                 .sin_zero = {}};
  EXPECT_EQ(::connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(s, request.data(), request.size(), MSG_NOSIGNAL), ssize_t(request.size()));
  std::string out;
  char some[4096];
  for (ssize_t n; (n = ::recv(s, some, sizeof some, 0)) > 0;) out.append(some, size_t(n));
  ::close(s);
  return out;
}

// The page of a run: in its folder, at --out, from a saved report, and served.
void expect_pages(const fs::path& home, const fs::path& run) {
  const fs::path page = run / "report.html", saved = home / "saved.json", elsewhere = home / "page.html";
  Ran r = trireme(home, {"report", run.string()});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find(page.string()), std::string::npos) << r.err;
  EXPECT_NE(read_text(page).find("application/json"), std::string::npos);
  r = trireme(home, {"report", run.string(), "--json"});
  EXPECT_EQ(json_said(r)["kind"], "run");
  write_text_atomic(saved, r.out);
  EXPECT_EQ(trireme(home, {"report", saved.string(), "--out", elsewhere.string()}).code, 0);
  EXPECT_GT(fs::file_size(elsewhere), 100'000u);
  r = trireme(home, {"report", saved.string(), "--out", elsewhere.string(), "--json"});
  EXPECT_EQ(r.code, 2) << "a saved report has no --json";
  write_text_atomic(saved, "{\"version\": \"1\", \"kind\": [1]}");
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{saved.string(), "--out", elsewhere.string()},
                                             {run.string(), "--out", (home / "none/x.html").string()},
                                             {run.string(), "--port", "1"},
                                             {run.string(), "--follow", "--json"},
                                             {run.string(), "--follow", "--host", "not a host"},
                                             {(home / "none").string()}}) {
    std::vector<std::string> args = {"report"};
    args.insert(args.end(), wrong.begin(), wrong.end());
    r = trireme(home, args);
    EXPECT_EQ(r.code, 2) << wrong.back() << r.err;
    EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  }
  const int port = free_port();
  Process served(trireme_args({"report", "--follow", run.string(), "--port", std::to_string(port)}), home);
  ASSERT_TRUE(served.wait_for_err("ctrl-C"));
  EXPECT_NE(got(port, "/").find("text/html"), std::string::npos);
  std::string reply;
  for (int i = 0; i < 100 && (reply = got(port, "/run/0.json")).find(" 202 ") != reply.npos; i++)
    ::usleep(50'000);
  EXPECT_EQ(json::parse(reply.substr(reply.find("\r\n\r\n") + 4), nullptr, false).value("kind", ""), "run")
      << reply;
  served.send(SIGINT);
  r = served.wait();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "http://127.0.0.1:" + std::to_string(port) + "/\n");
}

TEST(Seeing, ATraceOfChosenStepsAddsUp) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 5);
  Ran r = trireme(tmp.path(), {"train", file.string(), "--trace-steps", "2,4-9"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("traced 3 steps into"), std::string::npos) << r.err;
  json plan = json_said(trireme(tmp.path(), {"plan", file.string(), "--json"}))["best"];
  TraceSums sums = sums_of(json::parse(read_text(tmp / "run/trace.json")));
  OpSums want;
  for (const json& o : plan["ops"])
    want[o["op"]] = {o["calls"], o["flops"], o["bytes_read"], o["bytes_written"]};
  EXPECT_GE(want.size(), 8u);
  EXPECT_EQ(sums.ops, (std::map<int64_t, OpSums>{{2, want}, {4, want}, {5, want}}));
  EXPECT_EQ(sums.layers, (std::set<std::string>{"embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn",
                                                "blocks.1.mlp", "head", "grad_norm", "optimizer"}));
  json d = inspected(tmp.path(), tmp / "run/trace.json");
  EXPECT_EQ(d["kind"], "trace");
  EXPECT_EQ(d["steps"], 3);
  EXPECT_EQ(d["peak_bytes"], plan["memory"]["total"]);
  EXPECT_NEAR(d["inside_ops_percent"], 100 * sums.op_ns / sums.step_ns, 0.006);
  EXPECT_NE(
      trireme(tmp.path(), {"inspect", (tmp / "run/trace.json").string()}).out.find("matmul in blocks.*.mlp"),
      std::string::npos);
  // The report of the same run.
  const json report = json_said(trireme(tmp.path(), {"report", (tmp / "run").string(), "--json"}));
  EXPECT_EQ(report["kind"], "run");
  EXPECT_EQ(report["state"], "finished");
  EXPECT_EQ(report["comb"]["steps"], json({2, 4, 5}));
  EXPECT_NEAR(report["comb"]["sum"].get<double>(), 1, 1e-9);
  EXPECT_EQ(report["checked"].size(), 12u);
  ASSERT_GE(report["events"].size(), 2u);
  EXPECT_EQ(report["events"][0]["kind"], "start");
  EXPECT_EQ(report["events"].back()["kind"], "end");
  double lost = 0;
  for (const json& l : report["goodput"]["lost"]) lost += l["s"].get<double>();
  EXPECT_NEAR(report["goodput"]["useful_s"].get<double>() + lost, report["goodput"]["wall_s"].get<double>(),
              1e-6);
  EXPECT_NE(trireme(tmp.path(), {"report", (tmp / "run").string()}).out.find("tolls"), std::string::npos);
  EXPECT_EQ(trireme(tmp.path(), {"report", (tmp / "none").string()}).code, 2);
  const Ran two = trireme(tmp.path(), {"report", (tmp / "run").string(), (tmp / "run").string()});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_NE(two.out.find("state shelf"), std::string::npos);
  const Ran planned = trireme(tmp.path(), {"report", (tmp / "run").string(), "--cluster", "H100", "--json"});
  EXPECT_EQ(json_said(planned)["runs"].size(), 2u);
  const Ran unknown = trireme(tmp.path(), {"report", (tmp / "run").string(), "--cluster", "H1000"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("H1000"), std::string::npos) << unknown.err;
  expect_pages(tmp.path(), tmp / "run");
  // Without its cluster file a run has a report, in which nothing is planned.
  const std::vector<std::string> no_cluster = {"cluster.file=none/lost.toml"};
  write_text_atomic(tmp / "run/plan.toml", save_run(load_run(tmp / "run/plan.toml", no_cluster)));
  r = trireme(tmp.path(), {"report", (tmp / "run").string()});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST(Seeing, OneEventFileAStartAndNoneWhenToldSo) {
  auto event_files = [](const fs::path& run) {
    int n = 0;
    for (const auto& e : fs::directory_iterator(run))
      n += e.path().string().find("events.out.tfevents.") != std::string::npos;
    return n;
  };
  TempFolder tmp, without;
  fs::path file = tiny_run_file(tmp.path(), 4);
  EXPECT_EQ(trireme(tmp.path(), {"train", file.string()}).code, 0);
  EXPECT_EQ(event_files(tmp / "run"), 1);
  EXPECT_EQ(trireme(tmp.path(), {"train", file.string()}).code, 0);  // nothing to do
  EXPECT_EQ(event_files(tmp / "run"), 1);
  file = tiny_run_file(without.path(), 4);
  EXPECT_EQ(trireme(without.path(), {"train", file.string(), "--set", "train.tensorboard=false"}).code, 0);
  EXPECT_EQ(event_files(without / "run"), 0);
  EXPECT_FALSE(fs::exists(without / "run/trace.json"));
}

// What a run forecast of itself stands beside what became of it: bytes are equal, seconds have their error.
TEST(Seeing, InspectHoldsARunAgainstItsForecast) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 5);
  ASSERT_EQ(
      trireme(tmp.path(), {"train", file.string(), "--set", "layout.dp=2", "--set", "batch.micro=1"}).code,
      0);
  const auto rows = [&] {
    std::map<std::string, json> by;
    const json run = inspected(tmp.path(), tmp / "run");
    for (const json& r : run.value("forecast", json::array())) by[r["what"]] = r;
    return by;
  };
  auto all = rows();
  ASSERT_TRUE(all.contains("bytes, total"));
  ASSERT_TRUE(all.contains("wire bytes, all_reduce"));
  size_t timed = 0;
  for (const auto& [what, r] : all) {
    if (what.starts_with("ms a step")) {
      timed++;
      EXPECT_NE(what.find("median of 3 steps"), std::string::npos) << what;
      const std::string error = r["difference"];
      EXPECT_NEAR(std::stod(error), 100 * (r["forecast"].get<double>() / r["measured"].get<double>() - 1),
                  0.06);
      continue;
    }
    EXPECT_EQ(r["forecast"], r["measured"]) << what;
    EXPECT_EQ(r["difference"], "none") << what;
  }
  EXPECT_EQ(timed, 1u);
  // Half as much on the wire as was forecast, and a kind that was not.
  const fs::path metrics = tmp / "run/metrics.jsonl";
  std::string text = read_text(metrics);
  json last = json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1));
  const int64_t bytes = last["comm_bytes"]["all_reduce"];
  last["step"] = 6, last["comm_bytes"] = {{"all_reduce", bytes / 2}, {"p2p", 12}};
  write_text_atomic(metrics, text + last.dump() + "\n" + "{\"step\": 7, \"comm_by");
  all = rows();
  EXPECT_EQ(all["wire bytes, all_reduce"]["difference"], "+100.0 %");
  EXPECT_EQ(all["wire bytes, p2p"]["difference"], "-100.0 %");
  for (const char* broken : {"", "[]", "{\"best\": 3}", "{\"best\": {\"step_s\": \"x\", \"wire\": [1]",
                             "{\"best\": {\"memory\": 1, \"wire\": 2}}"}) {
    write_text_atomic(tmp / "run/forecast.json", broken);
    EXPECT_TRUE(rows().empty()) << broken;
    EXPECT_EQ(trireme(tmp.path(), {"inspect", (tmp / "run").string()}).code, 0) << broken;
  }
}

TEST(Seeing, InspectKnowsWhatARunLeaves) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 4), golden = source_dir() / "tests/golden/llama3";
  ASSERT_EQ(trireme(tmp.path(), {"train", file.string()}).code, 0);
  json run = inspected(tmp.path(), tmp / "run");
  EXPECT_EQ(run["kind"], "run folder");
  EXPECT_EQ(run["steps_done"], 4);
  EXPECT_EQ(run["checkpoints"].size(), 2u);
  json checkpoint = inspected(tmp.path(), run["checkpoints"][1]["path"].get<std::string>());
  EXPECT_EQ(checkpoint["kind"], "checkpoint");
  EXPECT_EQ(checkpoint["step"], 4);
  EXPECT_EQ(checkpoint["numbers"], 3 * run["run"]["parameters"].get<int64_t>());  // master and two moments
  EXPECT_EQ(
      inspected(tmp.path(), fs::path(run["checkpoints"][1]["path"].get<std::string>()) / "manifest.json"),
      checkpoint);
  EXPECT_EQ(inspected(tmp.path(), tmp / "data/train")["kind"], "token shard");
  EXPECT_EQ(inspected(tmp.path(), tmp / "cluster.toml")["kind"], "cluster file");
  EXPECT_EQ(inspected(tmp.path(), file)["steps"], 4);
  std::vector<std::string> program = {"inspect", file.string(),   "--program", "--set",        "layout.dp=2",
                                      "--set",   "layout.zero=3", "--set",     "batch.micro=1"};
  EXPECT_NE(trireme(tmp.path(), program).out.find("arrive blocks.0 after"), std::string::npos);
  program.push_back("--json");
  const json ranks = json_said(trireme(tmp.path(), program))["ranks"];
  ASSERT_EQ(ranks.size(), 1u);
  std::map<std::string, int> ops;
  for (const json& op : ranks[0]["operations"]) ops[op["kind"]]++;
  EXPECT_GT(ops["gather"], 0);
  EXPECT_EQ(ops["gather"], ops["release"]);
  // A gather takes memory and a release frees it.
  const json& all = ranks[0]["operations"];
  for (size_t i = 1; i < all.size(); i++) {
    if (!all[i].contains("bytes_after")) continue;
    const int64_t more = all[i]["bytes_after"].get<int64_t>() - all[i - 1]["bytes_after"].get<int64_t>();
    if (all[i]["kind"] == "gather") {
      EXPECT_GT(more, 0);
    }
    if (all[i]["kind"] == "release") {
      EXPECT_LT(more, 0);
    }
    if (all[i]["kind"] == "arrive") {
      EXPECT_EQ(more, 0);
    }
  }
  // A GPU run's program needs no GPU.
  for (const char* set : {"--set", "train.device=cuda", "--set", "precision.compute=bf16"})
    program.push_back(set);
  EXPECT_EQ(json_said(trireme(tmp.path(), program))["ranks"].size(), 1u);
  EXPECT_EQ(inspected(tmp.path(), tmp / "run/metrics.jsonl")["lines"], 4);
  EXPECT_EQ(inspected(tmp.path(), golden)["kind"], "Hugging Face folder");
  json tensors = inspected(tmp.path(), golden / "model.safetensors");
  EXPECT_EQ(tensors["tensors"].size(), tensors["count"]);
  std::string text = trireme(tmp.path(), {"inspect", golden.string()}).out;
  EXPECT_NE(text.find("parameters"), std::string::npos) << text;
}

TEST(Seeing, InspectShowsWhatWasDrawnOfAMixture) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 3);
  const std::string a = (tmp / "data/train").string(), b = (tmp / "data/valid").string();
  const std::string shards = "data.train=[\"" + a + "\", \"" + b + "\"]";
  Ran r = trireme(tmp.path(), {"train", file.string(), "--set", shards, "--set", "data.weights=[2, 1]"});
  ASSERT_EQ(r.code, 0) << r.err;
  json mixture = inspected(tmp.path(), tmp / "run")["mixture"];
  EXPECT_EQ(mixture, (json{{{"shard", a}, {"drawn", 12}}, {{"shard", b}, {"drawn", 6}}}));  // of 3 steps of 6
  EXPECT_NE(trireme(tmp.path(), {"inspect", (tmp / "run").string()}).out.find("mixture"), std::string::npos);
}

// Whether this machine is quiet now, nobody knows: peaks are kept, or for an hour in a file of their own.
TEST(Seeing, PeaksAreKeptAsTheMachineWas) {
  TempFolder tmp;
  fs::path file = tiny_run_file(tmp.path(), 3);
  Ran r = trireme(tmp.path(), {"plan", file.string(), "--set", "cluster.file=\"\"", "--json"});
  EXPECT_GT(json_said(r)["best"]["step_s"].get<double>(), 0);
  const bool kept = fs::exists(tmp / "cache/trireme/this-machine.toml");
  EXPECT_EQ(r.err.find("is kept for an hour") == std::string::npos, kept) << r.err;
  EXPECT_NE(fs::exists(tmp / "cache/trireme/this-machine-busy.toml"), kept) << r.err;
}

std::string processor() {
  std::ifstream in("/proc/cpuinfo");  // whose size is 0
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t at = text.find("model name"), colon = text.find(": ", at);
  return at == std::string::npos ? "cpu" : text.substr(colon + 2, text.find('\n', colon) - colon - 2);
}

// What bench measured is not lost to a plan of other threads, which is kept beside it and serves the next
// one; what does not read is said.
TEST(Seeing, AMeasurementOfOtherThreadsStays) {
  if (test::kSanitized)
    GTEST_SKIP() << "measures this machine twice; PeaksAreKeptAsTheMachineWas does so once";
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 3), kept = tmp / "cache/trireme/this-machine.toml";
  make_folders(kept.parent_path());
  ClusterSpec bench{.name = processor(), .nodes = 3, .threads = 63};
  bench.tiers = {{.name = "rack", .size = 3}};
  bench.alone = {.ranks = 1, .threads = 63, .f32 = 1e12, .ops = "add f32 1x1x5=1e-6"};
  save_cluster(bench, kept);
  const std::vector<std::string> plan = {"plan",           file, "--set", "cluster.file=\"\"", "--set",
                                         "train.threads=1"};
  const Ran r = trireme(tmp.path(), plan);
  EXPECT_EQ(r.code, 0) << r.err;
  const bool busy = fs::exists(kept.parent_path() / "this-machine-busy.toml");
  const fs::path beside = kept.parent_path() / "this-machine-1-ranks-of-1-threads.toml";
  EXPECT_NE(r.err.find(busy ? "is kept for an hour" : "is kept as " + beside.string()), std::string::npos)
      << r.err;
  EXPECT_TRUE(load_cluster(kept) == bench) << read_text(kept);
  EXPECT_EQ(fs::exists(beside), !busy);
  const Ran second = trireme(tmp.path(), plan);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.err.find("is kept"), std::string::npos) << second.err;
  write_text_atomic(kept, "nodes = 3\nnods = 4\n");
  Process again(trireme_args(plan), tmp.path());
  EXPECT_TRUE(again.wait_for_err("measurement is not used, for it does not read"));
  EXPECT_TRUE(again.wait_for_err("this-machine.toml:2: nods: unknown key"));
}

TEST(Seeing, TheDoctorFindsNothingBadHere) {
  TempFolder tmp;
  json d = json_said(trireme(tmp.path(), {"doctor", "--json", "--dir", tmp.path().string()}));
  EXPECT_EQ(d["usable"], true);
  std::set<std::string> topics;
  for (const json& f : d["findings"]) {
    topics.insert(f["topic"]);
    EXPECT_FALSE(f["text"].get<std::string>().empty()) << f;
    EXPECT_EQ(f["text"].get<std::string>().find('\n'), std::string::npos) << f;
  }
  for (const char* t : {"cores", "kernels", "memory", "huge pages", "disk", "peak", "MPI", "CUDA", "NCCL"})
    EXPECT_TRUE(topics.count(t)) << t;
  EXPECT_TRUE(files_in(tmp.path()).empty()) << "it leaves nothing behind";
  Ran r = trireme(tmp.path(), {"doctor", "--dir", "/proc/none"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.out.find("cannot be written to"), std::string::npos) << r.out;
  write_text_atomic(tmp / "file", "x");
  for (const char* below : {"file", "file/runs"}) {
    r = trireme(tmp.path(), {"doctor", "--dir", (tmp / below).string()});
    EXPECT_EQ(r.code, 1) << below;
    EXPECT_NE(r.out.find((tmp / "file").string() + " is no folder"), std::string::npos) << r.out;
  }
}

// OpenMP gives a team fewer threads than were asked for, without a word; trireme counts with those.
TEST(Seeing, ATeamMayBeLetHaveFewerThreadsThanCores) {
  TempFolder tmp;
  const Ran r = run({"/usr/bin/env", "OMP_THREAD_LIMIT=1", program(), "doctor", "--json"}, tmp.path());
  const json d = json_said(r);
  std::map<std::string, std::string> texts;
  for (const json& f : d["findings"]) texts[f["topic"]] = f["text"];
  if (texts.at("cores").find(" 1 of ") == std::string::npos) {
    EXPECT_EQ(texts["threads"], "OMP_THREAD_LIMIT lets a rank have 1 at most");
  }
  const Ran without =
      run({"/usr/bin/env", "-u", "OMP_THREAD_LIMIT", program(), "doctor", "--json"}, tmp.path());
  EXPECT_FALSE(json_said(without).dump().find("OMP_THREAD_LIMIT") != std::string::npos);
}

// What bash offers for the last of some words.
std::vector<std::string> offered(const fs::path& home, const std::string& words) {
  std::string script =
      "source <(" + program() + " completion bash); COMP_WORDS=(" + words +
      "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _trireme; printf '%s\\n' \"${COMPREPLY[@]}\"";
  Ran r = run({"/bin/bash", "-c", script}, home);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  return lines_of(r.out);
}

TEST(Inspect, SaysWhatItReadsOfWhatItDoesNot) {
  TempFolder tmp;
  write_text_atomic(tmp / "README.md", "# words\n");
  write_text_atomic(tmp / "rows.json", "[{\"id\": \"a\"}]\n");
  for (const auto& [name, more] :
       {std::pair{"README.md", "token shard (.bin, .idx"}, {"rows.json", "`trireme score` reads"}}) {
    const Ran r = trireme(tmp.path(), {"inspect", (tmp / name).string()});
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find("inspect reads a run folder"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(more), std::string::npos) << r.err;
  }
}

TEST(Completion, BashCompletesVerbsOptionsKeysAndFiles) {
  if (!fs::exists("/bin/bash")) GTEST_SKIP() << "no bash here";
  TempFolder tmp;
  using Words = std::vector<std::string>;
  EXPECT_EQ(offered(tmp.path(), "trireme tr"), Words{"train"});
  EXPECT_EQ(offered(tmp.path(), "trireme train --stop"), Words{"--stop-after"});
  EXPECT_EQ(offered(tmp.path(), "trireme train x.toml --set optimizer.lr"), Words{"optimizer.lr="});
  EXPECT_EQ(offered(tmp.path(), "trireme completion z"), Words{"zsh"});
  EXPECT_EQ(offered(tmp.path(), "trireme train x.toml --set layout.schedule = zb-v"), Words{"zb-v"});
  EXPECT_EQ(offered(tmp.path(), "trireme train x.toml --set layout.offload ="),
            (Words{"none", "inputs", "state", "all"}));
  EXPECT_EQ(offered(tmp.path(), "trireme search --model llama3-40"), Words{"llama3-405B"});
  EXPECT_EQ(offered(tmp.path(), "trireme help ev"), Words{"eval"});
  tiny_run_file(tmp.path(), 1);
  EXPECT_EQ(offered(tmp.path(), "trireme plan " + (tmp / "ru").string()), Words{(tmp / "run.toml").string()});
  EXPECT_GE(offered(tmp.path(), "trireme ''").size(), 12u);
}

TEST(Completion, EveryShellKnowsEveryVerb) {
  TempFolder tmp;
  std::string help = trireme(tmp.path(), {"--help"}).out;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    Ran r = trireme(tmp.path(), {"completion", shell});
    EXPECT_EQ(r.code, 0);
    for (const char* word : {"train", "inspect", "doctor", "convert", "stop-after", "data.seq_len="})
      EXPECT_NE(r.out.find(word), std::string::npos) << shell << " " << word;
  }
}

}  // namespace
}  // namespace trireme::test
