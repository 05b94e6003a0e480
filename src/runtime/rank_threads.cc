#include "runtime/rank_threads.h"

#include <atomic>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/no_signals.h"
#include "base/own_cores.h"
#include "base/own_faults.h"
#include "comm/thread/thread_world.h"

namespace trireme {
namespace {

// Remembers which rank failed first: what befalls the others then is its doing.
class Witness final : public CommFactory {
 public:
  Witness(CommFactory& inner, std::atomic<int>& first) : inner_(inner), first_(first) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    return inner_.split(ranks, name);
  }
  void fail(std::string_view why) override {
    int none = -1;
    first_.compare_exchange_strong(none, rank());
    inner_.fail(why);
  }
  Communicator& control() override { return inner_.control(); }

 private:
  CommFactory& inner_;
  std::atomic<int>& first_;
};

struct Ranks {
  Ranks(int n, const CommOptions& comm, int cores) : world(n, comm), errors(size_t(n)), cores_each(cores) {}

  void run(int rank, const MakeDevice& make, const RankBody& body) {
    std::optional<OwnCores> own;
    if (cores_each > 0) own.emplace(rank, int(errors.size()), cores_each);
    std::unique_ptr<CommFactory> factory;
    try {
      std::unique_ptr<Device> device = make();
      factory = world.factory(rank, device.get());
      Witness witness(*factory, first_failed);
      try {
        body(*device, witness);
      } catch (const std::exception& e) {
        witness.fail(e.what());
        throw;
      }
      factory.reset();
    } catch (...) {
      errors[size_t(rank)] = std::current_exception();
      int none = -1;
      first_failed.compare_exchange_strong(none, rank);
      if (!factory) world.factory(rank, nullptr)->fail("it could not start");
    }
  }

  ThreadWorld world;
  std::vector<std::exception_ptr> errors;
  int cores_each;
  std::atomic<int> first_failed = -1;
};

}  // namespace

void run_rank_threads(int world, std::string_view device, const DeviceOptions& options, const RankBody& body,
                      const CommOptions& comm) {
  run_rank_threads(
      world, [&] { return make_device(device, options); }, body, comm, options.bind ? options.threads : 0);
}

void run_rank_threads(int world, const MakeDevice& make, const RankBody& body, const CommOptions& comm,
                      int cores_each) {
  Ranks ranks(world, comm, cores_each);
  std::vector<std::thread> threads;
  std::string no_thread;
  std::atomic<bool> all_made = false;  // rank threads come before the threads that ranks make, in every list
  {
    NoSignals blocked;  // they are the calling thread's
    for (int r = 1; r < world && no_thread.empty(); r++) {
      try {
        threads.emplace_back([&, r] {
          take_own_faults();
          all_made.wait(false);
          ranks.run(r, make, body);
        });
      } catch (const std::system_error& e) {
        no_thread = fmt::format("the system gives no thread for rank {} of {} ({})", r, world, e.what());
      }
    }
  }
  all_made = true;
  all_made.notify_all();
  if (no_thread.empty())
    ranks.run(0, make, body);
  else
    ranks.world.factory(0, nullptr)->fail(no_thread);
  for (std::thread& t : threads) t.join();
  if (!no_thread.empty()) environment_failed("{}", no_thread);
  const int first = ranks.first_failed;
  if (first < 0) return;
  try {
    std::rethrow_exception(ranks.errors[size_t(first)]);
  } catch (const Error& e) {
    if (world == 1) throw;
    throw Error(fmt::format("rank {}: {}", first, e.what()), e.fault);
  }
}

}  // namespace trireme
