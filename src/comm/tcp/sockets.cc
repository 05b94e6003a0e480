#include "comm/tcp/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace trireme::tcp {
namespace {

void set_option(int fd, int level, int name, int value) {
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

struct Addresses {
  ~Addresses() {
    if (first) ::freeaddrinfo(first);
  }
  addrinfo* first = nullptr;
};

// One address, for at most so long; -1 and errno where it is not answered.
int connect_once(const addrinfo& a, int timeout_ms) {
  Socket s(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a.ai_protocol));
  if (!s) return -1;
  if (::connect(s.fd(), a.ai_addr, a.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return -1;
    pollfd p{s.fd(), POLLOUT, 0};
    if (::poll(&p, 1, timeout_ms) != 1) {
      errno = ETIMEDOUT;
      return -1;
    }
    int wrong = 0;
    socklen_t n = sizeof wrong;
    ::getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &wrong, &n);
    if (wrong != 0) {
      errno = wrong;
      return -1;
    }
  }
  return s.take();
}

bool is_loopback(const sockaddr_storage& a) {
  if (a.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr) != 0;
  return ntohl(reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr) >> 24 == 127;
}

// "localhost", or a number.
bool means_loopback(const std::string& host) {
  sockaddr_in6 number{};
  return host == "localhost" || ::inet_pton(AF_INET, host.c_str(), &number) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &number) == 1;
}

// Takes the first address of this machine outside loopback, with the same family and port.
void take_interface(sockaddr_storage& to) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  for (const ifaddrs* i = all; i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != to.ss_family || !(i->ifa_flags & IFF_UP)) continue;
    sockaddr_storage a{};
    std::memcpy(&a, i->ifa_addr, to.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (is_loopback(a)) continue;
    if (to.ss_family == AF_INET6)
      reinterpret_cast<sockaddr_in6&>(a).sin6_port = reinterpret_cast<sockaddr_in6&>(to).sin6_port;
    else
      reinterpret_cast<sockaddr_in&>(a).sin_port = reinterpret_cast<sockaddr_in&>(to).sin_port;
    to = a;
    break;
  }
  ::freeifaddrs(all);
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void make_room_for(int ranks) {
  constexpr rlim_t kOthers = 64;  // data, logs, libraries, strangers
  const rlim_t wanted = rlim_t(ranks) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  const rlim_t may = limit.rlim_max;
  limit.rlim_cur = std::min(wanted, may);
  if (limit.rlim_cur == wanted && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  bad_request(
      "rendezvous: rank 0 keeps a connection to each of {} ranks, and its process may open {} files (ulimit "
      "-n); "
      "{} would be enough; or start the ranks by mpirun",
      ranks, may, wanted);
}

void make_room_for_strangers(int ranks) {
  constexpr rlim_t kStrangers = 4096;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, rlim_t(ranks) + kStrangers);
  if (wanted <= limit.rlim_cur) return;
  limit.rlim_cur = wanted;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

Socket listen_at(const std::string& host, int port) {
  Addresses found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  const std::string service = std::to_string(port);
  if (const int code = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found.first); code != 0)
    throw Error(fmt::format("rendezvous: MASTER_ADDR = {}, where rank 0 listens, has no address: {}", host,
                            ::gai_strerror(code)),
                code == EAI_NONAME ? Fault::request : Fault::environment);
  int why = EADDRNOTAVAIL;
  for (const addrinfo* a = found.first; a; a = a->ai_next) {
    sockaddr_storage at{};
    std::memcpy(&at, a->ai_addr, a->ai_addrlen);
    if (is_loopback(at) && !means_loopback(host)) take_interface(at);
    Socket s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!s) continue;
    set_option(s.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (a->ai_family == AF_INET6) set_option(s.fd(), IPPROTO_IPV6, IPV6_V6ONLY, host == "::" ? 0 : 1);
    if (::bind(s.fd(), reinterpret_cast<sockaddr*>(&at), a->ai_addrlen) == 0 && ::listen(s.fd(), 4096) == 0)
      return s;
    why = errno;
    if (why == EADDRINUSE) break;
  }
  if (why == EADDRNOTAVAIL)
    bad_request(
        "rendezvous: MASTER_ADDR = {} is not an address of this machine, where rank 0 runs; set "
        "TRIREME_LISTEN to one, "
        "or to 0.0.0.0 for all",
        host);
  system_failed_in_run(why, "rendezvous: port {} of {} cannot be had: {}; give another MASTER_PORT", port,
                       host, std::strerror(why));
}

int port_of(const Socket& s) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  if (::getsockname(s.fd(), reinterpret_cast<sockaddr*>(&a), &n) != 0) return 0;
  return ntohs(a.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(a).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(a).sin_port);
}

Socket connect_to(const std::string& host, int port, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::string why = "it was not tried";
  do {
    Addresses found;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found.first);
    if (code != 0) why = ::gai_strerror(code);
    for (const addrinfo* a = found.first; a; a = a->ai_next) {
      if (const int fd = connect_once(*a, 5000); fd >= 0) {
        Socket s(fd);
        set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        return s;
      }
      why = std::strerror(errno);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < end);
  environment_failed(
      "rendezvous: rank 0 does not answer at {}:{} for {:.0f} s: {}; are MASTER_ADDR and MASTER_PORT right?",
      host, port, seconds, why);
}

std::pair<Socket, Socket> socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    environment_failed("rendezvous: the system gives no sockets: {}", std::strerror(errno));
  return {Socket(fds[0]), Socket(fds[1])};
}

void tune(const Socket& s) {
  set_option(s.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(s.fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(s.fd(), IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(s.fd(), IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(s.fd(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  // While bytes are on their way nobody asks whether the other end is alive: those count then.
  set_option(s.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, 11'000);
}

bool send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(size_t(n));
  }
  return true;
}

std::vector<std::byte> bytes_of(const FrameHead& head, std::span<const std::byte> body) {
  FrameHead h = head;
  h.bytes = int64_t(body.size());
  std::vector<std::byte> all(sizeof h + body.size());
  std::memcpy(all.data(), &h, sizeof h);
  if (!body.empty()) std::memcpy(all.data() + sizeof h, body.data(), body.size());
  return all;
}

}  // namespace trireme::tcp
