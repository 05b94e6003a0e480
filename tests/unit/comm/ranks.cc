#include "ranks.h"

namespace trireme::testing {

std::string run_rank(const World& world, int rank, Device& device, std::unique_ptr<CommFactory> plain,
                     const std::function<void(Rank&)>& body) {
  std::unique_ptr<CommFactory> factory = std::move(plain);
  try {
    if (world.wrap) factory = world.wrap(std::move(factory), device, rank);
    Rank me{rank, device, *factory, factory->split(ranks_upto(world.ranks), world.group)};
    body(me);
    // It left early, and others may wait for it.
    if (::testing::Test::HasFatalFailure()) factory->fail("an assertion of the test");
    return "";
  } catch (const std::exception& e) {
    if (factory) factory->fail(e.what());
    return e.what();
  }
}

}  // namespace trireme::testing
