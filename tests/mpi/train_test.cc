// `trireme train` under mpirun, as its users start it.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "process.h"
#include "spec/cluster_spec.h"
#include "tiny_run.h"

namespace trireme::test {
namespace {

std::vector<std::string> mpirun(int processes, std::vector<std::string> args, std::string verb = "train") {
  std::vector<std::string> argv = {
      MPIRUN, "-n", std::to_string(processes), "-q", "--oversubscribe", "--bind-to", "none", program(), verb};
  argv.insert(argv.end(), args.begin(), args.end());
  return argv;
}

// The process of a rank that mpirun started, from /proc; -1 = there is none.
pid_t process_of_rank(pid_t mpirun, int rank) {
  for (const fs::directory_entry& e : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(e.path().filename().c_str());
    if (pid <= 1) continue;
    std::ifstream stat(e.path() / "stat"), environment(e.path() / "environ");
    std::string text, variable;
    std::getline(stat, text);
    const size_t name_end = text.rfind(')');  // PID (NAME) STATE PARENT
    if (name_end == std::string::npos || std::atoi(text.c_str() + name_end + 4) != mpirun) continue;
    while (std::getline(environment, variable, '\0'))
      if (variable == "OMPI_COMM_WORLD_RANK=" + std::to_string(rank)) return pid;
  }
  return -1;
}

// A run of dp ranks with ZeRO stage `zero`, checkpoints every 3 steps.
fs::path run_file(const fs::path& folder, int64_t steps, int dp, int zero, std::string_view comm) {
  RunSpec r = tiny_run(folder, steps);
  r.layout.dp = dp, r.layout.zero = zero;
  r.batch = {.global = 12, .micro = 1};
  r.train.comm = comm;
  r.train.async_save = zero == 3;
  save_run(r, folder / "run.toml");
  return folder / "run.toml";
}

void expect_one_line(const Ran& r, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
  for (const std::string& p : parts) EXPECT_NE(r.err.find(p), std::string::npos) << p << " not in: " << r.err;
}

// Two processes hold the model between them: one says the loss, which is one rank's.
TEST(MpiTrain, ProcessesEvaluateADividedModel) {
  TempFolder tmp;
  const std::string file = run_file(tmp.path(), 2, 2, 0, "mpi");
  const Ran trained = run(mpirun(2, {file}), tmp.path());
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::vector<std::string> options = {file, "--json", "--set", "precision.compute=f32"};
  std::vector<std::string> divided = options;
  divided.insert(divided.end(), {"--layout", "pp=2"});
  std::vector<std::string> alone = options;
  alone.insert(alone.begin(), "eval");
  const Ran one = trireme(tmp.path(), alone), two = run(mpirun(2, divided, "eval"), tmp.path());
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  const auto want = nlohmann::json::parse(one.out), got = nlohmann::json::parse(two.out);
  EXPECT_NEAR(got["loss"].get<double>(), want["loss"].get<double>(), 1e-5 * want["loss"].get<double>());
  EXPECT_EQ(got["tokens"], want["tokens"]);
  expect_one_line(run(mpirun(3, divided, "eval"), tmp.path()), 2,
                  {"--layout: 2 ranks", "processes started: 3"});
}

TEST(MpiTrain, ProcessesAreThreadsToTheBit) {
  for (auto [dp, zero] : {std::pair(2, 3), {4, 1}}) {
    TempFolder threads, processes;
    Ran t = trireme(threads.path(), {"train", run_file(threads.path(), 7, dp, zero, "thread")});
    ASSERT_EQ(t.code, 0) << t.err;
    Ran p = run(mpirun(dp, {run_file(processes.path(), 7, dp, zero, "mpi")}), processes.path());
    ASSERT_EQ(p.code, 0) << p.err;
    EXPECT_EQ(lines_of(p.out).size(), 1u) << "rank 0 speaks: " << p.out;
    expect_same(outcome_of(processes / "run"), outcome_of(threads / "run"));
  }
}

// What moves between the groups of hybrid sharding, in bf16, and between owners of matrices.
TEST(MpiTrain, ShardGroupsAndMatrixOwnersAreThoseOfThreads) {
  for (const char* optimizer : {"adamw", "muon"}) {
    TempFolder threads, processes;
    auto file = [&](const TempFolder& tmp, std::string_view comm) {
      RunSpec r = load_run(run_file(tmp.path(), 7, 4, 3, comm), {});
      r.layout.shard_group = 2, r.optimizer.name = optimizer;
      r.precision.compute = "bf16", r.precision.reduce = "bf16";
      save_run(r, tmp / "run.toml");
      return tmp / "run.toml";
    };
    Ran t = trireme(threads.path(), {"train", file(threads, "thread")});
    ASSERT_EQ(t.code, 0) << t.err;
    Ran p = run(mpirun(4, {file(processes, "mpi")}), processes.path());
    ASSERT_EQ(p.code, 0) << p.err;
    expect_same(outcome_of(processes / "run"), outcome_of(threads / "run"));
  }
}

// Messages between stages, tied tables' sums between their ends, and those of two copies of each stage.
TEST(MpiTrain, PipelinesOfProcessesAreThoseOfThreads) {
  for (const auto& [schedule, zero, tied] :
       {std::tuple("zb-h1", 1, true), std::tuple("dualpipe", 0, false)}) {
    SCOPED_TRACE(schedule);
    TempFolder threads, processes;
    auto file = [&, schedule = schedule, zero = zero, tied = tied](const TempFolder& tmp,
                                                                   std::string_view comm) {
      RunSpec r = load_run(run_file(tmp.path(), 6, 2, zero, comm), {});
      r.layout.pp = 2, r.layout.schedule = schedule, r.model.tied = tied;
      save_run(r, tmp / "run.toml");
      return tmp / "run.toml";
    };
    Ran t = trireme(threads.path(), {"train", file(threads, "thread")});
    ASSERT_EQ(t.code, 0) << t.err;
    Ran p = run(mpirun(4, {file(processes, "mpi")}), processes.path());
    ASSERT_EQ(p.code, 0) << p.err;
    expect_same(outcome_of(processes / "run"), outcome_of(threads / "run"));
  }
}

TEST(MpiTrain, RingsOfProcessesAreThoseOfThreads) {
  for (const char* method : {"ring", "ulysses"}) {
    TempFolder threads, processes;
    auto file = [&](const TempFolder& tmp, std::string_view comm) {
      RunSpec r = load_run(run_file(tmp.path(), 7, 1, 0, comm), {});
      r.layout.cp = 3, r.data.seq_len = 12, r.data.documents = "separate";
      r.layout.cp_method = method, r.model.kv_heads = 3;
      save_run(r, tmp / "run.toml");
      return tmp / "run.toml";
    };
    Ran t = trireme(threads.path(), {"train", file(threads, "thread")});
    ASSERT_EQ(t.code, 0) << t.err;
    Ran p = run(mpirun(3, {file(processes, "mpi")}), processes.path());
    ASSERT_EQ(p.code, 0) << p.err;
    expect_same(outcome_of(processes / "run"), outcome_of(threads / "run"));
  }
}

TEST(MpiTrain, GoesOnWhereThreadsLeftAndTheReverse) {
  TempFolder whole, first_threads, first_mpi;
  ASSERT_EQ(trireme(whole.path(), {"train", run_file(whole.path(), 9, 3, 2, "thread")}).code, 0);
  auto thread_args = [](const fs::path& file) {
    return trireme_args({"train", file, "--set", "train.comm=thread"});
  };
  auto mpi_args = [](const fs::path& file) { return mpirun(3, {file, "--set", "train.comm=mpi"}); };
  // Interrupted after the first steps, at any of them; then the other way to its end.
  auto both = [&](const TempFolder& tmp, auto first, auto second) {
    const fs::path file = run_file(tmp.path(), 9, 3, 2, "thread");
    Process p(first(file), tmp.path());
    ASSERT_TRUE(p.wait_for_err("loss"));
    p.send(SIGUSR1);
    Ran r = p.wait();
    EXPECT_TRUE(r.code == 3 || outcome_of(tmp / "run").step == 9) << r.code << " " << r.err;
    r = run(second(file), tmp.path());
    ASSERT_EQ(r.code, 0) << r.err;
    expect_same(outcome_of(tmp / "run"), outcome_of(whole / "run"));
  };
  both(first_threads, thread_args, mpi_args);
  both(first_mpi, mpi_args, thread_args);
}

// mpirun hands SIGUSR1 on to all; a scheduler's SIGTERM may find one process only.
TEST(MpiTrain, ASignalEndsAllWithThreeAndLosesNothing) {
  TempFolder tmp;
  const fs::path file = run_file(tmp.path(), 1'000'000, 2, 0, "mpi");
  int64_t step = 0;
  for (int signal : {SIGUSR1, SIGTERM}) {
    Process p(mpirun(2, {file}), tmp.path());
    ASSERT_TRUE(p.wait_for_err("loss"));
    const pid_t target = signal == SIGUSR1 ? p.pid() : process_of_rank(p.pid(), 1);
    ASSERT_GT(target, 1);
    ASSERT_EQ(kill(target, signal), 0);
    Ran r = p.wait();
    EXPECT_EQ(r.code, 3) << r.err;
    EXPECT_NE(r.err.find("the same command goes on from there"), std::string::npos) << r.err;
    Outcome o = outcome_of(tmp / "run");
    EXPECT_GT(o.step, step);
    EXPECT_EQ(int64_t(o.metrics.size()), o.step);
    step = o.step;
  }
}

// Links of processes are not those of rank threads, which the cluster file of this test states.
TEST(MpiTrain, AutoTakesTheLinksThatBenchMeasuredOfProcesses) {
  TempFolder tmp;
  const fs::path file = run_file(tmp.path(), 3, 2, 0, "mpi"), cluster = tmp / "cluster.toml";
  ClusterSpec machine = load_cluster(cluster);
  machine.intra_node = {.latency = 1e-6, .bandwidth = 1e10};
  save_cluster(machine, cluster);
  const std::vector<std::string> automatic = {file, "--set", "train.sum_order=auto"};
  expect_one_line(run(mpirun(2, automatic), tmp.path()), 2,
                  {"train.sum_order", "intra_node_mpi", "`mpirun -n 2 trireme bench`"});
  expect_one_line(run(mpirun(2, {"--out", cluster, "--threads", "2"}, "bench"), tmp.path()), 2,
                  {"--threads"});
  EXPECT_TRUE(load_cluster(cluster) == machine);
  const Ran bench = run(mpirun(2, {"--out", cluster}, "bench"), tmp.path());
  ASSERT_EQ(bench.code, 0) << bench.err;
  const ClusterSpec measured = load_cluster(cluster);
  EXPECT_GT(measured.intra_node_mpi.latency, 1e-8);
  EXPECT_LT(measured.intra_node_mpi.latency, 1e-2);
  EXPECT_GT(measured.intra_node_mpi.bandwidth, 1e7);
  machine.intra_node_mpi = measured.intra_node_mpi, machine.source += "; links of MPI processes";
  EXPECT_TRUE(measured == machine) << "all else stays: " << save_cluster(measured);
  const Ran trained = run(mpirun(2, automatic), tmp.path());
  EXPECT_EQ(trained.code, 0) << trained.err;
}

// Two hosts by their names: tiers say how they are joined, and a file with both would never load again.
TEST(MpiTrain, BenchAddsNoLinkBesideTiers) {
  TempFolder tmp;
  if (run({"/usr/bin/env", "unshare", "--uts", "true"}, tmp.path()).code != 0)
    GTEST_SKIP() << "a host name of one's own takes a privilege";
  const fs::path cluster = tmp / "tiers.toml";
  ClusterSpec machine{.name = "two hosts", .nodes = 2};
  machine.tiers = {{.name = "rack", .size = 2, .link = {.latency = 1e-6, .bandwidth = 1e10}}};
  save_cluster(machine, cluster);
  std::vector<std::string> argv = mpirun(1, {"--out", cluster}, "bench");
  for (const std::string& word :
       {std::string(":"), std::string("-n"), std::string("1"), std::string("unshare"), std::string("--uts"),
        std::string("sh"), std::string("-c"), std::string("hostname elsewhere; exec \"$@\""),
        std::string("sh"), program(), std::string("bench"), std::string("--out"), cluster.string()})
    argv.push_back(word);
  expect_one_line(run(argv, tmp.path()), 2, {"[[tier]]", "tiers.toml"});
  EXPECT_TRUE(load_cluster(cluster) == machine);
}

TEST(MpiTrain, WhatIsWrongIsSaidOnce) {
  TempFolder tmp;
  const fs::path file = run_file(tmp.path(), 3, 2, 0, "mpi");
  auto mpi = [&](int n, std::vector<std::string> args) {
    args.insert(args.begin(), file);
    return run(mpirun(n, args), tmp.path());
  };
  expect_one_line(mpi(3, {}), 2, {"world = 2", "processes started: 3"});
  expect_one_line(mpi(2, {"--set", "train.stepz=3"}), 2, {"train.stepz"});
  expect_one_line(mpi(2, {"--set", "train.comm=thread"}), 2,
                  {"train.comm = \"thread\"", "started 2 processes"});
  expect_one_line(mpi(2, {"--stop-after", "soon"}), 2, {"--stop-after"});
  expect_one_line(mpi(3, {"--no-such-option"}), 2, {"--no-such-option"});
  expect_one_line(mpi(2, {"--supervise", "1"}), 2, {"--supervise"});
  expect_one_line(mpi(2, {"--set", "data.train=" + (tmp / "nowhere").string()}), 2, {"nowhere"});
  expect_one_line(trireme(tmp.path(), {"train", file}), 2, {"mpirun -n 2 trireme train"});
}

}  // namespace
}  // namespace trireme::test
