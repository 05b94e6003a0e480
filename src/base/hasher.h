// xxh3-64 of bytes that come in pieces: equal to hash64() of all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

struct XXH3_state_s;

namespace trireme {

class Hasher {
 public:
  Hasher();
  void add(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s*) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// Size and hash of a file's bytes.
struct FileDigest {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
  bool operator==(const FileDigest&) const = default;
};

}  // namespace trireme
