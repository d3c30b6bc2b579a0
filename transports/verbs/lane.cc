#include "transports/verbs/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {

VerbsLane::VerbsLane(const VerbsLaneOptions& options, HandshakeChannel& handshake_channel)
    : options_(options),
      state_(options_, handshake_channel),
      memory_(options_.slots, options_.slot_bytes),
      pairs_(options_, state_),
      outputs_(state_, memory_, pairs_),
      receiver_(options_, state_, memory_, pairs_),
      sender_(options_, state_, memory_, pairs_, receiver_, outputs_.targets()) {}

Result<std::shared_ptr<VerbsLane>> VerbsLane::open(const VerbsLaneOptions& options, const std::vector<LaneRail>& rails,
                                                   HandshakeChannel& handshake_channel) {
  TUTTI_ASSERT(!rails.empty() && options.slots <= 0xffff);
  std::shared_ptr<VerbsLane> lane(new VerbsLane(options, handshake_channel));  // private constructor
  if (!lane->memory_.map()) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                 fmt::format("no memory for a connection to rank {}: {}", options.peer, std::strerror(errno))};
  }
  TUTTI_TRY(lane->pairs_.create(rails, lane->memory_, *lane));
  TUTTI_TRY(lane->state_.send_handshake(lane->pairs_.handshake_message(lane->memory_)));
  return lane;
}

void VerbsLane::close() {
  state_.close();
  pairs_.close();
}

void VerbsLane::drop_pins() {
  if (state_.broken().empty()) {
    runs_through([this] {
      const std::string words = "a send was given up before all of its data had been sent";
      state_.fail(fmt::format("{}: {}", pairs_.describe(0), words));
      state_.report_broken(0, words);
    });
    if (state_.broken().empty()) state_.fail("send given up");  // the text is so short that it needs no allocation
  }
  pairs_.close();
}

// A write that reaches a queue pair before it is ready to receive is lost, and is only sent again after a timeout.
// Therefore each side reports when its own queue pairs are ready, and sends only after the report of the other side
// has arrived.
void VerbsLane::connect() {
  if (!state_.broken().empty()) return;
  if (state_.awaits_handshake()) {
    const auto text = state_.take_handshake();
    if (!text) return;
    if (!pairs_.accept_handshake(*text)) {
      state_.fail(
          fmt::format("the queue pairs of rank {} do not match those of this rank: use the same "
                      "TUTTI_RDMA_QUEUE_PAIRS and the same build of Tutti on all ranks",
                      options_.peer));
    }
    if (!state_.broken().empty()) return;
    state_.send_ready();
  }
  state_.take_ready();
}

bool VerbsLane::ready() {
  if (sender_.may_send()) return true;
  pump();
  return sender_.may_send();
}

const LaneHeader* VerbsLane::front() {
  if (!receiver_.has_message()) pump();
  return receiver_.front();
}

void VerbsLane::pump() {
  if (state_.is_connecting()) connect();
  pairs_.poll();
  outputs_.acknowledge_revocation();
  receiver_.report_released_if_due();
}

void VerbsLane::receive_broken_report() {
  const auto report = state_.take_broken_report();
  if (!report) return;
  const std::size_t pair = std::min(report->pair, pairs_.size() - 1);
  state_.fail(fmt::format("{}: rank {} says: {}", pairs_.describe(pair), options_.peer, report->words));
}

void VerbsLane::on_arrival(std::size_t, std::uint32_t immediate) {
  using Immediate = LaneImmediate;
  const auto number = static_cast<std::uint16_t>(immediate);
  if ((immediate & Immediate::kIsAcknowledgement) != 0) return outputs_.note_acknowledgement(number);
  if ((immediate & Immediate::kIsRevocation) != 0) return outputs_.note_revocation(number);
  if ((immediate & Immediate::kIsDescriptor) != 0) {
    return outputs_.take_descriptor(immediate & (ReceiveTargets::kDescriptors - 1));
  }
  if ((immediate & Immediate::kIsReleased) != 0) return sender_.note_released_report(immediate);
  const std::uint32_t slot = immediate & ((1u << Immediate::kPartsShift) - 1);
  const std::uint32_t parts = (immediate >> Immediate::kPartsShift & (Immediate::kMostParts - 1)) + 1;
  const auto header = receiver_.take_part(slot, parts);
  if (!header) return;
  sender_.note_released(header->released);
  outputs_.note_received(header->seen);
  // Report the releases even if this poll was made for another lane, because the peer may be blocked until it gets
  // these credits.
  receiver_.report_released_if_due();
}

}  // namespace tutti
