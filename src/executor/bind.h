// Binding: every send of a plan learns how a window connection would carry it (bind, by whoever makes the first call),
// and its ports become connections (open, by the driver, to whom the transport belongs). Done once per plan and
// communicator; a bound plan is then run by any number of calls, one after another.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/replies.h"
#include "plan/windows.h"
#include "transports/transport.h"

namespace tutti {

// One end of a connection, in the order of Channel::ports; exactly one of the two is set.
struct BoundPort {
  SendConnection* send = nullptr;
  ReceiveConnection* receive = nullptr;
  std::uint32_t peer = 0;
  bool by_memory = false;  // the connection sends from, or receives into, the caller's memory
  bool pushed = false;     // a receive: some of its messages are stored to the output unchanged, and nothing else
  std::uint64_t least_aimed = ~std::uint64_t{0};  // the connection's
  bool lingers = false;                           // a send: what was sent must be handed over before the call may end
};

inline constexpr std::uint16_t kNoPort = 0xffff;

// How one send may leave, by the rules of plan/windows.h and plan/replies.h.
struct SendRule {
  Carrier carrier = Carrier::kSlot;
  Carrier unpublished = Carrier::kSlot;
  Slice peer_sink;
  std::uint16_t answers = kNoPort;  // the port whose message the value may be stored over
};

struct BoundChannel {
  std::vector<BoundPort> ports;
  std::vector<SendRule> rules;  // in the order of Channel::lists; unused entries for receives
};

// This rank's plan and its connections, which the Connections below own.
struct BoundPlan {
  PlanShape shape;
  std::uint32_t rank = 0;
  RankPlan program;
  std::vector<BoundChannel> channels;
  std::size_t most_operands = 1;  // of one step
  std::size_t most_sends = 0;     // of one step
  bool opened = false;            // the driver's, like the ports
};

// All open connections of a communicator: plans and exchanges share them, and open what they need on first use. Belongs
// to the driver of the engine.
class Connections {
 public:
  explicit Connections(Transport& transport) : transport_(transport) {}
  Result<SendConnection*> send(std::uint32_t peer, std::uint16_t lane);
  Result<ReceiveConnection*> receive(std::uint32_t peer, std::uint16_t lane);
  // Frees the slots that messages of calls before `call` still hold, on all connections of plans: the plan of `call`
  // may use others than the one that failed, and its senders may wait for just these credits. By the driver, between
  // steps of `call`.
  void drop_stale(const CallTag& call);

 private:
  using Key = std::pair<std::uint32_t, std::uint16_t>;
  Transport& transport_;
  std::map<Key, std::unique_ptr<SendConnection>> sends_;
  std::map<Key, std::unique_ptr<ReceiveConnection>> receives_;
};

// Builds rank's own plan and binds it. Uses nothing of the transport but its constants. Errors: kUnsupported when it
// has too few slots or lanes for the plan.
Result<std::unique_ptr<BoundPlan>> bind(const Generator& generator, std::uint32_t rank, const Transport& transport);

// Opens the plan's connections, once. Errors: the transport's, e.g. kSystem (out of descriptors).
Status open(BoundPlan& plan, Connections& connections);

}  // namespace tutti
