// What the fuzz targets share: a refusal in good form, and files for readers that take a path.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace trireme::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
inline std::span<const std::byte> bytes_of(std::string_view s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

// A finding: libFuzzer keeps the input.
inline void expect(bool ok, std::string_view what) {
  if (ok) return;
  ::write(2, what.data(), what.size());
  ::write(2, "\n", 1);
  std::abort();
}

// A file's fault is the request's, and what is said of it may not drive a terminal. Lists of problems have a
// line each.
inline void expect_good_form(const Error& e) {
  const std::string_view line = e.what();
  expect(e.fault == Fault::request, line);
  expect(!line.empty() && line.size() < 100000, "a message of no use");
  for (char c : line) expect(c == '\n' || (uint8_t(c) >= 0x20 && c != 0x7f), "a control byte in a message");
}

// Runs f; false when it refused the input. Any other exception is a finding. For whoever writes a seed,
// TRIREME_FUZZ_SAY=1 tells why.
template <class F>
bool accepts(F&& f) {
  static const bool say = std::getenv("TRIREME_FUZZ_SAY") != nullptr;
  try {
    f();
    return true;
  } catch (const Error& e) {
    expect_good_form(e);
    if (say) std::fprintf(stderr, "refused: %s\n", e.what());
    return false;
  }
}

// A folder in memory that goes away with the process.
class Folder {
 public:
  Folder() {
    const char* root = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    std::string name = std::string(root) + "/trireme_fuzz_XXXXXX";
    expect(::mkdtemp(name.data()) != nullptr, "no folder for the fuzzer's files");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  fs::path operator/(std::string_view name) const { return path_ / name; }

  // Rewrites one file, not flushed.
  fs::path put(std::string_view name, std::string_view content) const {
    fs::path file = path_ / name;
    int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    expect(fd >= 0, "cannot write the fuzzer's file");
    write_all(fd, content.data(), content.size(), file);
    ::close(fd);
    return file;
  }

 private:
  fs::path path_;
};

// The input in two: its first two bytes say how long the first part is.
struct Halves {
  std::string_view first, second;
};
inline Halves halves(const uint8_t* data, size_t size) {
  if (size < 2) return {};
  size_t n = std::min<size_t>(size_t(data[0]) | size_t(data[1]) << 8, size - 2);
  std::string_view rest = text_of(data + 2, size - 2);
  return {rest.substr(0, n), rest.substr(n)};
}

}  // namespace trireme::fuzz
