#include "base/hasher.h"

#include <xxhash.h>

#include "base/error.h"

namespace trireme {

Hasher::Hasher() : state_(XXH3_createState()) {
  require(state_ != nullptr, "no memory for a hash state");
  XXH3_64bits_reset(state_.get());
}
void Hasher::add(const void* data, size_t bytes) {
  XXH3_64bits_update(state_.get(), data, bytes);
}
uint64_t Hasher::value() const {
  return XXH3_64bits_digest(state_.get());
}
void Hasher::Free::operator()(XXH3_state_s* s) const {
  XXH3_freeState(s);
}

}  // namespace trireme
