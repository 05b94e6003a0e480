// What mpirun or srun tell a process that they start, before MPI is up.
#pragma once
#include <optional>
#include <string>

namespace trireme::cli {

struct Launched {
  int rank = 0;
  int size = 0;   // processes of the job; 0 = not told
  int local = 1;  // of them on this machine, as far as is told
};
// Nothing: this process was started alone.
std::optional<Launched> launched();

// A line that every process of a job would say, for the one that says it; empty in the others.
std::string said_once(const std::string& line);

}  // namespace trireme::cli
