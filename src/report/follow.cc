// Two threads share the work. The server answers from memory, so that a large trace delays no client. The
// reader checks the runs that a page shows, and reads a run again when its files have changed.
#include "report/follow.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file_stamp.h"
#include "base/hmac.h"
#include "base/no_signals.h"
#include "report/page.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr auto kLook = std::chrono::milliseconds(1000);  // between two looks at the files
constexpr auto kWanted = seconds(60);                    // a page that asks no more costs nothing after that
constexpr auto kStateToo = seconds(5);  // a killed run changes no file, but no longer holds its lock
constexpr int kShare = 4;               // the reader works for at most a fifth of the time: others train here
constexpr size_t kMostRuns = 500;

bool is_run(const fs::path& folder) {
  std::error_code ec;
  return fs::exists(folder / "metrics.jsonl", ec) || fs::exists(folder / "plan.toml", ec) ||
         fs::exists(folder / "run.toml", ec);
}

// Hash of names and stamps of the files in a run folder and in its checkpoints/; 0 without files.
uint64_t state_of_files(const fs::path& folder) {
  std::map<std::string, std::array<int64_t, 3>> all;
  for (const fs::path& in : {folder, folder / "checkpoints"}) {
    std::error_code ec;
    for (auto i = fs::directory_iterator(in, ec); !ec && i != fs::directory_iterator(); i.increment(ec))
      if (const auto s = stamp_of(i->path()))
        all[i->path().string()] = {int64_t(s->inode), s->bytes, s->modified_ns};
  }
  uint64_t hash = 0;
  for (const auto& [name, values] : all)
    hash = hash64(values.data(), sizeof values, hash64(name.data(), name.size(), hash));
  return hash;
}

