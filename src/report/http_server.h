// A small read-only HTTP server for one page and its JSON.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trireme {

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body = std::make_shared<const std::string>();
  std::string etag;  // "" = none
};

struct HttpPlace {
  std::string host = "127.0.0.1";  // the address or name to listen at
  int port = 0;                    // 0 = any free one
};

// Is `host` an address of this machine alone: 127.0.0.1, localhost or ::1?
bool is_loopback(std::string_view host);

// Calls `ready` with the port, then answers GET and HEAD until interrupt_requested(). Other methods get
// status 501, requests with a body or with headers above 8 KiB an error. A client that is silent for 10 s is
// dropped, and no client makes another one wait. On loopback only a Host that is_loopback() is answered, so
// that a web page under a name of its own cannot read this server (DNS rebinding). `answer` gets the path,
// without the query; it runs on the calling thread and must be quick. Throws Error (request) if it cannot
// listen at that place.
void serve_http(const HttpPlace&, const std::function<void(int port)>& ready,
                const std::function<HttpReply(std::string_view path)>& answer);

}  // namespace trireme
