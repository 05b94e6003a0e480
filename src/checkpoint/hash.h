// xxh3-64 of bytes that come in pieces: equal to hash64() of them all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/file.h"

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

struct FileDigest {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
  bool operator==(const FileDigest&) const = default;
};

// Reads the file in pieces, asking the system to fetch it from the disk again where it can: what is verified
// is what was stored, not what is still in memory.
FileDigest digest_file(const fs::path&);

}  // namespace trireme
