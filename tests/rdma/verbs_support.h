// For tests of the verbs transport in a guest of scripts/rdma-vm: two ranks in one process, which the test drives by
// hand. They use the device rxe0; with --cables, rank 0 uses the left ends of the cables and rank 1 the right ends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/patience.h"
#include "transports/rdma/offload_transport.h"
#include "transports/verbs/verbs_maker.h"

namespace tutti {

inline constexpr std::uint32_t kSlots = 4;
inline constexpr std::uint32_t kSlotBytes = 256 * 1024;
inline const int kPatienceMs = static_cast<int>(2 * test::patience().count());  // guests can be slow

inline CallTag call(std::uint64_t sequence, std::uint64_t count = 10) { return {.sequence = sequence, .count = count}; }

inline std::string devices_of(std::uint32_t rank) {
  const char* const given = std::getenv("RDMA_VM_DEVICES");
  std::string names = given != nullptr ? given : "rxe0";
  if (rank == 0) return names;
  for (std::size_t at = names.find("left"); at != std::string::npos; at = names.find("left")) {
    names.replace(at, 4, "right");
  }
  return names;
}
inline bool has_cables() { return devices_of(0) != devices_of(1); }
inline std::size_t cables() {
  const std::string names = devices_of(0);
  return 1 + static_cast<std::size_t>(std::count(names.begin(), names.end(), ','));
}

inline std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

class Verbs : public testing::Test {
 protected:
  bool write_outputs = true;
  std::string missing_of_one;  // a device that is in the list of rank 1 but not in its machine
  void open(std::uint32_t queue_pairs = 1, std::uint8_t timeout = 17, std::uint8_t retries = 6,
            const std::string& offer_of_one = "") {
    std::vector<std::string> addresses;
    std::vector<std::shared_ptr<DataPathMaker>> makers;
    std::vector<std::shared_ptr<TcpEndpoint>> endpoints;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      endpoints.push_back(TcpEndpoint::listen({.address = "127.0.0.1", .key = {1}}).value());
      addresses.push_back(endpoints.back()->address());
      VerbsSettings settings;
      settings.devices = devices_of(rank);
      if (const auto at = settings.devices.find(missing_of_one); rank == 1 && !missing_of_one.empty()) {
        settings.devices.replace(at, missing_of_one.size(), "gone");
      }
      settings.queue_pairs = queue_pairs;
      settings.timeout = timeout;
      settings.retries = retries;
      settings.write_outputs = write_outputs;
      auto maker = make_verbs_maker(settings);
      ASSERT_TRUE(maker.ok()) << maker.error().message;
      makers.push_back(*maker);
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      TcpTransportOptions options;
      options.rank = rank;
      options.ranks = 2;
      options.communicator = 77;
      options.slots = kSlots;
      options.slot_bytes = kSlotBytes;
      DataPathOptions path{
          .rank = rank, .ranks = 2, .slots = kSlots, .slot_bytes = kSlotBytes, .lanes = 8, .offers = {}};
      for (std::uint32_t peer = 0; peer < 2; ++peer) path.offers.push_back(peer == rank ? "" : makers[peer]->offer());
      if (rank == 0 && !offer_of_one.empty()) path.offers[1] = offer_of_one;
      if (rank == 1 && !offer_of_one.empty()) path.offers[0] = "";
      auto made = OffloadTransport::create(options, endpoints[rank], addresses, [&](const DataPathHost& host) {
        handshake_channels.push_back(&host.handshake_channel);
        return makers[rank]->make(host, path);
      });
      ASSERT_TRUE(made.ok()) << made.error().message;
      ranks.push_back(std::move(*made));
    }
    EXPECT_EQ(ranks[0]->name(), "verbs");
  }
  std::unique_ptr<SendConnection> send(std::uint32_t from, std::uint16_t lane = 0) {
    return ranks[from]->open_send(1 - from, lane).value();
  }
  std::unique_ptr<ReceiveConnection> receive(std::uint32_t to, std::uint16_t lane = 0) {
    return ranks[to]->open_receive(1 - to, lane).value();
  }
  bool eventually(const std::function<bool()>& done, int ms = kPatienceMs) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      for (const auto& rank : ranks) rank->pump();
      std::this_thread::yield();
    }
    return true;
  }
  Arrival await(ReceiveConnection& connection, const CallTag& tag) {
    Arrival arrival = Arrival::kNothing;
    eventually([&] { return (arrival = connection.arrival(tag)) != Arrival::kNothing; });
    return arrival;
  }
  // Sends messages of all sizes with every function for sending, `rounds` times, and checks them at the other end.
  void exchange(std::uint16_t lane, int rounds) {
    const std::vector<std::size_t> sizes = {0,    1,    8,     100,    192,     193,       4096,
                                            8191, 8192, 65536, 131072, 200'001, kSlotBytes};
    auto sender = send(0, lane);
    auto receiver = receive(1, lane);
    std::size_t sent = 0;
    std::size_t received = 0;
    const std::size_t all = sizes.size() * static_cast<std::size_t>(rounds);
    std::vector<std::vector<std::byte>> pinned(all);
    ASSERT_TRUE(eventually([&] {
      while (sent < all && sender->ready()) {
        auto data = pattern(sizes[sent % sizes.size()], static_cast<unsigned>(sent));
        if (sent % 3 == 0) {
          if (!data.empty()) std::memcpy(sender->slot(), data.data(), data.size());
          sender->send_slot(data.size(), call(1));
        } else if (sent % 3 == 1) {
          sender->send_from(data.data(), data.size(), call(1));
          // the caller may change the data as soon as the call returns
          std::fill(data.begin(), data.end(), std::byte{0xee});
        } else {
          pinned[sent] = std::move(data);
          sender->send_pinned(pinned[sent], pinned[sent].data(), pinned[sent].size(), call(1));
        }
        ++sent;
      }
      while (received < sent && receiver->arrival(call(1)) == Arrival::kMessage) {
        const Message message = receiver->front();
        const auto expected = pattern(sizes[received % sizes.size()], static_cast<unsigned>(received));
        EXPECT_EQ(message.bytes, expected.size()) << received;
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), message.data)) << received;
        receiver->release();
        ++received;
      }
      return received == all;
    })) << sent
        << " sent, " << received << " received; " << ranks[0]->troubles() << "; " << ranks[0]->peer_trouble(1);
    EXPECT_TRUE(eventually([&] { return sender->drained() && sender->handed_over(); }));
  }

  std::vector<std::unique_ptr<OffloadTransport>> ranks;
  std::vector<HandshakeChannel*> handshake_channels;  // indexed by rank; they belong to `ranks`
};

}  // namespace tutti
