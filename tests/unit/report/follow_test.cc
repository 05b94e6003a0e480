// The server of the live page, called over loopback.
#include "report/follow.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "base/interrupt.h"

namespace trireme {
namespace {

class Client {
 public:
  Client(const std::string& address, int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(uint16_t(port)), .sin_addr = {}, .sin_zero = {}};
    ::inet_pton(AF_INET, address.c_str(), &to.sin_addr);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
    const timeval most{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  }
  Client(const Client&) = delete;
  ~Client() { ::close(socket_); }
  bool connected() const { return connected_; }
  void write(const std::string& s) { (void)!::send(socket_, s.data(), s.size(), MSG_NOSIGNAL); }
  std::string all() {  // until the server closes
    std::string out;
    char some[4096];
    for (ssize_t n; (n = ::recv(socket_, some, sizeof some, 0)) > 0;) out.append(some, size_t(n));
    return out;
  }

 private:
  int socket_;
  bool connected_ = false;
};

std::string head_of(const std::string& reply) {
  return reply.substr(0, reply.find("\r\n\r\n"));
}
std::string body_of(const std::string& reply) {
  const size_t at = reply.find("\r\n\r\n");
  return at == reply.npos ? "" : reply.substr(at + 4);
}
int status_of(const std::string& reply) {
  return reply.starts_with("HTTP/1.1 ") ? std::stoi(reply.substr(9, 3)) : 0;
}

// Tries every 5 ms until it holds, for at most 5 s.
template <class Holds>
void wait_until(Holds holds) {
  for (int i = 0; i < 1000 && !holds(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

class Follow : public ::testing::Test {
 protected:
  Follow() : folder_(fs::temp_directory_path() / ("trireme-follow-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    add_run("a");
  }
  ~Follow() override {
    end();
    fs::remove_all(folder_);
  }
  void add_run(const std::string& name) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "metrics.jsonl") << "{}\n";
  }
  void begin(std::vector<fs::path> folders, const std::string& host = "127.0.0.1") {
    host_ = host;
    const FollowReaders readers{
        .report =
            [this](const fs::path& run) {
              reports_++;
              if (!fs::exists(run)) throw std::runtime_error("no such run: " + run.string());
              return nlohmann::json({{"kind", "run"},
                                     {"folder", run.string()},
                                     {"bytes", fs::file_size(run / "metrics.jsonl")}});
            },
        .row =
            [](const fs::path& run) {
              return nlohmann::json({{"name", run.filename().string()}, {"state", "running"}});
            }};
    std::promise<std::string> url;
    std::future<std::string> known = url.get_future();
    thread_ = std::thread([this, folders, host, readers, &url] {
      follow_runs({.folders = folders, .place = {.host = host}}, readers,
                  [&](const std::string& u) { url.set_value(u); });
    });
    const std::string u = known.get(), rest = u.substr(7);
    port_ = std::stoi(rest.substr(rest.find(':') + 1));
    base_ = rest.substr(rest.find('/'));
    base_.pop_back();
  }
  void end() {
    if (!thread_.joinable()) return;
    request_interrupt();
    thread_.join();
    clear_interrupt();
  }
  std::string get(const std::string& path, const std::string& more = "", const std::string& method = "GET",
                  std::string host = "") {
    Client c(host_, port_);
    if (host.empty()) host = host_ + ":" + std::to_string(port_);
    c.write(method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + more + "\r\n");
    return c.all();
  }
  // Asks until the reader has read the run, at most 5 s.
  std::string get_read(const std::string& path) {
    std::string reply;
    wait_until([&] { return status_of(reply = get(path)) != 202; });
    return reply;
  }

  fs::path folder_;
  std::thread thread_;
  std::string host_, base_;
  int port_ = 0;
  std::atomic<int> reports_ = 0;
};

TEST_F(Follow, ServesThePageAndTheReport) {
  begin({folder_ / "a"});
  EXPECT_EQ(base_, "");
  const std::string page = get("/");
  EXPECT_EQ(status_of(page), 200);
  EXPECT_NE(page.find("\"live\""), page.npos);
  EXPECT_NE(head_of(page).find("Cache-Control: no-store"), page.npos);
  const std::string first = get_read("/run/0.json");
  EXPECT_EQ(nlohmann::json::parse(body_of(first))["bytes"], 3);
  const size_t at = first.find("ETag: ") + 6;
  const std::string etag = first.substr(at, first.find("\r\n", at) - at);
  EXPECT_EQ(status_of(get("/run/0.json", "If-None-Match: " + etag + "\r\n")), 304);
  const std::string head = get("/run/0.json", "", "HEAD");
  EXPECT_EQ(status_of(head), 200);
  EXPECT_EQ(body_of(head), "");
  EXPECT_EQ(reports_, 1);  // an unchanged run is read once

  std::ofstream(folder_ / "a" / "metrics.jsonl", std::ios::app) << "{}\n";
  std::string later;
  wait_until([&] { return status_of(later = get("/run/0.json", "If-None-Match: " + etag + "\r\n")) != 304; });
  EXPECT_EQ(nlohmann::json::parse(body_of(later))["bytes"], 6);
}

TEST_F(Follow, RefusesAllElse) {
  begin({folder_ / "a"});
  for (const char* path :
       {"/run/1.json", "/run/-1.json", "/run/0.json/", "/run/.json", "/run/99999999999999999999.json",
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/run/../0.json", "/metrics.jsonl", "//", "/run/0"})
    EXPECT_EQ(status_of(get(path)), 404) << path;
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"})
    EXPECT_GE(status_of(get("/", "", method)), 400) << method;
  for (const char* host : {"evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]"})
    EXPECT_EQ(status_of(get("/", "", "GET", host)), 403) << host;
  EXPECT_EQ(status_of(get("/", "", "GET", "localhost")), 200);
  EXPECT_EQ(status_of(get("/", "", "GET", "[::1]:80")), 200);
  EXPECT_NE(status_of(get("/" + std::string(20'000, 'x'))), 200);
  EXPECT_NE(status_of(get("/", "Content-Length: 1000000000\r\n")), 200);
  EXPECT_EQ(status_of(get("/")), 200);
}

TEST_F(Follow, AnotherAddressTakesTheToken) {
  begin({folder_ / "a"}, "127.0.0.2");
  ASSERT_EQ(base_.size(), 33u);
  EXPECT_EQ(status_of(get("/")), 404);
  EXPECT_EQ(status_of(get("/run/0.json")), 404);
  std::string wrong = base_;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  EXPECT_EQ(status_of(get(wrong + "/run/0.json")), 404);
  EXPECT_EQ(status_of(get_read(base_ + "/run/0.json")), 200);
  EXPECT_NE(get(base_ + "/").find(base_), std::string::npos);
}

TEST_F(Follow, ASlowClientHoldsUpNobody) {
  begin({folder_ / "a"});
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 40; i++) {
    slow.push_back(std::make_unique<Client>("127.0.0.1", port_));
    slow.back()->write("GET / HT");
  }
  EXPECT_EQ(status_of(get("/")), 200);
  end();  // nor is the end held up
  EXPECT_FALSE(Client("127.0.0.1", port_).connected());
}

TEST_F(Follow, RunsAppearAndVanish) {
  begin({folder_});
  const auto names = [&] {
    std::string all;
    const nlohmann::json list = nlohmann::json::parse(body_of(get_read("/runs.json")));
    for (const auto& r : list["runs"]) all += r.value("name", "?") + " ";
    return all;
  };
  EXPECT_EQ(names(), "a ");
  EXPECT_EQ(status_of(get_read("/run/0.json")), 200);
  add_run("b");
  fs::remove_all(folder_ / "a");
  std::string error;
  wait_until([&] {
    error = nlohmann::json::parse(body_of(get_read("/run/0.json"))).value("error", "");
    return !error.empty() && names() == "a b ";
  });
  EXPECT_NE(error.find("no such run"), error.npos);
  EXPECT_EQ(names(), "a b ");
}

}  // namespace
}  // namespace trireme
