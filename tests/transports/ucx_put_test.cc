// Tests of long messages over UCX that are written directly into the receiver's slots: offers of slots,
// announcements of written messages, and violations of their rules. Here UCX emulates the writes over TCP;
// tests/rdma uses a network adapter.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "transports/ucx/resources.h"
#include "ucx_raw.h"

namespace tutti::ucx_test {
namespace {

std::vector<std::byte> bytes_of(std::size_t count, int seed) {
  std::vector<std::byte> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(seed + i * 7 + i / 256);
  return made;
}

class UcxPut : public RawRank {
 protected:
  UcxPut() : RawRank(UcxPuts::kAlways) {}
  // Afterwards rank 1 has received one long message and has offered its slots. The next message has number 1.
  void get_offer() {
    meet();
    raw_->send(raw_->valid_header(0, kSlotBytes), kSlotBytes);
    ASSERT_EQ(await(), Arrival::kMessage);
    receive_->release();
    ASSERT_TRUE(eventually([&] { return find(UcxMessageType::kOffer) != nullptr; }));
  }
  const RawPath::ReceivedMessage* find(UcxMessageType kind) const {
    for (const RawPath::ReceivedMessage& received : raw_->received) {
      if (received.header.kind == kind) return &received;
    }
    return nullptr;
  }
  void write(std::uint32_t slot, const std::vector<std::byte>& data) {
    const RawPath::ReceivedMessage offer = *find(UcxMessageType::kOffer);
    raw_->write(offer.header, offer.data, slot, data, [&] {
      for (const auto& rank : ranks_) rank->pump();
    });
  }
  UcxHeader announcement(std::uint32_t number, std::uint32_t bytes) const {
    UcxHeader header = raw_->valid_header(number, bytes);
    header.kind = UcxMessageType::kWritten;
    return header;
  }
  void start_afresh() {
    receive_.reset();
    ranks_[0].reset();
    ranks_[1].reset();
    endpoints_.clear();
    addresses_.clear();
    SetUp();
  }
};

TEST_F(UcxPut, TheFirstLongMessageIsAnsweredByAnOfferAndTheNextIsTakenFromItsSlot) {
  get_offer();
  for (std::uint32_t number = 1; number < 3 * kSlots; ++number) {
    const auto data = bytes_of(kSlotBytes - number, static_cast<int>(number));
    write(number % kSlots, data);
    raw_->send(announcement(number, static_cast<std::uint32_t>(data.size())), 0);
    ASSERT_EQ(await(), Arrival::kMessage) << number;
    const Message got = receive_->front();
    ASSERT_EQ(got.bytes, data.size());
    EXPECT_EQ(std::memcmp(got.data, data.data(), data.size()), 0) << number;
    receive_->release();
  }
  EXPECT_EQ(std::count_if(raw_->received.begin(), raw_->received.end(),
                          [](const RawPath::ReceivedMessage& received) {
                            return received.header.kind == UcxMessageType::kOffer;
                          }),
            1)
      << "the slots must be offered only once";
}

TEST_F(UcxPut, ShortMessagesAreAnsweredByNone) {
  meet();
  raw_->send(raw_->valid_header(0, kUcxPutFrom - 1), kUcxPutFrom - 1);
  ASSERT_EQ(await(), Arrival::kMessage);
  receive_->release();
  EXPECT_FALSE(eventually([&] { return find(UcxMessageType::kOffer) != nullptr; }, 200));
}

TEST_F(UcxPut, AnnouncementsThatNoSoundPeerSendsAreCorrupt) {
  using Change = void (*)(UcxHeader&);
  const Change changes[] = {
      [](UcxHeader& header) { header.number += kSlots; },        // a slot that is not free
      [](UcxHeader& header) { header.number -= 1; },             // a message that was already released
      [](UcxHeader& header) { header.bytes = kSlotBytes + 1; },  // longer than a slot
      [](UcxHeader& header) { header.bytes = ~0u; },             // much longer than a slot
      [](UcxHeader& header) { header.tag.sequence = 0; },        // not a valid call
  };
  for (const Change change : changes) {
    if (&change != changes) start_afresh();
    get_offer();
    UcxHeader header = announcement(1, 10000);
    change(header);
    raw_->send(header, 0);
    EXPECT_EQ(await(), Arrival::kCorrupt) << &change - changes;
  }
}

TEST_F(UcxPut, AnAnnouncementWithAPayloadIsCorrupt) {
  get_offer();
  raw_->send(announcement(1, 10), 10);
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxPut, AnAnnouncementWithoutAnOfferIsCorrupt) {
  meet();
  raw_->send(announcement(0, 10), 0);
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxPut, AnAnnouncementTwiceIsCorruptAndTheFirstIsGood) {
  get_offer();
  write(1, bytes_of(10000, 1));
  raw_->send(announcement(1, 10000), 0);
  ASSERT_EQ(await(), Arrival::kMessage);
  raw_->send(announcement(1, 10000), 0);
  ASSERT_EQ(await(), Arrival::kMessage);
  receive_->release();
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxPut, AStrangersAnnouncementIsRefused) {
  get_offer();
  UcxHeader header = announcement(1, 10000);
  header.key ^= 1;
  raw_->send(header, 0);
  EXPECT_TRUE(eventually([&] { return ranks_[1]->troubles().find("refused 1 ") != std::string::npos; }));
  EXPECT_EQ(await(50), Arrival::kNothing);
}

// Here the real rank writes and the test's peer receives. Each announced message must be in its slot, and there are
// never more of them than slots.
TEST_F(UcxPut, WhatIsAnnouncedIsThereAndTheSlotsBoundIt) {
  const auto slots = UcxSlots::create(UcxContext::shared(puts_).value(), kSlots, kSlotBytes).value();
  meet();
  auto send = ranks_[1]->open_send(0, 0).value();
  raw_->offer(*slots);
  raw_->send(raw_->valid_header(0, 1), 1);
  ASSERT_EQ(await(), Arrival::kMessage) << "the offer, which was sent earlier, must have been handled too";
  eventually([] { return false; }, 50);  // UCX does not keep the order of the two
  std::uint32_t sent = 0;
  std::uint32_t checked = 0;
  for (std::uint32_t round = 1; round <= 5; ++round) {
    ASSERT_FALSE(eventually(
        [&] {
          while (send->ready()) {
            const auto data = bytes_of(kSlotBytes - sent, static_cast<int>(sent));
            send->send_from(data.data(), data.size(), call(1));
            ++sent;
          }
          return sent > round * kSlots;
        },
        100))
        << "only as many messages as slots may be in flight";
    ASSERT_TRUE(eventually([&] {
      return std::count_if(raw_->received.begin(), raw_->received.end(), [](const RawPath::ReceivedMessage& received) {
               return received.header.kind == UcxMessageType::kWritten;
             }) == round * kSlots;
    }));
    EXPECT_TRUE(eventually([&] { return send->handed_over(); }))
        << "a written message is handed over, whether it was released or not";
    for (const RawPath::ReceivedMessage& received : raw_->received) {
      if (received.header.kind != UcxMessageType::kWritten || received.header.number < checked) continue;
      EXPECT_TRUE(received.data.empty());
      EXPECT_EQ(received.in_slot,
                bytes_of(kSlotBytes - received.header.number, static_cast<int>(received.header.number)));
      ++checked;
    }
    ASSERT_EQ(checked, round * kSlots);
    UcxHeader credit = raw_->valid_header(0, 0);
    credit.kind = UcxMessageType::kCredit;
    credit.released = sent;
    raw_->send(credit, 0);
  }
}

TEST_F(UcxPut, OffersThatNoSoundPeerMakesAreCorrupt) {
  const auto slots = UcxSlots::create(UcxContext::shared(puts_).value(), kSlots, kSlotBytes).value();
  const auto offer = [&](std::size_t bytes) {
    UcxHeader header = raw_->valid_header(0, static_cast<std::uint32_t>(bytes));
    header.kind = UcxMessageType::kOffer;
    raw_->send(header, bytes);
  };
  meet();
  offer(sizeof(UcxSlotsOffer));  // without a key
  EXPECT_EQ(await(), Arrival::kCorrupt);
  start_afresh();
  meet();
  offer(sizeof(UcxSlotsOffer) + kMostUcxKey + 1);
  EXPECT_EQ(await(), Arrival::kCorrupt);
  start_afresh();
  meet();
  raw_->offer(*slots);
  EXPECT_EQ(await(50), Arrival::kNothing);
  raw_->offer(*slots);
  EXPECT_EQ(await(), Arrival::kCorrupt);
}

TEST_F(UcxPut, ErrorsNameTheDevice) {
  meet();
  auto send = ranks_[1]->open_send(0, 0).value();
  raw_->send(raw_->valid_header(0, 10), 10);
  ASSERT_EQ(await(), Arrival::kMessage);
  EXPECT_EQ(ranks_[1]->peer_path(0), "lo (tcp)");
  raw_->end();
  ASSERT_TRUE(tcp_test::eventually(
      [&] {
        ranks_[1]->pump();
        return ranks_[1]->peer_status(0).life == PeerLife::kUnreachable;
      },
      10000));
  EXPECT_NE(ranks_[1]->peer_trouble(0).find(" by lo (tcp): "), std::string::npos) << ranks_[1]->peer_trouble(0);
}

// The text as UCX 1.13.1 prints it in a virtual machine of scripts/rdma-vm.
TEST(UcxWays, AreReadFromUcxsWords) {
  const std::string_view text =
      "#\n# UCP endpoint \n#\n#               peer: <no debug data>\n"
      "#                 lane[0]:  0:rc_verbs/rxe_left0:1.0 md[0]    -> md[0]/ib/sysdev[255] rma_bw#0 am am_bw#0 wireup"
      "{ud_verbs/rxe_left0:1}\n"
      "#                 lane[1]: 12:tcp/eth0.100.0 md[1]           -> md[1]/tcp/sysdev[255]\n"
      "#                 lane[2]:  0:rc_verbs/rxe_left0:1.1 md[0]    -> md[0]/ib/sysdev[255] rma_bw#1\n#\n";
  const std::vector<UcxResource> expected = {{"rc_verbs", "rxe_left0:1"}, {"tcp", "eth0.100"}};
  EXPECT_EQ(parse_ucx_resources(text), expected);
  EXPECT_EQ(describe(expected), "rxe_left0 port 1 (rc_verbs), eth0.100 (tcp)");
  for (const char* other : {"", "lane[", "lane[0]", "lane[0]: 4", "lane[0]: 4:tcp", "lane[0]: 4:a.b/c", "\n\n"}) {
    EXPECT_TRUE(parse_ucx_resources(other).empty()) << other;
  }
}

TEST(UcxWays, OfCardsAreReliableConnections) {
  EXPECT_TRUE(contains_nic_write_transport("#      resource 1  :  md 1  dev 1  flags -- rc_verbs/rxe0:1\n"));
  EXPECT_TRUE(contains_nic_write_transport(
      "#      resource 1  :  md 1  dev 1  flags -- tcp/lo\n# resource 2 : flags -- dc_mlx5/mlx5_0:1"));
  EXPECT_FALSE(contains_nic_write_transport("#      resource 1  :  md 1  dev 1  flags a- ud_verbs/rxe0:1\n"));
  EXPECT_FALSE(contains_nic_write_transport("#            md 1  :  component 1  rc_x/y\n"));
  EXPECT_FALSE(contains_nic_write_transport(""));
}

}  // namespace
}  // namespace tutti::ucx_test
