#include "base/crypto/hmac.h"

// This header declares OpenSSL's low-level functions. The high-level functions (EVP) would link about a thousand more
// files of OpenSSL's library, including its threads and configuration.
#include <openssl/sha.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

constexpr std::size_t kBlockBytes = 64;  // block size of SHA-256, which HMAC uses for its padded key

class Sha256 {
 public:
  Sha256() { SHA256_Init(&context_); }
  ~Sha256() { explicit_bzero(&context_, sizeof(context_)); }  // the context may contain a part of a key
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::string_view bytes) { SHA256_Update(&context_, bytes.data(), bytes.size()); }
  void end(Digest& digest) { SHA256_Final(digest.data(), &context_); }

 private:
  SHA256_CTX context_{};
};

}  // namespace

Digest sha256(std::initializer_list<std::string_view> parts) {
  Sha256 hash;
  for (const std::string_view part : parts) hash.add(part);
  Digest digest{};
  hash.end(digest);
  return digest;
}

void hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts, Digest& digest) {
  Wiped<Digest> short_key;
  if (key.size() > kBlockBytes) {
    Sha256 hash;
    hash.add(key);
    hash.end(short_key);
    key = bytes_of(short_key);
  }
  Wiped<std::array<char, kBlockBytes>> pad;
  const auto fill = [&](char with) {
    for (std::size_t i = 0; i < pad.size(); ++i) pad[i] = static_cast<char>((i < key.size() ? key[i] : 0) ^ with);
  };
  Sha256 inner;
  fill(0x36);
  inner.add(bytes_of(pad));
  for (const std::string_view part : parts) inner.add(part);
  Wiped<Digest> inside;
  inner.end(inside);
  fill(0x5c);
  Sha256 outer;
  outer.add(bytes_of(pad));
  outer.add(bytes_of(inside));
  outer.end(digest);
}

Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts) {
  Digest digest{};
  hmac_sha256(key, parts, digest);
  return digest;
}

Key hmac_key(std::string_view key, std::initializer_list<std::string_view> parts) {
  Wiped<Digest> digest;
  hmac_sha256(key, parts, digest);
  return Key(digest);
}

Key derive_key(const Key& from, std::string_view label, std::string_view context) {
  return hmac_key(bytes_of(from), {label, std::string_view("\0", 1), context});
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;  // volatile, so that the compiler cannot leave the loop early
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

bool random_bytes(std::span<std::uint8_t> bytes) {
  return getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
}

}  // namespace tutti
