#include "transports/tcp/wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace tutti {

std::string_view to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kProtocol: return "it speaks another protocol";
    case Refusal::kVersion: return "it speaks another version of the protocol";
    case Refusal::kNonce:
      return "it does not have this endpoint's nonce: it belongs to another job, or has the address of an earlier one";
    case Refusal::kProof: return "it does not have the job's key, or was altered in transit";
    case Refusal::kReplay: return "it is a copy of an earlier connection";
    case Refusal::kShape: return "its number of ranks, lanes or slot bytes is different";
    case Refusal::kDuplicate: return "that connection exists already";
    case Refusal::kFull: return "too many connections wait for communicators that do not exist here";
    case Refusal::kSilence: return "it did not complete its preamble or its TLS handshake in time";
    case Refusal::kEncryption: return "one end encrypts, and the other does not: give all the same TUTTI_ENCRYPT";
    case Refusal::kNone:
    case Refusal::kUnknown: break;
  }
  return "unknown reason";
}

Tag proof_of(const Preamble& preamble, const Key& key) {
  const std::string_view before = bytes_of(preamble).substr(0, offsetof(Preamble, proof));
  return tag_of(hmac_sha256(bytes_of(key), {"tutti connection", before}));
}

Key key_of_connection(const Preamble& preamble, const Key& key) {
  return derive_key(key, "tutti tls", bytes_of(preamble));
}

FrameHeader make_close_frame(std::uint64_t entered, std::uint64_t left, const std::optional<CallFailure>& failure) {
  FrameHeader frame{.kind = FrameKind::kClose};
  frame.tag.sequence = entered;
  frame.tag.count = left;
  if (failure) {
    frame.tag.type = static_cast<std::uint8_t>(static_cast<int>(failure->code) + 1);
    frame.tag.op = static_cast<std::uint8_t>(failure->argument);
    frame.tag.root = static_cast<std::uint32_t>(failure->culprit);
  }
  return frame;
}

FrameHeader refusal_frame(Refusal refusal) {
  FrameHeader frame{.kind = FrameKind::kRefusal};
  frame.tag.kind = static_cast<std::uint8_t>(refusal);
  return frame;
}

Reply reply_of(const FrameHeader& frame) {
  if (frame.magic == kFrameMagic && frame.kind == FrameKind::kClose) {
    Reply reply{.kind = Reply::Kind::kClose, .entered = frame.tag.sequence, .left = frame.tag.count};
    const CallTag& tag = frame.tag;
    if (tag.type > 0 && tag.type - 1 <= static_cast<int>(kLastErrorCode) &&
        tag.op <= static_cast<std::uint8_t>(kLastCallArgument)) {
      reply.failure = {.code = static_cast<ErrorCode>(tag.type - 1),
                       .culprit = static_cast<std::int32_t>(tag.root),
                       .argument = static_cast<CallArgument>(tag.op)};
    }
    return reply;
  }
  const auto reason = std::min<std::uint8_t>(frame.tag.kind, static_cast<std::uint8_t>(Refusal::kUnknown));
  return {.kind = Reply::Kind::kRefused, .refusal = static_cast<Refusal>(reason)};
}

std::string PeerAddress::text() const { return fmt::format("{}/{:02x}", socket.text(), fmt::join(nonce, "")); }

Result<PeerAddress> PeerAddress::parse(const std::string& text, std::int32_t peer) {
  const Error unreadable{ErrorCode::kRefused, ErrorScope::kCommunicator, peer,
                         fmt::format("rank {} published a TCP address that cannot be read", peer)};
  PeerAddress address;
  const std::size_t slash = text.find('/');
  if (text.size() > 127 || slash == std::string::npos || text.size() - slash - 1 != 2 * address.nonce.size()) {
    return unreadable;
  }
  auto socket = parse_address(text.substr(0, slash));
  if (!socket) return unreadable;
  address.socket = *socket;
  const char* at = text.data() + slash + 1;
  for (std::uint8_t& byte : address.nonce) {
    const auto [stopped, error] = std::from_chars(at, at + 2, byte, 16);
    if (error != std::errc() || stopped != at + 2) return unreadable;
    at += 2;
  }
  return address;
}

}  // namespace tutti
