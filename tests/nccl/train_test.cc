// Training by processes that find each other over TCP and move tensors by NCCL: here the fake one, on
// processors.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/json.h"
#include "process.h"
#include "processes.h"
#include "three_ranks.h"
#include "train/supervisor.h"

namespace trireme::test {
namespace {

int free_port() {
  return tcp::port_of(tcp::listen_at(0));
}

std::vector<double> losses(const fs::path& run_dir) {
  std::vector<double> all;
  for (const std::string& line : lines_of(read_text(run_dir / "metrics.jsonl")))
    all.push_back(nlohmann::json::parse(line)["loss"].get<double>());
  return all;
}

// Sums are NCCL's: within the bounds of another order of them, and not beyond.
TEST(NcclTrain, ProcessesLearnAsThreadsDo) {
  for (int64_t zero : {0, 3}) {
    SCOPED_TRACE(zero);
    TempFolder processes, threads;
    const RunSpec run = three_ranks(processes.path(), 7, zero);
    const int port = free_port();
    for (const std::string& e : testing::run_forked(3, [&](int r) { return train_as(run, r, port, {}); }))
      EXPECT_EQ(e, "");
    const std::vector<double> got = losses(processes / "run");
    RunSpec same = three_ranks(threads.path(), 7, zero);
    same.train.threads = 1;
    train_here(same);
    const std::vector<double> want = losses(threads / "run");
    ASSERT_EQ(got.size(), 7u);
    ASSERT_EQ(want.size(), 7u);
    for (size_t i = 0; i < 7; i++) EXPECT_LT(std::abs(got[i] / want[i] - 1), 1e-5) << "step " << i + 1;
    EXPECT_EQ(outcome_of(processes / "run").step, 7);
  }
}

// Returns the waits of rank 0's last step, "host 6, device 11", or a rank's error.
std::string waits_of_a_step(const RunSpec& run) {
  const int port = free_port();
  const auto said = testing::run_forked(int(run.world()), [&](int r) {
    testing::QueueWaits waits, before, last;
    TrainHooks hooks;
    hooks.step = [&](const StepMetrics&) {
      last = {waits.of_host - before.of_host, waits.of_device - before.of_device};
      before = waits;
    };
    const std::string error = train_as(run, r, port, hooks, &waits);
    if (!error.empty() || r > 0) return error;
    return fmt::format("host {}, device {}", last.of_host, last.of_device);
  });
  for (size_t r = 1; r < said.size(); r++)
    if (!said[r].empty()) return said[r];
  return said[0];
}

// Sums over tp follow the compute stream's order. The host waits for the batch, the loss and the norm, no
// more than without tp, and for no layer.
TEST(NcclTrain, NoTensorParallelCallMakesTheHostWait) {
  TempFolder tmp;
  RunSpec run = three_ranks(tmp.path(), 3, 0);
  run.model.hidden = 32;
  run.model.heads = 4;
  run.model.kv_heads = 2;
  run.model.head_dim = 8;
  run.layout.dp = 1;
  run.batch.global = run.batch.micro;
  run.train.eval_every = 0;
  run.data.valid = {};
  struct Waits {
    int host = -1, device = -1;
  };
  const auto waits = [&](int tp, int chunks, int layers) {
    run.layout.tp = tp;
    run.layout.tp_chunks = chunks;
    run.model.layers = layers;
    run.train.dir = (tmp.path() / fmt::format("tp{}-{}-{}", tp, chunks, layers)).string();
    const std::string said = waits_of_a_step(run);
    Waits w;
    EXPECT_EQ(std::sscanf(said.c_str(), "host %d, device %d", &w.host, &w.device), 2) << said;
    return w;
  };
  const Waits alone = waits(1, 1, 2);
  EXPECT_EQ(alone.device, 0);
  for (const int chunks : {1, 2}) {
    const Waits shallow = waits(2, chunks, 2), deep = waits(2, chunks, 4);
    EXPECT_GT(shallow.device, 0);
    EXPECT_GT(deep.device, shallow.device);
    EXPECT_EQ(deep.host, shallow.host);
    EXPECT_LE(shallow.host, alone.host);
  }
}

TEST(NcclTrain, ARankThatIsKilledIsNamedOnce) {
  TempFolder tmp;
  const RunSpec run = three_ranks(tmp.path(), 100'000, 2);
  const int port = free_port();
  const auto said = testing::run_forked(3, [&](int r) {
    if (r == 1)
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::seconds(2));
        ::kill(::getpid(), SIGKILL);
      }).detach();
    return train_as(run, r, port, {});
  });
  EXPECT_NE(said[0].find("rank 1 failed: its process is gone: its connection ended without a word"),
            std::string::npos)
      << said[0];
  EXPECT_EQ(said[1], "killed by signal 9");
  EXPECT_EQ(said[2], "4 ");
}

