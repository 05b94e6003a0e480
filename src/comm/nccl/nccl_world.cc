#include "comm/nccl/nccl_world.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "comm/group.h"
#include "comm/nccl/nccl_comm.h"

namespace trireme {
namespace nccl {
namespace {

// A world of processes and what is NCCL's of it.
struct Base {
  std::unique_ptr<ProcessWorld> host;
  Shared shared;
  std::map<std::pair<std::vector<int>, std::string>, int64_t>
      made;  // groups so far: the n-th is the n-th on all
};

class NcclFactory final : public CommFactory {
 public:
  NcclFactory(Base& base, Device& device)
      : base_(base), device_(device), by_host_(base.host->factory(nullptr)) {
    if (!device.queue())
      bad_request(
          "train.comm = \"nccl\": it moves memory of GPUs, and the device is {}; give train.device = "
          "\"cuda\"",
          device.name());
  }
  int rank() const override { return base_.host->rank(); }
  int world() const override { return base_.host->size(); }
  void fail(std::string_view why) override { by_host_->fail(why); }
  Communicator& control() override { return by_host_->control(); }

  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    const int place = place_in_group(ranks, rank(), world());
    if (base_.host->news().is_set()) base_.host->news().raise();
    if (ranks.size() == 1) return make_single(&device_)->split(std::vector{0}, name);
    const int64_t nth = base_.made[{{ranks.begin(), ranks.end()}, std::string(name)}]++;
    const uint64_t key = group_key(ranks, name, uint64_t(nth));
    const std::string what = fmt::format("group {}", name);
    std::unique_ptr<Communicator> by_host = by_host_->split(ranks, name);
    std::shared_ptr<Channel> channel;
    if (int(ranks.size()) == world()) {
      if (!everybody_) everybody_ = meet(ranks, place, key ^ 1, "the world");
      channel = std::make_shared<Channel>(base_.shared, what, device_.queue(), *everybody_, place);
    } else {
      channel = meet(ranks, place, key, what);
    }
    return std::make_unique<NcclCommunicator>(base_.shared, key, name, ranks, place, device_,
                                              std::move(channel), std::move(by_host));
  }

 private:
  // Only the ranks of the group come to this: so it is no split of a larger one, which all of that would have
  // to call. The first rank waits for all and gives the id, the others wait for that: who does not come is
  // named.
  std::shared_ptr<Channel> meet(std::span<const int> ranks, int place, uint64_t key,
                                const std::string& what) {
    UniqueId id;
    if (place == 0) {  // its time is over first, for it knows who is missing
      for (size_t i = 1; i < ranks.size(); i++)
        (void)await_note(base_.shared, ranks[i], key, what, base_.shared.meet_s);
      if (const Result r = base_.shared.api.GetUniqueId(&id); r != kSuccess)
        run_failed("{}: NCCL's GetUniqueId failed: {}", what, base_.shared.api.GetErrorString(r));
      for (size_t i = 1; i < ranks.size(); i++)
        base_.host->post(ranks[i], key, {id.internal, sizeof id.internal});
    } else {
      base_.host->post(ranks[0], key, "here");
      const std::string note = await_note(base_.shared, ranks[0], key, what, 1.5 * base_.shared.meet_s + 5);
      if (note.size() != sizeof id.internal) run_failed("{}: an id of {} bytes", what, note.size());
      std::memcpy(id.internal, note.data(), sizeof id.internal);
    }
    auto channel =
        std::make_shared<Channel>(base_.shared, what, device_.queue(), id, int(ranks.size()), place);
    channel->ready();
    return channel;
  }

  Base& base_;
  Device& device_;
  std::unique_ptr<CommFactory> by_host_;
  std::shared_ptr<Channel> everybody_;  // of the whole world, to be split and for nothing else
};

class NcclWorld final : public ProcessWorld {
 public:
  NcclWorld(std::unique_ptr<ProcessWorld> host, const NcclOptions& o)
      : base_{.host = std::move(host),
              .shared = {open_library(o.library), *base_.host, o.meet_s, o.grace_s},
              .made = {}} {}
  int rank() const override { return base_.host->rank(); }
  int size() const override { return base_.host->size(); }
  int local_ranks() const override { return base_.host->local_ranks(); }
  int local_rank() const override { return base_.host->local_rank(); }
  std::unique_ptr<CommFactory> factory(Device* device, const CommOptions& options) override {
    if (!device) return base_.host->factory(nullptr, options);
    return std::make_unique<NcclFactory>(base_, *device);
  }
  std::unique_ptr<BeatBoard> board() override { return base_.host->board(); }
  Error end_failed(const Error& e) override { return base_.host->end_failed(e); }
  void condemn(int rank, std::string_view why, Fault fault) override {
    base_.host->condemn(rank, why, fault);
  }
  const Failure& news() override { return base_.host->news(); }
  void fail(std::string_view why, bool certain) override { base_.host->fail(why, certain); }
  void post(int to, uint64_t key, std::string_view bytes) override { base_.host->post(to, key, bytes); }
  std::optional<std::string> fetch(int from, uint64_t key) override { return base_.host->fetch(from, key); }

 private:
  Base base_;
};

}  // namespace
}  // namespace nccl

int open_nccl(const NcclOptions& o) {
  return nccl::open_library(o.library).version;
}

void check_same_nccl(Communicator& control, int version) {
  const int newest = int(agree_max(control, version)), oldest = -int(agree_max(control, -version));
  if (oldest != newest)
    bad_request(
        "train.comm = \"nccl\": {} is version {} on some ranks and {} on others; give all ranks the same",
        nccl::kLibrary, nccl::version_text(oldest), nccl::version_text(newest));
}

std::unique_ptr<ProcessWorld> make_nccl_world(std::unique_ptr<ProcessWorld> host,
                                              const NcclOptions& options) {
  return std::make_unique<nccl::NcclWorld>(std::move(host), options);
}

}  // namespace trireme
