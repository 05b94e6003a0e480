// Ranks of the tests as processes that mpirun started, NCCL (the fake one) over MPI. The world is one for all
// cases: those in which a rank fails would end it, and are tried over TCP.
#include <cstdio>

#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_world.h"
#include "queue_device.h"
#include "ranks.h"

namespace trireme::testing {
namespace {

std::unique_ptr<ProcessWorld> nccl_over_mpi;
std::unique_ptr<CommFactory> beside;  // of the host: how cases end
int cases_over_mpi = 0;

class ToldByRank final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& r) override {
    if (r.failed())
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", nccl_over_mpi->rank(), r.file_name(), r.line_number(),
                   r.message());
  }
};

}  // namespace

bool have_ranks(int n) {
  return n == nccl_over_mpi->size();
}

std::vector<std::string> run_ranks(const World& what, const std::function<void(Rank&)>& body) {
  require(have_ranks(what.ranks), "tests ask for the ranks that there are");
  auto device = make_queue_device();
  const std::string error = run_rank(what, nccl_over_mpi->rank(), *device,
                                     nccl_over_mpi->factory(device.get(), what.options), body);
  cases_over_mpi++;
  return gather_texts(beside->control(), error);
}

void with_ranks(int n, const CommOptions& options, const std::function<void(Rank&)>& body) {
  if (!have_ranks(n)) return;
  for (const std::string& e : run_ranks({n, options}, body)) EXPECT_EQ(e, "");
}

}  // namespace trireme::testing

int main(int argc, char** argv) {
  using namespace trireme::testing;
  ::testing::InitGoogleTest(&argc, argv);
  nccl_over_mpi = trireme::make_nccl_world(trireme::join_mpi_world(), {.library = FAKE_NCCL, .meet_s = 60});
  beside = nccl_over_mpi->factory(nullptr);
  const int rank = nccl_over_mpi->rank(), size = nccl_over_mpi->size();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank > 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new ToldByRank);
  }
  const int failed = RUN_ALL_TESTS();
  const int64_t worst = agree_max(beside->control(), failed);
  if (rank == 0)
    std::printf("%d cases of %d ranks over MPI; other tests have other numbers\n", cases_over_mpi, size);
  beside.reset();
  nccl_over_mpi.reset();
  return cases_over_mpi == 0 ? 1 : int(worst);
}
