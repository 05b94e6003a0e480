// Hash of a file as it is stored.
#pragma once
#include "base/file.h"
#include "base/hasher.h"

namespace trireme {

// Reads the file in pieces, asking the system to fetch it from the disk again where it can: what is verified
// is what was stored, not what is still in memory.
FileDigest digest_file(const fs::path&);

}  // namespace trireme
