// VerbsLane: both directions between this rank and one peer on one lane, over one or several queue pairs. Each side
// has slots into which the other side writes. A message is an RDMA write with immediate data, or several if the message
// is long: it is then divided into parts, normally at most one for each queue pair. The immediate data contains the
// index of the slot and the number of parts. A header precedes the payload in the slot.
//
// If the sender knows the position of a long message in the output of the receiver (see ReceiveTargets), the payload
// is written directly to that position, and only the header is written into the slot. The header follows the first
// part on the same queue pair, so its completion implies that the first part has arrived, too. A direct message of a
// point-to-point send can be longer than a slot.
//
// Memory is only read after the completion that announces it, or after the completion of a later write on the same
// reliable queue pair. Therefore neither the order in which the network delivers packets (adaptive routing) nor the
// order in which the PCIe bus writes them (relaxed ordering) matters.
//
// Each header also reports how many messages of the other direction have been released. That returns credits without
// an extra message; LaneReceiver decides when an extra message is needed nevertheless.
//
// The lane owns its parts and connects them: LaneState (the handshake and failures), LaneMemory (the slots),
// QueuePairs, LaneSender, LaneReceiver and AdvertisedOutputs. Use a lane in the thread that drives progress. It is
// shared by the connections of both directions and by the VerbsPath.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transports/rdma/handshake_channel.h"
#include "transports/verbs/advertised_outputs.h"
#include "transports/verbs/lane_memory.h"
#include "transports/verbs/lane_receiver.h"
#include "transports/verbs/lane_sender.h"
#include "transports/verbs/lane_state.h"
#include "transports/verbs/queue_pairs.h"
#include "transports/verbs/rail.h"

namespace tutti {

class VerbsLane final : public CompletionHandler {
 public:
  // Creates the queue pairs, allocates and registers the memory, and sends the handshake. Errors: kSystem, with the
  // name of the device if the device refuses, and those of HandshakeChannel::send().
  static Result<std::shared_ptr<VerbsLane>> open(const VerbsLaneOptions& options, const std::vector<LaneRail>& rails,
                                                 HandshakeChannel& handshake_channel);
  ~VerbsLane() override { close(); }

  const VerbsLaneOptions& options() const { return options_; }
  const LaneState& state() const { return state_; }
  QueuePairs& pairs() { return pairs_; }
  // Call the functions of the sender that send a message only if ready() is true.
  LaneSender& sender() { return sender_; }
  LaneReceiver& receiver() { return receiver_; }
  AdvertisedOutputs& outputs() { return outputs_; }

  // True if a message can be sent now. Processes completions first if there is no credit or no space.
  bool ready();
  // The header of the next message. Null if no message has arrived, if its header is malformed, or if the lane is
  // corrupt. A header that was returned before stays the result until release(), even if the lane becomes corrupt.
  const LaneHeader* front();
  void pump();  // continues the handshake, processes completions, and sends acknowledgements and releases that are due
  // Fails this end of the lane if the peer has reported that its own end has broken.
  void receive_broken_report();
  // Destroys the queue pairs, so that no NIC reads memory of the user any more. The lane is then broken, and the peer
  // is informed if that is possible. Used if a send is given up while a NIC may still read its memory.
  void drop_pins();
  // Destroys the queue pairs and deregisters the memory, because the VerbsPath ends. Connections may still hold the
  // lane afterwards.
  void close();

 private:
  VerbsLane(const VerbsLaneOptions& options, HandshakeChannel& handshake_channel);
  void connect();

  void on_arrival(std::size_t pair, std::uint32_t immediate) override;
  void on_done(std::size_t pair, std::uint64_t number) override { pairs_.note_done(pair, number); }
  void on_failure(std::size_t pair, const std::string& words) override { pairs_.note_failure(pair, words); }

  const VerbsLaneOptions options_;
  LaneState state_;
  LaneMemory memory_;  // outlives the queue pairs, because devices write into it
  QueuePairs pairs_;
  AdvertisedOutputs outputs_;
  LaneReceiver receiver_;
  LaneSender sender_;
};

}  // namespace tutti
