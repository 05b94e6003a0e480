#include "trace/chrome_trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

using Buffer = std::back_insert_iterator<std::string>;
constexpr std::string_view kTail = "\n]}\n", kMadeBy = "trireme";

std::string json_text(std::string_view s) {
  return nlohmann::json(std::string(s)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// Nanoseconds as microseconds, exactly.
void put_us(Buffer out, int64_t ns) {
  fmt::format_to(out, "{}.{:03}", ns / 1000, ns % 1000);
}

void put_counter(std::string& text, const Span& s, int64_t at_ns) {
  Buffer out(text);
  fmt::format_to(out, ",\n{{\"name\":\"memory\",\"ph\":\"C\",\"pid\":{},\"ts\":", s.rank);
  put_us(out, at_ns);
  text += ",\"args\":{";
  for (size_t i = 0; i < kBuckets; i++)
    fmt::format_to(out, "{}\"{}\":{}", i ? "," : "", kBucketNames[i], s.memory[i]);
  text += "}}";
}

void put_op_args(Buffer out, const Span& s) {
  double bytes = double(s.cost.bytes_read + s.cost.bytes_written), us = s.seconds() * 1e6;
  fmt::format_to(out, ",\"layer\":{},\"flops\":{},\"bytes_read\":{},\"bytes_written\":{}", json_text(s.layer),
                 s.cost.flops, s.cost.bytes_read, s.cost.bytes_written);
  if (us > 0)
    fmt::format_to(out, ",\"GFLOP/s\":{:.3f},\"GB/s\":{:.3f}", s.cost.flops / us * 1e-3, bytes / us * 1e-3);
}

void put_comm_args(Buffer out, const Span& s) {
  fmt::format_to(out, ",\"group\":{},\"algorithm\":{},\"wire_bytes\":{},\"waited_us\":", json_text(s.group),
                 json_text(s.algorithm), s.wire_bytes);
  put_us(out, s.met_ns - s.begin_ns);
  if (s.end_ns > s.met_ns)
    fmt::format_to(out, ",\"GB/s\":{:.3f}", double(s.wire_bytes) / double(s.end_ns - s.met_ns));
}

void put_span(std::string& text, const Span& s, int64_t at_ns, size_t row) {
  Buffer out(text);
  std::string name(s.name);
  if (s.kind == SpanKind::step) name += fmt::format(" {}", s.step);
  if (s.kind == SpanKind::action && s.microbatch >= 0) name += fmt::format(" {}", s.microbatch);
  fmt::format_to(out, ",\n{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":",
                 json_text(name), kSpanKindNames[size_t(s.kind)], s.rank, row);
  put_us(out, at_ns);
  text += ",\"dur\":";
  put_us(out, s.end_ns - s.begin_ns);
  fmt::format_to(out, ",\"args\":{{\"step\":{},\"microbatch\":{},\"action\":{}", s.step, s.microbatch,
                 json_text(s.action));
  if (s.kind == SpanKind::op) put_op_args(out, s);
  if (s.kind == SpanKind::comm) put_comm_args(out, s);
  text += "}}";
}

std::string head(const std::map<std::string, std::string>& about) {
  nlohmann::ordered_json other = {{"made_by", kMadeBy}};
  for (const auto& [k, v] : about) other[k] = v;
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":" + other.dump(-1, ' ', true) +
         ",\"traceEvents\":[\n"
         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"ts\":0,\"args\":{\"name\":\"rank "
         "0\"}},\n"
         "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"ts\":0,\"args\":{\"name\":\"compute\"}"
         "}";
}

}  // namespace

ChromeTraceFile::ChromeTraceFile(fs::path path, std::map<std::string, std::string> about)
    : path_(std::move(path)), about_(std::move(about)) {}

ChromeTraceFile::~ChromeTraceFile() {
  if (fd_ >= 0) ::close(fd_);
}

// The row of the span's lane; a new one, or a new rank, is given its name first.
size_t ChromeTraceFile::row_of(const Span& s, std::string& text) {
  const std::string_view lane = s.lane.empty() ? lanes_[0] : s.lane;
  const size_t row = size_t(std::find(lanes_.begin(), lanes_.end(), lane) - lanes_.begin());
  if (row == lanes_.size()) lanes_.emplace_back(lane);
  auto put_name = [&](std::string_view what, size_t tid, const std::string& name) {
    fmt::format_to(
        Buffer(text),
        ",\n{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"ts\":0,\"args\":{{\"name\":{}}}}}", what,
        s.rank, tid, json_text(name));
  };
  if (rows_.insert({s.rank, 0}).second) {
    put_name("process_name", 0, fmt::format("rank {}", s.rank));
    put_name("thread_name", 0, lanes_[0]);
  }
  if (rows_.insert({s.rank, row}).second) put_name("thread_name", row, lanes_[row]);
  return row;
}

void ChromeTraceFile::write(std::span<const Span> spans) {
  if (spans.empty()) return;
  std::string text;
  if (fd_ < 0) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd_ < 0) system_failed(errno, "cannot write {}: {}", path_.string(), std::strerror(errno));
    // Of several ranks, whichever came first.
    origin_ns_ = std::min_element(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
                   return a.begin_ns < b.begin_ns;
                 })->begin_ns;
    text = head(about_);
  }
  for (const Span& s : spans) {
    int64_t at = s.begin_ns - origin_ns_;
    if (s.kind != SpanKind::comm && s.memory != memory_[s.rank])
      put_counter(text, s, at), memory_[s.rank] = s.memory;
    const size_t row = row_of(s, text);
    put_span(text, s, at, row);
  }
  int64_t grown = int64_t(text.size());
  text += kTail;  // over the last one's
  if (::lseek(fd_, end_, SEEK_SET) < 0)
    system_failed_in_run(errno, "cannot write {}: {}", path_.string(), std::strerror(errno));
  write_all(fd_, text.data(), text.size(), path_);
  end_ += grown;
}