// Each rank has a supervisor of its own, as `train --supervise` under RANK has: all end when one is killed,
// meet again at the same port, and go on from the last checkpoint as if nothing had been. Rank 0, where they
// meet, too.
TEST(NcclTrain, SupervisedRanksMeetAgainAfterOneIsKilled) {
  constexpr int64_t kSteps = 14;
  // All by processes of their own, so that only the kill is another.
  const auto supervised = [&](const fs::path& folder, int victim) {
    const RunSpec run = three_ranks(folder, kSteps, 2);  // its data, before the ranks want them
    const std::string port = std::to_string(free_port());
    return testing::run_forked(3, [&](int r) {
      SuperviseOptions o;
      o.command = {RANK_CHILD,
                   folder.string(),
                   std::to_string(kSteps),
                   std::to_string(r),
                   port,
                   std::to_string(victim),
                   "7"};
      o.run_dir = run.train.dir, o.restarts = {.per_hour = 3, .first_pause_s = 0};
      std::string lines;
      o.say = [&](const std::string& line) { lines += line + "\n"; };
      return fmt::format("{} {}", supervise(o), lines);
    });
  };
  constexpr int kNobody = 3;
  TempFolder whole;
  for (const std::string& s : supervised(whole.path(), kNobody)) ASSERT_EQ(s, "0 ");
  for (int victim : {0, 2}) {
    SCOPED_TRACE(victim);
    TempFolder tmp;
    const auto said = supervised(tmp.path(), victim);
    for (int r = 0; r < 3; r++) {
      const std::string why =
          r == victim ? "it was killed by signal 9 (Killed)" : "it failed with exit code 4";
      const std::string& s = said[size_t(r)];
      EXPECT_TRUE(s.starts_with("0 supervise: relaunch 1 of 3: " + why + " after step ")) << r << ": " << s;
      EXPECT_EQ(std::count(s.begin(), s.end(), '\n'), 1) << s;
    }
    expect_same(outcome_of(tmp / "run"), outcome_of(whole / "run"));
  }
}

// An option that is wrong is said by one of the processes that the environment started, and ends them all.
TEST(NcclTrain, AWrongOptionIsSaidByOne) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 3);
  ::setenv("WORLD_SIZE", "2", 1), ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  const std::vector<std::string> argv = {
      program(),     "train", file.string(),       "--set", "train.comm=nccl",      "--set",
      "layout.dp=2", "--set", "train.device=cuda", "--set", "train.sum_order=auto", "--stop-after",
      "soon"};
  ::setenv("RANK", "0", 1);
  Process first(argv, tmp.path());
  ::setenv("RANK", "1", 1);
  const Ran b = run(argv, tmp.path()), a = first.wait();
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(a.code, 2);
  EXPECT_EQ(b.code, 2);
  const std::string said = a.err + b.err;
  EXPECT_EQ(said.find("trireme: --stop-after"), 0u) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

