#include "transports/verbs/lane_state.h"

#include <cstring>
#include <utility>

namespace tutti {
namespace {

// Set in the lane number of a handshake message: "my queue pairs are ready to receive".
constexpr std::uint16_t kReadyFlag = 0x8000;
// Set in the lane number of a handshake message: "this lane has broken". The message contains the index of the queue
// pair and the reason.
constexpr std::uint16_t kBrokenFlag = 0x4000;
constexpr std::size_t kMaxReasonBytes = 256;

}  // namespace

Status LaneState::send_handshake(const std::string& text) { return handshake_channel_.send(peer_, lane_, text); }

std::optional<std::string> LaneState::take_handshake() {
  auto text = handshake_channel_.take(peer_, lane_);
  if (!text && handshake_channel_.corrupt(peer_)) fail(handshake_channel_.trouble());
  return text;
}

void LaneState::send_ready() {
  const Status sent = handshake_channel_.send(peer_, lane_ | kReadyFlag, "");
  if (!sent.ok()) return fail(sent.error().message);
  stage_ = Stage::kReadySent;
}

void LaneState::take_ready() {
  if (stage_ == Stage::kReadySent && handshake_channel_.take(peer_, lane_ | kReadyFlag)) stage_ = Stage::kConnected;
}

void LaneState::fail(const std::string& why) {
  if (broken_.empty()) broken_ = why;
}

// The report is needed because the peer may not notice the failure by itself: its own queue pair may still work, and
// the peer may only be receiving.
void LaneState::report_broken(std::size_t pair, const std::string& words) {
  const auto number = static_cast<std::uint32_t>(pair);
  std::string text(reinterpret_cast<const char*>(&number), sizeof(number));
  text += words.substr(0, kMaxReasonBytes);
  static_cast<void>(
      // Errors are ignored, because the lane has failed already.
      handshake_channel_.send(peer_, lane_ | kBrokenFlag, text));
}

std::optional<LaneState::BrokenReport> LaneState::take_broken_report() {
  if (is_closed() || peer_reported_broken_ || is_connecting()) return std::nullopt;
  const auto text = handshake_channel_.take(peer_, lane_ | kBrokenFlag);
  std::uint32_t number = 0;
  if (!text || text->size() < sizeof(number)) return std::nullopt;
  std::memcpy(&number, text->data(), sizeof(number));
  peer_reported_broken_ = true;
  std::string words = text->substr(sizeof(number), kMaxReasonBytes);
  for (char& c : words) c = c >= ' ' && c <= '~' ? c : '?';  // sent by a peer, so it may contain anything
  return BrokenReport{.pair = number, .words = std::move(words)};
}

}  // namespace tutti
