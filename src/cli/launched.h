// What mpirun or srun tell a process that they start, before MPI is up, and what such processes say together.
#pragma once
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/error_lines.h"
#include "base/say.h"
#include "comm/mpi/mpi_world.h"
#include "comm/tcp/tcp_world.h"

namespace trireme::cli {

struct Launched {
  int rank = 0;
  int size = 0;                   // processes of the job; 0 = not told
  int local = 1;                  // of them on this machine, as far as is told
  std::optional<TcpOptions> tcp;  // they find each other at an address; else by MPI
};
// Nothing: this process was started alone.
std::optional<Launched> launched();
// What RANK, WORLD_SIZE, MASTER_ADDR or Slurm's variables say where launched() is nothing: for train.comm =
// "nccl" alone, since other programs leave such variables in environments too.
std::optional<Launched> launched_without_mpi();

// join_mpi_world() for ranks that share cores: whoever waits inside MPI lets others run. Or their rendezvous.
std::unique_ptr<ProcessWorld> join_launched(const Launched& = {});

// Does the work on every rank. Where it is wrong on any, one says the line and all throw, an empty Error:
// when the first process has left, mpirun ends the others, so nobody leaves before it is said.
template <class Work>
auto agreed(CommFactory& ranks, const Work& work) {
  std::optional<decltype(work())> result;
  std::string why;
  Fault fault = Fault::run;
  try {
    result = work();
  } catch (const ErrorLines& e) {
    why = e.what(), fault = e.fault;
  } catch (const Error& e) {
    why = visible(e.what());
    fault = e.fault;
  }
  const std::vector<std::string> texts = gather_texts(ranks.control(), why);
  size_t first = 0;
  while (first < texts.size() && texts[first].empty()) first++;
  if (first == texts.size()) return std::move(*result);
  // What is wrong on one machine only is said with its rank.
  const bool everywhere = std::count(texts.begin(), texts.end(), texts[first]) == int64_t(texts.size());
  if (size_t(ranks.rank()) == first)
    say("trireme: {}{}\n", everywhere ? "" : fmt::format("rank {}: ", first), why);
  fault = Fault(agree_max(ranks.control(), why.empty() ? 0 : int64_t(fault)));
  throw Error("", fault);
}

// What is wrong before the ranks have met, such as an option. The processes of a job meet to have it said
// once, as their first agreement; what comes back is empty then. A process alone, or a build without MPI,
// gets its error back.
Error said_by_one(const Error&, const std::optional<Launched>& = launched());

}  // namespace trireme::cli
