// What the tests of the room share.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "source_dir.h"

namespace trireme {

// A folder of one test, removed at its end; in memory where the system has such a place, for fsync's sake.
class TempFolder {
 public:
  TempFolder() : TempFolder(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path()) {}
  explicit TempFolder(const fs::path& parent) {
    std::string name = (parent / "trireme-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(std::string_view name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The largest single allocation since the last call (alloc_watch.cc replaces operator new).
size_t largest_allocation_and_reset();

// Runs f, which must throw one line: a request's Error that has all of `parts` in it.
inline void expect_refused(const std::function<void()>& f, std::vector<std::string> parts) {
  try {
    f();
    ADD_FAILURE() << "nothing was refused; expected: " << ::testing::PrintToString(parts);
  } catch (const Error& e) {
    std::string what = e.what();
    EXPECT_EQ(e.fault, Fault::request) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_LT(what.size(), 1200u) << what;
    for (const std::string& p : parts)
      EXPECT_NE(what.find(p), std::string::npos) << "'" << p << "' not in: " << what;
  }
}

// Hostile input either loads or is refused as a request, in one line; anything else fails. Did it load?
inline bool loads_or_refused(const std::function<void()>& f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    std::string what = e.what();
    EXPECT_EQ(e.fault, Fault::request) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_LT(what.size(), 1200u) << what;
    return false;
  }
}

// One to three random changes: bits, bytes, cuts, repeats, numbers grown or swapped, header lengths.
inline std::string mutated(std::string s, std::mt19937_64& rng) {
  auto below = [&](size_t n) { return n == 0 ? 0 : size_t(rng() % n); };
  for (size_t changes = 1 + below(3); changes > 0; changes--) {
    size_t at = below(s.size()), n = 1 + below(8);
    switch (below(10)) {
      case 0:
        if (!s.empty()) s[at] = char(s[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!s.empty()) s[at] = char(rng());
        break;
      case 2:
        s.erase(at, n);
        break;
      case 3:
        s.insert(at, s.substr(below(s.size()), below(40)));
        break;
      case 4:
        s.resize(at);
        break;
      case 5: {  // another header length
        uint64_t lengths[] = {0,           1,           s.size(),   s.size() - 8, s.size() - 7,
                              100'000'000, 100'000'001, UINT64_MAX, rng()};
        uint64_t v = lengths[below(std::size(lengths))];
        if (s.size() >= 8) std::memcpy(s.data(), &v, 8);
        break;
      }
      case 6: {  // a digit becomes a large number, or an odd one
        const char* numbers[] = {"9223372036854775807",
                                 "18446744073709551615",
                                 "4611686018427387904",
                                 "-1",
                                 "1e9",
                                 "0",
                                 "99999999999999999999999",
                                 "1.5",
                                 "null",
                                 "[]",
                                 "{}",
                                 "\"\""};
        size_t digit = s.find_first_of("0123456789", at);
        if (digit != std::string::npos) s.replace(digit, 1, numbers[below(std::size(numbers))]);
        break;
      }
      case 7: {  // two digits change places
        size_t a = s.find_first_of("0123456789", at), b = s.find_first_of("0123456789", below(s.size()));
        if (a != std::string::npos && b != std::string::npos) std::swap(s[a], s[b]);
        break;
      }
      case 8: {  // structure
        size_t mark = s.find_first_of("{}[],:\"", at);
        if (mark != std::string::npos) s[mark] = "{}[],:\" "[below(8)];
        break;
      }
      case 9:
        s.append(below(20), char(rng()));
        break;
    }
  }
  return s;
}

inline std::span<const std::byte> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

inline void write_raw(const fs::path& path, const std::string& s) {
  FILE* f = std::fopen(path.c_str(), "wb");
  ASSERT_NE(f, nullptr) << path;
  std::fwrite(s.data(), 1, s.size(), f);
  std::fclose(f);
}

inline const fs::path kUnitGoldens = test::source_dir() / "tests/unit/checkpoint/golden";

}  // namespace trireme
