// Rows of experts over ranks are conserved: what a communicator loses is told, and by whom.
#include <gtest/gtest.h>

#include "comm/wrap/wrapped.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "tiny.h"

namespace trireme::test {
namespace {

enum class Fault : uint8_t { none, own_count, row };

// Of two ranks' group of experts. own_count: rank 1 hears of one row less of its own than it has. row: the
// last row that rank 0 has for rank 1 does not leave, nor does an answer come home, and rank 1 was told of
// one less.
class FaultyExchange final : public WrappedCommunicator {
 public:
  FaultyExchange(std::unique_ptr<Communicator> inner, Device* device, Fault fault)
      : WrappedCommunicator(std::move(inner), device), fault_(fault) {}

 private:
  // Counts: [ranks, experts + 1] offsets of every rank's rows by expert.
  void do_all_gather(const AllGatherArgs& a, Stream s, const CommCall& c) override {
    WrappedCommunicator::do_all_gather(a, s, c);
    if (rank() != 1 || fault_ == Fault::none || a.shard.dtype != DType::i32) return;
    const int64_t last = a.shard.numel() - 1, who = fault_ == Fault::row ? 0 : 1;
    a.full.as<int32_t>()[who * a.shard.numel() + last]--;
  }
  // In turn rows on their way out, and on their way home.
  void do_all_to_all(const AllToAllArgs& a, Stream s, const CommCall& c) override {
    if (rank() != 0 || fault_ != Fault::row) return WrappedCommunicator::do_all_to_all(a, s, c);
    AllToAllArgs fewer = a;
    std::vector<int64_t> rows;
    if (out_) {
      rows.assign(a.send_rows.begin(), a.send_rows.end());
      rows[1]--, fewer.send_rows = rows, fewer.send = a.send.narrow(0, 0, a.send.rows() - 1);
    } else {
      rows.assign(a.recv_rows.begin(), a.recv_rows.end());
      rows[1]--, fewer.recv_rows = rows, fewer.recv = a.recv.narrow(0, 0, a.recv.rows() - 1);
    }
    out_ = !out_;
    WrappedCommunicator::do_all_to_all(fewer, s, c);
  }
  Fault fault_;
  bool out_ = true;
};

class FaultyFactory final : public WrappedFactory {
 public:
  FaultyFactory(CommFactory& inner, Device* device, Fault fault)
      : WrappedFactory(inner), device_(device), fault_(fault) {}

 private:
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return std::make_unique<FaultyExchange>(std::move(c), device_, fault_);
  }
  Device* device_;
  Fault fault_;
};

// What a step of two ranks ends with.
std::string error_of(Fault fault) {
  RunSpec run = tiny_run("llama", "f32", 1);
  run.model.arch = "mixtral", run.model.experts = 4, run.model.experts_per_token = 2, run.model.moe_ffn = 20;
  run.layout.dp = run.layout.ep = 2, run.layout.ep_buffer = 4;  // one round
  run.batch.global = 2 * run.batch.micro, run.precision.reduce = "f32";
  run.model.finish(run.data.seq_len);
  const Schedule schedule = schedule_of(run);
  const int64_t arena = book_training(run, schedule, 1).arena_bytes;
  try {
    run_rank_threads(2, "cpu", {.threads = 1}, [&](Device& device, CommFactory& inner) {
      FaultyFactory factory(inner, &device, fault);
      CommSet comms(factory, mesh_of(run.layout));
      StageRunner runner(run, RunMode::train, device, arena, &comms);
      runner.init_weights();
      try {
        runner.step(schedule.ranks[0], 1, run.tokens_per_step(), random_batches(run));
      } catch (const std::exception& e) {
        factory.fail(e.what());
        throw;
      }
      agree_max(factory.control(), 0);  // nobody leaves while others still need it
    });
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ExpertRows, AreConservedAndWhatIsLostIsTold) {
  EXPECT_EQ(error_of(Fault::none), "");
  const std::string own = error_of(Fault::own_count), row = error_of(Fault::row);
  EXPECT_NE(own.find("blocks.0.moe, rank 1 of ep: 92 rows are to be sent, and the ranks agreed on 91"),
            std::string::npos)
      << own;
  EXPECT_NE(row.find("step 1, blocks.0.moe: 184 rows were sent to experts, and these computed 183"),
            std::string::npos)
      << row;
}

}  // namespace
}  // namespace trireme::test
