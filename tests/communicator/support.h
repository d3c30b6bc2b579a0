// Helpers for the tests of communicators: ranks as threads, and inputs whose sums are exact in any order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/config.h"
#include "tests/support/patience.h"
#include "transports/ucx/ucx_maker.h"
#include "tutti/tutti.h"

namespace tutti::test {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

// Creates ranks as threads. If attach is "off", memory that is not registered is reached by messages, as between
// processes that may not attach to each other.
inline Communicators make_ranks(std::int32_t size, std::chrono::milliseconds timeout = patience(),
                                const char* attach = "") {
  CommunicatorOptions options;
  options.timeout = timeout;
  options.attach = attach;
  auto ranks = Communicator::create_all(size, options);
  EXPECT_TRUE(ranks.ok()) << to_string(ranks.error());
  return std::move(*ranks);
}

// Describes how the ranks of a test are connected.
struct JobConfiguration {
  const char* name;
  std::int32_t nodes;     // number of machines; each gets a contiguous block of ranks; 1: all ranks on one machine
  const char* transport;  // "auto", "tcp" or "ucx"
  const char* attach;     // "off": messages only; "calls" and "auto": access each other's memory
  const char* tls = "";   // UCX_TLS, for transport "ucx"; empty: the value of the environment variable
  bool checksum = false;
};
inline std::ostream& operator<<(std::ostream& stream, const JobConfiguration& world) { return stream << world.name; }
inline constexpr JobConfiguration kConfigurations[] = {
    {"Shm", 1, "auto", "off"}, {"Tcp", 1, "tcp", "off"}, {"Mixed", 2, "auto", "off"}};
inline constexpr JobConfiguration kUcxConfigurations[] = {{"UcxTcp", 1, "ucx", "off", "tcp,self"},
                                                          {"UcxSm", 1, "ucx", "off", "sm,self"}};
inline constexpr JobConfiguration kChecksumConfigurations[] = {{"ShmChecksums", 1, "auto", "auto", "", true},
                                                               {"TcpChecksums", 1, "tcp", "off", "", true},
                                                               {"MixedChecksums", 2, "auto", "off", "", true}};
inline constexpr JobConfiguration kAttachedConfigurations[] = {{"Pointers", 1, "auto", "auto"},
                                                               {"Calls", 1, "auto", "calls"}};

// Returns the configurations that the conformance suite tests. They are those above and one for each further transport
// that works on every machine, unless the variable CONFORMANCE_WORLDS is "verbs" or "ucx"; then they are those for RDMA
// devices, for the guests of scripts/rdma-vm. In these guests TUTTI_RDMA_DEVICES must name the device, because "auto"
// ignores software devices otherwise.
inline std::vector<JobConfiguration> configurations() {
  const char* const wanted = std::getenv("CONFORMANCE_WORLDS");
  if (wanted == nullptr) {
    std::vector<JobConfiguration> all(std::begin(kConfigurations), std::end(kConfigurations));
    for (const TransportRow& row : kTransportTable) {
      if (row.network && row.everywhere && row.name != "tcp")
        all.push_back({row.name.data(), 1, row.name.data(), "off"});
    }
    return all;
  }
  if (std::string_view(wanted) == "verbs") return {{"Verbs", 1, "verbs", "off"}, {"MixedVerbs", 2, "auto", "off"}};
  return {{"Ucx", 1, "ucx", "off"}};
}

// Skips the test if the library that it needs is missing. For SetUp().
inline void skip_unless_possible(const JobConfiguration& world) {
  if (std::string_view(world.transport) != "ucx") return;
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "UCX is not built for the thread sanitizer, which cannot see its locks";
#endif
  if (const auto ucx = find_ucx(); !ucx) GTEST_SKIP() << ucx.error().message;
}

inline Communicators make_configured_ranks(const JobConfiguration& world, std::int32_t ranks,
                                           std::chrono::milliseconds timeout = patience()) {
  CommunicatorOptions options;
  options.timeout = timeout;
  options.transport = world.transport;
  if (*world.tls != '\0') {
    setenv("UCX_TLS", world.tls, 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
  }
  options.attach = world.attach;
  if (world.checksum) options.checksum = true;
  auto made = Communicator::create_all(ranks, options, std::min(world.nodes, ranks));
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

inline void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Runs body(communicator) in one thread for each rank.
inline void on_every_rank(Communicators& ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// Small integers that depend on rank and index. Sums of up to 64 ranks are exact in every type with at least 11 bits
// of precision.
inline float input_of(std::int32_t rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11);
}
inline float sum_of(std::int32_t ranks, std::size_t i) {
  float sum = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) sum += input_of(rank, i);
  return sum;
}

inline CallOptions with(Algorithm algorithm) {
  CallOptions options;
  options.algorithm = algorithm;
  return options;
}

// Starts a float32 sum that runs in the background.
inline Result<Work> start_sum(Communicator& rank, const float* input, float* output, std::size_t count,
                              const CallOptions& options = {}) {
  return rank.start({.kind = CollectiveKind::kAllReduce, .input = input, .output = output, .count = count}, options);
}

// Makes a float32 sum. Returns its error message, or an empty string if it succeeds.
inline std::string sum_fails(Communicator& rank, const CallOptions& options) {
  std::vector<float> data(4);
  const Status status = rank.all_reduce(data.data(), data.data(), 4, DataType::kFloat32, ReduceOp::kSum, options);
  return status.ok() ? "" : status.error().message;
}

// Makes a float32 sum and checks its result. If it is wrong, the test fails and false is returned.
inline bool sum_is_right(Communicator& rank, std::size_t count, const CallOptions& options = {}) {
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = input_of(rank.rank(), i);
  const Status status = rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum, options);
  EXPECT_TRUE(status.ok()) << "rank " << rank.rank() << ": " << to_string(status.error());
  if (!status.ok()) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] != sum_of(rank.size(), i)) {
      ADD_FAILURE() << "rank " << rank.rank() << " element " << i << " is " << data[i] << ", not "
                    << sum_of(rank.size(), i);
      return false;
    }
  }
  return true;
}

}  // namespace tutti::test
