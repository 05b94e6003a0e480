#include "report/trace_scan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <unordered_map>

#include "base/error.h"
#include "base/json_depth.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr int64_t kMostNs = int64_t(1) << 50;          // from the first span: 13 days
constexpr int64_t kMostBytes = 1'000'000'000'000'000;  // per op, transfer, bucket
constexpr int64_t kMostStep = 1'000'000'000'000'000;
constexpr double kMostUs = double(kMostNs / 1000);
constexpr int32_t kMostRank = 1 << 20;

// Keeps each text once. A text comes thousands of times, so the newest ones of each length are tried first.
class Texts {
 public:
  std::string_view keep(std::string_view text) {
    std::string_view& recent =
        recent_[(text.size() * 31 + (text.empty() ? 0 : uint8_t(text.back()))) % kRecent];
    if (recent == text) return recent;
    auto it = all_.find(text);
    if (it == all_.end()) {
      const std::string& kept = kept_.emplace_back(text);
      it = all_.emplace(std::string_view(kept), std::string_view(kept)).first;
    }
    return recent = it->second;
  }

 private:
  static constexpr size_t kRecent = 256;
  std::string_view recent_[kRecent];
  std::unordered_map<std::string_view, std::string_view> all_;
  std::deque<std::string> kept_;
};

// Walks over a line; `ok` turns false at the first byte that is not as ChromeTraceFile writes it.
struct Cursor {
  const char* at;
  const char* end;
  bool ok = true;

  bool skip(std::string_view literal) {
    if (size_t(end - at) < literal.size() || std::string_view(at, literal.size()) != literal)
      return ok = false;
    at += literal.size();
    return true;
  }
  bool maybe(std::string_view literal) {
    if (size_t(end - at) < literal.size() || std::string_view(at, literal.size()) != literal) return false;
    at += literal.size();
    return true;
  }
  // A text without escapes.
  std::string_view text() {
    if (!skip("\"")) return {};
    const char* begin = at;
    while (at < end && *at != '"' && *at != '\\') at++;
    if (at == end || *at == '\\') {
      ok = false;
      return {};
    }
    return {begin, size_t(at++ - begin)};
  }
  int64_t whole() {
    int64_t v = 0;
    const auto [next, error] = std::from_chars(at, end, v);
    if (error != std::errc()) ok = false;
    at = next;
    return v;
  }
  double number() {
    double v = 0;
    const auto [next, error] = std::from_chars(at, end, v);
    if (error != std::errc() || !std::isfinite(v)) ok = false;
    at = next;
    return v;
  }
  // Microseconds with three decimals, as nanoseconds.
  int64_t us() {
    const int64_t v = whole();
    if (!ok || v < 0 || v > kMostNs / 1000) return ok = false, 0;
    if (!skip(".") || end - at < 3) return ok = false, 0;
    int64_t ns = 0;
    for (int i = 0; i < 3; i++) {
      if (at[i] < '0' || at[i] > '9') return ok = false, 0;
      ns = ns * 10 + (at[i] - '0');
    }
    at += 3;
    return v * 1000 + ns;
  }
};

SpanKind kind_of(std::string_view name, bool& ok) {
  const auto it = std::find(kSpanKindNames.begin(), kSpanKindNames.end(), name);
  if (it == kSpanKindNames.end()) return ok = false, SpanKind::op;
  return SpanKind(it - kSpanKindNames.begin());
}

class Scanner {
 public:
  explicit Scanner(TraceSink& sink) : sink_(sink) {}

