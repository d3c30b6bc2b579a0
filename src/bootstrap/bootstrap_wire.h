// The messages between a rank and the rendezvous server during set-up. All integers are little-endian. A frame is a
// u32 length followed by that many bytes. K is the job's key (bootstrap/job_key.h), and | means concatenation.
//
// The handshake proves to each side that the other one has K:
//
//   rank to server  Hello                         the job, the source of K, and a nonce
//   server to rank  2 | Challenge                 a nonce of the server and its proof of the key,
//                                                 HMAC(K, "tutti server", Hello | nonce)
//                   or 0 | reason                 the server refuses the rank and closes the connection; this is not
//                                                 sealed, so anyone could have sent it
//   rank to server  RankInfo | proof              proof of the key, HMAC(K, "tutti rank", Hello | nonce | RankInfo)
//                   or an empty frame             the proof in the challenge is wrong
//
// From here on every frame ends with a seal of 16 bytes. It is an HMAC of the frame's number in its direction and
// of the SHA-256 of its body. Its key is derived from K and both nonces, with a different one for each direction. A
// frame that was altered, omitted, repeated or inserted by a third party does not match its seal.
//
// If the hello requests encryption, the server first answers whether it can encrypt:
//
//   server to rank  3 | 1 or 0                    1: it can encrypt, 0: it has no TLS library
//
// The server loads the library only at this point, because the rank has now proved that it has K. After a 1, all
// data is sent over TLS 1.3, in which the rendezvous server is the TLS server. The external PSK is HMAC(K, "tutti
// set-up tls" | Hello | nonce), see transports/tcp/tls.h. The server's proof covers the hello and the answer has a
// seal, so an attacker on the network cannot remove either. If ranks on other machines differ in their use of
// encryption, or if one end cannot encrypt, round 0 fails. No data of the ranks has been sent at that time.
//
//   server to rank  1 | Meeting                   welcome, and a nonce that all ranks of the set-up receive
//                   or 0 | reason                 the server refuses the rank and closes the connection
//   rank to server  'b' | blob                    this rank's contribution to the next round
//                   'q'                           this rank leaves the set-up
//   server to rank  '+' | frames                  the result of the round: the blobs of all ranks, as frames
//                   '!' | failure                 the round has failed
//
// The blobs of round 0 are empty: its result means that all ranks have joined. All functions are pure, so any
// thread may call them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/crypto/hmac.h"
#include "tutti/result.h"

namespace tutti::wire {

inline constexpr std::uint32_t kHelloMagic = 0x48545554;  // "TUTH"
inline constexpr std::uint32_t kProtocol = 5;
inline constexpr std::size_t kMaxJobIdBytes = 128;
// Limit for a hello of any protocol version. All versions begin with the magic number and the protocol.
inline constexpr std::size_t kMaxHelloBytes = 256;
inline constexpr std::size_t kMaxGreetingBytes = 1024;    // for a frame that the server sends before it uses seals
inline constexpr std::size_t kMaxFrameBytes = 64u << 20;  // enough for the blobs of 16,384 ranks

using Nonce = std::array<std::uint8_t, 32>;

// The source of a key. Rank and server exchange it, so that each of them can explain a key mismatch.
enum class KeySource : std::uint32_t { kGiven = 1, kMachine = 2, kUniqueId = 3, kUniqueIdAndKey = 4 };

// Whether the data after the handshake is encrypted. kMissing: this rank is configured to encrypt but has no TLS
// library. It is sent so that the other ranks' error can state that.
enum class Encryption : std::uint32_t { kOff = 0, kOn = 1, kMissing = 2 };

struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t protocol = kProtocol;
  std::int32_t rank = 0;  // for messages only; RankInfo contains the authoritative rank
  KeySource key_source = KeySource::kGiven;
  Tag job{};  // job_tag() of the job id
  Nonce nonce{};
  Encryption encryption = Encryption::kOff;
};
static_assert(sizeof(Hello) == 68);

struct Challenge {
  Nonce nonce{};
  Digest proof{};
};
static_assert(sizeof(Challenge) == 64);

struct RankInfo {
  std::uint32_t version = 0;  // version of the library: major * 1,000,000 + minor * 1,000 + patch
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t reserved = 0;
  std::int64_t timeout_ms = 0;
};
static_assert(sizeof(RankInfo) == 24);

struct Answer {
  RankInfo rank_info;
  Digest proof{};
};
static_assert(sizeof(Answer) == 56);

std::uint32_t library_version();
std::string version_text(std::uint32_t version);

// Parsers of received frames, after their length has been read. The data is not trusted: numbers can have any
// value, and types can be unknown. They return nothing if the frame is not of the expected form.
std::optional<Hello> read_hello(std::string_view body);             // magic and protocol are checked
std::optional<std::uint32_t> read_protocol(std::string_view body);  // of a hello of any protocol version
std::optional<Challenge> read_challenge(std::string_view greeting);
std::optional<std::string_view> read_refusal(std::string_view greeting);  // the reason of a refusal
std::optional<Answer> read_answer(std::string_view body);
std::optional<bool> read_can_encrypt(std::string_view body);
std::optional<Nonce> read_meeting(std::string_view welcome);

// The server's frame that reports whether it can encrypt.
std::string can_encrypt(bool can);

// A hash of the job id. Unauthenticated processes see only this hash.
Tag job_tag(std::string_view job_id);

// The proof that is stored in `challenge` is not part of the input.
Digest server_proof(const Key& key, const Hello& hello, const Challenge& challenge);
Digest rank_proof(const Key& key, const Hello& hello, const Nonce& nonce, const RankInfo& rank_info);

// The key of one connection's TLS session.
Key tls_key(const Key& key, const Hello& hello, const Nonce& nonce);

// The key of one set-up, derived from the job's key and the nonce of its Meeting.
Key meeting_key(const Key& key, const Nonce& meeting);

// The seals of one direction of one connection.
class Seal {
 public:
  enum class Direction : std::uint8_t { kToServer, kToRank };
  Seal(const Key& key, const Hello& hello, const Nonce& nonce, Direction direction);
  // The seal of the next frame. `body` is the SHA-256 of its body.
  Tag next(const Digest& body);
  // Returns the body of the next frame without its seal. Returns nothing if the seal does not match. Then no
  // further frame of this connection may be trusted.
  std::optional<std::string> open(std::string sealed);

 private:
  Key key_;
  std::uint64_t count_ = 0;
};

std::string frame(std::string_view body);
std::uint32_t frame_length(const std::array<char, 4>& header);
// The body of a frame: its kind, followed by `content`.
std::string with_kind(char kind, std::string_view content);

// Makes a text from an untrusted sender safe to print on a terminal: at most 300 characters, all of them printable.
std::string harmless(std::string_view text);

// Packs the blobs of all ranks into one body, and unpacks it.
std::string pack(const std::vector<std::string>& blobs);
std::optional<std::vector<std::string>> unpack(std::string_view all, std::size_t count);

// Packs an error into one body (without the leading '!'), and unpacks it. The scope of the error is not
// transmitted.
std::string pack_failure(const Error& error);
Error unpack_failure(std::string_view body, ErrorScope scope = ErrorScope::kCommunicator);

}  // namespace tutti::wire
