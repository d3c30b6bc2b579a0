// A connection without manners, and a rank by hand: what a server is told, byte by byte.
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
  return {.key = Key(sha256({name})), .kind = wire::KeyKind::kGiven, .origin = "the test"};
}

// A new connection to a port of loopback; -1: nobody listens there.
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

inline bool somebody_listens(std::uint16_t port) {
  const int fd = connection_to(port);
  return fd >= 0 && close(fd) == 0;
}

// Says what it is told to.
class Raw {
 public:
  explicit Raw(std::uint16_t port) {
    EXPECT_TRUE(eventually([&] {
      fd_ = connection_to(port);
      return fd_ >= 0;
    }));
    const timeval limit{.tv_sec = patience() / std::chrono::seconds(1), .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  explicit Raw(int connected) : fd_(connected) {}
  ~Raw() { close(fd_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  void say(const std::string& bytes) { EXPECT_GT(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0); }
  // The body of the next frame; empty: the end.
  std::string hear() {
    std::array<char, 4> header{};
    if (recv(fd_, header.data(), header.size(), MSG_WAITALL) != 4) return {};
    std::string body(wire::frame_length(header), '\0');
    return recv(fd_, body.data(), body.size(), MSG_WAITALL) == ssize_t(body.size()) ? body : std::string();
  }
  // The other side has closed it: that comes next, and within the test's patience.
  bool is_closed() {
    char byte = 0;
    return recv(fd_, &byte, 1, 0) == 0;
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// Knows the job's key, and speaks the handshake step by step.
class RawRank : public Raw {
 public:
  RawRank(std::uint16_t port, std::int32_t rank, std::int32_t size, std::string_view job_id,
          const JobKey& key = key_for_tests())
      : Raw(port), key_(key) {
    hello.rank = rank;
    hello.key_kind = key.kind;
    hello.job = wire::job_tag(job_id);
    EXPECT_TRUE(random_bytes(hello.nonce));
    introduction = {.version = wire::library_version(), .rank = rank, .size = size, .timeout_ms = patience().count()};
  }
  wire::Hello hello;
  wire::Introduction introduction;
  wire::Challenge challenge;
  std::string heard;  // what the server last said

  // True: the server has challenged us, and has the key.
  bool greet() {
    say(wire::frame(bytes_of(hello)));
    heard = hear();
    if (heard.size() != 1 + sizeof(challenge) || heard[0] != '\2') return false;
    std::memcpy(&challenge, heard.data() + 1, sizeof(challenge));
    return challenge.proof == wire::server_proof(key_.key, hello, challenge);
  }
  std::string answer() const {
    const wire::Answer answer{.introduction = introduction,
                              .proof = wire::rank_proof(key_.key, hello, challenge.nonce, introduction)};
    return std::string(bytes_of(answer));
  }
  // True: welcome.
  bool join() {
    if (!greet()) return false;
    say(wire::frame(answer()));
    to_server_.emplace(key_.key, hello, challenge.nonce, wire::Seal::Direction::kToServer);
    to_rank_.emplace(key_.key, hello, challenge.nonce, wire::Seal::Direction::kToRank);
    heard = hear_sealed();
    return heard.starts_with('\1');
  }
  void say_sealed(const std::string& body) {
    say(wire::frame(body + std::string(bytes_of(to_server_->next(sha256({body}))))));
  }
  std::string hear_sealed() {
    const auto body = to_rank_->open(hear());
    return body.value_or("");
  }

 private:
  JobKey key_;
  std::optional<wire::Seal> to_server_, to_rank_;
};

}  // namespace tutti::test
