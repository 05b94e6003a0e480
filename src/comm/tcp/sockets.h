// Sockets of the rendezvous: what fails is an Error, and closed when it goes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/tcp/frames.h"

namespace trireme::tcp {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Socket& operator=(Socket&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Socket() { close(); }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int take() { return std::exchange(fd_, -1); }
  void close();

 private:
  int fd_ = -1;
};

// Of the files that this process may open: as many more as connections of so many ranks take, else a bad
// request that says how many it may.
void make_room_for(int ranks);
// Raises the limit as far as it may, for connections of strangers. Never fails.
void make_room_for_strangers(int ranks);
// Listens at one address of this machine: the host's. A name that this machine's own table maps to loopback,
// as some distributions do with the host name, means the first other address. "0.0.0.0" and "::": all
// addresses. port 0: one that is free, see port_of(). Throws Error: not an address of this machine (request),
// or the port is in use (environment).
Socket listen_at(const std::string& host, int port);
inline Socket listen_at(int port) {
  return listen_at("127.0.0.1", port);
}
int port_of(const Socket& listener);
// Tries until it is answered or `seconds` are over, which is an Error that says what was tried, for how long,
// and the system's reason.
Socket connect_to(const std::string& host, int port, double seconds);
std::pair<Socket, Socket> socket_pair();
void tune(const Socket&);  // small messages at once; a machine that went away is noticed in some ten seconds
bool send_all(int fd, std::span<const std::byte>);  // false: the other end is gone
std::vector<std::byte> bytes_of(const FrameHead&, std::span<const std::byte> body);

}  // namespace trireme::tcp
