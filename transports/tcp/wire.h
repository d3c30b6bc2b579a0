// What travels on a TCP connection: one preamble, by which the one that connects shows that it has the job's key and
// that this is no copy of an earlier connection; then frames. A connection carries data from who connected. The other
// way it carries at most one frame, a goodbye or a refusal, unless the lower one of two ranks has connected: then the
// higher one may send its data there, too, and a goodbye behind them. It says so by a kMoved frame on the connection
// that it had made for that lane, and by another one there when it goes back. Control connections carry kState frames.
// Connections for datagrams carry kDatagram frames both ways.
//
// All integers are little-endian at fixed offsets, so a frame is a struct's bytes. Nothing that is read is trusted:
// kinds, lengths and enumerators are checked before use.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/call_tag.h"
#include "base/hmac.h"
#include "transports/tcp/socket.h"
#include "transports/transport.h"

namespace tutti {

static_assert(std::endian::native == std::endian::little,
              "frames are structs' bytes: swap them on big-endian machines");

inline constexpr std::uint32_t kWireMagic = 0x49545554;   // "TUTI"
inline constexpr std::uint32_t kFrameMagic = 0x4d524654;  // "TFRM"
inline constexpr std::uint16_t kWireVersion = 3;

using WireNonce = std::array<std::uint8_t, 16>;  // drawn by the listener, told by the bootstrap; no secret

enum class TcpLinkKind : std::uint8_t { kData = 1, kControl = 2, kNotes = 3 };

// The first bytes of a connection. magic and version keep their places in all versions.
struct Preamble {
  std::uint32_t magic = kWireMagic;
  std::uint16_t version = kWireVersion;
  TcpLinkKind kind = TcpLinkKind::kData;
  std::uint8_t encrypted = 0;  // 1: TLS follows; nothing else does so far
  WireNonce nonce{};           // the receiver's
  std::uint64_t communicator = 0;
  std::uint32_t sender = 0;
  std::uint32_t receiver = 0;
  std::uint32_t ranks = 0;
  std::uint32_t slot_bytes = 0;
  std::uint16_t lane = 0;
  std::array<std::uint16_t, 3> reserved_too{};
  std::uint64_t source = 0;  // random: the endpoint that connects
  std::uint64_t serial = 0;  // its connections to this listener are counted from 1 on
  Tag proof{};               // proof_of()
};
static_assert(sizeof(Preamble) == 88 && alignof(Preamble) == 8);

// HMAC-SHA-256 over all that stands before it; the listener's nonce among it.
Tag proof_of(const Preamble& preamble, const Key& key);
// Of the one connection that begins so: `key` is the job's.
Key key_of_connection(const Preamble& preamble, const Key& key);

enum class FrameKind : std::uint32_t {
  kMessage = 1,   // `bytes` of payload follow
  kGoodbye = 2,   // the other end has destroyed its communicator; tag: see goodbye_frame()
  kRefusal = 3,   // the preamble was not accepted; tag.kind: Refusal
  kState = 4,     // a StateRecord follows; tag: the call entered last
  kMoved = 5,     // the next message of this lane comes on the other connection that the higher rank may use for it
  kDatagram = 6,  // `bytes` of a datagram follow
};

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
  kEncryption
};
std::string_view to_string(Refusal refusal);

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kMessage;
  std::uint64_t bytes = 0;
  CallTag tag{};
};
static_assert(sizeof(FrameHeader) == 48 && alignof(FrameHeader) == 8);
inline constexpr std::size_t kHeaderBytes = sizeof(FrameHeader);

// A rank's own status, told to its peers.
struct StateRecord {
  std::uint64_t entered = 0;
  std::uint64_t left = 0;
  std::uint64_t failed = 0;  // sequence number of the call that failed last; 0: none
  std::uint32_t code = 0;    // ErrorCode of that failure
  std::int32_t culprit = -1;
  std::uint32_t argument = 0;  // CallArgument
  std::uint32_t life = 0;      // PeerLife
};
static_assert(sizeof(StateRecord) == 40 && alignof(StateRecord) == 8);

// tag.sequence: call entered last; tag.count: left last. How that one failed, if it did: tag.type: ErrorCode and one,
// tag.op: CallArgument, tag.root: the culprit.
FrameHeader goodbye_frame(std::uint64_t entered, std::uint64_t left, const std::optional<CallFailure>& failure = {});
FrameHeader refusal_frame(Refusal refusal);

// Where a rank listens and how it knows that it was meant: what TcpEndpoint::address() prints. A value.
struct PeerAddress {
  SocketAddress socket;
  WireNonce nonce{};

  std::string text() const;
  static Result<PeerAddress> parse(const std::string& text, std::int32_t peer);
};

// What the other end says to one that only sends.
struct Reply {
  enum class Kind : std::uint8_t { kNothing, kGoodbye, kRefused, kEnded } kind = Kind::kNothing;
  std::uint64_t entered = 0;
  std::uint64_t left = 0;
  std::optional<CallFailure> failure{};  // of that call
  Refusal refusal = Refusal::kNone;
  int error = 0;  // kEnded: errno, 0 for end of file
};

// Of a goodbye or a refusal.
Reply reply_of(const FrameHeader& frame);

}  // namespace tutti
