// The messages between a rank and the rendezvous server during set-up. All integers are little-endian. A frame is a
// u32 length followed by that many bytes. K is the job's key (bootstrap/job_key.h), and | means concatenation.
//
// The handshake proves to each side that the other side has K:
//
//   rank to server  Hello                         the job, the source of K, a nonce, and more (struct Hello)
//   server to rank  2 | Challenge                 a nonce of the server and its proof of the key,
//                                                 HMAC(K, "tutti server", Hello | nonce)
//                   or 0 | reason                 the server refuses the rank and closes the connection; this is not
//                                                 sealed, so anyone could have sent it
//   rank to server  RankInfo | proof              proof of the key, HMAC(K, "tutti rank", Hello | nonce | RankInfo)
//                   or an empty frame             the proof in the challenge is wrong
//
// If the rank's proof is wrong, the server answers with 0 | reason without a seal, and closes the connection.
// Otherwise, from here on every frame ends with a seal of 16 bytes. It is the first half of an HMAC of the frame's
// number in its direction and of the SHA-256 of its body. The key of the HMAC is derived from K, the hello and the
// nonce of the server, and differs between the two directions. If a third party alters, omits, repeats or inserts a
// frame, the seal of that frame or of the next one does not match.
//
// If the hello requests encryption (Encryption::kOn), the server's first sealed frame states whether the server can
// encrypt:
//
//   server to rank  3 | 1 or 0                    1: it can encrypt, 0: it has no TLS library
//
// The server does not open the TLS library for this rank before this point, at which the rank has proved that it has K.
// After a 1, all data is sent over TLS 1.3, and the rendezvous server is the TLS server. After a 0, the data stays
// unencrypted, and round 0 fails unless the connection is over a loopback address. The external PSK is HMAC(K, "tutti
// set-up tls" | Hello | nonce), see transports/tcp/tls.h. The proof of the server covers the request for encryption in
// the hello, and the answer (1 or 0) has a seal, so an attacker on the network cannot remove the request or change the
// answer. Round 0 fails if some ranks encrypt and others do not, or if one end of a connection that must be encrypted
// cannot encrypt. Connections over a loopback address do not count, because other machines cannot read them. At that
// time no blob with content has been sent.
//
//   server to rank  1 | Meeting                   welcome, and a nonce that all ranks of the set-up receive
//                   or 0 | reason                 the server refuses the rank and closes the connection
//   rank to server  'b' | blob                    this rank's contribution to the next round
//                   'q'                           this rank leaves the set-up, which has succeeded on it, or waits no
//                                                 longer for the result of the round
//                   'x'                           this rank leaves the set-up, which has failed on it
//   server to rank  '+' | frames                  the result of the round: the blobs of all ranks, as frames
//                   '!' | failure                 the set-up has failed; no further round can succeed
//
// The blobs of round 0 are empty: its result only states that all ranks have joined. All functions below, except those
// of Seal, are pure, so any thread may call them. Only one thread at a time may use a Seal object.
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
// Version of this protocol. A server refuses a rank with another version.
inline constexpr std::uint32_t kProtocol = 5;
inline constexpr std::size_t kMaxJobIdBytes = 128;
// Limit for the Hello of any protocol version, in bytes. The Hello of every version begins with the magic number
// and the version, so that a server can name the version of a rank that it refuses.
inline constexpr std::size_t kMaxHelloBytes = 256;
// Limit for the first frame of the server, a challenge or a refusal.
inline constexpr std::size_t kMaxGreetingBytes = 1024;
// Limit for the welcome or a refusal in its place, and for a report about encryption before it.
inline constexpr std::size_t kMaxWelcomeBytes = 1u << 20;
// Limit for the result of a round: the '+', pack() of one blob of each rank, and the seal. `blob_bytes`: the maximum
// length of a blob.
constexpr std::size_t max_round_bytes(std::size_t ranks, std::size_t blob_bytes) {
  return ranks * (blob_bytes + 16) + 256;
}

using Nonce = std::array<std::uint8_t, 32>;

// The source of a key. The rank sends it in its Hello, so that the server's refusal can explain why the keys
// differ.
enum class KeySource : std::uint32_t { kGiven = 1, kMachine = 2, kUniqueId = 3, kUniqueIdAndKey = 4 };

