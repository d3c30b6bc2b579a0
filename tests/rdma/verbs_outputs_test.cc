// Tests of outputs that a receiver advertises, so that its peer can write messages directly into them. See
// verbs_support.h.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/rdma/verbs_support.h"

namespace tutti {
namespace {

// The receiver's output buffer of a call, which it advertises to the sender.
class VerbsOutputs : public Verbs {
 protected:
  static constexpr std::size_t kSegmentBytes = 128 * 1024;
  static constexpr std::size_t kSegments = 6;

  void connect(std::uint32_t queue_pairs = 1) {
    open(queue_pairs);
    sender = send(0);
    receiver = receive(1);
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  }
  bool can_aim(const CallTag& tag, std::size_t offset, std::size_t bytes = kSegmentBytes * kSegments,
               int ms = kPatienceMs) {
    return eventually([&] { return sender->ready() && sender->aim(tag, bytes, offset); }, ms);
  }
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  std::vector<std::byte> output = std::vector<std::byte>(kSegmentBytes * kSegments);
};

TEST_F(VerbsOutputs, AreWrittenToWhereMessagesAreWanted) {
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    const auto data = pattern(output.size(), queue_pairs);
    std::fill(output.begin(), output.end(), std::byte{0});
    ASSERT_TRUE(receiver->advertise_output(call(1), output));
    // Send the segments in reverse order, with all functions for sending. In between, send one message that is not
    // aimed at the output (number 2), and one that is shorter than its part of the output (number 4).
    for (std::size_t i = kSegments; i-- > 0;) {
      const std::byte* const segment = data.data() + i * kSegmentBytes;
      const bool aimed = i != 2;
      const std::size_t bytes = i == 4 ? 1000 : kSegmentBytes;
      ASSERT_TRUE(aimed ? can_aim(call(1), i * kSegmentBytes) : eventually([&] { return sender->ready(); }));
      if (i % 2 == 0) {
        sender->send_pinned(data, segment, bytes, call(1));
      } else {
        sender->send_from(segment, bytes, call(1));
      }
      ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
      const Message message = receiver->front();
      EXPECT_EQ(message.bytes, bytes);
      EXPECT_EQ(message.carrier, aimed && bytes == kSegmentBytes ? Carrier::kDelivered : Carrier::kSlot) << i;
      const std::byte* const found =
          message.carrier == Carrier::kSlot ? message.data : output.data() + i * kSegmentBytes;
      EXPECT_TRUE(std::equal(segment, segment + bytes, found)) << i;
      receiver->release();
    }
    EXPECT_EQ(output[2 * kSegmentBytes], std::byte{0}) << "this message was not aimed, so it must arrive in its slot";
    receiver->withdraw_output(false);
    EXPECT_TRUE(eventually([&] { return sender->drained(); }));
    sender.reset();
    receiver.reset();
    ranks.clear();
  }
}

TEST_F(VerbsOutputs, AreThoseOfOneCall) {
  connect();
  EXPECT_FALSE(sender->aim(call(1), output.size(), 0)) << "no output is advertised";
  ASSERT_TRUE(receiver->advertise_output(call(1), output));
  EXPECT_FALSE(receiver->advertise_output(call(1), output)) << "the same output cannot be advertised twice";
  ASSERT_TRUE(can_aim(call(1), 0));
  EXPECT_FALSE(sender->aim(call(2), output.size(), 0)) << "the output belongs to another call";
  EXPECT_FALSE(sender->aim(call(1, 11), output.size(), 0)) << "the sequence number is the same, but the count differs";
  EXPECT_FALSE(sender->aim(call(1), output.size() - 1, 0)) << "the output has another length";
  EXPECT_FALSE(sender->aim(call(1), output.size(), output.size() + 1)) << "the offset is beyond the end";
}

TEST_F(VerbsOutputs, AreShownNoSoonerThanThePeerHasSeenThose) {
  connect();
  std::uint64_t shown = 0;
  while (shown < 100 && receiver->advertise_output(call(shown + 1), output)) ++shown;
  EXPECT_EQ(shown, 4u);
  ASSERT_TRUE(can_aim(call(shown), 0)) << "the last advertised output is the valid one";
  sender->send_from(nullptr, 0, call(shown));
  ASSERT_EQ(await(*receiver, call(shown)), Arrival::kMessage);
  receiver->release();
  EXPECT_TRUE(receiver->advertise_output(call(shown + 1), output))
      << "the message shows that the peer has seen all outputs";
}

TEST_F(VerbsOutputs, AreNotWrittenToAfterTheCallWasGivenUp) {
  connect();
  ASSERT_TRUE(receiver->advertise_output(call(1), output));
  ASSERT_TRUE(can_aim(call(1), 0));
  receiver->withdraw_output(true);
  const auto data = pattern(kSegmentBytes, 9);
  sender->send_pinned(data, data.data(), data.size(), call(1));
  EXPECT_TRUE(eventually([&] { return ranks[0]->peer_status(1).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks[0]->peer_trouble(1).find("remote access error"), std::string::npos) << ranks[0]->peer_trouble(1);
  EXPECT_EQ(std::count(output.begin(), output.end(), std::byte{0}), static_cast<std::ptrdiff_t>(output.size()));
}

TEST_F(VerbsOutputs, AreRecalledBehindWhatIsUnderWay) {
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    EXPECT_TRUE(receiver->revoke_output()) << "no output is advertised";
    ASSERT_TRUE(receiver->advertise_output(call(1), output));
    ASSERT_TRUE(can_aim(call(1), 0));
    const auto data = pattern(kSegmentBytes, 9);
    sender->send_pinned(data, data.data(), data.size(), call(1));
    static_cast<void>(receiver->revoke_output());
    ASSERT_TRUE(eventually([&] { return receiver->revoke_output(); }));
    // The sender has confirmed. So the data that it wrote has arrived, although the receiver has not read the
    // message.
    EXPECT_TRUE(std::equal(data.begin(), data.end(), output.begin()));
    receiver->withdraw_output(true);
    EXPECT_FALSE(sender->aim(call(1), output.size(), kSegmentBytes)) << "a revoked output must not be used";
    EXPECT_EQ(receiver->arrival(call(2)), Arrival::kNothing) << "the message belongs to a call that was abandoned";
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
    sender->send_pinned(data, data.data(), data.size(), call(2));
    EXPECT_EQ(await(*receiver, call(2)), Arrival::kMessage);
    EXPECT_EQ(ranks[0]->peer_status(1).life, PeerLife::kLive);
    sender.reset();
    receiver.reset();
    ranks.clear();
    std::fill(output.begin(), output.end(), std::byte{0});
  }
}

// A call is abandoned after the peer has seen its output but has entered a different call. Later outputs must still
// work.
TEST_F(VerbsOutputs, OfACallGivenUpMayBeShownAgain) {
  connect();
  for (std::uint64_t sequence = 1; sequence <= 6; ++sequence) {
    ASSERT_TRUE(receiver->advertise_output(call(sequence), output)) << sequence;
    ASSERT_TRUE(can_aim(call(sequence), kSegmentBytes)) << sequence;
    const auto data = pattern(kSegmentBytes, static_cast<unsigned>(sequence));
    const bool gives_up = sequence % 2 == 1;
    // In an abandoned call, the sender looks at the output but does not write to it.
    if (gives_up) static_cast<void>(sender->aim(call(sequence, 11), output.size(), kSegmentBytes));
    sender->send_pinned(data, data.data(), gives_up ? 8 : kSegmentBytes, call(sequence, gives_up ? 11 : 10));
    ASSERT_EQ(await(*receiver, call(sequence)), gives_up ? Arrival::kMismatch : Arrival::kMessage);
    if (!gives_up) {
      EXPECT_EQ(receiver->front().carrier, Carrier::kDelivered);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), output.data() + kSegmentBytes));
    }
    receiver->release();
    receiver->withdraw_output(gives_up);
    ASSERT_TRUE(eventually([&] { return sender->drained(); }));
  }
}

