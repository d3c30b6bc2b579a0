// For tests of UCX: two or more ranks in one process, which the test drives by hand, with the UCX settings that they
// need.
#pragma once

#include <cstdlib>
#include <vector>

#include "tcp_support.h"
#include "transports/rdma/offload_transport.h"
#include "transports/ucx/ucx_maker.h"

namespace tutti::ucx_test {

using tcp_test::await;
using tcp_test::call;
using tcp_test::eventually;
using tcp_test::kSlotBytes;
using tcp_test::kSlots;

struct TestJob {
  std::vector<std::shared_ptr<TcpEndpoint>> endpoints;  // one for each rank, as if each rank were a process
  std::vector<std::string> addresses;
  std::vector<std::shared_ptr<DataPathMaker>> makers;
  std::vector<std::unique_ptr<OffloadTransport>> ranks;

  // `transports`: the value of UCX_TLS. UCX reads it only when the process has no UCX context, so objects with
  // different values must not overlap in time.
  explicit TestJob(const char* transports = "tcp,self", std::uint32_t count = 2, std::uint32_t slots = kSlots,
                   UcxPuts puts = UcxPuts::kByCards) {
    setenv("UCX_TLS", transports, 1);
    setenv("UCX_NET_DEVICES", "lo", 1);  // tests with network namespaces add and remove other interfaces
    std::vector<std::string> offers;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      endpoints.push_back(tcp_test::endpoint());
      addresses.push_back(endpoints.back()->address());
      makers.push_back(make_ucx_maker(puts).value());
      offers.push_back(makers.back()->offer());
    }
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      ranks.push_back(make(rank, count, slots, offers).value());
    }
  }
  Result<std::unique_ptr<OffloadTransport>> make(std::uint32_t rank, std::uint32_t count, std::uint32_t slots,
                                                 std::vector<std::string> offers) {
    offers[rank].clear();
    std::vector<std::string> others = addresses;
    others[rank].clear();
    const TcpTransportOptions tcp{.rank = rank,
                                  .ranks = count,
                                  .communicator = tcp_test::kCommunicator,
                                  .slots = slots,
                                  .slot_bytes = kSlotBytes};
    const DataPathOptions path{.rank = rank,
                               .ranks = count,
                               .slots = slots,
                               .slot_bytes = kSlotBytes,
                               .lanes = tcp.lanes,
                               .offers = std::move(offers)};
    return OffloadTransport::create(tcp, endpoints[rank], others,
                                    [&](const DataPathHost& host) { return makers[rank]->make(host, path); });
  }
  std::unique_ptr<SendConnection> send(std::uint32_t from, std::uint32_t to, std::uint16_t lane = 0) {
    return ranks[from]->open_send(to, lane).value();
  }
  std::unique_ptr<ReceiveConnection> receive(std::uint32_t from, std::uint32_t to, std::uint16_t lane = 0) {
    return ranks[to]->open_receive(from, lane).value();
  }
  // Runs one round of the work that every rank does while it waits.
  void turn() {
    for (const auto& rank : ranks) {
      if (rank == nullptr) continue;
      rank->pump();
      rank->flush();
    }
  }
  bool eventually(const std::function<bool()>& done, int ms = 10000) {
    return tcp_test::eventually([&] { return turn(), done(); }, ms);
  }
  Arrival await(ReceiveConnection& connection, const CallTag& tag, int ms = 10000) {
    Arrival arrival = Arrival::kNothing;
    eventually([&] { return (arrival = connection.arrival(tag)) != Arrival::kNothing; }, ms);
    return arrival;
  }
};

}  // namespace tutti::ucx_test
