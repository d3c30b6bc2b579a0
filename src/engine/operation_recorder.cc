#include "engine/operation_recorder.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tutti {
namespace {

recording::CallPath path_of(const Operation& operation) {
  if (operation.plan == nullptr) return recording::CallPath::kTransfers;
  if (operation.by_mailbox) return recording::CallPath::kMailboxes;
  return operation.direct ? recording::CallPath::kDirect : recording::CallPath::kMessages;
}

}  // namespace

void OperationRecorder::record_begin(Operation& operation) {
  const auto streamed = operation.start_condition == nullptr ? std::uint8_t{0} : recording::kStreamed;
  if (operation.plan != nullptr) {
    operation.recorded = context_.recorder->begin(operation.call.tag, path_of(operation), streamed);
    if (operation.call.tag.type == kUserTag) {
      context_.recorder->add(operation.recorded, operation.call.tag.count * operation.call.element_bytes, 0, 0);
    }
    return;
  }
  // The record of an exchange has the tag, direction and peer of its first transfer, the number of transfers and the
  // sum of their bytes. An exchange without transfers only copies data from this rank to itself, and is not recorded.
  if (operation.transfers.empty()) return;
  const Transfer& first = operation.transfers.front();
  const std::uint8_t sends = first.direction == Direction::kSend ? recording::kSends : std::uint8_t{0};
  std::uint64_t bytes = 0;
  for (const Transfer& transfer : operation.transfers) bytes += transfer.bytes;
  operation.recorded = context_.recorder->begin(first.tag, recording::CallPath::kTransfers, streamed | sends);
  context_.recorder->add(operation.recorded, bytes, first.peer, static_cast<std::uint32_t>(operation.transfers.size()));
}

void OperationRecorder::record_end(Operation& operation, const Status& result) {
  if (result.ok()) {
    if (operation.recorded != 0) context_.recorder->end(operation.recorded, context_.recorder->now());
    return;
  }
  const std::uint64_t sequence = operation.plan == nullptr ? 0 : operation.call.tag.sequence;
  if (operation.recorded == 0 && operation.plan != nullptr) {
    operation.recorded = context_.recorder->begin(operation.call.tag, path_of(operation), recording::kNotStarted);
  }
  if (operation.recorded == 0) return context_.recorder->failed(result.error(), sequence);
  context_.recorder->end_badly(operation.recorded, result.error(), sequence);
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
    for (const Transfer* transfer : operation.exchange->unfinished()) waited.push_back(transfer->peer);
    std::sort(waited.begin(), waited.end());
    waited.erase(std::unique(waited.begin(), waited.end()), waited.end());
    text = operation.exchange->waits_for();
    sequence = 0;
  }
  context_.recorder->waits(
      {.serial = operation.recorded, .sequence = sequence, .waited = waited, .absent = absent, .text = text}, now_ns);
}

}  // namespace tutti
