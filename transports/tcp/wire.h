// The data on a TCP connection: one preamble, followed by frames.
//
// With the preamble, the rank that connects proves that it has the key of the job, and that the connection is not a
// copy of an earlier one. There are three types of connections (TcpLinkKind):
//
//   data       Frames with messages of one lane and then a close frame, sent by the rank that has connected. In the
//              other direction at most one frame is sent, a close frame or a refusal. Exception: if the lower of the
//              two ranks has connected, the higher rank may send its messages on this connection too, followed by a
//              close frame. Before that, the higher rank sends a kMoved frame on the connection that it has made itself
//              for that lane. If it switches back to its own connection, it sends another kMoved frame on this
//              connection.
//   control    kState frames, sent by the rank that has connected. The other rank can send a close frame or a refusal.
//   datagrams  kDatagram frames in both directions. The rank that has not connected can send a close frame or a
//              refusal instead, if it does not use the connection.
//
// All integers are little-endian at fixed offsets, so a frame consists of the bytes of a struct. Received data is not
// trusted: types, lengths and enumerators are checked before use.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/call_tag.h"
#include "base/crypto/hmac.h"
#include "transports/tcp/socket.h"
#include "transports/transport.h"

namespace tutti {

static_assert(std::endian::native == std::endian::little,
              "frames are structs' bytes: swap them on big-endian machines");

inline constexpr std::uint32_t kWireMagic = 0x49545554;   // "TUTI"
inline constexpr std::uint32_t kFrameMagic = 0x4d524654;  // "TFRM"
inline constexpr std::uint16_t kWireVersion = 3;

// Random number by which a rank that connects shows that it means this listener. The listener publishes it through
// the bootstrap; it is not secret.
using WireNonce = std::array<std::uint8_t, 16>;

enum class TcpLinkKind : std::uint8_t { kData = 1, kControl = 2, kDatagrams = 3 };

// The first bytes of a connection. `magic` and `version` have the same offset in all versions of the protocol.
struct Preamble {
  std::uint32_t magic = kWireMagic;
  std::uint16_t version = kWireVersion;
  TcpLinkKind kind = TcpLinkKind::kData;
  // 1: TLS follows. 0: the connection is not encrypted. The receiver refuses a value that differs from its own setting.
  std::uint8_t encrypted = 0;
  WireNonce nonce{};  // the nonce of the listener
  std::uint64_t communicator = 0;
  std::uint32_t sender = 0;
  std::uint32_t receiver = 0;
  std::uint32_t ranks = 0;
  std::uint32_t slot_bytes = 0;
  std::uint16_t lane = 0;
  std::array<std::uint16_t, 3> reserved_too{};
  std::uint64_t source = 0;  // random number that identifies the endpoint that connects
  std::uint64_t serial = 0;  // number of this connection among those from `source` to this listener, starting from 1
  Tag proof{};               // the result of proof_of()
};
static_assert(sizeof(Preamble) == 88 && alignof(Preamble) == 8);

// The first 16 bytes of the HMAC-SHA-256, with the key of the job, of a fixed label and of all fields before `proof`,
// including the nonce of the listener.
Tag proof_of(const Preamble& preamble, const Key& key);
// Derives the TLS key of the connection that begins with this preamble. `key` is the key of the job.
Key key_of_connection(const Preamble& preamble, const Key& key);

enum class FrameKind : std::uint32_t {
  kMessage = 1,  // `bytes` bytes of payload follow
  kClose = 2,    // the sender makes no more calls with this communicator; tag: see make_close_frame()
  kRefusal = 3,  // the connection was not accepted; tag.kind: the reason, a Refusal
  kState = 4,    // a StateRecord follows; tag: the tag of the last call that the sender entered
  // The next message of this lane arrives on the other of the two connections that the higher rank can use for it.
  kMoved = 5,
  kDatagram = 6,  // `bytes` bytes of a datagram follow
};

// Why a connection was refused; to_string() describes each value.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kProtocol,
  kVersion,
  kNonce,
  kProof,
  kReplay,
  kShape,
  kDuplicate,
  kFull,
  kSilence,
  kEncryption,
  kUnknown  // a number that this version does not know
};
std::string_view to_string(Refusal refusal);

// The beginning of each frame. The meaning of `bytes` and `tag` depends on `kind`.
struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kMessage;
  std::uint64_t bytes = 0;
  CallTag tag{};
};
static_assert(sizeof(FrameHeader) == 48 && alignof(FrameHeader) == 8);
inline constexpr std::size_t kHeaderBytes = sizeof(FrameHeader);

// The state of a rank, as the rank reports it to its peers in a kState frame.
struct StateRecord {
  std::uint64_t entered = 0;
  std::uint64_t left = 0;
  std::uint64_t failed = 0;  // sequence number of the last call that failed; 0: none has failed
  std::uint32_t code = 0;    // an ErrorCode: how call `failed` failed
  std::int32_t culprit = -1;
  std::uint32_t argument = 0;  // a CallArgument, see CallFailure
  std::uint32_t life = 0;      // a PeerLife
};
static_assert(sizeof(StateRecord) == 40 && alignof(StateRecord) == 8);

// Creates a close frame. tag.sequence is `entered`, the last call that this rank entered, and tag.count is `left`,
// the last call that it left. If the call `left` failed, `failure` is set: tag.type is then the ErrorCode plus one,
// tag.op the CallArgument, and tag.root the culprit. Otherwise tag.type is 0.
FrameHeader make_close_frame(std::uint64_t entered, std::uint64_t left, const std::optional<CallFailure>& failure = {});
FrameHeader refusal_frame(Refusal refusal);

// The address at which an endpoint listens, and the nonce of its listener. text() is the result of
// TcpEndpoint::address(), and parse() reads it. A value.
struct PeerAddress {
  SocketAddress socket;
  WireNonce nonce{};

  std::string text() const;
  static Result<PeerAddress> parse(const std::string& text, std::int32_t peer);
};

// The close frame or the refusal that the other end has sent on a connection, or how the connection ended without such
// a frame. kNothing: the connection is open, and no such frame was found. kInvalid: the connection was closed because
// it brought invalid data.
struct Reply {
  enum class Kind : std::uint8_t { kNothing, kClose, kRefused, kEnded, kInvalid } kind = Kind::kNothing;
  std::uint64_t entered = 0;
  std::uint64_t left = 0;
  std::optional<CallFailure> failure{};  // for kClose: how the call `left` failed; empty if it did not fail
  Refusal refusal = Refusal::kNone;
  int error = 0;  // for kEnded: an errno, or one of tls_end; 0 for end of file
};

// Decodes a close frame or a refusal. Any other frame counts as a refusal, with the reason in tag.kind, or kEncryption
// if that number is too high.
Reply reply_of(const FrameHeader& frame);

}  // namespace tutti
