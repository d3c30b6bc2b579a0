// A job whose ranks meet over loopback, for tests of set-up.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/raw_rank.h"
#include "tests/support/patience.h"

namespace tutti::test {

// The options of a rank of the job that the tests of set-up use. The job's server is at `port` of loopback.
inline RendezvousOptions job(std::int32_t rank, std::int32_t size, std::uint16_t port) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = size;
  options.host = "127.0.0.1";
  options.ports = {port};
  options.job_id = "bootstrap-test";
  options.key = key_for_tests();
  options.timeout_ms = patience().count();
  return options;
}

// Runs body(rank) for each of `ranks`, each in a thread of its own, and waits for all of them.
inline void on_ranks(const std::vector<std::int32_t>& ranks, const std::function<void(std::int32_t)>& body) {
  std::vector<std::thread> threads;
  for (const std::int32_t rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<std::int32_t> up_to(std::int32_t size) {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// The error with which the set-up of a rank fails.
inline Error failure_of(const RendezvousOptions& options) {
  auto bootstrap = tcp_bootstrap(options);
  EXPECT_FALSE(bootstrap.ok()) << "rank " << options.rank;
  return bootstrap.ok() ? Error{} : bootstrap.error();
}

inline void expect_words(const Error& error, const std::string& words) {
  EXPECT_NE(error.message.find(words), std::string::npos) << "\"" << words << "\" is not in: " << to_string(error);
}

// A rank of job() that the test controls message by message.
class Rank : public RawRank {
 public:
  Rank(std::uint16_t port, std::int32_t rank, std::int32_t size) : RawRank(port, rank, size, "bootstrap-test") {}
};

}  // namespace tutti::test
