// A call's output that a receiver shows, and into which its peer writes. See verbs_support.h.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/rdma/verbs_support.h"

namespace tutti {
namespace {

// A call's output, shown to the peer.
class VerbsOutputs : public Verbs {
 protected:
  static constexpr std::size_t kPiece = 128 * 1024;
  static constexpr std::size_t kPieces = 6;

  void connect(std::uint32_t queue_pairs = 1) {
    open(queue_pairs);
    sender = send(0);
    receiver = receive(1);
    ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  }
  bool aims(const CallTag& tag, std::size_t offset, std::size_t bytes = kPiece * kPieces, int ms = kPatienceMs) {
    return eventually([&] { return sender->ready() && sender->aim(tag, bytes, offset); }, ms);
  }
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  std::vector<std::byte> output = std::vector<std::byte>(kPiece * kPieces);
};

TEST_F(VerbsOutputs, AreWrittenToWhereMessagesAreWanted) {
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    const auto data = pattern(output.size(), queue_pairs);
    std::fill(output.begin(), output.end(), std::byte{0});
    ASSERT_TRUE(receiver->show_output(call(1), output));
    // Backwards, by all ways of sending, and two in between that are not aimed or too short for it.
    for (std::size_t i = kPieces; i-- > 0;) {
      const std::byte* const piece = data.data() + i * kPiece;
      const bool aimed = i != 2;
      const std::size_t bytes = i == 4 ? 1000 : kPiece;
      ASSERT_TRUE(aimed ? aims(call(1), i * kPiece) : eventually([&] { return sender->ready(); }));
      if (i % 2 == 0) {
        sender->send_pinned(data, piece, bytes, call(1));
      } else {
        sender->send_from(piece, bytes, call(1));
      }
      ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
      const Message message = receiver->front();
      EXPECT_EQ(message.bytes, bytes);
      EXPECT_EQ(message.carrier, aimed && bytes == kPiece ? Carrier::kDelivered : Carrier::kSlot) << i;
      const std::byte* const found = message.carrier == Carrier::kSlot ? message.data : output.data() + i * kPiece;
      EXPECT_TRUE(std::equal(piece, piece + bytes, found)) << i;
      receiver->release();
    }
    EXPECT_EQ(output[2 * kPiece], std::byte{0}) << "it came by its slot";
    receiver->hide_output(false);
    EXPECT_TRUE(eventually([&] { return sender->drained(); }));
    sender.reset();
    receiver.reset();
    ranks.clear();
  }
}

TEST_F(VerbsOutputs, AreThoseOfOneCall) {
  connect();
  EXPECT_FALSE(sender->aim(call(1), output.size(), 0)) << "nothing is shown";
  ASSERT_TRUE(receiver->show_output(call(1), output));
  EXPECT_FALSE(receiver->show_output(call(1), output)) << "once is enough";
  ASSERT_TRUE(aims(call(1), 0));
  EXPECT_FALSE(sender->aim(call(2), output.size(), 0)) << "another call";
  EXPECT_FALSE(sender->aim(call(1, 11), output.size(), 0)) << "the same, as the peer does not mean it";
  EXPECT_FALSE(sender->aim(call(1), output.size() - 1, 0)) << "of another length";
  EXPECT_FALSE(sender->aim(call(1), output.size(), output.size() + 1)) << "behind its end";
}

TEST_F(VerbsOutputs, AreShownNoSoonerThanThePeerHasSeenThose) {
  connect();
  std::uint64_t shown = 0;
  while (shown < 100 && receiver->show_output(call(shown + 1), output)) ++shown;
  EXPECT_EQ(shown, 4u);
  ASSERT_TRUE(aims(call(shown), 0)) << "the last is the one that counts";
  sender->send_from(nullptr, 0, call(shown));
  ASSERT_EQ(await(*receiver, call(shown)), Arrival::kMessage);
  receiver->release();
  EXPECT_TRUE(receiver->show_output(call(shown + 1), output)) << "its header says that all were seen";
}

TEST_F(VerbsOutputs, AreNotWrittenToAfterTheCallWasGivenUp) {
  connect();
  ASSERT_TRUE(receiver->show_output(call(1), output));
  ASSERT_TRUE(aims(call(1), 0));
  receiver->hide_output(true);
  const auto data = pattern(kPiece, 9);
  sender->send_pinned(data, data.data(), data.size(), call(1));
  EXPECT_TRUE(eventually([&] { return ranks[0]->peer_status(1).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks[0]->peer_trouble(1).find("remote access error"), std::string::npos) << ranks[0]->peer_trouble(1);
  EXPECT_EQ(std::count(output.begin(), output.end(), std::byte{0}), static_cast<std::ptrdiff_t>(output.size()));
}

TEST_F(VerbsOutputs, AreRecalledBehindWhatIsUnderWay) {
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    EXPECT_TRUE(receiver->recall_output()) << "nothing is shown";
    ASSERT_TRUE(receiver->show_output(call(1), output));
    ASSERT_TRUE(aims(call(1), 0));
    const auto data = pattern(kPiece, 9);
    sender->send_pinned(data, data.data(), data.size(), call(1));
    static_cast<void>(receiver->recall_output());
    ASSERT_TRUE(eventually([&] { return receiver->recall_output(); }));
    // Answered: what was written is there, though nobody has looked for its message.
    EXPECT_TRUE(std::equal(data.begin(), data.end(), output.begin()));
    receiver->hide_output(true);
    EXPECT_FALSE(sender->aim(call(1), output.size(), kPiece)) << "it is not used any more";
    EXPECT_EQ(receiver->arrival(call(2)), Arrival::kNothing) << "that message's call was given up";
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

// A call that was given up, whose peer had seen its output and meant another call: nothing is lost by it.
TEST_F(VerbsOutputs, OfACallGivenUpMayBeShownAgain) {
  connect();
  for (std::uint64_t sequence = 1; sequence <= 6; ++sequence) {
    ASSERT_TRUE(receiver->show_output(call(sequence), output)) << sequence;
    ASSERT_TRUE(aims(call(sequence), kPiece)) << sequence;
    const auto data = pattern(kPiece, static_cast<unsigned>(sequence));
    const bool gives_up = sequence % 2 == 1;
    // Seen, and not used.
    if (gives_up) static_cast<void>(sender->aim(call(sequence, 11), output.size(), kPiece));
    sender->send_pinned(data, data.data(), gives_up ? 8 : kPiece, call(sequence, gives_up ? 11 : 10));
    ASSERT_EQ(await(*receiver, call(sequence)), gives_up ? Arrival::kMismatch : Arrival::kMessage);
    if (!gives_up) {
      EXPECT_EQ(receiver->front().carrier, Carrier::kDelivered);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), output.data() + kPiece));
    }
    receiver->release();
    receiver->hide_output(gives_up);
    ASSERT_TRUE(eventually([&] { return sender->drained(); }));
  }
}

// As with memory that is sent from: the card knows the pages, not the address.
TEST_F(VerbsOutputs, InMemoryThatComesBackAreFilled) {
  connect();
  void* place = nullptr;
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    void* const memory = mmap(place, kPiece, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0), -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    place = memory;
    const std::span<std::byte> fresh(static_cast<std::byte*>(memory), kPiece);
    ASSERT_TRUE(receiver->show_output(call(sequence), fresh));
    ASSERT_TRUE(aims(call(sequence), 0, kPiece));
    const auto data = pattern(kPiece, static_cast<unsigned>(sequence));
    sender->send_from(data.data(), data.size(), call(sequence));
    ASSERT_EQ(await(*receiver, call(sequence)), Arrival::kMessage);
    EXPECT_EQ(receiver->front().carrier, Carrier::kDelivered);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), fresh.begin())) << sequence;
    receiver->release();
    receiver->hide_output(false);
    munmap(memory, kPiece);
  }
}

