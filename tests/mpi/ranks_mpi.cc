// Ranks of the tests as processes: every process runs the same test program, under mpirun.
#include <cstdio>

#include "comm/mpi/factory.h"
#include "ranks.h"

namespace trireme::testing {
namespace {

int world_size() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}
int world_rank() {
  int r = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &r);
  return r;
}

mpi::Process* process = nullptr;
int cases_with_ranks = 0;

// Every process's text, by rank.
std::vector<std::string> gather(const std::string& mine) {
  std::array<char, 2000> own{};
  mine.copy(own.data(), own.size() - 1);
  std::vector<char> all(own.size() * size_t(world_size()));
  MPI_Allgather(own.data(), int(own.size()), MPI_BYTE, all.data(), int(own.size()), MPI_BYTE, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (int r = 0; r < world_size(); r++) texts.emplace_back(all.data() + size_t(r) * own.size());
  return texts;
}

std::vector<std::string> run(const World& what, const mpi::Limits& limits,
                             const std::function<void(Rank&)>& body) {
  std::string error;
  {
    mpi::World world(process->first(what.ranks), process->local_ranks(), limits);
    auto device = make_device("cpu", {.threads = 1});
    error = run_rank(what, world.rank(), *device, mpi::make_factory(world, what.options, device.get()), body);
  }
  cases_with_ranks++;
  return gather(error);
}

// What other processes than the first find wrong.
class Failures final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& r) override {
    if (r.failed())
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", world_rank(), r.file_name(), r.line_number(), r.message());
  }
};

}  // namespace

bool have_ranks(int n) {
  return n == world_size();
}

std::vector<std::string> run_ranks(const World& what, const std::function<void(Rank&)>& body) {
  require(have_ranks(what.ranks), "tests ask for the ranks that there are");
  return run(what, {}, body);
}

void with_ranks(int n, const CommOptions& options, const std::function<void(Rank&)>& body) {
  if (!have_ranks(n)) return;
  // Messages and slices as they come, and so small that every call takes several of each.
  for (const mpi::Limits& limits :
       {mpi::Limits(), mpi::Limits{.message = 3000, .slice = 1000, .scratch = 4000}})
    for (const std::string& e : run({n, options}, limits, body)) EXPECT_EQ(e, "");
}

}  // namespace trireme::testing

int main(int argc, char** argv) {
  using namespace trireme::testing;
  ::testing::InitGoogleTest(&argc, argv);
  trireme::mpi::Process mpi;
  process = &mpi;
  const int rank = world_rank();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank > 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  int failed = RUN_ALL_TESTS(), worst = 0;
  MPI_Allreduce(&failed, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%d worlds of %d ranks; other tests have other numbers\n", cases_with_ranks, world_size());
  return cases_with_ranks == 0 ? 1 : worst;
}
