// Connections without a protocol, and a rank that the test controls message by message. Both test the answers of a
// server.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/job_key.h"
#include "tests/support/patience.h"

namespace tutti::test {

inline JobKey key_for_tests(std::string_view name = "key") {
  return {.key = Key(sha256({name})), .kind = wire::KeySource::kGiven, .origin = "the test"};
}

// Opens a connection to a port of loopback. Returns -1 if no program listens there.
inline int connection_to(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

inline bool port_is_open(std::uint16_t port) {
  const int fd = connection_to(port);
  return fd >= 0 && close(fd) == 0;
}

// A connection on which the test sends and receives any bytes.
class RawConnection {
 public:
  explicit RawConnection(std::uint16_t port) {
    EXPECT_TRUE(eventually([&] {
      fd_ = connection_to(port);
      return fd_ >= 0;
    }));
    const timeval limit{.tv_sec = patience() / std::chrono::seconds(1), .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  explicit RawConnection(int connected) : fd_(connected) {}
  ~RawConnection() { close(fd_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  void send_bytes(const std::string& bytes) { EXPECT_GT(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0); }
  // Returns the body of the next frame; empty at the end of the connection.
  std::string receive_frame() {
    std::array<char, 4> header{};
    if (recv(fd_, header.data(), header.size(), MSG_WAITALL) != 4) return {};
    std::string body(wire::frame_length(header), '\0');
    return recv(fd_, body.data(), body.size(), MSG_WAITALL) == ssize_t(body.size()) ? body : std::string();
  }
  // Returns whether the peer has closed the connection. Waits for that until the time limit of the test.
  bool is_closed() {
    char byte = 0;
    return recv(fd_, &byte, 1, 0) == 0;
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// A rank that has the job's key and performs the handshake step by step.
class RawRank : public RawConnection {
 public:
  RawRank(std::uint16_t port, std::int32_t rank, std::int32_t size, std::string_view job_id,
          const JobKey& key = key_for_tests())
      : RawConnection(port), key_(key) {
    hello.rank = rank;
    hello.key_source = key.kind;
    hello.job = wire::job_tag(job_id);
    EXPECT_TRUE(random_bytes(hello.nonce));
    rank_info = {.version = wire::library_version(), .rank = rank, .size = size, .timeout_ms = patience().count()};
  }
  wire::Hello hello;
  wire::RankInfo rank_info;
  wire::Challenge challenge;
  std::string last_message;  // the last message from the server

  // Sends the hello. Returns true if the server answered with a challenge and has the key.
  bool greet() {
    send_bytes(wire::frame(bytes_of(hello)));
    last_message = receive_frame();
    if (last_message.size() != 1 + sizeof(challenge) || last_message[0] != '\2') return false;
    std::memcpy(&challenge, last_message.data() + 1, sizeof(challenge));
    return challenge.proof == wire::server_proof(key_.key, hello, challenge);
  }
  std::string answer() const {
    const wire::Answer answer{.rank_info = rank_info,
                              .proof = wire::rank_proof(key_.key, hello, challenge.nonce, rank_info)};
    return std::string(bytes_of(answer));
  }
  // Performs the handshake. Returns true if the server answered with the welcome.
  bool join() {
    if (!greet()) return false;
    send_bytes(wire::frame(answer()));
    to_server_.emplace(key_.key, hello, challenge.nonce, wire::Seal::Direction::kToServer);
    to_rank_.emplace(key_.key, hello, challenge.nonce, wire::Seal::Direction::kToRank);
    last_message = receive_sealed();
    return last_message.starts_with('\1');
  }
  void send_sealed(const std::string& body) {
    send_bytes(wire::frame(body + std::string(bytes_of(to_server_->next(sha256({body}))))));
  }
  std::string receive_sealed() {
    const auto body = to_rank_->open(receive_frame());
    return body.value_or("");
  }

 private:
  JobKey key_;
  std::optional<wire::Seal> to_server_, to_rank_;
};

}  // namespace tutti::test
