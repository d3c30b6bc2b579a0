// Fuzzes out-of-band messages: messages that are split into datagrams and joined again (membership/oob_channel.h),
// the connection handshake of RDMA devices (transports/rdma/handshake_channel.h), and the messages of agree()
// (membership/consensus.h).
#include <memory>
#include <optional>
#include <vector>

#include "membership/consensus.h"
#include "membership/oob_channel.h"
#include "support.h"
#include "transports/rdma/handshake_channel.h"

namespace {

using namespace tutti;
using fuzz::demand;
using fuzz::Input;

constexpr std::uint64_t kSlotBytes = 4096;

void check_oob_channel(Input input) {
  detail::OobFragments parts;
  std::size_t come = 0;
  const std::string whole(input.rest());
  while (!input.empty()) {
    const std::string_view datagram = input.take_text(input.take<std::uint8_t>());
    come += datagram.size();
    if (const auto message = parts.add(datagram))
      demand(message->size() <= come, "no message is longer than its datagrams");
  }
  const auto datagrams = detail::split_into_datagrams(whole);
  for (std::size_t i = 0; i < datagrams.size(); ++i) {
    demand(datagrams[i].size() <= kMostDatagramBytes, "datagrams are not longer than the limit");
    const auto message = parts.add(datagrams[i]);
    demand(message.has_value() == (i + 1 == datagrams.size()), "the last datagram completes a message");
    if (message) demand(*message == whole, "a message is joined to the original text");
  }
}

// A connection that delivers the input, split at any offsets.
class Stream final : public ReceiveConnection {
 public:
  explicit Stream(Input input) : input_(input) {}
  Arrival arrival(const CallTag&, std::span<std::byte>) override {
    if (!message_.empty()) return Arrival::kMessage;
    if (input_.empty()) return Arrival::kNothing;
    message_ = input_.take_text(input_.take<std::uint8_t>());
    return message_.empty() ? Arrival::kNothing : Arrival::kMessage;
  }
  CallTag mismatched_tag() const override { return {}; }
  Message front() override {
    return {.data = reinterpret_cast<const std::byte*>(message_.data()), .bytes = message_.size()};
  }
  void release() override { message_ = {}; }
  bool empty() const { return input_.empty(); }

 private:
  Input input_;
  std::string_view message_;
};

// A connection that accepts no messages.
class Nowhere final : public SendConnection {
 public:
  bool ready() override { return false; }
  std::byte* slot() override { return nullptr; }
  void send_slot(std::uint64_t, const CallTag&) override {}
  void send_published(const WindowRef&, std::uint64_t, const CallTag&) override {}
  void send_delivered(std::uint64_t, const CallTag&) override {}
  bool drained() override { return true; }
  bool handed_over() override { return true; }
};

void check_handshakes(Input input) {
  HandshakeChannel handshake_channel(
      [](std::uint32_t) { return Result<std::unique_ptr<SendConnection>>(std::make_unique<Nowhere>()); },
      [&](std::uint32_t) { return Result<std::unique_ptr<ReceiveConnection>>(std::make_unique<Stream>(input)); },
      kSlotBytes);
  demand(handshake_channel.send(1, 0, "me").ok(), "the handshake accepts a peer");
  for (std::size_t round = 0; round <= input.rest().size(); ++round) handshake_channel.pump();
  for (std::uint16_t lane = 0; lane < 4; ++lane) {
    const auto text = handshake_channel.take(1, lane);
    demand(!text || text->size() <= HandshakeChannel::kMaxMessageBytes,
           "handshake messages are not longer than the limit");
  }
  demand(handshake_channel.corrupt(1) == !handshake_channel.trouble().empty(), "a corrupt peer has an error text");
}

class Post final : public detail::ConsensusMessenger {
 public:
  explicit Post(Input input) : input_(input) {}
  void send(std::uint32_t, std::string_view) override {}
  std::optional<std::string> take(std::uint32_t) override {
    if (input_.empty()) return std::nullopt;
    const auto bytes = input_.take<std::uint8_t>() % 64;
    return std::string(input_.take_text(static_cast<std::size_t>(bytes)));
  }
  bool gone(std::uint32_t peer) override { return input_.empty() && peer == 0; }
  bool always_reachable(std::uint32_t peer) override { return peer != 2; }

 private:
  Input input_;
};

void check_consensus(Input input) {
  constexpr std::uint32_t kRanks = 5;
  const std::uint32_t rank = input.take<std::uint8_t>() % kRanks;
  Post post(input);
  detail::Consensus consensus(rank, kRanks, post);
  constexpr std::int64_t kPatienceNs = 1'000'000'000;
  consensus.begin({.operation = 7, .value = 1}, std::vector<bool>(kRanks), kPatienceNs, 0);
  bool over = false;
  for (std::int64_t now_ns = 0; now_ns < 20 * kPatienceNs && !over; now_ns += kPatienceNs / 4) {
    over = consensus.step(now_ns);
  }
  demand(over, "a consensus ends");
  const auto& outcome = consensus.outcome();
  if (!outcome) return demand(!outcome.error().message.empty(), "an error has a message and a known code");
  demand(outcome->members.size() == kRanks && outcome->members[rank], "a rank with a decision is a member");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  switch (input.take<std::uint8_t>() % 3) {
    case 0: check_oob_channel(input); break;
    case 1: check_handshakes(input); break;
    default: check_consensus(input);
  }
  return 0;
}