// Whether the rank wants the data after the handshake to be encrypted. kMissing: the rank is configured to encrypt
// but has no TLS library, and its connection is not over a loopback address. The rank reports this to the server, so
// that the error on all ranks can name the rank that lacks the library.
enum class Encryption : std::uint32_t { kOff = 0, kOn = 1, kMissing = 2 };

struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t protocol = kProtocol;
  // Used only in the texts of refusals, because the sender has not proved yet that it has the key. After that proof,
  // the server uses RankInfo::rank.
  std::int32_t rank = 0;
  KeySource key_source = KeySource::kGiven;
  Tag job{};  // a hash of the job id, see job_tag()
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

// Parsers of received frames, without the length in front. A parser returns nothing if the frame does not have the
// expected kind or, if that kind has a fixed size, the expected size. The contents are not checked unless stated:
// numbers can have any value, and enumerators can be unknown.
std::optional<Hello> read_hello(std::string_view body);             // checks magic, protocol, encryption
std::optional<std::uint32_t> read_protocol(std::string_view body);  // the protocol version of any Hello
std::optional<Challenge> read_challenge(std::string_view greeting);
std::optional<std::string_view> read_refusal(std::string_view greeting);  // the reason of a refusal
std::optional<Answer> read_answer(std::string_view body);
std::optional<bool> read_can_encrypt(std::string_view body);  // checks that the value is 0 or 1
std::optional<Nonce> read_meeting(std::string_view welcome);

// Makes the frame in which the server reports whether it can encrypt.
std::string can_encrypt(bool can);

// A hash of the job id. The Hello contains this hash instead of the job id, so that a process without the key does
// not see the job id.
Tag job_tag(std::string_view job_id);

// The proofs of the handshake above, by the server and by the rank. server_proof() uses only the nonce of
// `challenge`, because the member `proof` is its result.
Digest server_proof(const Key& key, const Hello& hello, const Challenge& challenge);
Digest rank_proof(const Key& key, const Hello& hello, const Nonce& nonce, const RankInfo& rank_info);

// The pre-shared key of the TLS session of one connection. `nonce` is the nonce of the server's Challenge.
Key tls_key(const Key& key, const Hello& hello, const Nonce& nonce);

// The key of one set-up, derived from the job's key and `meeting`, the nonce that all ranks receive with the
// server's welcome. See Bootstrap::key().
Key meeting_key(const Key& key, const Nonce& meeting);

// Computes the seals of the frames that go in one direction over one connection. The sender and the receiver each
// have such an object, and both count the frames.
class Seal {
 public:
  enum class Direction : std::uint8_t { kToServer, kToRank };
  Seal(const Key& key, const Hello& hello, const Nonce& nonce, Direction direction);
  // Returns the seal of the next frame. `body` is the SHA-256 of the body of that frame.
  Tag next(const Digest& body);
  // Checks the seal at the end of the next frame, and returns the body without the seal. Returns nothing if the
  // seal does not match. In that case no further frame of this connection may be trusted.
  std::optional<std::string> open(std::string sealed);

 private:
  Key key_;
  std::uint64_t count_ = 0;
};

std::string frame(std::string_view body);
std::uint32_t frame_length(const std::array<char, 4>& header);
// The body of a frame: its kind, followed by `content`.
std::string with_kind(char kind, std::string_view content);

// Makes a text from an untrusted sender safe to print on a terminal: at most 300 characters, all of them printable
// ASCII.
std::string harmless(std::string_view text);

// pack() joins the blobs of all ranks into one text, each preceded by its length. unpack() splits that text again.
// It returns nothing if the text does not consist of exactly `count` blobs.
std::string pack(const std::vector<std::string>& blobs);
std::optional<std::vector<std::string>> unpack(std::string_view all, std::size_t count);

// pack_failure() turns an error into the body of a failure frame, without the leading '!'. unpack_failure()
// restores the error. The scope is not transmitted: `scope` is the scope of the restored error. If the body is
// malformed, unpack_failure() returns an error with the code kRefused.
std::string pack_failure(const Error& error);
Error unpack_failure(std::string_view body, ErrorScope scope = ErrorScope::kCommunicator);

}  // namespace tutti::wire
