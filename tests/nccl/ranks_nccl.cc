// Ranks of the tests as threads, each a world of its own over TCP, with NCCL (the fake one) or without.
#include <thread>

#include "comm/nccl/nccl_world.h"
#include "comm/tcp/tcp_world.h"
#include "queue_device.h"
#include "ranks.h"

namespace trireme::testing {

std::vector<std::string> run_ranks(const World& what, const std::function<void(Rank&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(what.ranks));
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  std::vector<std::thread> threads;
  for (int r = 0; r < what.ranks; r++)
    threads.emplace_back([&, r] {
      try {
        auto device = make_queue_device();
        const TcpOptions options{
            .port = port, .rank = r, .size = what.ranks, .timeout_s = 60, .linger_s = 20};
        std::unique_ptr<ProcessWorld> world =
            join_tcp_world(options, r == 0 ? std::move(listener) : tcp::Socket());
#if defined(FAKE_NCCL)
        world =
            make_nccl_world(std::move(world), {.library = FAKE_NCCL, .meet_s = 60, .grace_s = what.grace_s});
#endif
        errors[size_t(r)] = run_rank(what, r, *device, world->factory(device.get(), what.options), body);
      } catch (const Error& e) {
        errors[size_t(r)] = e.what();  // of another rank, before the body began
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

bool have_ranks(int) {
  return true;
}

void with_ranks(int n, const CommOptions& options, const std::function<void(Rank&)>& body) {
  for (const std::string& e : run_ranks({n, options}, body)) EXPECT_EQ(e, "");
}

}  // namespace trireme::testing
