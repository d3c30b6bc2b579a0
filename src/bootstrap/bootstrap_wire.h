// What ranks and server say to each other during set-up, all integers little-endian. A frame is u32 length, then that
// many bytes. K is the job's key, see runtime/job_key.h; | puts bytes one after the other.
//
//   rank to server   Hello                              which job, what kind of key, a nonce
//   server to rank   2 | Challenge                      a nonce of its own, HMAC(K, "server", Hello | nonce): it has
//   the key
//                 or 0 | the reason, and the end     not sealed: anybody can say that
//   rank to server   Introduction | HMAC(K, "rank", Hello | nonce | Introduction): it has the key, too
//                 or nothing, in a frame of no bytes: the challenge's proof is wrong
//
// From here on every frame ends with a seal, 16 bytes: HMAC over the frame's number in its direction and the SHA-256 of
// its body, by a key that K and both nonces give, one for each direction. What was altered, left out, repeated or comes
// from elsewhere does not fit its seal.
//
// If the hello says that this rank encrypts, the server first answers whether it can:
//
//   server to rank   3 | 1 or 0                         it can encrypt, or has no TLS library
//
// Only now, when the rank has proved that it has the key, does the server load the library. After a 1 everything goes
// by TLS 1.3, the server being the server, by the key HMAC(K, "tutti set-up tls" | Hello | nonce) as an external PSK,
// see transports/tcp/tls.h. The hello is in the server's proof and the answer has a seal, so nobody on the way can take
// either out. Ranks elsewhere that differ, or an end that cannot, fail round 0, in which nothing is told yet.
//
//   server to rank   1 | Meeting: welcome, and a nonce that all ranks of the set-up get     0 | the reason, and the end
//   rank to server   'b' | a blob: this rank's part of the next round       'q': this rank leaves set-up
//   server to rank   '+' | all ranks' blobs as frames: the round's result   '!' | a Failure: there is none
//
// Round 0 has empty blobs: its result says that all ranks have come. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hmac.h"
#include "tutti/result.h"

namespace tutti::wire {

inline constexpr std::uint32_t kHelloMagic = 0x48545554;  // "TUTH"
inline constexpr std::uint32_t kProtocol = 5;
inline constexpr std::size_t kMaxJobIdBytes = 128;
inline constexpr std::size_t kMaxHelloBytes = 256;        // of any protocol: magic and protocol stand first in all
inline constexpr std::size_t kMaxGreetingBytes = 1024;    // from the server before its seals
inline constexpr std::size_t kMaxFrameBytes = 64u << 20;  // all ranks' blobs at 16,384 ranks

using Nonce = std::array<std::uint8_t, 32>;

// Where a key comes from; both sides tell, so that each can say what is wrong.
enum class KeyKind : std::uint32_t { kGiven = 1, kMachine = 2, kUniqueId = 3, kUniqueIdAndKey = 4 };

// Of what follows the handshake. kMissing: this rank is to encrypt, and cannot; for the others' error.
enum class Encryption : std::uint32_t { kOff = 0, kOn = 1, kMissing = 2 };

struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t protocol = kProtocol;
  std::int32_t rank = 0;  // for messages; the one that counts is in the Introduction
  KeyKind key_kind = KeyKind::kGiven;
  Tag job{};  // job_tag()
  Nonce nonce{};
  Encryption encryption = Encryption::kOff;
};
static_assert(sizeof(Hello) == 68);

struct Challenge {
  Nonce nonce{};
  Digest proof{};
};
static_assert(sizeof(Challenge) == 64);

struct Introduction {
  std::uint32_t version = 0;  // of the library: major * 1,000,000 + minor * 1,000 + patch
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t reserved = 0;
  std::int64_t timeout_ms = 0;
};
static_assert(sizeof(Introduction) == 24);

struct Answer {
  Introduction introduction;
  Digest proof{};
};
static_assert(sizeof(Answer) == 56);

std::uint32_t library_version();
std::string version_text(std::uint32_t version);

// What has come, once its frame's length is known. Nothing in it is trusted: numbers may be any, and kinds none of
// ours. Nothing: it is no such word.
std::optional<Hello> read_hello(std::string_view body);             // magic and protocol are right
std::optional<std::uint32_t> read_protocol(std::string_view body);  // of a hello of whichever protocol
std::optional<Challenge> read_challenge(std::string_view greeting);
std::optional<std::string_view> read_refusal(std::string_view greeting);  // the reason
std::optional<Answer> read_answer(std::string_view body);
std::optional<bool> read_can_encrypt(std::string_view body);
std::optional<Nonce> read_meeting(std::string_view welcome);

// The server's word whether it can encrypt.
std::string can_encrypt(bool can);

// What strangers see of a job id.
Tag job_tag(std::string_view job_id);

Digest server_proof(const Key& key, const Hello& hello, const Challenge& challenge);  // whose proof does not matter
Digest rank_proof(const Key& key, const Hello& hello, const Nonce& nonce, const Introduction& introduction);

// Of one connection's TLS.
Key tls_key(const Key& key, const Hello& hello, const Nonce& nonce);

// The key of one set-up: out of the job's, and the nonce of a Meeting.
Key meeting_key(const Key& key, const Nonce& meeting);

// One direction of one connection.
class Seal {
 public:
  enum class Direction : std::uint8_t { kToServer, kToRank };
  Seal(const Key& key, const Hello& hello, const Nonce& nonce, Direction direction);
  // Of the next frame, whose body has that SHA-256.
  Tag next(const Digest& body);
  // The next frame's body, without its seal; nothing: the seal does not fit, and nothing more may be believed.
  std::optional<std::string> open(std::string sealed);

 private:
  Key key_;
  std::uint64_t count_ = 0;
};

std::string frame(std::string_view body);
std::uint32_t frame_length(const std::array<char, 4>& header);

// Of a text that anybody may have sent: at most 300 characters that a terminal may be given.
std::string harmless(std::string_view text);

// Blobs of all ranks, packed into one body and out of it.
std::string pack(const std::vector<std::string>& blobs);
std::optional<std::vector<std::string>> unpack(std::string_view all, std::size_t count);

// An error, as one body without its letter, and back; its scope does not travel.
std::string pack_failure(const Error& error);
Error unpack_failure(std::string_view body, ErrorScope scope = ErrorScope::kCommunicator);

}  // namespace tutti::wire
