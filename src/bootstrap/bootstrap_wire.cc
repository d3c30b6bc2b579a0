#include "bootstrap/bootstrap_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tutti/version.h"

namespace tutti::wire {

static_assert(std::endian::native == std::endian::little, "integers are sent as they lie in memory");

std::uint32_t library_version() {
  return TUTTI_VERSION_MAJOR * 1'000'000 + TUTTI_VERSION_MINOR * 1'000 + TUTTI_VERSION_PATCH;
}

std::string version_text(std::uint32_t version) {
  return fmt::format("{}.{}.{}", version / 1'000'000, version / 1'000 % 1'000, version % 1'000);
}

namespace {

// Reads a struct of type T from `bytes`. Returns nothing if `bytes` has another length than T.
template <class T>
std::optional<T> read_whole(std::string_view bytes) {
  T value;
  if (bytes.size() != sizeof(value)) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace

std::optional<std::uint32_t> read_protocol(std::string_view body) {
  const auto start = read_whole<std::array<std::uint32_t, 2>>(body.substr(0, 2 * sizeof(std::uint32_t)));
  return start && (*start)[0] == kHelloMagic ? std::optional((*start)[1]) : std::nullopt;
}

std::optional<Hello> read_hello(std::string_view body) {
  const auto hello = read_whole<Hello>(body);
  const bool ours = hello && hello->magic == kHelloMagic && hello->protocol == kProtocol;
  return ours && hello->encryption <= Encryption::kMissing ? hello : std::nullopt;
}

std::optional<Challenge> read_challenge(std::string_view greeting) {
  return greeting.starts_with('\2') ? read_whole<Challenge>(greeting.substr(1)) : std::nullopt;
}

std::optional<std::string_view> read_refusal(std::string_view greeting) {
  return greeting.starts_with('\0') ? std::optional(greeting.substr(1)) : std::nullopt;
}

std::optional<Answer> read_answer(std::string_view body) { return read_whole<Answer>(body); }

std::string can_encrypt(bool can) { return {'\3', can ? '\1' : '\0'}; }

std::optional<bool> read_can_encrypt(std::string_view body) {
  if (body.size() != 2 || body[0] != '\3' || body[1] < 0 || body[1] > 1) return std::nullopt;
  return body[1] == 1;
}

std::optional<Nonce> read_meeting(std::string_view welcome) {
  return welcome.starts_with('\1') ? read_whole<Nonce>(welcome.substr(1)) : std::nullopt;
}

Tag job_tag(std::string_view job_id) { return tag_of(sha256({"tutti job id", job_id})); }

Digest server_proof(const Key& key, const Hello& hello, const Challenge& challenge) {
  return hmac_sha256(bytes_of(key), {"tutti server", bytes_of(hello), bytes_of(challenge.nonce)});
}

Digest rank_proof(const Key& key, const Hello& hello, const Nonce& nonce, const RankInfo& rank_info) {
  return hmac_sha256(bytes_of(key), {"tutti rank", bytes_of(hello), bytes_of(nonce), bytes_of(rank_info)});
}

Key tls_key(const Key& key, const Hello& hello, const Nonce& nonce) {
  return hmac_key(bytes_of(key), {"tutti set-up tls", bytes_of(hello), bytes_of(nonce)});
}

Key meeting_key(const Key& key, const Nonce& meeting) { return derive_key(key, "tutti meeting", bytes_of(meeting)); }

Seal::Seal(const Key& key, const Hello& hello, const Nonce& nonce, Direction direction)
    : key_(hmac_key(bytes_of(key), {direction == Direction::kToServer ? "tutti seals to server" : "tutti seals to rank",
                                    bytes_of(hello), bytes_of(nonce)})) {}

Tag Seal::next(const Digest& body) {
  const std::uint64_t number = count_++;
  return tag_of(hmac_sha256(bytes_of(key_), {bytes_of(number), bytes_of(body)}));
}

std::optional<std::string> Seal::open(std::string sealed) {
  if (sealed.size() < sizeof(Tag)) return std::nullopt;
  const std::string_view body = std::string_view(sealed).substr(0, sealed.size() - sizeof(Tag));
  const Tag wanted = next(sha256({body}));
  if (!equal_in_constant_time(bytes_of(wanted), std::string_view(sealed).substr(body.size()))) return std::nullopt;
  sealed.resize(body.size());
  return sealed;
}

std::string harmless(std::string_view text) {
  std::string shown(text.substr(0, 300));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown;
}

std::string frame(std::string_view body) {
  const auto length = static_cast<std::uint32_t>(body.size());
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += body;
  return bytes;
}

// Not inlined, because GCC 12 warns of a memcpy beyond the string if it knows the length of `content`.
[[gnu::noinline]] std::string with_kind(char kind, std::string_view content) {
  std::string body(1, kind);
  body += content;
  return body;
}

std::uint32_t frame_length(const std::array<char, 4>& header) {
  std::uint32_t length = 0;
  std::memcpy(&length, header.data(), sizeof(length));
  return length;
}

std::string pack(const std::vector<std::string>& blobs) {
  std::string all;
  for (const std::string& blob : blobs) all += frame(blob);
  return all;
}

std::optional<std::vector<std::string>> unpack(std::string_view all, std::size_t count) {
  std::vector<std::string> blobs;
  while (blobs.size() < count) {
    std::array<char, 4> header{};
    if (all.size() < header.size()) return std::nullopt;
    std::memcpy(header.data(), all.data(), header.size());
    all.remove_prefix(header.size());
    const std::size_t length = frame_length(header);
    if (length > all.size()) return std::nullopt;
    blobs.emplace_back(all.substr(0, length));
    all.remove_prefix(length);
  }
  return all.empty() ? std::optional(blobs) : std::nullopt;
}

std::string pack_failure(const Error& error) {
  std::string body(1 + sizeof(error.rank), '\0');
  body[0] = static_cast<char>(error.code);
  std::memcpy(body.data() + 1, &error.rank, sizeof(error.rank));
  return body + error.message;
}

Error unpack_failure(std::string_view body, ErrorScope scope) {
  Error error{ErrorCode::kRefused, scope, -1, "a failure was told that cannot be read"};
  if (body.size() < 1 + sizeof(error.rank) || static_cast<unsigned char>(body[0]) > unsigned(kLastErrorCode)) {
    return error;
  }
  error.code = static_cast<ErrorCode>(body[0]);
  std::memcpy(&error.rank, body.data() + 1, sizeof(error.rank));
  error.rank = std::max(error.rank, -1);
  error.message = body.substr(1 + sizeof(error.rank));
  return error;
}

}  // namespace tutti::wire
