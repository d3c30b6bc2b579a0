// SimExchange: the exchange between the ranks of one simulated machine, in place of UnixExchange: datagrams take the
// environment's latency, come in order, and come even where their sender dies then; a process' end is noticed after the
// last of them. Memory is each rank's own: nobody reaches another's by it.
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

// What the exchanges of a environment share. Belongs to the rank that has the turn.
struct SimOobDatagrams {
  struct Way {  // from one rank to another
    OobDatagramQueue box;
    std::int64_t last_arrival_ns = 0;
    bool closed = false;  // its sender's end has come
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Way> ways;
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
  void poke(std::uint32_t, std::uint32_t) override {}
  Result<std::unique_ptr<PokeReceiver>> receive_pokes(std::uint32_t segment) override {
    return own_.receive_pokes(segment);
  }
  void post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) override;
  std::optional<std::string> take_datagram(std::uint32_t peer, std::uint64_t channel) override;

 private:
  void arrive(std::uint32_t peer, std::function<void(SimOobDatagrams::Way&)> happen);

  SimEnvironment& environment_;
  SimOobDatagrams& datagrams_;
  const std::uint32_t rank_;
  InProcessExchange own_;
};

}  // namespace tutti::faults
