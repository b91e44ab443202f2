// The hash against the vectors that its standards publish.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/hash.hpp"

namespace slip::test_sha256 {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string hex(const base::Sha256::Digest& digest) {
  std::string result;
  for (const std::byte byte : digest) {
    for (const int shift : {4, 0}) result += "0123456789abcdef"[static_cast<int>(byte) >> shift & 15];
  }
  return result;
}

std::string sha256(const std::string& text) {
  base::Sha256 hash;
  hash.add(as_bytes(text));
  return hex(hash.finish());
}

std::string hmac(const std::string& key, const std::string& text) {
  return hex(base::Hmac(as_bytes(key)).of({as_bytes(text)}));
}

// FIPS 180-4's examples, and the million letters.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                   "mnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnySizeAreOneText) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 26);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const std::string part = text.substr(0, length);
    for (const std::size_t cut : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}}) {
      base::Sha256 hash;
      for (std::size_t at = 0; at < length; at += cut) hash.add(as_bytes(part).subspan(at, std::min(cut, length - at)));
      ASSERT_EQ(hex(hash.finish()), sha256(part)) << length << " bytes in pieces of " << cut;
    }
  }
}

// RFC 4231, cases 1, 2, 3, 6 and 7.
TEST(Hmac, PublishedVectors) {
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      hmac(std::string(131, '\xaa'),
           "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
           "hashed before being used by the HMAC algorithm."),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, PartsAreOneText) {
  const base::Hmac key(as_bytes("a key"));
  EXPECT_EQ(key.of({as_bytes("one"), as_bytes(""), as_bytes("two")}), key.of({as_bytes("onetwo")}));
  EXPECT_NE(key.of({as_bytes("one")}), key.of({as_bytes("two")}));
}

TEST(Hmac, ComparesAllBytes) {
  const std::string a = "0123456789";
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::string b = a;
    b[i] = 'x';
    EXPECT_FALSE(base::equal_in_constant_time(as_bytes(a), as_bytes(b)));
  }
  EXPECT_TRUE(base::equal_in_constant_time(as_bytes(a), as_bytes(a)));
  EXPECT_FALSE(base::equal_in_constant_time(as_bytes(a), as_bytes(a).first(3)));
}

}  // namespace
}  // namespace slip::test_sha256
