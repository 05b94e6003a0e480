#include "trace/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace trireme {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

template <class T>
void put(std::string& out, T value) {  // little endian, as this machine is
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// ---- protobuf: a field is its number and wire type (0 varint, 1 eight bytes, 2 sized, 5 four bytes), then
// it ----
void varint(std::string& out, uint64_t v) {
  for (; v >= 0x80; v >>= 7) out += char(v | 0x80);
  out += char(v);
}
void key(std::string& out, int field, int wire) {
  varint(out, uint64_t(field) << 3 | uint64_t(wire));
}
void whole(std::string& out, int field, int64_t v) {
  key(out, field, 0), varint(out, uint64_t(v));
}
void number(std::string& out, int field, double v) {
  key(out, field, 1), put(out, v);
}
void small_number(std::string& out, int field, float v) {
  key(out, field, 5), put(out, v);
}
void sized(std::string& out, int field, std::string_view bytes) {
  key(out, field, 2), varint(out, bytes.size()), out += bytes;
}

// tensorflow/core/util/event.proto: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(int64_t step) {
  std::string e;
  auto now = std::chrono::system_clock::now().time_since_epoch();
  number(e, 1, std::chrono::duration<double>(now).count());
  whole(e, 2, step);
  return e;
}

std::string start_event(int64_t step) {
  std::string log, e = event(step);
  whole(log, 1, 1);  // SessionLog.status = START
  sized(e, 7, log);
  return e;
}

// Summary.Value: tag = 1, simple_value = 2, tensor = 8, metadata = 9.
void add_scalar(std::string& summary, std::string_view tag, double v) {
  std::string value;
  sized(value, 1, tag), small_number(value, 2, float(v));
  sized(summary, 1, value);
}

std::string text_event(int64_t step, std::string_view tag, std::string_view text) {
  std::string plugin, metadata, tensor, value, summary, dim, shape, e = event(step);
  sized(plugin, 1, "text");
  sized(metadata, 1, plugin), whole(metadata, 4, 2);  // data_class = TENSOR
  whole(dim, 1, 1), sized(shape, 2, dim);
  whole(tensor, 1, 7), sized(tensor, 2, shape), sized(tensor, 8, text);  // DT_STRING [1]
  sized(value, 1, tag), sized(value, 8, tensor), sized(value, 9, metadata);
  sized(summary, 1, value), sized(e, 5, summary);
  return e;
}

std::string scalars(const StepMetrics& m) {
  std::string s;
  for (const auto& [tag, value] : scalars_of(m)) add_scalar(s, tag, value);
  return s;
}

// As Markdown: a block of code.
std::string indented(std::string_view text) {
  std::string out = "    ";
  for (char c : text) out += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return out;
}

std::string host_name() {
  char name[256] = "host";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// TensorBoard reads files in the order of their names, and a file of a later name ends the one before: two
// starts within a second must not be turned round.
int64_t seconds_for_name(const fs::path& folder) {
  int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  for (const auto& e : fs::directory_iterator(folder)) {
    std::string name = e.path().filename().string();
    int64_t there = 0;
    if (!name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), there);
    if (there < int64_t(1) << 40) now = std::max(now, there + 1);
  }
  return now;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; i++) {
      t[i] = i;
      for (int k = 0; k < 8; k++) t[i] = t[i] & 1 ? t[i] >> 1 ^ 0x82f63b78u : t[i] >> 1;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (char c : bytes) crc = table[(crc ^ uint8_t(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::string tfrecord(std::string_view payload) {
  std::string r;
  put(r, uint64_t(payload.size()));
  put(r, masked_crc32c(r));
  r += payload;
  put(r, masked_crc32c(payload));
  return r;
}

TensorBoardFile::TensorBoardFile(fs::path folder, int64_t last_step, std::string config)
    : folder_(std::move(folder)), last_step_(last_step), config_(std::move(config)) {}

TensorBoardFile::~TensorBoardFile() {
  if (fd_ >= 0) ::close(fd_);
}

void TensorBoardFile::open() {
  make_folders(folder_);
  path_ =
      folder_ / fmt::format("{}{:010}.{}.{}.0", kPrefix, seconds_for_name(folder_), host_name(), ::getpid());
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) system_failed(errno, "cannot write {}: {}", path_.string(), std::strerror(errno));
  std::string version = event(0);
  sized(version, 3, "brain.Event:2");
  append(version);
  append(start_event(last_step_ + 1));
  append(text_event(last_step_ + 1, "config/text_summary", indented(config_)));
}

void TensorBoardFile::append(std::string_view event) {
  std::string record = tfrecord(event);
  write_all(fd_, record.data(), record.size(), path_);
}

void TensorBoardFile::write(const StepMetrics& m) {
  if (fd_ < 0) open();
  std::string e = event(m.step);
  sized(e, 5, scalars(m));
  append(e);
}

}  // namespace trireme
