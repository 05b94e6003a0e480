#include "comm/thread/thread_world.h"

#include "comm/group.h"
#include "comm/thread/thread_comm.h"

namespace trireme {
namespace thread {
namespace {

class ThreadFactory final : public CommFactory {
 public:
  ThreadFactory(World& world, int rank, Device* device) : world_(world), rank_(rank), device_(device) {
    std::vector<int> all(size_t(world.size()));
    for (int r = 0; r < world.size(); r++) all[size_t(r)] = r;
    control_ = communicator(all, "control", nullptr);
  }
  int rank() const override { return rank_; }
  int world() const override { return world_.size(); }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    return communicator(ranks, name, device_);
  }
  void fail(std::string_view why) override { world_.fail(rank_, why, true); }
  Communicator& control() override { return *control_; }

 private:
  std::unique_ptr<Communicator> communicator(std::span<const int> ranks, std::string_view name,
                                             Device* device) {
    const int place = place_in_group(ranks, rank(), world());
    return std::make_unique<ThreadCommunicator>(world_, world_.join(rank_, ranks, name), place, device);
  }

  World& world_;
  int rank_;
  Device* device_;
  std::unique_ptr<Communicator> control_;
};

}  // namespace
}  // namespace thread

ThreadWorld::ThreadWorld(int ranks, const CommOptions& options) {
  require(ranks >= 1, "a world has ranks");
  check(options, "algorithm");
  world_ = std::make_unique<thread::World>(ranks, options);
}
ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<CommFactory> ThreadWorld::factory(int rank, Device* device) {
  require(rank >= 0 && rank < world_->size(), "a rank of another world");
  return std::make_unique<thread::ThreadFactory>(*world_, rank, device);
}

}  // namespace trireme
