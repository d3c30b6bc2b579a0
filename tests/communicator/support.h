// Helpers of the runtime's tests: ranks as threads, inputs whose result is exact in any order.
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
#include "tests/support/patience.h"
#include "transports/ucx/ucx_maker.h"
#include "tutti/tutti.h"

namespace tutti::test {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

// attach "off": memory that is not registered is reached by messages, as between processes that may not attach.
inline Communicators make_ranks(std::int32_t size, std::chrono::milliseconds timeout = patience(),
                                const char* attach = "") {
  CommunicatorOptions options;
  options.timeout = timeout;
  options.attach = attach;
  auto ranks = Communicator::create_all(size, options);
  EXPECT_TRUE(ranks.ok()) << to_string(ranks.error());
  return std::move(*ranks);
}

// How the ranks of a test are connected.
struct WorldKind {
  const char* name;
  std::int32_t nodes;     // machines that the ranks are dealt to in equal runs; 1: all on one
  const char* transport;  // "auto", "tcp", "ucx"
  const char* attach;     // "off": messages; "calls" and "auto": each other's memory
  const char* tls = "";   // of "ucx": UCX_TLS; empty: as the environment says
  bool checksum = false;
};
inline std::ostream& operator<<(std::ostream& stream, const WorldKind& world) { return stream << world.name; }
inline constexpr WorldKind kWorlds[] = {
    {"Shm", 1, "auto", "off"}, {"Tcp", 1, "tcp", "off"}, {"Mixed", 2, "auto", "off"}};
inline constexpr WorldKind kUcxWorlds[] = {{"UcxTcp", 1, "ucx", "off", "tcp,self"},
                                           {"UcxSm", 1, "ucx", "off", "sm,self"}};
inline constexpr WorldKind kChecksumWorlds[] = {{"ShmChecksums", 1, "auto", "auto", "", true},
                                                {"TcpChecksums", 1, "tcp", "off", "", true},
                                                {"MixedChecksums", 2, "auto", "off", "", true}};
inline constexpr WorldKind kAttachedWorlds[] = {{"Pointers", 1, "auto", "auto"}, {"Calls", 1, "auto", "calls"}};

// The worlds that the conformance suite goes through: those above, or, where CONFORMANCE_WORLDS says "verbs" or "ucx",
// those of RDMA devices, for the guests of scripts/rdma-vm. There TUTTI_RDMA_DEVICES must name the device, so that
// `auto` takes it though it is of software.
inline std::vector<WorldKind> worlds() {
  const char* const wanted = std::getenv("CONFORMANCE_WORLDS");
  if (wanted == nullptr) return {std::begin(kWorlds), std::end(kWorlds)};
  if (std::string_view(wanted) == "verbs") return {{"Verbs", 1, "verbs", "off"}, {"MixedVerbs", 2, "auto", "off"}};
  return {{"Ucx", 1, "ucx", "off"}};
}

// For SetUp(): the test is skipped where the world's library is not there.
inline void skip_unless_possible(const WorldKind& world) {
  if (std::string_view(world.transport) != "ucx") return;
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "UCX is not built for the thread sanitizer, which knows nothing of its locks";
#endif
  if (const auto ucx = find_ucx(); !ucx) GTEST_SKIP() << ucx.error().message;
}

inline Communicators make_world(const WorldKind& world, std::int32_t ranks,
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

// body(communicator of this rank), one thread per rank.
inline void on_every_rank(Communicators& ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// Small whole numbers that depend on rank and index: sums of up to 64 ranks stay exact in every type of 11 bits and
// more.
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

// A float32 sum that runs in the background.
inline Result<Work> start_sum(Communicator& rank, const float* input, float* output, std::size_t count,
                              const CallOptions& options = {}) {
  return rank.start({.kind = CollectiveKind::kAllReduce, .input = input, .output = output, .count = count}, options);
}

// The message of a float32 sum that fails; empty when it does not.
inline std::string sum_fails(Communicator& rank, const CallOptions& options) {
  std::vector<float> data(4);
  const Status status = rank.all_reduce(data.data(), data.data(), 4, DataType::kFloat32, ReduceOp::kSum, options);
  return status.ok() ? "" : status.error().message;
}

// One checked float32 sum; false and a test failure where it went wrong.
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
