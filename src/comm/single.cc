// A world of one rank.
#include <cstring>

#include "comm/comm_set.h"

namespace trireme {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator(std::string_view group, Device* device) : group_(group), device_(device) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view group() const override { return group_; }
  std::string_view algorithm(Collective, int64_t) const override { return "direct"; }
  int64_t moved_bytes() const override { return 0; }

 private:
  void copy(const Tensor& to, const Tensor& from, Stream s) {
    if (to.data == from.data || to.numel() == 0) return;
    if (device_)
      device_->copy(to.view({to.numel()}), from.view({from.numel()}), s);
    else
      std::memcpy(to.data, from.data, size_t(from.bytes()));
  }
  void do_all_reduce(const AllReduceArgs&, Stream, const CommCall&) override {}
  void do_all_gather(const AllGatherArgs& a, Stream s, const CommCall&) override { copy(a.full, a.shard, s); }
  void do_reduce_scatter(const ReduceScatterArgs& a, Stream s, const CommCall&) override {
    copy(a.shard, a.full, s);
  }
  void do_all_to_all(const AllToAllArgs& a, Stream s, const CommCall&) override {
    require(a.send.numel() == a.recv.numel(), "a rank receives what it sends itself");
    copy(a.recv, a.send, s);
  }
  void do_broadcast(const BroadcastArgs&, Stream, const CommCall&) override {}
  void do_reduce(const ReduceArgs&, Stream, const CommCall&) override {}
  void do_p2p(const P2pArgs&, Stream, const CommCall&) override {}  // there is nobody to send to
  void do_barrier(Stream, const CommCall&) override {}

  std::string group_;
  Device* device_;
};

class SingleFactory final : public CommFactory {
 public:
  explicit SingleFactory(Device* device) : device_(device), control_("control", nullptr) {}
  int rank() const override { return 0; }
  int world() const override { return 1; }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    require(ranks.size() == 1 && ranks[0] == 0, "a world of one rank has one group");
    return std::make_unique<SingleCommunicator>(name, device_);
  }
  void fail(std::string_view) override {}  // nobody waits
  Communicator& control() override { return control_; }

 private:
  Device* device_;
  SingleCommunicator control_;
};

}  // namespace

std::unique_ptr<CommFactory> make_single(Device* device) {
  return std::make_unique<SingleFactory>(device);
}

}  // namespace trireme
