#include "comm/tcp/bootstrap.h"

#include <charconv>

#include "base/file.h"
#include "base/printable.h"

namespace trireme {
namespace {

int64_t number_of(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  int64_t n = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (wrong != std::errc() || end != text.data() + text.size() || n < low || n > high)
    bad_request("the environment's {} is \"{}\"; right is a number from {} to {}", name, printable(text), low,
                high);
  return n;
}

uint64_t hash_of(std::string_view text) {
  return hash64(text.data(), text.size());
}

class Reader {
 public:
  explicit Reader(const Environment& e) : environment_(e) {}
  std::optional<std::string> text(const std::string& name) const { return environment_(name); }
  std::optional<int64_t> number(const std::string& name, int64_t low, int64_t high) const {
    const auto t = text(name);
    if (!t) return {};
    return number_of(name, *t, low, high);
  }
  int64_t needed(const std::string& name, int64_t low, int64_t high, std::string_view beside) const {
    const auto n = number(name, low, high);
    if (!n) bad_request("the environment has {} and no {}: ranks need both to find each other", beside, name);
    return *n;
  }

 private:
  const Environment& environment_;
};

constexpr int64_t kMostRanks = 1'000'000;

void take_address(const Reader& env, TcpOptions& o) {
  if (const auto host = env.text("MASTER_ADDR")) o.host = *host;
  if (const auto port = env.number("MASTER_PORT", 1, 65535)) o.port = int(*port);
  if (const auto at = env.text("TRIREME_LISTEN")) o.listen = *at;
}

TcpOptions of_ranks(const Reader& env, int64_t rank) {
  TcpOptions o;
  o.size = int(env.needed("WORLD_SIZE", 1, kMostRanks, "RANK"));
  o.rank = int(rank);
  if (o.size > 1 && !env.text("MASTER_ADDR"))
    bad_request("the environment has RANK and no MASTER_ADDR: ranks find each other at rank 0's address");
  take_address(env, o);
  // torchrun itself listens at MASTER_PORT.
  if (const auto run = env.text("TORCHELASTIC_RUN_ID")) o.port = o.port % 65535 + 1, o.job = hash_of(*run);
  return o;
}

TcpOptions of_slurm(const Reader& env, int64_t rank) {
  TcpOptions o;
  o.rank = int(rank);
  const auto size = env.number("SLURM_STEP_NUM_TASKS", 1, kMostRanks);
  o.size = int(size ? *size : env.needed("SLURM_NTASKS", 1, kMostRanks, "SLURM_PROCID"));
  const int64_t job = env.number("SLURM_JOB_ID", 0, int64_t(1) << 40).value_or(0);
  const std::string step = env.text("SLURM_STEP_ID").value_or("");
  o.host = first_host(env.text("SLURM_STEP_NODELIST").value_or(""));
  o.job = hash_of(std::to_string(job) + "." + step);
  // Below the ports that systems give out; jobs that share a node have one each, mostly.
  o.port = int(12000 + (job * 7 + int64_t(hash_of(step) % 7)) % 16000);
  take_address(env, o);
  return o;
}

}  // namespace

std::string first_host(std::string_view nodes) {
  auto refuse = [&] {
    bad_request("the environment's SLURM_STEP_NODELIST \"{}\" has no first host", printable(nodes));
  };
  std::string host;
  for (size_t i = 0; i < nodes.size() && nodes[i] != ','; i++) {
    if (nodes[i] != '[') {
      host += nodes[i];
      continue;
    }
    // The first of "[07-09,12]": its digits, zeros too.
    const size_t stop = nodes.find_first_not_of("0123456789", i + 1), close = nodes.find(']', i);
    if (close == std::string_view::npos || stop == i + 1 ||
        std::string_view(",-]").find(nodes[stop]) == std::string_view::npos)
      refuse();
    host += nodes.substr(i + 1, stop - i - 1);
    i = close;
  }
  if (host.empty() || host.find_first_of("] \t\n") != std::string::npos) refuse();
  return host;
}

std::optional<TcpOptions> placement_of(const Environment& environment) {
  const Reader env(environment);
  std::optional<TcpOptions> o;
  if (const auto rank = env.number("RANK", 0, kMostRanks - 1))
    o = of_ranks(env, *rank);
  else if (env.text("SLURM_STEP_NODELIST"))
    if (const auto place = env.number("SLURM_PROCID", 0, kMostRanks - 1)) o = of_slurm(env, *place);
  if (o && o->rank >= o->size)
    bad_request("the environment says that this is rank {} of {}; right are 0 to {}", o->rank, o->size,
                o->size - 1);
  return o;
}

}  // namespace trireme
