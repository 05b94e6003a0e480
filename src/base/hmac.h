// HMAC-SHA-256 (RFC 2104, FIPS 180-4): proves that a sender knows a secret.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte>);
Digest hmac_sha256(std::string_view key, std::span<const std::byte> message);
// Takes the same time whatever the digests are.
bool same_digest(const Digest&, const Digest&);
// From the system's generator. Throws Error if it has none.
void random_bytes(std::span<std::byte>);

}  // namespace trireme
