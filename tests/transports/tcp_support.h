// For tests of TCP: two or more ranks in one process, which the test drives by hand, and RawPeer, with which a test
// sends any bytes to a rank.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/support/patience.h"
#include "transports/tcp/tcp_transport.h"

namespace tutti::tcp_test {

inline constexpr std::uint32_t kSlots = 4;
inline constexpr std::uint32_t kSlotBytes = 128 * 1024;
inline constexpr std::uint64_t kCommunicator = 77;

inline CallTag call(std::uint64_t sequence, std::uint64_t count = 10) { return {.sequence = sequence, .count = count}; }

inline const Key kKey = {1, 2, 3};  // the key of the job

inline std::shared_ptr<TcpEndpoint> endpoint(TcpEndpointOptions options = {.address = "127.0.0.1"}) {
  if (options.key == Key{}) options.key = kKey;
  return TcpEndpoint::listen(options).value();
}

// Polls `done` for at most `ms` milliseconds. Returns whether it became true.
inline bool eventually(const std::function<bool()>& done, std::int64_t ms = test::patience().count()) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Whether connections are encrypted. CMakeLists.txt runs all of these tests a second time with TUTTI_ENCRYPT=1.
inline bool encrypted() {
  const char* const setting = std::getenv("TUTTI_ENCRYPT");
  return setting != nullptr && std::string_view(setting) == "1";
}

// A clock that stands still until the test advances it.
class HandClock final : public Clock {
 public:
  std::int64_t now_ns() override { return now_ns_; }
  void advance(std::int64_t ns) { now_ns_ += ns; }

 private:
  std::int64_t now_ns_ = 1'000'000'000;
};

struct TestJob {
  std::vector<std::shared_ptr<TcpEndpoint>> endpoints;  // one for each rank, as if each rank were a process
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<TcpTransport>> ranks;

  explicit TestJob(std::uint32_t count = 2, const std::string& host = "127.0.0.1", std::uint32_t slots = kSlots,
                   bool encrypt = encrypted()) {
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      endpoints.push_back(endpoint({.address = host, .encrypt = encrypt}));
      addresses.push_back(endpoints.back()->address());
    }
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      ranks.push_back(TcpTransport::create(options(rank, slots), endpoints[rank], addresses).value());
    }
  }
  // Waits until the system has taken all data of rank `rank`. An encrypted connection is set up by both ends, so all
  // endpoints are driven.
  bool flushed(std::uint32_t rank) {
    return eventually([&] {
      const bool done = ranks[rank]->flush();
      for (auto& endpoint : endpoints) {
        if (endpoint != nullptr) endpoint->service();
      }
      return done;
    });
  }
  TcpTransportOptions options(std::uint32_t rank, std::uint32_t slots = kSlots) const {
    return {.rank = rank,
            .ranks = static_cast<std::uint32_t>(addresses.size()),
            .communicator = kCommunicator,
            .slots = slots,
            .slot_bytes = kSlotBytes};
  }
  std::unique_ptr<SendConnection> send(std::uint32_t from, std::uint32_t to, std::uint16_t lane = 0) {
    return ranks[from]->open_send(to, lane).value();
  }
  std::unique_ptr<ReceiveConnection> receive(std::uint32_t from, std::uint32_t to, std::uint16_t lane = 0) {
    return ranks[to]->open_receive(from, lane).value();
  }
};

// Waits until `rank` sees the status `awaited` for `peer`. Returns the status that it sees then, or after the
// timeout.
inline PeerLife life_of(TestJob& job, std::uint32_t rank, std::uint32_t peer, PeerLife awaited) {
  PeerLife life = PeerLife::kLive;
  eventually([&] {
    job.ranks[rank]->pump();
    return (life = job.ranks[rank]->peer_status(peer).life) == awaited;
  });
  return life;
}

// For tests that use RawPeer, which does not encrypt.
struct PlaintextJob : TestJob {
  explicit PlaintextJob(std::uint32_t count = 2) : TestJob(count, "127.0.0.1", kSlots, false) {}
};

// A connected socket without a transport. The test itself writes the bytes of this peer.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) {
    const PeerAddress to = PeerAddress::parse(address, 0).value();
    nonce_ = to.nonce;
    socket_ = TcpStream(connect_to(to.socket, 0, 0).value());
    pollfd writable{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    poll(&writable, 1, static_cast<int>(test::patience().count()));
  }
  // The preamble of a connection to the rank with options `to`, as rank `sender` of the same communicator would send
  // it.
  Preamble preamble(const TcpTransportOptions& to, std::uint32_t sender, std::uint16_t lane = 0) const {
    Preamble made;
    made.nonce = nonce_;
    made.communicator = to.communicator;
    made.sender = sender;
    made.receiver = to.rank;
    made.ranks = to.ranks;
    made.slot_bytes = to.slot_bytes;
    made.lane = lane;
    return made;
  }
  void write(const void* data, std::size_t bytes) {
    iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
    ASSERT_EQ(send_some(socket_.get(), {&part, 1}).bytes, bytes);
  }
  // Signs the preamble with the job's key. It looks like the first connection of an endpoint of its own.
  void write(Preamble preamble) {
    std::array<std::uint8_t, 8> source{};
    ASSERT_TRUE(random_bytes(source));
    std::memcpy(&preamble.source, source.data(), source.size());
    preamble.serial = 1;
    preamble.proof = proof_of(preamble, kKey);
    write_as_is(preamble);
  }
  void write_as_is(const Preamble& preamble) { write(&preamble, sizeof(preamble)); }
  template <class T>
  void write(const T& value) {
    write(&value, sizeof(value));
  }
  Reply reply(std::int64_t ms = test::patience().count()) {
    Reply got;
    eventually([&] { return (got = reader_.read(socket_)).kind != Reply::Kind::kNothing; }, ms);
    return got;
  }
  int fd() const { return socket_.get(); }
  void close() { socket_.close(); }
  // Closes the socket as the kernel does when a process is killed that has unread data: with a TCP reset.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    socket_.close();
  }

 private:
  WireNonce nonce_{};
  TcpStream socket_;
  ReplyReader reader_;
};

inline FrameHeader message(std::uint64_t bytes, const CallTag& tag) { return {.bytes = bytes, .tag = tag}; }

inline Arrival await(ReceiveConnection& connection, const CallTag& tag, std::span<std::byte> place = {},
                     std::int64_t ms = test::patience().count()) {
  Arrival arrival = Arrival::kNothing;
  eventually([&] { return (arrival = connection.arrival(tag, place)) != Arrival::kNothing; }, ms);
  return arrival;
}

}  // namespace tutti::tcp_test
