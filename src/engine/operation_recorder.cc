#include "engine/operation_recorder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/failure_text.h"

namespace tutti {
namespace {

recording::CallPath path_of(const Operation& operation) {
  if (operation.plan == nullptr) return recording::CallPath::kTransfers;
  if (operation.by_mailbox) return recording::CallPath::kMailboxes;
  return operation.direct ? recording::CallPath::kDirect : recording::CallPath::kMessages;
}

// The readers of a recording calculate the length of a call from its tag. True if that is impossible: the tag has no
// element size if the call has a UserReduction, a segment has the tag of the whole call, and the tag of a v-variant has
// the count of all blocks.
bool must_record_bytes(const Call& call) {
  return call.tag.type == kUserTag || !call.lengths.counts.empty() || call.lengths.count != call.tag.count;
}

// For sends and receives: the larger one of the bytes sent and the bytes received, plus the bytes of the copies from
// this rank to itself.
std::uint64_t exchanged_bytes(const Operation& operation) {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const Transfer& transfer : operation.transfers) {
    (transfer.direction == Direction::kSend ? sent : received) += transfer.bytes;
  }
  std::uint64_t own = 0;
  for (const OwnCopy& copy : operation.own) own += copy.bytes;
  return std::max(sent, received) + own;
}

// The transfer that stands for the exchange. All ranks of a v-variant must show it, even if on some of them the
// exchange begins with other sends and receives of a group.
const Transfer& shown_transfer(const Operation& operation) {
  const auto variable = std::find_if(operation.transfers.begin(), operation.transfers.end(), is_part_of_variable_call);
  return variable == operation.transfers.end() ? operation.transfers.front() : *variable;
}

}  // namespace

void OperationRecorder::begin_collective(Operation& operation, std::uint8_t flags) {
  operation.recorded = context_.recorder->begin(operation.call.tag, path_of(operation), flags);
  context_.recorder->set_label(operation.recorded, operation.call.label);
  const std::uint64_t bytes = recorded_bytes(operation.call, operation.plan->shape.collective, context_.rank);
  context_.recorder->count(operation.call.tag.kind, bytes, !operation.follows);
  if (must_record_bytes(operation.call)) context_.recorder->add(operation.recorded, {.bytes = bytes});
}

void OperationRecorder::record_begin(Operation& operation) {
  const auto streamed = operation.start_condition == nullptr ? std::uint8_t{0} : recording::kStreamed;
  if (operation.plan != nullptr) return begin_collective(operation, streamed);
  // The record of an exchange names only one transfer and the number of all. An exchange without transfers only copies
  // data from this rank to itself, and is not recorded.
  if (operation.transfers.empty()) return;
  const Transfer& shown = shown_transfer(operation);
  const std::uint8_t sends = shown.direction == Direction::kSend ? recording::kSends : std::uint8_t{0};
  operation.recorded = context_.recorder->begin(shown.tag, recording::CallPath::kTransfers, streamed | sends);
  context_.recorder->set_label(operation.recorded, operation.call.label);
  const std::uint64_t bytes = exchanged_bytes(operation);
  context_.recorder->count(shown.tag.kind, bytes, true);
  context_.recorder->add(operation.recorded, {.bytes = bytes,
                                              .peer = shown.peer,
                                              .transfers = static_cast<std::uint32_t>(operation.transfers.size()),
                                              .variable_call = operation.variable_call});
}

void OperationRecorder::record_end(Operation& operation, const Status& result) {
  if (result.ok()) {
    if (operation.recorded != 0) context_.recorder->end(operation.recorded, context_.recorder->now());
    return;
  }
  // They may be the reason for the failure.
  sample_retransmissions(context_.environment.clock->now_ns(), kLeastBetweenSamplesNs);
  const std::uint64_t sequence = operation.plan == nullptr ? 0 : operation.call.tag.sequence;
  if (operation.recorded == 0 && operation.plan != nullptr) begin_collective(operation, recording::kNotStarted);
  if (operation.recorded == 0) return context_.recorder->failed(result.error(), sequence);
  context_.recorder->end_badly(operation.recorded, result.error(), sequence);
}

void OperationRecorder::record_retransmissions() {
  if (context_.recorder == nullptr) return;
  const auto counts = context_.transport.count_retransmissions();
  for (std::uint32_t peer = 0; peer < counts.size(); ++peer) {
    if (counts[peer]) context_.recorder->retransmissions(peer, *counts[peer]);
  }
}

void OperationRecorder::record_wait(std::span<const std::shared_ptr<Operation>> active, std::int64_t now_ns) {
  if (active.empty()) return;
  const Operation& operation = *active.front();
  std::vector<std::uint32_t> waited;
  std::vector<std::uint32_t> absent;
  std::string text = "its stream to come to this call";
  std::uint64_t sequence = operation.call.tag.sequence;
  if (operation.plan != nullptr && operation.started) {
    waited = tasks_.running()->waits_for_ranks();
    text = tasks_.running()->waits_for();
    for (std::uint32_t peer = 0; peer < context_.ranks; ++peer) {
      if (peer != context_.rank && context_.transport.peer_status(peer).entered < sequence) absent.push_back(peer);
    }
  } else if (operation.exchange != nullptr) {
    waited = unfinished_peers(*operation.exchange);
    text = operation.exchange->waits_for();
    sequence = 0;
  }
  context_.recorder->waits(
      {.serial = operation.recorded, .sequence = sequence, .waited = waited, .absent = absent, .text = text}, now_ns);
}

}  // namespace tutti
