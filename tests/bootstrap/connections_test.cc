// Tests ServerConnection and ClientConnection, the two ends of the connections of the set-up, over real sockets
// within one process.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/client_connection.h"
#include "bootstrap/server_connection.h"

namespace tutti::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::chrono::steady_clock::time_point in(milliseconds time) { return std::chrono::steady_clock::now() + time; }

// A ServerConnection, and the socket that is connected to it.
struct Connection {
  Connection() {
    tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    peer.connect(acceptor.local_endpoint());
    line = std::make_shared<ServerConnection>(io, acceptor.accept());
  }
  void wait_for_bytes() const {
    pollfd look{.fd = line->socket.native_handle(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&look, 1, 60'000), 1);
  }
  asio::io_context io;
  tcp::socket peer{io};
  std::shared_ptr<ServerConnection> line;
};

// A finished read may still be in the queue of the event loop when another handler closes the connection. Its
// handler must not run then. Otherwise the server would admit a rank whose connection it has just closed, and wait
// for it until the deadline.
TEST(ServerConnection, WhatEndsBehindItsCloseIsNotTold) {
  for (const bool encrypted : {false, true}) {
    SCOPED_TRACE(encrypted ? "by TLS" : "in clear");
    Connection connection;
    ServerConnection& line = *connection.line;
    asio::write(connection.peer, asio::buffer("four", 4));
    connection.wait_for_bytes();
    if (encrypted) {
      ASSERT_TRUE(line.encrypt(Key{}));
    }
    int told = 0;
    const auto count = [&told](error_code) { ++told; };
    line.push(std::make_shared<const ServerConnection::Body>("a word"));
    // enough bytes are there, so the read ends at once and its handler is queued
    line.read(asio::buffer(line.header), count);
    line.write(count);
    line.close();
    connection.io.run();
    EXPECT_EQ(told, 0);
  }
}

// Handlers may own their connection. close() must release them, or the connection would never be freed.
TEST(ServerConnection, HoldsNothingOnceItIsClosed) {
  for (const bool encrypted : {false, true}) {
    SCOPED_TRACE(encrypted ? "by TLS" : "in clear");
    Connection connection;
    if (encrypted) {
      ASSERT_TRUE(connection.line->encrypt(Key{}));
    }
    const auto hold = [line = connection.line](error_code) {};
    connection.line->push(std::make_shared<const ServerConnection::Body>("a word"));
    connection.line->read(asio::buffer(connection.line->header), hold);
    connection.line->write(hold);
    connection.line->close();
    connection.line->read(asio::buffer(connection.line->header), hold);  // by a caller that is not aware of the close
    connection.line->write(hold);
    connection.io.run();
    EXPECT_EQ(connection.line.use_count(), 2) << "expected: the owner and the handler of this test";
  }
}

// A client that could send only part of a frame must send nothing after it, because the server would take the bytes
// for a part of that frame. This also holds for the message that announces that the rank leaves.
TEST(ClientConnection, SaysNothingBehindAWordThatWasCutShort) {
  for (const bool encrypted : {false, true}) {
    SCOPED_TRACE(encrypted ? "by TLS" : "in clear");
    asio::io_context io;
    tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    ClientConnection line(io, nullptr);
    ASSERT_FALSE(line.connect(acceptor.local_endpoint(), in(seconds(60))));
    tcp::socket server = acceptor.accept();  // reads only the handshake
    std::unique_ptr<TlsSession> session;
    if (encrypted) {
      auto made = TlsSession::create({.end = TlsSession::End::kServer, .key = Key{}});
      ASSERT_TRUE(made) << made.error().message;
      session = std::move(*made);
      server.native_non_blocking(true);
      ASSERT_TRUE(line.encrypt(Key{}).ok());
      pollfd look{.fd = server.native_handle(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&look, 1, 60'000), 1);
      session->advance(server.native_handle());
    }
    ASSERT_TRUE(line.write("a word", in(seconds(60))));
    // This frame is longer than the socket buffers. The deadline passes after its first part was sent.
    EXPECT_FALSE(line.write(std::string(256u << 20, 'b'), in(milliseconds(-1))));
    EXPECT_FALSE(line.write("q", in(milliseconds(20))));
  }
}

// Sends bytes as fast as the peer reads them, until the peer closes the connection.
void flood(tcp::socket& server, TlsSession* session) {
  std::string part(1 << 20, '\4');
  error_code ended;
  while (session == nullptr && !ended) asio::write(server, asio::buffer(part), ended);
  Moved moved;
  while (session != nullptr && !moved.ended) {
    iovec piece{.iov_base = part.data(), .iov_len = part.size()};
    moved = session->send(server.native_handle(), {&piece, 1});
    pollfd look{.fd = server.native_handle(), .events = POLLOUT, .revents = 0};
    poll(&look, 1, 100);
  }
}

// A read must end at the deadline, or when another thread stops it, even if more bytes are always available.
// A rank must accept the result of a round in which every rank has sent the longest blob. A fixed limit of 64 MiB once
// refused it for more than 16,368 ranks.
TEST(BootstrapWire, TheLimitOfARoundFitsTheLongestBlobsOfAllRanks) {
  constexpr std::size_t kBlobBytes = 4096;
  constexpr std::size_t kSealAndMark = 64;
  for (const std::size_t ranks : {1, 2, 1000, 65535}) {
    const std::vector<std::string> blobs(ranks, std::string(kBlobBytes, 'b'));
    EXPECT_LE(wire::pack(blobs).size() + kSealAndMark, wire::max_round_bytes(ranks, kBlobBytes)) << ranks;
  }
}

TEST(ClientConnection, BytesThatKeepComingDoNotMoveTheDeadline) {
  for (const bool encrypted : {false, true}) {
    for (const bool stopped : {false, true}) {
      SCOPED_TRACE(std::string(encrypted ? "by TLS" : "in clear") + (stopped ? ", stopped" : ", too late"));
      asio::io_context io;
      tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
      std::atomic<bool> stop = false;
      ClientConnection line(io, &stop);
      ASSERT_FALSE(line.connect(acceptor.local_endpoint(), in(seconds(60))));
      tcp::socket server = acceptor.accept();
      std::unique_ptr<TlsSession> session;
      if (encrypted) {
        session = *TlsSession::create({.end = TlsSession::End::kServer, .key = Key{}});
        server.native_non_blocking(true);
        ASSERT_TRUE(line.encrypt(Key{}).ok());
      }
      std::thread sends([&] { flood(server, session.get()); });
      stop = stopped;
      // The first four bytes of the flood are also a valid frame length: 64 MiB.
      const auto frame = line.read(0xffffffff, in(stopped ? seconds(60) : milliseconds(-1)));
      EXPECT_FALSE(frame) << "a frame of " << frame->size() << " bytes";
      error_code ignored;
      line.socket().close(ignored);
      sends.join();
    }
  }
}

}  // namespace
}  // namespace tutti::detail