// The program itself, as torchrun or Kubernetes start it: the processes meet, and one says that there is no
// GPU's memory.
TEST(NcclTrain, TheProgramMeetsByTheEnvironment) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 3);
  const int port = free_port();
  ::setenv("WORLD_SIZE", "2", 1), ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  auto argv = [&](const char* device) {
    return std::vector<std::string>{program(),
                                    "train",
                                    file.string(),
                                    "--set",
                                    "train.comm=nccl",
                                    "--set",
                                    std::string("train.device=") + device,
                                    "--set",
                                    "train.sum_order=auto",
                                    "--set",
                                    "layout.dp=2",
                                    "--set",
                                    "batch.micro=1"};
  };
  ::setenv("RANK", "0", 1);
  Process first(argv("cpu"), tmp.path());
  ::setenv("RANK", "1", 1);
  Process second(argv("cpu"), tmp.path());
  const Ran a = first.wait(), b = second.wait();
  ::setenv("RANK", "2", 1);
  const Ran wrong = run(argv("cpu"), tmp.path());
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(a.code, 2);
  EXPECT_EQ(b.code, 2);
  EXPECT_EQ(a.err + b.err,
            "trireme: --set: train.comm: \"nccl\" moves memory of GPUs; give train.device = \"cuda\", or "
            "\"thread\" or \"mpi\"\n");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "trireme: the environment says that this is rank 2 of 2; right are 0 to 1\n");
  // Alone it says how it wants to be started, where there is anything to be started on.
  const Ran alone = run(argv("cuda"), tmp.path());
  EXPECT_EQ(alone.code, 2);
  std::string said = "start them as `mpirun -n 2 ";
  try {
    make_device("cuda");
  } catch (const Error& e) {
    said = e.what();
  }
  EXPECT_NE(alone.err.find(said), std::string::npos) << alone.err;
}

// --supervise of a rank that the environment places launches that rank and no mpirun, which would start all
// ranks once for each; --launcher beside it would too, and is refused.
TEST(NcclTrain, ASupervisorOfAPlacedRankLaunchesThatRank) {
  TempFolder tmp;
  const fs::path file = tiny_run_file(tmp.path(), 3);
  // In PATH before any other, it says that it was called.
  fs::create_directory(tmp / "bin");
  write_text_atomic(tmp / "bin/mpirun", "#!/bin/sh\ntouch \"$0.called\"\nexit 2\n");
  fs::permissions(tmp / "bin/mpirun", fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", ((tmp / "bin").string() + ":" + path).c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1), ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  // A layout of three for two processes: the ranks find that out once they have met.
  std::vector<std::string> argv = {program(),
                                   "train",
                                   file.string(),
                                   "--set",
                                   "train.comm=nccl",
                                   "--set",
                                   "train.device=cuda",
                                   "--set",
                                   "train.sum_order=auto",
                                   "--set",
                                   "layout.dp=3",
                                   "--set",
                                   "batch.micro=1",
                                   "--supervise",
                                   "2"};
  auto both = [&] {
    ::setenv("RANK", "0", 1);
    Process first(argv, tmp.path());
    ::setenv("RANK", "1", 1);
    Process second(argv, tmp.path());
    return std::vector<Ran>{first.wait(), second.wait()};
  };
  const std::vector<Ran> launched = both();
  argv.insert(argv.end(), {"--launcher", "mpirun -n 3"});
  const std::vector<Ran> refused = both();
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_FALSE(fs::exists(tmp / "bin/mpirun.called"));
  for (const std::vector<Ran>* rans : {&launched, &refused}) {
    const std::string said = (*rans)[0].err + (*rans)[1].err;
    for (const Ran& r : *rans) EXPECT_EQ(r.code, 2) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
  const std::string said = refused[0].err + refused[1].err;
  EXPECT_NE(said.find("--launcher \"mpirun -n 3\": the environment says that this is rank "), said.npos)
      << said;
}

}  // namespace
}  // namespace trireme::test
