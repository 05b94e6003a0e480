#include "cost/memory.h"

#include "cost/checked.h"

namespace trireme {

BucketBytes state_bytes_per_parameter(std::string_view compute, std::string_view grads) {
  bool low = compute == "bf16" || compute == "f16";
  require((low || compute == "f32") && (grads == "f32" || grads == "bf16"),
          "state bytes are known of f32, bf16 and f16; \"auto\" is resolved before");
  BucketBytes bytes{};
  bytes[size_t(Bucket::weights)] = low ? 2 : 4;
  bytes[size_t(Bucket::grads)] = grads == "bf16" ? 2 : 4;
  bytes[size_t(Bucket::optimizer)] = low ? 12 : 8;
  return bytes;
}

BucketBytes state_bytes(int64_t elements, std::string_view compute, std::string_view grads) {
  BucketBytes bytes = state_bytes_per_parameter(compute, grads);
  for (int64_t& b : bytes) b = checked_mul(b, elements);
  return bytes;
}

int64_t total(const BucketBytes& bytes) {
  int64_t sum = 0;
  for (int64_t b : bytes) sum = checked_add(sum, b);
  return sum;
}

}  // namespace trireme
