#include "comm/meta/meta_comm.h"

#include <algorithm>
#include <cstring>

namespace trireme {
namespace {

class MetaCommunicator : public Communicator {
 public:
  MetaCommunicator(std::string_view group, int rank, const GroupShape& shape, const CommOptions& options)
      : group_(group), rank_(rank), shape_(shape), options_(options) {}
  int rank() const override { return rank_; }
  int size() const override { return shape_.size; }
  std::string_view group() const override { return group_; }
  std::string_view algorithm(Collective c, int64_t payload) const override {
    return algorithm_name(c, payload, shape_, options_);
  }
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
  int rank_;
  GroupShape shape_;
  CommOptions options_;
};

// Agreements: everybody says what this rank says.
class MetaControl final : public MetaCommunicator {
 public:
  MetaControl(int rank, int world) : MetaCommunicator("control", rank, {world, world}, {}) {}

 private:
  void do_all_reduce(const AllReduceArgs& a, Stream, const CommCall&) override {
    if (a.op == Reduce::max) return;
    for (int64_t i = 0; i < a.buf.numel(); i++) {
      if (a.buf.dtype == DType::i64)
        a.buf.as<int64_t>()[i] *= size();
      else if (a.buf.dtype == DType::f64)
        a.buf.as<double>()[i] *= size();
      else
        run_failed("a sum of {} on the control group of a world without data; right are i64 and f64",
                   name_of(a.buf.dtype));
    }
  }
  void do_all_gather(const AllGatherArgs& a, Stream, const CommCall&) override {
    const int64_t n = a.shard.bytes();
    for (int r = 0; r < size() && n > 0; r++)
      if (a.full.data + r * n != a.shard.data) std::memcpy(a.full.data + r * n, a.shard.data, size_t(n));
  }
  void do_reduce_scatter(const ReduceScatterArgs&, Stream, const CommCall&) override { absent(); }
  void do_all_to_all(const AllToAllArgs&, Stream, const CommCall&) override { absent(); }
  void do_p2p(const P2pArgs&, Stream, const CommCall&) override { absent(); }
  [[noreturn]] static void absent() {
    run_failed("the control group of a world without data adds, gathers and broadcasts, and no more");
  }
};

class MetaFactory final : public CommFactory {
 public:
  MetaFactory(int world, int rank, const CommOptions& options)
      : world_(world), rank_(rank), options_(options), control_(rank, world) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    auto me = std::find(ranks.begin(), ranks.end(), rank_);
    require(me != ranks.end(), "a rank makes groups that it is in");
    return std::make_unique<MetaCommunicator>(name, int(me - ranks.begin()), shape_of(ranks, options_),
                                              options_);
  }
  void fail(std::string_view) override {}  // nobody waits
  Communicator& control() override { return control_; }

 private:
  int world_, rank_;
  CommOptions options_;
  MetaControl control_;
};

}  // namespace

std::unique_ptr<CommFactory> make_meta_comm(int rank, int world, const CommOptions& options) {
  require(world >= 1 && rank >= 0 && rank < world, "a rank within its world");
  check(options, "algorithm");
  return std::make_unique<MetaFactory>(world, rank, options);
}

}  // namespace trireme