TEST_F(VerbsOutputs, AreNotShownWhereTheUserForbidsIt) {
  write_outputs = false;
  connect();
  EXPECT_GT(receiver->least_aimed(), std::uint64_t{1} << 60);
}

// A send's message is cut at multiples of 4 MiB of its memory only.
TEST_F(VerbsOutputs, TakeLongerMessagesThanSlots) {
  constexpr std::size_t kMost = 4 << 20;
  constexpr std::size_t kBytes = 2 * kMost + 100'000;
  const std::vector<std::size_t> ends = {kSlotBytes, kMost, 2 * kMost, kBytes};
  for (const std::uint32_t queue_pairs : {1u, 3u}) {
    connect(queue_pairs);
    const auto data = pattern(kBytes, queue_pairs);
    output.assign(kBytes, std::byte{0});
    ASSERT_TRUE(receiver->show_output(call(1), output));
    std::size_t moved = 0;
    for (const std::size_t end : ends) {
      ASSERT_TRUE(aims(call(1), moved, kBytes));
      const std::size_t most = moved == 0 ? kSlotBytes : kBytes - moved;
      ASSERT_EQ(sender->send_aimed(data, data.data() + moved, most, call(1)), end - moved);
      ASSERT_EQ(await(*receiver, call(1)), Arrival::kMessage);
      const Message message = receiver->front();
      EXPECT_EQ(message.carrier, Carrier::kDelivered);
      EXPECT_EQ(message.bytes, end - moved);
      EXPECT_EQ(message.landing, moved);
      EXPECT_TRUE(std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(end), output.begin())) << end;
      receiver->release();
      moved = end;
    }
    receiver->hide_output(false);
    EXPECT_TRUE(eventually([&] { return sender->handed_over(); }));
    sender.reset();
    receiver.reset();
    ranks.clear();
  }
}

}  // namespace
}  // namespace tutti
