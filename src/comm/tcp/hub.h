// Where the connections of a world end: a thread in rank 0's process, to which every rank, rank 0 too, has
// one.
//
// First it waits for all ranks; who has not come by the timeout is named to those who have. A rank counts
// when it has proved that it knows the secret of the job. Connections that have proved nothing have little
// time, and the oldest of them makes room for another one. Then it answers collectives once all parts are
// there, hands mail, news and beats on, and says of a connection that ends without a bye that its rank is
// dead. It stops when all have left, or some time after rank 0 has.
#pragma once
#include <memory>
#include <thread>

#include "comm/tcp/sockets.h"

namespace trireme::tcp {

struct HubOptions {
  int world = 1;
  uint64_t job = 0;
  std::string secret = {};  // empty: every connection is trusted
  double timeout_s = 300;   // for all to come
  double linger_s = 10;     // for others to leave, after rank 0
};

class Hub {
 public:
  Hub(Socket listener, Socket own, const HubOptions&);
  Hub(const Hub&) = delete;
  ~Hub();  // when it has stopped

 private:
  class Server;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// "3, 5 to 7"
std::string ranks_text(std::span<const int> ascending);

}  // namespace trireme::tcp