// Memory is freed, and new memory is mapped at the same address. The adapter has registered the old pages, not the
// address, so it must not write there. The same holds for memory that is sent.
TEST_F(VerbsOutputs, InMemoryThatComesBackAreFilled) {
  connect();
  void* place = nullptr;
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    void* const memory = mmap(place, kSegmentBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0), -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    place = memory;
    const std::span<std::byte> fresh(static_cast<std::byte*>(memory), kSegmentBytes);
    ASSERT_TRUE(receiver->advertise_output(call(sequence), fresh));
    ASSERT_TRUE(can_aim(call(sequence), 0, kSegmentBytes));
    const auto data = pattern(kSegmentBytes, static_cast<unsigned>(sequence));
    sender->send_from(data.data(), data.size(), call(sequence));
    ASSERT_EQ(await(*receiver, call(sequence)), Arrival::kMessage);
    EXPECT_EQ(receiver->front().carrier, Carrier::kDelivered);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), fresh.begin())) << sequence;
    receiver->release();
    receiver->withdraw_output(false);
    munmap(memory, kSegmentBytes);
  }
}

TEST_F(VerbsOutputs, AreNotShownWhereTheUserForbidsIt) {
  write_outputs = false;
  connect();
  EXPECT_GT(receiver->min_aimed_bytes(), std::uint64_t{1} << 60);
}

// A message of a send is split only at multiples of 4 MiB of the sender's memory.
TEST_F(VerbsOutputs, TakeLongerMessagesThanSlots) {
  constexpr std::size_t kMost = 4 << 20;
  constexpr std::size_t kBytes = 2 * kMost + 100'000;
  const std::vector<std::size_t> ends = {kSlotBytes, kMost, 2 * kMost, kBytes};
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    const auto data = pattern(kBytes, queue_pairs);
    output.assign(kBytes, std::byte{0});
    ASSERT_TRUE(receiver->advertise_output(call(1), output));
    std::size_t moved = 0;
    for (const std::size_t end : ends) {
      ASSERT_TRUE(can_aim(call(1), moved, kBytes));
      const std::size_t most = moved == 0 ? kSlotBytes : kBytes - moved;
      ASSERT_EQ(sender->send_aimed(data, data.data() + moved, most, call(1)), end - moved);
      ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
      const Message message = receiver->front();
      EXPECT_EQ(message.carrier, Carrier::kDelivered);
      EXPECT_EQ(message.bytes, end - moved);
      EXPECT_EQ(message.output_offset, moved);
      EXPECT_TRUE(std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(end), output.begin())) << end;
      receiver->release();
      moved = end;
    }
    receiver->withdraw_output(false);
    EXPECT_TRUE(eventually([&] { return sender->handed_over(); }));
    sender.reset();
    receiver.reset();
    ranks.clear();
  }
}

}  // namespace
}  // namespace tutti