// JSON as it is sent, with the ETag of its bytes.
struct Sent {
  std::shared_ptr<const std::string> body;
  std::string etag;
};
Sent sent(const nlohmann::json& j) {
  auto text =
      std::make_shared<const std::string>(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::string etag = '"' + hex64(hash64(text->data(), text->size())) + '"';
  return {std::move(text), std::move(etag)};
}

struct Followed {
  fs::path folder;
  std::optional<Sent> report;  // none before the first reading
  nlohmann::json row;
  Clock::time_point wanted{},
      looked{};               // when the report was last asked for; when its state was last looked at
  uint64_t files = 1;         // state_of_files() at the last reading of the row
  uint64_t report_files = 1;  // and of the report
};

class Runs {
 public:
  Runs(std::vector<fs::path> folders, const FollowReaders& readers)
      : folders_(std::move(folders)),
        readers_(readers),
        many_(folders_.size() > 1 || (!is_run(folders_.front()) && holds_runs(folders_.front()))) {
    find_runs();
  }
  bool many() const { return many_; }

  HttpReply list() {
    const std::lock_guard lock(mutex_);
    list_wanted_ = Clock::now();
    wake_.notify_one();
    return list_ ? reply(*list_) : not_yet();
  }
  HttpReply report(size_t i) {
    const std::lock_guard lock(mutex_);
    if (i >= runs_.size()) return {.status = 404};
    runs_[i].wanted = Clock::now();
    wake_.notify_one();
    return runs_[i].report ? reply(*runs_[i].report) : not_yet();
  }

  void read_until(const bool& stop) {
    std::unique_lock lock(mutex_);
    while (!stop) {
      const auto begin = Clock::now();
      lock.unlock();
      look();
      lock.lock();
      const auto busy = Clock::now() - begin;
      wake_.wait_for(lock, std::max<Clock::duration>(kLook, kShare * busy),
                     [&] { return stop || unread_is_wanted(); });
    }
  }
  void stop(bool& stop) {
    const std::lock_guard lock(mutex_);
    stop = true;
    wake_.notify_one();
  }

 private:
  static HttpReply reply(const Sent& s) {
    return {.type = "application/json", .body = s.body, .etag = s.etag};
  }
  static HttpReply not_yet() { return {.status = 202, .type = "application/json"}; }
  static bool holds_runs(const fs::path& folder) {
    std::error_code ec;
    for (auto i = fs::directory_iterator(folder, ec); !ec && i != fs::directory_iterator(); i.increment(ec))
      if (is_run(i->path())) return true;
    return false;
  }

  bool unread_is_wanted() const {
    for (const Followed& r : runs_)
      if (!r.report && lately(r.wanted)) return true;
    return !list_ && lately(list_wanted_);
  }
  static bool lately(Clock::time_point t) { return t != Clock::time_point{} && Clock::now() - t < kWanted; }

  // Runs keep their places: their numbers are addresses.
  void find_runs() {
    std::vector<fs::path> found;
    for (const fs::path& folder : folders_) {
      std::vector<fs::path> inside;
      std::error_code ec;
      if (!is_run(folder))
        for (auto i = fs::directory_iterator(folder, ec); !ec && i != fs::directory_iterator();
             i.increment(ec))
          if (is_run(i->path())) inside.push_back(i->path());
      std::sort(inside.begin(), inside.end());
      if (inside.empty() || !many_) inside = {folder};
      found.insert(found.end(), inside.begin(), inside.end());
    }
    const std::lock_guard lock(mutex_);
    for (const fs::path& f : found)
      if (runs_.size() < kMostRuns &&
          std::none_of(runs_.begin(), runs_.end(), [&](const Followed& r) { return r.folder == f; }))
        runs_.push_back({.folder = f});
  }

  void look() {
    bool list_wanted;
    size_t n;
    if (many_) find_runs();
    {
      const std::lock_guard lock(mutex_);
      list_wanted = many_ && lately(list_wanted_);
      n = runs_.size();
    }
    for (size_t i = 0; i < n; i++) look_at(i, list_wanted);
    if (!list_wanted) return;
    const std::lock_guard lock(mutex_);
    nlohmann::json rows = nlohmann::json::array();
    for (const Followed& r : runs_) rows.push_back(r.row);
    list_ = sent({{"version", 1}, {"kind", "list"}, {"runs", rows}});
  }

  void look_at(size_t i, bool list_wanted) {
    fs::path folder;
    uint64_t files_then, report_files_then;
    bool report_wanted, state_too;
    std::string state_then;
    {
      const std::lock_guard lock(mutex_);
      const Followed& r = runs_[i];
      folder = r.folder;
      files_then = r.files;
      report_files_then = r.report ? r.report_files : 1;
      report_wanted = lately(r.wanted);
      state_then = r.row.is_object() ? r.row.value("state", "") : "";
      state_too = state_then == "running" && Clock::now() - r.looked > kStateToo;
    }
    if (!report_wanted && !list_wanted) return;
    const uint64_t files = state_of_files(folder);
    nlohmann::json row;
    if (files != files_then || state_too) {
      row = read(readers_.row, folder);
      const std::lock_guard lock(mutex_);
      runs_[i].row = row;
      runs_[i].files = files;
      runs_[i].looked = Clock::now();
    }
    const bool other_state = row.is_object() && row.value("state", "") != state_then;
    if (!report_wanted || (files == report_files_then && !other_state)) return;
    Sent s = sent(read(readers_.report, folder));
    const std::lock_guard lock(mutex_);
    runs_[i].report = std::move(s);
    runs_[i].report_files = files;
  }

  // A folder that is incomplete or gone is a fact to show, and no reason to stop.
  static nlohmann::json read(const std::function<nlohmann::json(const fs::path&)>& reader,
                             const fs::path& folder) {
    try {
      return reader(folder);
    } catch (const std::exception& e) {
      return {{"folder", folder.string()}, {"error", e.what()}};
    }
  }

  const std::vector<fs::path> folders_;
  const FollowReaders& readers_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::vector<Followed> runs_;
  std::optional<Sent> list_;
  Clock::time_point list_wanted_{};
  const bool many_;
};

// "/run/12.json" -> 12
std::optional<size_t> run_of(std::string_view path) {
  if (!path.starts_with("/run/") || !path.ends_with(".json")) return {};
  path = path.substr(5, path.size() - 10);
  if (path.empty() || path.size() > 6 || path.find_first_not_of("0123456789") != path.npos) return {};
  return size_t(std::stoul(std::string(path)));
}

// 128 random bits.
std::string new_token() {
  std::array<uint64_t, 2> bits{};
  random_bytes(std::as_writable_bytes(std::span(bits)));
  return hex64(bits[0]) + hex64(bits[1]);
}

// Takes the same time wherever the two differ.
bool same_token(std::string_view a, std::string_view b) {
  return same_digest(sha256(std::as_bytes(std::span(a))), sha256(std::as_bytes(std::span(b))));
}

}  // namespace

void follow_runs(const FollowRequest& request, const FollowReaders& readers,
                 const std::function<void(const std::string& url)>& ready) {
  const std::string base = is_loopback(request.place.host) ? "" : "/" + new_token();
  Runs runs(request.folders, readers);
  const auto page = std::make_shared<const std::string>(live_page(base, runs.many()));
  const auto answer = [&](std::string_view path) -> HttpReply {
    if (!base.empty() && !same_token(path.substr(0, base.size()), base)) return {.status = 404};
    path.remove_prefix(base.size());
    if (path == "/" || (path.empty() && !base.empty()))
      return {.type = "text/html; charset=utf-8", .body = page};
    if (path == "/runs.json") return runs.list();
    const auto run = run_of(path);
    return run ? runs.report(*run) : HttpReply{.status = 404};
  };
  const auto say_where = [&](int port) {
    const std::string& host = request.place.host;
    ready(fmt::format("http://{}:{}{}/", host.find(':') == host.npos ? host : '[' + host + ']', port, base));
  };
  bool stop = false;
  std::thread reader;
  {
    const NoSignals none;
    reader = std::thread([&] { runs.read_until(stop); });
  }
  struct Joined {
    Runs& runs;
    bool& stop;
    std::thread& thread;
    ~Joined() { runs.stop(stop), thread.join(); }
  } const joined{runs, stop, reader};
  serve_http(request.place, say_where, answer);
}

}  // namespace trireme
