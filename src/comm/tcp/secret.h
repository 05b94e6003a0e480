// The secret by which the ranks of a job know each other.
#pragma once
#include <string>

#include "comm/tcp/bootstrap.h"

namespace trireme {

inline constexpr size_t kLeastSecret = 16;  // characters

// TRIREME_SECRET; otherwise the content of the user's key file, $XDG_CONFIG_HOME/trireme/secret or
// ~/.config/trireme/secret, which is made with random content if it does not exist. Clusters have one home
// folder on all nodes, and no other user can read the file. Throws Error (request): TRIREME_SECRET is too
// short; other users may read the file; there is no home folder.
std::string secret_of_job(const Environment&);

}  // namespace trireme