  TraceScan scan(std::string_view text, std::string_view file) {
    const size_t first = std::min(text.find('\n'), text.size());
    read_head(text.substr(0, first), file);
    text.remove_prefix(std::min(text.size(), first + 1));
    while (!text.empty()) {
      const size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end == text.npos ? text.size() : end + 1);
      if (line == "]}") {
        scan_.whole = true;
        continue;
      }
      if (!line.empty() && line.back() == ',') line.remove_suffix(1);
      if (!line.empty() && !event(line) && !slow_event(line)) scan_.damaged++;
    }
    sink_.end();
    return std::move(scan_);
  }

 private:
  void read_head(std::string_view line, std::string_view file) {
    constexpr std::string_view kBefore = "\"otherData\":", kAfter = ",\"traceEvents\":[";
    const size_t begin = line.find(kBefore), end = line.rfind(kAfter);
    json other;
    if (begin != line.npos && end != line.npos && end > begin) {
      other = shallow_json(line.substr(begin + kBefore.size(), end - begin - kBefore.size()));
    }
    if (!other.is_object() || other.value("made_by", json()) != json("trireme"))
      bad_request("{} is not a trace of trireme; expected the file that train --trace-steps writes", file);
    for (const auto& [k, v] : other.items())
      if (v.is_string()) scan_.about[k] = v.get<std::string>();
  }

  bool event(std::string_view line) {
    Cursor c{line.data(), line.data() + line.size()};
    if (!c.skip("{\"name\":")) return false;
    const std::string_view name = c.text();
    if (c.maybe(",\"cat\":")) return span(c, name);
    if (c.maybe(",\"ph\":\"C\",\"pid\":")) return counter(c);
    if (c.maybe(",\"ph\":\"M\",\"pid\":")) return lane_name(c, name);
    return false;
  }

  bool counter(Cursor& c) {
    const int64_t rank = c.whole();
    c.skip(",\"ts\":");
    c.us();
    c.skip(",\"args\":{");
    BucketBytes bytes{};
    for (size_t i = 0; i < kBuckets && c.ok; i++) {
      if (i > 0) c.skip(",");
      if (c.text() != kBucketNames[i]) c.ok = false;
      c.skip(":");
      bytes[i] = c.whole();
      if (bytes[i] < 0 || bytes[i] > kMostBytes) c.ok = false;
    }
    if (!c.ok || rank < 0 || rank > kMostRank) return false;
    memory_of(int32_t(rank)) = bytes;
    return true;
  }

  bool lane_name(Cursor& c, std::string_view name) {
    const int64_t rank = c.whole();
    c.skip(",\"tid\":");
    const int64_t row = c.whole();
    c.skip(",\"ts\":0,\"args\":{\"name\":");
    const std::string_view lane = c.text();
    if (!c.ok || rank < 0 || rank > kMostRank) return false;
    if (name == "thread_name") lanes_[{rank, row}] = texts_.keep(lane);
    return true;
  }

  bool span(Cursor& c, std::string_view name) {
    Span s;
    s.kind = kind_of(c.text(), c.ok);
    c.skip(",\"ph\":\"X\",\"pid\":");
    const int64_t rank = c.whole();
    c.skip(",\"tid\":");
    const int64_t row = c.whole();
    c.skip(",\"ts\":");
    s.begin_ns = c.us();
    c.skip(",\"dur\":");
    s.end_ns = s.begin_ns + c.us();
    c.skip(",\"args\":{\"step\":");
    s.step = c.whole();
    c.skip(",\"microbatch\":");
    s.microbatch = int32_t(c.whole());
    c.skip(",\"action\":");
    s.action = c.text();
    if (!c.ok || rank < 0 || rank > kMostRank) return false;
    if (s.kind == SpanKind::op) {
      c.skip(",\"layer\":");
      s.layer = c.text();
      c.skip(",\"flops\":");
      s.cost.flops = c.number();
      c.skip(",\"bytes_read\":");
      s.cost.bytes_read = c.whole();
      c.skip(",\"bytes_written\":");
      s.cost.bytes_written = c.whole();
    }
    if (s.kind == SpanKind::comm) {
      c.skip(",\"group\":");
      s.group = c.text();
      c.skip(",\"algorithm\":");
      s.algorithm = c.text();
      c.skip(",\"wire_bytes\":");
      s.wire_bytes = c.whole();
      c.skip(",\"waited_us\":");
      s.met_ns = s.begin_ns + c.us();
    }
    const auto in = [](int64_t v, int64_t most) { return v >= 0 && v <= most; };
    if (!c.ok || !in(s.step, kMostStep) || !in(s.wire_bytes, kMostBytes) ||
        !in(s.cost.bytes_read, kMostBytes) || !in(s.cost.bytes_written, kMostBytes))
      return false;
    s.rank = int32_t(rank);
    s.name = name;
    return pass(s, row);
  }

  bool pass(Span& s, int64_t row) {
    s.name = texts_.keep(s.name);
    s.action = texts_.keep(s.action);
    s.layer = texts_.keep(s.layer);
    s.group = texts_.keep(s.group);
    s.algorithm = texts_.keep(s.algorithm);
    if (row != 0) {
      const auto lane = lanes_.find({s.rank, row});
      if (lane != lanes_.end() && lane->second != "compute") s.lane = lane->second;
    }
    if (s.kind != SpanKind::comm) s.memory = memory_of(s.rank);
    scan_.spans++;
    sink_.span(s);
    return true;
  }

  // The same from any JSON of one event: another order of keys, escaped texts.
  bool slow_event(std::string_view line) {
    const json e = shallow_json(line);
    if (!e.is_object()) return false;
    const auto number = [&](const json& j, const char* key) {
      const auto it = j.find(key);
      const double v = it != j.end() && it->is_number() ? it->get<double>() : -1e300;
      return std::isfinite(v) ? v : -1e300;
    };
    const auto text = [&](const json& j, const char* key) {
      const auto it = j.find(key);
      return it != j.end() && it->is_string() ? texts_.keep(it->get_ref<const std::string&>())
                                              : std::string_view();
    };
    const auto args = e.find("args");
    const double rank = number(e, "pid");
    if (args == e.end() || !args->is_object() || rank < 0 || rank > kMostRank) return false;
    const std::string_view ph = text(e, "ph");
    const double row = std::clamp(number(e, "tid"), 0.0, 1e6);
    if (ph == "M") {
      if (text(e, "name") == "thread_name") lanes_[{int64_t(rank), int64_t(row)}] = text(*args, "name");
      return true;
    }
    if (ph == "C") {
      for (size_t i = 0; i < kBuckets; i++)
        memory_of(int32_t(rank))[i] =
            int64_t(std::clamp(number(*args, std::string(kBucketNames[i]).c_str()), 0.0, double(kMostBytes)));
      return true;
    }
    bool ok = ph == "X";
    Span s;
    s.kind = kind_of(text(e, "cat"), ok);
    const double ts = number(e, "ts"), dur = number(e, "dur"), step = number(*args, "step");
    if (!ok || ts < 0 || ts > kMostUs || dur < 0 || dur > kMostUs || step < 0 || step > double(kMostStep))
      return false;
    s.rank = int32_t(rank);
    s.name = text(e, "name");
    s.step = int64_t(step);
    s.begin_ns = std::llround(ts * 1000);
    s.end_ns = s.begin_ns + std::llround(dur * 1000);
    s.microbatch = int32_t(std::clamp(number(*args, "microbatch"), -1.0, 1e9));
    s.action = text(*args, "action");
    s.layer = text(*args, "layer");
    s.cost.flops = std::max(0.0, number(*args, "flops"));
    s.cost.bytes_read = int64_t(std::clamp(number(*args, "bytes_read"), 0.0, double(kMostBytes)));
    s.cost.bytes_written = int64_t(std::clamp(number(*args, "bytes_written"), 0.0, double(kMostBytes)));
    s.group = text(*args, "group");
    s.algorithm = text(*args, "algorithm");
    s.wire_bytes = int64_t(std::clamp(number(*args, "wire_bytes"), 0.0, double(kMostBytes)));
    s.met_ns = s.begin_ns + std::llround(std::clamp(number(*args, "waited_us"), 0.0, kMostUs) * 1000);
    return pass(s, int64_t(row));
  }

  BucketBytes& memory_of(int32_t rank) {
    if (rank != rank_) {
      rank_ = rank;
      memory_ = &memories_[rank];
    }
    return *memory_;
  }

  TraceSink& sink_;
  TraceScan scan_;
  Texts texts_;
  std::map<std::pair<int64_t, int64_t>, std::string_view> lanes_;  // by rank and row
  std::map<int32_t, BucketBytes> memories_;
  int32_t rank_ = -1;
  BucketBytes* memory_ = nullptr;
};

}  // namespace

TraceScan scan_trace(std::string_view text, std::string_view file, TraceSink& sink) {
  return Scanner(sink).scan(text, file);
}

TraceScan scan_trace(const fs::path& path, TraceSink& sink) {
  const MappedFile f(path);
  return scan_trace({reinterpret_cast<const char*>(f.bytes().data()), f.bytes().size()}, path.string(), sink);
}

}  // namespace trireme
