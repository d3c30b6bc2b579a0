// Tests of ChecksumTransport: messages that arrive unchanged are passed on as they are, and every change is
// detected.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "shm_ranks.h"
#include "transports/checksum/checksum_transport.h"

namespace tutti {
namespace {

constexpr std::uint32_t kSlots = 4;
constexpr std::uint32_t kSlotBytes = 4096;

// Rank 0 sends to rank 1, through slots that the test can reach.
struct Pair {
  std::vector<std::unique_ptr<Transport>> ranks;
  std::unique_ptr<SendConnection> send;
  std::unique_ptr<ReceiveConnection> receive;

  Pair() {
    const SegmentShape shape{.ranks = 2, .slots = kSlots, .slot_bytes = kSlotBytes + kChecksumSlotBytes};
    auto inner = shm_ranks(shape, in_process_exchanges(2));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const std::vector<std::string> paths(2, "shared memory");
      ranks.push_back(std::make_unique<ChecksumTransport>(std::move(inner[rank]), rank, paths));
    }
    send = ranks[0]->open_send(1, 0).value();
    receive = ranks[1]->open_receive(0, 0).value();
  }
  // Sends `value` and returns the address of the message in the slot, so that a test can damage it.
  std::byte* post(const std::vector<std::byte>& value, const CallTag& tag) {
    EXPECT_TRUE(send->ready());
    std::byte* slot = send->slot();
    if (!value.empty()) std::memcpy(slot, value.data(), value.size());
    send->send_slot(value.size(), tag);
    return slot;
  }
  void expect(const std::vector<std::byte>& value, const CallTag& tag) {
    ASSERT_EQ(receive->arrival(tag), Arrival::kMessage);
    ASSERT_EQ(receive->arrival(tag), Arrival::kMessage) << "a second check gives the same result";
    const Message message = receive->front();
    ASSERT_EQ(message.bytes, value.size());
    EXPECT_TRUE(std::equal(value.begin(), value.end(), message.data));
    receive->release();
  }
};

std::vector<std::byte> value_of(std::size_t bytes) {
  std::vector<std::byte> value(bytes);
  for (std::size_t i = 0; i < bytes; ++i) value[i] = static_cast<std::byte>(i * 7 + bytes);
  return value;
}

TEST(Checksum, ShowsMessagesAsTheyWereSent) {
  Pair pair;
  EXPECT_EQ(pair.ranks[0]->slot_bytes(), kSlotBytes);
  std::uint64_t sequence = 0;
  for (const std::size_t bytes : {0, 1, 8, 100, 4095, 4096}) {
    ++sequence;
    for (int i = 0; i < 3; ++i) pair.post(value_of(bytes), call(sequence));
    for (int i = 0; i < 3; ++i) pair.expect(value_of(bytes), call(sequence));
  }
  EXPECT_TRUE(pair.send->drained());
}

TEST(Checksum, FindsEveryFlippedBitOfTheSlot) {
  constexpr std::size_t kBytes = 40;
  std::uint64_t sequence = 0;
  Pair pair;
  for (std::size_t bit = 0; bit < 8 * (kBytes + sizeof(ChecksumTrailer)); ++bit) {
    ++sequence;
    std::byte* slot = pair.post(value_of(kBytes), call(sequence));
    slot[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_EQ(pair.receive->arrival(call(sequence)), Arrival::kDamaged) << "bit " << bit;
    ASSERT_EQ(pair.receive->arrival(call(sequence)), Arrival::kDamaged) << "the result does not change";
  }
  EXPECT_NE(pair.receive->damage().find("message 1 (40 bytes) from rank 0 to rank 1 over shared memory is wrong"),
            std::string::npos)
      << pair.receive->damage();
  pair.post(value_of(8), call(++sequence));
  pair.expect(value_of(8), call(sequence));  // the next call is not affected
}

TEST(Checksum, FindsMessagesThatChangedPlaces) {
  Pair pair;
  constexpr std::size_t kWhole = 8 + sizeof(ChecksumTrailer);
  std::byte* first = pair.post(value_of(8), call(1));
  std::byte* second = pair.post(std::vector<std::byte>(8), call(1));
  std::swap_ranges(first, first + kWhole, second);
  EXPECT_EQ(pair.receive->arrival(call(1)), Arrival::kDamaged);
  EXPECT_NE(pair.receive->damage().find("in place of message 1 (8 bytes)"), std::string::npos);
  EXPECT_NE(pair.receive->damage().find("message 2 arrived"), std::string::npos) << pair.receive->damage();
}

TEST(Checksum, FindsWhatAnEarlierCallLeftInTheSlot) {
  Pair pair;
  std::array<std::byte, 8 + sizeof(ChecksumTrailer)> old{};
  std::byte* slot = pair.post(value_of(8), call(1));
  std::copy_n(slot, old.size(), old.begin());
  pair.expect(value_of(8), call(1));
  slot = pair.post(value_of(8), call(2));
  std::copy(old.begin(), old.end(), slot);  // as if the new message had never been written
  EXPECT_EQ(pair.receive->arrival(call(2)), Arrival::kDamaged);
}

TEST(Checksum, CountsAnewAfterACallThatFailed) {
  Pair pair;
  for (int i = 0; i < 2; ++i) pair.post(value_of(8), call(1));
  pair.expect(value_of(8), call(1));
  pair.post(value_of(16), call(2));  // the second message of call 1 is never received
  pair.expect(value_of(16), call(2));
}

TEST(Checksum, SumsReplies) {
  Pair pair;
  auto back = pair.ranks[1]->open_send(0, 0).value();
  auto answer = pair.ranks[0]->open_receive(1, 0).value();
  for (const bool flip : {false, true}) {
    const CallTag tag = call(flip ? 2 : 1);
    std::byte* slot = pair.post(value_of(64), tag);
    ASSERT_EQ(pair.receive->arrival(tag), Arrival::kMessage);
    ASSERT_TRUE(back->ready() && back->can_reply());
    const Message operand = pair.receive->front();
    std::fill_n(slot, 64, std::byte{9});  // the reply overwrites the operand
    pair.receive->release();
    back->send_reply(operand, tag);
    if (flip) slot[63] ^= std::byte{128};
    ASSERT_EQ(answer->arrival(tag), flip ? Arrival::kDamaged : Arrival::kMessage);
    if (flip) break;
    EXPECT_EQ(answer->front().bytes, 64U);
    EXPECT_EQ(answer->front().data[63], std::byte{9});
    answer->release();
  }
}

TEST(Checksum, GivesNoWayPastIt) {
  Pair pair;
  auto window = pair.ranks[0]->allocate_window(8192);
  ASSERT_TRUE(window.ok());
  EXPECT_EQ(pair.ranks[0]->find_window((*window)->data(), 8192), WindowRef{});
  EXPECT_EQ(pair.ranks[0]->mailboxes(), nullptr);
  EXPECT_EQ(pair.ranks[0]->attachment(), Attachment::kNone);
  EXPECT_FALSE(pair.send->sends_from_memory());
}

}  // namespace
}  // namespace tutti
