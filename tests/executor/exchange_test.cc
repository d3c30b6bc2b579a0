// Tests Exchange with aimed messages: messages that the sender writes directly into the receive buffer that the
// peer has advertised. The tests check how long the sent messages are, and which received messages are accepted.
// The connections are fakes that the tests control. One test receives over TCP, because only TCP reads a message in
// parts. Plain sends and receives are tested in the conformance suite.
#include "executor/exchange.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "tests/transports/tcp_support.h"
#include "transports/sim/sim_environment.h"

namespace tutti {
namespace {

constexpr std::uint64_t kSlotBytes = 100;
constexpr std::uint64_t kLongest = 450;

// A fake connection that records the messages sent. It accepts aimed messages after `advertised_after` messages.
class FakeSend final : public SendConnection {
 public:
  struct Sent {
    std::uint64_t offset;
    std::uint64_t bytes;
    bool aimed;
    bool operator==(const Sent&) const = default;
  };
  explicit FakeSend(const std::byte* start) : start_(start) {}
  bool ready() override { return true; }
  std::byte* slot() override { return nullptr; }
  void send_slot(std::uint64_t, const CallTag&) override { ADD_FAILURE() << "sends are pinned"; }
  void send_pinned(std::span<const std::byte>, const std::byte* data, std::uint64_t bytes, const CallTag&) override {
    sent.push_back({.offset = static_cast<std::uint64_t>(data - start_), .bytes = bytes, .aimed = false});
  }
  std::uint64_t min_aimed_bytes() const override { return 10; }
  bool aim(const CallTag&, std::uint64_t, std::uint64_t) override { return sent.size() >= advertised_after; }
  std::uint64_t send_aimed(std::span<const std::byte>, const std::byte* data, std::uint64_t bytes,
                           const CallTag&) override {
    if (refuses) return 0;
    const std::uint64_t length = std::min(bytes, kLongest);
    sent.push_back({.offset = static_cast<std::uint64_t>(data - start_), .bytes = length, .aimed = true});
    return length;
  }
  void send_published(const WindowRef&, std::uint64_t, const CallTag&) override {}
  void send_delivered(std::uint64_t, const CallTag&) override {}
  bool pins_done() override { return !reads_buffer; }
  void drop_pins() override { dropped = true; }
  bool drained() override { return !reads_buffer; }
  bool handed_over() override { return !reads_buffer; }

  std::size_t advertised_after = 0;  // number of messages after which the peer's receive buffer counts as advertised
  bool refuses = false;              // if true, aimed sends fail, as for memory that cannot be registered
  bool reads_buffer = false;         // a device still reads the buffer of the send
  bool dropped = false;
  std::vector<Sent> sent;

 private:
  const std::byte* const start_;
};

// A fake connection that delivers the messages in `messages`.
class FakeReceive final : public ReceiveConnection {
 public:
  Arrival arrival(const CallTag&, std::span<std::byte>) override {
    return messages.empty() ? Arrival::kNothing : Arrival::kMessage;
  }
  std::uint64_t min_aimed_bytes() const override { return 10; }
  bool advertise_output(const CallTag&, std::span<std::byte>) override { return advertises; }
  void withdraw_output(bool) override { withdrawn = true; }
  CallTag mismatched_tag() const override { return {}; }
  Message front() override { return messages.front(); }
  void release() override { messages.pop_front(); }

  bool advertises = true;
  bool withdrawn = false;
  std::deque<Message> messages;
};

class LandedExchange : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 1000;

  // Runs one transfer of kBytes between a fake connection and `memory`, as far as it can progress.
  void start(Direction direction) {
    Transfer transfer{.direction = direction, .peer = 1, .data = memory.data(), .bytes = kBytes, .tag = {}};
    transfer.tag.sequence = numbers.next(1, direction);
    transfer.send = &sender;
    transfer.receive = &receiver;
    exchange =
        std::make_unique<Exchange>(std::vector<Transfer>{transfer}, std::span<const OwnCopy>(), *transport, numbers);
    // Runs until the exchange waits for the connection or is done.
    while (exchange->progress()) {
    }
  }
  // Queues a message that arrives in a slot.
  void add_slot_message(std::uint64_t bytes) { receiver.messages.push_back({.data = slot.data(), .bytes = bytes}); }
  // Queues a message that the peer has written directly to `offset` of the receive buffer.
  void add_direct_message(std::uint64_t offset, std::uint64_t bytes) {
    receiver.messages.push_back({.carrier = Carrier::kDelivered, .bytes = bytes, .output_offset = offset});
  }

