// Times collectives of rank threads, or of processes under mpirun (--comm mpi), beside this machine's memory
// bandwidth: one JSON line each.
//
// busbw (the convention of NCCL's tests) is what each rank's link would carry: 2 (n-1)/n x bytes / s for
// all_reduce, (n-1)/n x bytes / s for all_gather and reduce_scatter, where bytes is the full buffer. memory
// is what the processors really read and write meanwhile, all ranks together: all_reduce reads every rank's
// buffer once and writes it once, 2 n bytes; reduce_scatter reads n buffers and writes one; all_gather (in
// place) reads and writes (n-1) of n parts on every rank.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/mpi/mpi_world.h"
#include "comm/thread/thread_world.h"
#include "device/cpu/peak.h"

namespace trireme {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Options {
  int ranks = 2;
  double seconds = 0.3;
  std::string algorithm = "ordered", dtype = "f32", comm = "thread";
  std::vector<int64_t> sizes;
};

struct Factors {
  double bus, memory;  // times the full buffer's bytes
};
Factors factors(Collective c, int n) {
  const double others = double(n - 1) / n;
  if (c == Collective::all_reduce) return {2 * others, 2.0 * n};
  if (c == Collective::reduce_scatter) return {others, double(n) + 1};
  return {others, 2.0 * (n - 1)};
}

void call(Communicator& c, Collective kind, const Tensor& full) {
  const int64_t shard = full.numel() / c.size();
  const Tensor mine = full.narrow(0, shard * c.rank(), shard);
  const Tensor all = full.narrow(0, 0, shard * c.size());
  if (kind == Collective::all_reduce) c.all_reduce({.buf = full}, {});
  if (kind == Collective::all_gather) c.all_gather({.shard = mine, .full = all}, {});
  if (kind == Collective::reduce_scatter) c.reduce_scatter({.full = all, .shard = mine}, {});
}

// Median seconds of a call, from batches that begin together.
double time_of(Communicator& c, Collective kind, const Tensor& full, double seconds) {
  auto batch = [&](int64_t calls) {
    c.barrier({});
    const double begin = now();
    for (int64_t i = 0; i < calls; i++) call(c, kind, full);
    return (now() - begin) / double(calls);
  };
  const double first = std::max(1e-7, std::min(batch(2), batch(2)));
  const int64_t calls = agree_max(c, int64_t(std::clamp(seconds / 11 / first, 1.0, 10000.0)));
  std::vector<double> times;
  for (int i = 0; i < 11; i++) times.push_back(batch(calls));
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

void rank_main(CommFactory& factory, const Options& o, double triad) {
  auto device = make_device("cpu", {.threads = 1});
  const int rank = factory.rank(), n = factory.world();
  std::vector<int> ranks;
  for (int r = 0; r < n; r++) ranks.push_back(r);
  auto c = factory.split(ranks, "bench");
  for (int64_t bytes : o.sizes) {
    std::byte* data = device->reserve(bytes);
    std::memset(data, 0, size_t(bytes));
    const DType dtype = dtype_from_name(o.dtype);
    const Tensor full(data, {bytes / size_of(dtype)}, dtype);
    for (Collective kind : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter}) {
      const double s = time_of(*c, kind, full, o.seconds);
      const Factors f = factors(kind, n);
      if (rank == 0)
        fmt::print(
            "{{\"op\":\"{}\",\"algorithm\":\"{}\",\"ranks\":{},\"bytes\":{},\"seconds\":{:.4g},"
            "\"busbw\":{:.4g},\"memory\":{:.4g},\"triad\":{:.4g}}}\n",
            name_of(kind), c->algorithm(kind, bytes), n, bytes, s, f.bus * double(bytes) / s,
            f.memory * double(bytes) / s, triad);
    }
    c->barrier({});
    device->release(data, bytes);
  }
}

void run_threads(const Options& o) {
  const double triad = cpu::memory_rates(o.ranks).triad;
  ThreadWorld world(o.ranks, {.algorithm = o.algorithm});
  std::vector<std::thread> threads;
  for (int r = 0; r < o.ranks; r++)
    threads.emplace_back([&, r] { rank_main(*world.factory(r, nullptr), o, triad); });
  for (auto& t : threads) t.join();
}

void run_processes(const Options& o) {
  const std::unique_ptr<ProcessWorld> world = join_mpi_world();
  const auto factory = world->factory(nullptr, {.algorithm = o.algorithm});
  // Of all of them at once is what rank 0 measures for as many threads; the others wait.
  const double triad = world->rank() == 0 ? cpu::memory_rates(world->size()).triad : 0;
  factory->control().barrier({});
  rank_main(*factory, o, triad);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  using namespace trireme;
  Options o;
  o.sizes = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  CLI::App app("collectives between ranks beside memory bandwidth, as JSON lines");
  app.add_option("--comm", o.comm, "thread; mpi: ranks are what mpirun started")
      ->check(CLI::IsMember({"thread", "mpi"}));
  app.add_option("--ranks", o.ranks, "rank threads")->check(CLI::Range(1, 64));
  app.add_option("--seconds", o.seconds, "of each measurement");
  app.add_option("--algorithm", o.algorithm, "ordered, ring, halving, hierarchical, auto");
  app.add_option("--dtype", o.dtype, "of the elements")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--bytes", o.sizes, "sizes of the full buffer");
  CLI11_PARSE(app, argc, argv);
  try {
    o.comm == "mpi" ? run_processes(o) : run_threads(o);
    return 0;
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return int(e.fault);
  }
}
