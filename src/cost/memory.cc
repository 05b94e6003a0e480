#include "cost/memory.h"

#include "base/checked.h"
#include "cost/flops.h"

namespace trireme {

BucketBytes state_bytes_per_parameter(std::string_view compute, std::string_view grads,
                                      std::string_view moments) {
  bool low = compute == "bf16" || compute == "f16";
  require((low || compute == "f32") && (grads == "f32" || grads == "bf16") &&
              (moments == "f32" || moments == "bf16"),
          "state bytes are known of f32, bf16 and f16; \"auto\" is resolved before");
  BucketBytes bytes{};
  bytes[size_t(Bucket::weights)] = low ? 2 : 4;
  bytes[size_t(Bucket::grads)] = grads == "bf16" ? 2 : 4;
  bytes[size_t(Bucket::optimizer)] = (low ? 4 : 0) + (moments == "bf16" ? 4 : 8);
  return bytes;
}

BucketBytes state_bytes(int64_t elements, std::string_view compute, std::string_view grads,
                        std::string_view moments) {
  BucketBytes bytes = state_bytes_per_parameter(compute, grads, moments);
  for (int64_t& b : bytes) b = checked_mul(b, elements);
  return bytes;
}

namespace {
constexpr int64_t kBlock = 4096;  // elements (DESIGN.md section 3)

int64_t padded(int64_t numel, const Division& d) {
  if (d.zero == 0 || d.shards == 1) return numel;
  int64_t blocks = (numel + kBlock - 1) / kBlock, each = (blocks + d.shards - 1) / d.shards;
  return checked_mul(checked_mul(each, d.shards), kBlock);
}
}  // namespace

int64_t flat_elements(const ModelSpec& m, const Division& d) {
  const int64_t with = m.expert_blocks();
  return checked_add(
      checked_add(checked_mul(with, padded(block_parameters(m, d.tp), d)),
                  checked_mul(m.layers - with, padded(block_parameters(m, d.tp, false), d))),
      checked_add(padded(embedding_parameters(m, d.tp), d), padded(head_parameters(m, d.tp), d)));
}

int64_t last_layer_elements(const ModelSpec& m, const Division& d) {
  const int64_t head = padded(head_parameters(m, d.tp), d);
  return m.tied ? checked_add(head, padded(embedding_parameters(m, d.tp), d)) : head;
}

BucketBytes state_bytes(const ModelSpec& m, std::string_view compute, std::string_view grads,
                        const Division& d, std::string_view moments) {
  BucketBytes bytes = state_bytes(flat_elements(m, d), compute, grads, moments);
  if (d.zero >= 3) bytes[size_t(Bucket::weights)] /= d.shards;
  if (d.zero >= 2) bytes[size_t(Bucket::grads)] /= d.shards;
  if (d.zero >= 1) bytes[size_t(Bucket::optimizer)] /= d.shards;
  if (m.router_bias)  // f32, whole on every rank
    bytes[size_t(Bucket::weights)] += 4 * checked_mul(m.expert_blocks(), m.experts);
  return bytes;
}

int64_t total(const BucketBytes& bytes) {
  int64_t sum = 0;
  for (int64_t b : bytes) sum = checked_add(sum, b);
  return sum;
}

}  // namespace trireme