// ---- reading ----
namespace {

using nlohmann::json;

class TraceReader {
 public:
  TraceReader(std::string_view file) : file_(file) {}

  Timeline read(std::string_view text) {
    json j = json::parse(text, nullptr, false);
    if (j.is_discarded()) bad_request("{} is no JSON: was its run killed while it wrote? Trace again", file_);
    const json* other = member(j, "otherData");
    const json* made_by = other ? member(*other, "made_by") : nullptr;
    const json* events = member(j, "traceEvents");
    if (!made_by || *made_by != kMadeBy || !events || !events->is_array())
      bad_request("{} is no trace of trireme: otherData.made_by and traceEvents are missing", file_);
    for (const auto& [k, v] : other->items())
      if (v.is_string()) timeline_.about[k] = v.get<std::string>();
    for (const json& e : *events) add(e);
    return std::move(timeline_);
  }

 private:
  static const json* member(const json& j, const char* name) {
    auto it = j.is_object() ? j.find(name) : j.end();
    return j.is_object() && it != j.end() ? &*it : nullptr;
  }
  [[noreturn]] void wrong(std::string_view what) const {
    bad_request("{}: event {}: {} is missing or not what trireme writes", file_, count_, what);
  }
  double number(const json& j, const char* name, double low, double high) const {
    const json* v = member(j, name);
    if (!v || !v->is_number()) wrong(name);
    double d = v->get<double>();
    if (!(d >= low && d <= high)) wrong(name);
    return d;
  }
  std::string_view text(const json& j, const char* name) {
    const json* v = member(j, name);
    if (!v || !v->is_string()) wrong(name);
    auto [it, fresh] = known_.try_emplace(v->get<std::string>());
    if (fresh) it->second = &timeline_.texts.emplace_back(it->first);
    return *it->second;
  }
  void add(const json& e) {
    count_++;
    std::string_view ph = text(e, "ph");
    if (ph == "C") {
      const json* args = member(e, "args");
      if (!args) wrong("args");
      const auto rank = int32_t(number(e, "pid", 0, 1e9));
      for (size_t i = 0; i < kBuckets; i++)
        memory_[rank][i] = int64_t(number(*args, std::string(kBucketNames[i]).c_str(), 0, 1e18));
    }
    if (ph == "M" && text(e, "name") == "thread_name") {
      const json* args = member(e, "args");
      if (!args) wrong("args");
      lanes_[row_of(e)] = text(*args, "name");
    }
    if (ph != "X") return;
    Span s;
    std::string_view kind = text(e, "cat");
    auto it = std::find(kSpanKindNames.begin(), kSpanKindNames.end(), kind);
    if (it == kSpanKindNames.end()) wrong("cat");
    s.kind = SpanKind(it - kSpanKindNames.begin());
    s.name = text(e, "name");
    s.rank = int32_t(number(e, "pid", 0, 1e9));
    auto lane = lanes_.find(row_of(e));
    if (lane != lanes_.end() && lane->second != "compute") s.lane = lane->second;
    s.begin_ns = std::llround(number(e, "ts", 0, 1e15) * 1000);
    s.end_ns = s.begin_ns + std::llround(number(e, "dur", 0, 1e15) * 1000);
    s.memory = memory_[s.rank];
    const json* args = member(e, "args");
    if (!args) wrong("args");
    s.step = int64_t(number(*args, "step", 0, 1e15));
    s.microbatch = int32_t(number(*args, "microbatch", -1, 1e9));
    s.action = text(*args, "action");
    if (s.kind == SpanKind::op) {
      s.layer = text(*args, "layer");
      s.cost = {.flops = number(*args, "flops", 0, 1e30),
                .bytes_read = int64_t(number(*args, "bytes_read", 0, 1e15)),
                .bytes_written = int64_t(number(*args, "bytes_written", 0, 1e15))};
    }
    if (s.kind == SpanKind::comm) {
      s.memory = {};
      s.group = text(*args, "group"), s.algorithm = text(*args, "algorithm");
      s.wire_bytes = int64_t(number(*args, "wire_bytes", 0, 1e15));
      s.met_ns = s.begin_ns + std::llround(number(*args, "waited_us", 0, 1e15) * 1000);
    }
    timeline_.spans.push_back(s);
  }

  std::pair<int64_t, int64_t> row_of(const json& e) const {
    return {int64_t(number(e, "pid", 0, 1e9)), int64_t(number(e, "tid", 0, 1e9))};
  }

  std::string_view file_;
  int64_t count_ = 0;
  std::map<std::pair<int64_t, int64_t>, std::string_view> lanes_;  // by rank and row
  std::map<int32_t, BucketBytes> memory_;                          // by rank
  Timeline timeline_;
  std::map<std::string, const std::string*> known_;
};

}  // namespace

Timeline parse_chrome_trace(std::string_view text, std::string_view file) {
  return TraceReader(file).read(text);
}

Timeline read_chrome_trace(const fs::path& path) {
  MappedFile f(path);
  if (f.bytes().size() > kMostTraceBytes)
    bad_request("{}: {} bytes are too many to read; trace fewer steps (train.trace_steps)", path.string(),
                f.bytes().size());
  return parse_chrome_trace({reinterpret_cast<const char*>(f.bytes().data()), f.bytes().size()},
                            path.string());
}

}  // namespace trireme
