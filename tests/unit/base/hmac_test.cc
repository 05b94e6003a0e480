#include "base/hmac.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace trireme {
namespace {

std::string hex(const Digest& d) {
  std::string s;
  for (std::byte b : d) s += fmt::format("{:02x}", int(b));
  return s;
}
std::span<const std::byte> bytes(const std::string& s) {
  return std::as_bytes(std::span(s));
}

// FIPS 180-4's examples, and lengths around a block.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(hex(sha256(bytes(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(bytes(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, test cases 1, 2 and 6.
TEST(HmacSha256, KnownDigests) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, DigestsAreComparedWhole) {
  const Digest a = sha256(bytes("a"));
  EXPECT_TRUE(same_digest(a, a));
  for (size_t i = 0; i < a.size(); i++) {
    Digest b = a;
    b[i] ^= std::byte{1};
    EXPECT_FALSE(same_digest(a, b)) << i;
  }
}

TEST(RandomBytes, DoNotRepeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; i++) {
    Digest d{};
    random_bytes(d);
    EXPECT_TRUE(seen.insert(hex(d)).second);
  }
}

}  // namespace
}  // namespace trireme