  SimEnvironment sim{{.ranks = 2, .slot_bytes = kSlotBytes}};
  std::unique_ptr<Transport> transport = sim.transport(0);
  PairNumbers numbers{2};
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  std::vector<std::byte> slot = std::vector<std::byte>(kSlotBytes, std::byte{7});
  FakeSend sender{memory.data()};
  FakeReceive receiver;
  std::unique_ptr<Exchange> exchange;
};

TEST_F(LandedExchange, SendsMoreAtOnceWhereTheOutputIsShown) {
  sender.advertised_after = 2;
  start(Direction::kSend);
  EXPECT_TRUE(exchange->done());
  const std::vector<FakeSend::Sent> expected = {{0, 100, false}, {100, 100, false}, {200, 450, true}, {650, 350, true}};
  EXPECT_EQ(sender.sent, expected);
}

TEST_F(LandedExchange, SendsAsEverWhatTheNetworkCannot) {
  sender.refuses = true;
  start(Direction::kSend);
  EXPECT_TRUE(exchange->done());
  ASSERT_EQ(sender.sent.size(), kBytes / kSlotBytes);
  for (std::size_t i = 0; i < sender.sent.size(); ++i) {
    EXPECT_EQ(sender.sent[i], (FakeSend::Sent{i * kSlotBytes, kSlotBytes, false}));
  }
}

TEST_F(LandedExchange, TakesAnyLengthThatLandsBehindWhatHasCome) {
  add_slot_message(kSlotBytes);
  add_direct_message(100, 433);
  add_slot_message(kSlotBytes);
  add_direct_message(633, 367);
  start(Direction::kReceive);
  EXPECT_TRUE(exchange->done());
  EXPECT_TRUE(receiver.withdrawn);
  EXPECT_EQ(memory[533], std::byte{7}) << "the message in the slot was not copied to its offset";
  EXPECT_EQ(memory[633], std::byte{0});
}

TEST_F(LandedExchange, RefusesWhatLandsElsewhereOrBehindTheEnd) {
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> wrong = {
      {0, 100}, {99, 100}, {200, 100}, {100, 901}, {100, 0}};
  for (const auto& [offset, bytes] : wrong) {
    receiver.messages.clear();
    add_slot_message(kSlotBytes);
    add_direct_message(offset, bytes);
    start(Direction::kReceive);
    EXPECT_FALSE(exchange->done());
    ASSERT_TRUE(exchange->bad_message().has_value()) << offset << ", " << bytes << " bytes";
    EXPECT_EQ(exchange->bad_message()->kind, Arrival::kCorrupt);
    exchange->give_up();
  }
}

TEST_F(LandedExchange, RefusesWhatLandsThoughNothingIsShown) {
  receiver.advertises = false;
  add_slot_message(kSlotBytes);
  add_direct_message(100, 100);
  start(Direction::kReceive);
  EXPECT_TRUE(exchange->bad_message().has_value());
}

TEST_F(LandedExchange, ASendIsGivenUpOnlyAfterTheDeviceHasLetGoOfItsBuffer) {
  sender.reads_buffer = true;
  start(Direction::kSend);
  ASSERT_EQ(sender.sent.size(), 3u) << "all messages were passed to the connection";
  EXPECT_FALSE(exchange->release_buffers(1));
  sender.reads_buffer = false;
  EXPECT_TRUE(exchange->release_buffers(1));
  sender.reads_buffer = true;
  EXPECT_FALSE(sender.dropped);
  exchange->give_up();
  EXPECT_TRUE(sender.dropped);
}

// A receive is given up when half of its only message has arrived, and its number is given back. The user then uses
// the buffer for something else. The next receive must get the whole message, and the old buffer must not be used.
TEST(ExchangeOverTcp, AReceiveGivenUpWithinAMessageLeavesItsBufferAndLosesNothing) {
  constexpr std::size_t kBytes = 100'000;
  constexpr Direction kDirection = Direction::kReceive;
  tcp_test::PlaintextJob job;
  tcp_test::RawPeer peer(job.addresses[1]);
  peer.write(peer.preamble(job.options(1), 0));
  const auto connection = job.receive(0, 1);
  PairNumbers numbers{2};
  const std::vector<std::byte> data(kBytes, std::byte{7}), zeros(kBytes);
  std::vector<std::byte> first(kBytes), second(kBytes);
  const auto start = [&](std::vector<std::byte>& buffer) {
    Transfer transfer{.direction = kDirection, .peer = 0, .data = buffer.data(), .bytes = kBytes, .tag = {}};
    transfer.tag = tcp_test::call(numbers.next(0, kDirection));
    transfer.receive = connection.get();
    return std::make_unique<Exchange>(std::vector<Transfer>{transfer}, std::span<const OwnCopy>(), *job.ranks[1],
                                      numbers);
  };
  peer.write(tcp_test::message(kBytes, tcp_test::call(1)));
  peer.write(data.data(), kBytes / 2);
  const auto given_up = start(first);
  ASSERT_TRUE(tcp_test::eventually([&] {
    given_up->progress();
    return first[kBytes / 2 - 1] == data[kBytes / 2 - 1];
  })) << "the first half must be read into the buffer of the receive";
  given_up->give_up();
  numbers.give_back(0, kDirection, 1);
  first = zeros;
  const auto next = start(second);
  peer.write(data.data() + kBytes / 2, kBytes - kBytes / 2);
  EXPECT_TRUE(tcp_test::eventually([&] {
    next->progress();
    return next->done();
  }));
  EXPECT_EQ(second, data);
  EXPECT_EQ(first, zeros);
}

}  // namespace
}  // namespace tutti
