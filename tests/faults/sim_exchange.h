// SimExchange: the exchange between the ranks of one simulated machine, in place of UnixExchange. Datagrams arrive
// in order after the latency of the environment, even if the sender dies after it has sent them. The exit of a
// process is noticed after its last datagram. Ranks cannot access each other's memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "transports/shm/exchange.h"
#include "transports/sim/sim_environment.h"

namespace tutti::faults {

// The state that the exchanges of an environment share. Only the rank that has the turn may access it.
struct SimOobDatagrams {
  struct Path {  // the datagrams from one rank to another
    OobDatagramQueue queue;
    std::int64_t last_arrival_ns = 0;
    bool closed = false;  // the exit of the sender was noticed
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Path> paths;
};

class SimExchange final : public SegmentExchange {
 public:
  SimExchange(SimEnvironment& environment, SimOobDatagrams& datagrams, std::uint32_t rank);
  ~SimExchange() override;

  std::uint32_t share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) override {
    return own_.share(mapping, audience);
  }
  void unshare(std::uint32_t id, std::span<const std::uint32_t> audience) override { own_.unshare(id, audience); }
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override { return own_.find(peer, id); }
  bool pump() override { return own_.pump(); }
  bool all_sent_to(std::span<const std::uint32_t>) override { return true; }
  bool peer_gone(std::uint32_t peer) override;
  pid_t process_of(std::uint32_t) override { return 0; }
  void wake_peer(std::uint32_t, std::uint32_t) override {}
  Result<std::unique_ptr<WakeReceiver>> create_wake_receiver(std::uint32_t segment) override {
    return own_.create_wake_receiver(segment);
  }
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override;
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override;

 private:
  void arrive(std::uint32_t peer, std::function<void(SimOobDatagrams::Path&)> happen);

  SimEnvironment& environment_;
  SimOobDatagrams& datagrams_;
  const std::uint32_t rank_;
  InProcessExchange own_;
};

}  // namespace tutti::faults
