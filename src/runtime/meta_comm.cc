#include "runtime/meta_comm.h"

#include <algorithm>

namespace trireme {
namespace {

class MetaComm final : public Communicator {
 public:
  MetaComm(std::string_view group, int rank, int size) : group_(group), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view group() const override { return group_; }
  std::string_view algorithm(Collective, int64_t) const override { return "direct"; }
  int64_t moved_bytes() const override { return 0; }

 private:
  void do_all_reduce(const AllReduceArgs&, Stream, const CommCall&) override {}
  void do_all_gather(const AllGatherArgs&, Stream, const CommCall&) override {}
  void do_reduce_scatter(const ReduceScatterArgs&, Stream, const CommCall&) override {}
  void do_all_to_all(const AllToAllArgs&, Stream, const CommCall&) override {}
  void do_broadcast(const BroadcastArgs&, Stream, const CommCall&) override {}
  void do_reduce(const ReduceArgs&, Stream, const CommCall&) override {}
  void do_p2p(const P2pArgs&, Stream, const CommCall&) override {}
  void do_barrier(Stream, const CommCall&) override {}

  std::string group_;
  int rank_, size_;
};

class MetaFactory final : public CommFactory {
 public:
  MetaFactory(int rank, int world) : rank_(rank), world_(world), control_("control", rank, world) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    auto me = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return std::make_unique<MetaComm>(name, int(me), int(ranks.size()));
  }
  void fail(std::string_view) override {}
  Communicator& control() override { return control_; }

 private:
  int rank_, world_;
  MetaComm control_;
};

}  // namespace

std::unique_ptr<CommFactory> make_meta_comm(int rank, int world) {
  return std::make_unique<MetaFactory>(rank, world);
}

}  // namespace trireme
