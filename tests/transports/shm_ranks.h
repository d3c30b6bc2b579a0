// For tests of transports: exchanges and shared-memory transports for several ranks in one process.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transports/shm/shm_transport.h"
#include "transports/shm/unix_exchange.h"

namespace tutti {

using Exchanges = std::vector<std::shared_ptr<SegmentExchange>>;

inline Exchanges in_process_exchanges(std::uint32_t ranks) {
  const auto relay = std::make_shared<InProcessRelay>();
  Exchanges exchanges;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    exchanges.push_back(std::make_shared<InProcessExchange>(relay, rank));
  }
  return exchanges;
}

// The exchanges are connected as between separate processes.
inline Exchanges unix_exchanges(std::uint32_t ranks) {
  std::vector<std::shared_ptr<UnixExchange>> exchanges;
  std::vector<std::string> addresses;
  std::vector<std::uint32_t> group(ranks);
  std::iota(group.begin(), group.end(), 0u);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    exchanges.push_back(UnixExchange::listen(rank, ranks).value());
    addresses.push_back(exchanges.back()->address());
  }
  std::vector<std::thread> threads;
  for (const auto& exchange : exchanges) {
    threads.emplace_back([&, exchange] {
      SteadyClock clock;
      EXPECT_TRUE(exchange->connect(addresses, group, clock, clock.now_ns() + 10'000'000'000).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return {exchanges.begin(), exchanges.end()};
}

// Creates the transports of one communicator. Rank i uses exchanges[i].
inline std::vector<std::unique_ptr<ShmTransport>> shm_ranks(const SegmentShape& shape, const Exchanges& exchanges) {
  SteadyClock clock;
  std::vector<OwnSegment> own;
  std::vector<std::uint32_t> ids;
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    own.push_back(OwnSegment::create(rank, shape, exchanges[rank]).value());
    ids.push_back(own.back().id());
  }
  std::vector<std::unique_ptr<ShmTransport>> ranks;
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    auto offers = collect_offers(*exchanges[rank], rank, ids, own[rank].segment().mapping(), clock,
                                 clock.now_ns() + 5'000'000'000);
    ranks.push_back(ShmTransport::create(rank, shape, std::move(own[rank]), offers.value(), exchanges[rank]).value());
  }
  return ranks;
}

inline CallTag call(std::uint64_t sequence, std::uint64_t count = 10) { return {.sequence = sequence, .count = count}; }

inline void send_text(SendConnection& connection, const std::string& text, const CallTag& tag) {
  ASSERT_TRUE(connection.ready());
  std::memcpy(connection.slot(), text.c_str(), text.size() + 1);
  connection.send_slot(text.size() + 1, tag);
}

inline std::string text_of(const Message& message) { return reinterpret_cast<const char*>(message.data); }

}  // namespace tutti
