#include "report/http_server.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/interrupt.h"

namespace trireme {
namespace {

constexpr int kSilentSeconds = 10;     // until a client is dropped
constexpr int kHeaderBytes = 8192;     // per request
constexpr int kMostConnections = 200;  // at once; more wait in the listener's queue

struct Server {
  event_base* base = nullptr;
  evconnlistener* listener = nullptr;
  bool loopback = true, accepting = true;
  int files = 0;  // open before the first client
  const std::function<HttpReply(std::string_view)>* answer = nullptr;
};

template <class T, void (*Free)(T*)>
struct Freed {
  void operator()(T* p) const { Free(p); }
};
template <class T, void (*Free)(T*)>
using Holder = std::unique_ptr<T, Freed<T, Free>>;

int open_files() {
  std::error_code ec;
  int n = 0;
  for (auto i = std::filesystem::directory_iterator("/proc/self/fd", ec);
       !ec && i != std::filesystem::directory_iterator(); i.increment(ec))
    n++;
  return n;
}

// "127.0.0.1:8080", "localhost", "[::1]:8080": the host alone.
std::string_view host_of(std::string_view header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.find(':'));
}

void send(evhttp_request* request, const HttpReply& reply) {
  evkeyvalq* headers = evhttp_request_get_output_headers(request);
  constexpr std::array<std::array<const char*, 2>, 6> kAlways = {
      {{"Cache-Control", "no-store"},
       {"X-Content-Type-Options", "nosniff"},
       {"Referrer-Policy", "no-referrer"},
       {"X-Frame-Options", "DENY"},
       {"Cross-Origin-Resource-Policy", "same-origin"},
       {"Content-Security-Policy", "frame-ancestors 'none'"}}};
  for (const auto& [name, value] : kAlways) evhttp_add_header(headers, name, value);
  evhttp_add_header(headers, "Content-Type", reply.type.c_str());
  const char* seen = evhttp_find_header(evhttp_request_get_input_headers(request), "If-None-Match");
  const bool same = !reply.etag.empty() && seen && reply.etag == seen;
  if (!reply.etag.empty()) evhttp_add_header(headers, "ETag", reply.etag.c_str());
  Holder<evbuffer, evbuffer_free> body(evbuffer_new());
  if (evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {  // libevent sends whatever body it is given
    if (!same) evhttp_add_header(headers, "Content-Length", std::to_string(reply.body->size()).c_str());
  } else if (!same && !reply.body->empty()) {  // the bytes stay the reply's until the last client has them
    auto* kept = new std::shared_ptr<const std::string>(reply.body);
    evbuffer_add_reference(
        body.get(), (*kept)->data(), (*kept)->size(),
        [](const void*, size_t, void* p) { delete static_cast<std::shared_ptr<const std::string>*>(p); },
        kept);
  }
  evhttp_send_reply(request, same ? 304 : reply.status, nullptr, body.get());
}

void on_request(evhttp_request* request, void* p) {
  const Server& server = *static_cast<Server*>(p);
  const auto text = [](std::string s) { return std::make_shared<const std::string>(std::move(s)); };
  HttpReply reply;
  try {
    const char* host = evhttp_find_header(evhttp_request_get_input_headers(request), "Host");
    const evhttp_uri* uri = evhttp_request_get_evhttp_uri(request);
    const char* path = uri ? evhttp_uri_get_path(uri) : nullptr;
    if (server.loopback && (!host || !is_loopback(host_of(host))))
      reply = {.status = 403, .body = text("this server answers on loopback only\n")};
    else if (!path)
      reply = {.status = 400, .body = text("no path\n")};
    else
      reply = (*server.answer)(path);
  } catch (const std::exception&) {
    reply = {.status = 500, .body = text("the request failed\n")};
  }
  send(request, reply);
}

void on_tick(evutil_socket_t, short, void* p) {
  Server& server = *static_cast<Server*>(p);
  if (interrupt_requested()) event_base_loopbreak(server.base);
  const bool room = open_files() < server.files + kMostConnections;
  if (room == server.accepting) return;
  server.accepting = room;
  room ? evconnlistener_enable(server.listener) : evconnlistener_disable(server.listener);
}

int port_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(at).sin6_port
                                        : reinterpret_cast<sockaddr_in&>(at).sin_port);
}

}  // namespace

bool is_loopback(std::string_view host) {
  return host == "127.0.0.1" || host == "localhost" || host == "::1";
}

void serve_http(const HttpPlace& place, const std::function<void(int port)>& ready,
                const std::function<HttpReply(std::string_view path)>& answer) {
  event_set_log_callback([](int, const char*) {});  // this file reports failures itself
  Holder<event_base, event_base_free> base(event_base_new());
  Holder<evhttp, evhttp_free> http(base ? evhttp_new(base.get()) : nullptr);
  if (!http) environment_failed("cannot start a server: {}", std::strerror(errno));
  evhttp_set_allowed_methods(http.get(), EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
  evhttp_set_max_headers_size(http.get(), kHeaderBytes);
  evhttp_set_max_body_size(http.get(), 0);
  evhttp_set_timeout(http.get(), kSilentSeconds);
  errno = 0;
  evhttp_bound_socket* bound =
      evhttp_bind_socket_with_handle(http.get(), place.host.c_str(), ev_uint16_t(place.port));
  if (!bound)
    bad_request(
        "cannot listen at {} port {}: {}; choose another --port, or an address of this machine as --host",
        place.host, place.port, errno ? std::strerror(errno) : "no such address");
  Server server{.base = base.get(),
                .listener = evhttp_bound_socket_get_listener(bound),
                .loopback = is_loopback(place.host),
                .answer = &answer};
  evhttp_set_gencb(http.get(), on_request, &server);
  Holder<event, event_free> tick(event_new(base.get(), -1, EV_PERSIST, on_tick, &server));
  const timeval each{.tv_sec = 0, .tv_usec = 100'000};
  event_add(tick.get(), &each);
  ready(port_of(evhttp_bound_socket_get_fd(bound)));
  server.files = open_files();
  event_base_dispatch(base.get());
}

}  // namespace trireme
