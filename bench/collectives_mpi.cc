// MPI's own collectives, one process a rank: seconds as JSON lines from rank 0.
//
//     mpirun -n 2 --bind-to none trireme_collectives_mpi BYTES...
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

struct Call {
  const char* name;
  void (*run)(float* full, int n, int shard, int rank);
};
const Call kCalls[] = {
    {"all_reduce", [](float* full, int n, int,
                      int) { MPI_Allreduce(MPI_IN_PLACE, full, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
    {"all_gather",
     [](float* full, int, int shard, int) {
       MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, full, shard, MPI_FLOAT, MPI_COMM_WORLD);
     }},
    {"reduce_scatter",
     [](float* full, int, int shard, int) {
       MPI_Reduce_scatter_block(MPI_IN_PLACE, full, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     }},
};

// Median seconds of a call, from 11 batches that begin together; as bench/collectives.cc.
double time_of(const Call& call, std::vector<float>& full, int ranks, int rank) {
  const int n = int(full.size()), shard = n / ranks;
  auto batch = [&](int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; i++) call.run(full.data(), n, shard, rank);
    return (MPI_Wtime() - begin) / calls;
  };
  batch(2);
  const double first = std::max(1e-7, batch(2));
  int calls = std::clamp(int(0.3 / 11 / first), 1, 10000);
  MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::vector<double> times;
  for (int i = 0; i < 11; i++) times.push_back(batch(calls));
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; i++) {
    const long bytes = std::atol(argv[i]);
    std::vector<float> full(size_t(bytes) / sizeof(float));
    for (const Call& call : kCalls) {
      const double s = time_of(call, full, ranks, rank);
      if (rank == 0) std::printf("{\"op\":\"%s\",\"bytes\":%ld,\"seconds\":%.4g}\n", call.name, bytes, s);
    }
  }
  return MPI_Finalize();
}
