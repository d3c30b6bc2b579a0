// Implements TcpNetwork.
#include "faults/tcp_network.h"

#include <algorithm>

#include "base/assert.h"
#include "transports/tcp/tcp_transport.h"

namespace tutti::faults {
namespace {

constexpr std::int64_t kSetUpNs = 30'000'000'000;                                // longer than every temporary fault
const Key kKey = {1};                                                            // the job key, shared by all ranks
constexpr const char* kNobody = "127.0.0.1:1/00000000000000000000000000000000";  // no process listens at this address

}  // namespace

std::shared_ptr<TcpEndpoint> TcpNetwork::listen(std::uint32_t rank, Clock& clock) {
  kernel_.adopt_thread();
  auto endpoint = TcpEndpoint::listen({.address = "127.0.0.1", .key = kKey, .clock = &clock});
  TUTTI_ASSERT(endpoint.ok(), "{}", to_string(endpoint.error()));
  addresses_[rank] = (*endpoint)->address();
  environment_.wake_all();
  return std::move(*endpoint);
}

std::vector<std::string> TcpNetwork::addresses(std::uint32_t rank) {
  const auto missing = [](const std::string& address) { return address.empty(); };
  const std::int64_t latest_ns = environment_.now_ns() + kSetUpNs;
  while (std::any_of(addresses_.begin(), addresses_.end(), missing) && environment_.now_ns() < latest_ns) {
    if (environment_.dead(rank)) break;
    environment_.pause(rank, 1'000'000'000);
  }
  std::vector<std::string> addresses = addresses_;
  std::replace_if(addresses.begin(), addresses.end(), missing, std::string(kNobody));
  return addresses;
}

std::unique_ptr<Transport> TcpNetwork::transport(std::uint32_t rank, Clock& clock,
                                                 std::shared_ptr<TcpEndpoint> endpoint,
                                                 std::vector<std::string> addresses) {
  addresses[rank].clear();
  const SimOptions& sim = environment_.options();
  auto made = TcpTransport::create({.rank = rank,
                                    .ranks = sim.ranks,
                                    .communicator = kCommunicator,
                                    .slots = sim.slots,
                                    .slot_bytes = static_cast<std::uint32_t>(sim.slot_bytes),
                                    .clock = &clock},
                                   std::move(endpoint), addresses);
  TUTTI_ASSERT(made.ok(), "{}", to_string(made.error()));
  return std::move(*made);
}

}  // namespace tutti::faults
