// Binding of a plan to the connections of a communicator, in two steps: bind() determines for each send how windows
// may carry its message, and open() opens the connections of the ports. The thread that makes the first call with
// the plan calls bind(). open() is called by the engine's driver, because only the driver may use the transport.
// Both happen once per plan and communicator. Any number of calls can then run the bound plan, one after another.
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

// One end of a connection, in the order of Channel::ports. Exactly one of `send` and `receive` is set.
struct BoundPort {
  SendConnection* send = nullptr;
  ReceiveConnection* receive = nullptr;
  std::uint32_t peer = 0;
  bool by_memory = false;  // the connection sends from, or receives into, the caller's memory without a slot
  // For a receive: a step exists that only stores a message of this port to the output, so a sender may write that
  // message into the output directly.
  bool pushed = false;
  std::uint64_t min_aimed_bytes = ~std::uint64_t{0};  // min_aimed_bytes() of the connection
  bool lingers = false;  // for a send: messages must be handed over before the call may end
};

inline constexpr std::uint16_t kNoPort = 0xffff;

// How one send may be carried, by the rules of plan/windows.h and plan/replies.h.
struct SendRule {
  Carrier carrier = Carrier::kSlot;
  Carrier unpublished = Carrier::kSlot;
  Slice peer_sink;
  std::uint16_t answers = kNoPort;  // the port that received the message that this one may overwrite as a reply
};

struct BoundChannel {
  std::vector<BoundPort> ports;
  std::vector<SendRule> rules;  // in the order of Channel::lists; unused entries for receives
};

// This rank's plan and its connections, which are owned by a Connections object.
struct BoundPlan {
  PlanShape shape;
  std::uint32_t rank = 0;
  RankPlan program;
  std::vector<BoundChannel> channels;
  std::size_t most_operands = 1;  // largest number of operands of one step
  std::size_t most_sends = 0;     // largest number of sends of one step
  bool opened = false;            // open() has succeeded; used by the driver only, like the ports
};

// All open connections of a communicator. Plans and exchanges share them and open them on first use. Only the
// engine's driver may use this class.
class Connections {
 public:
  explicit Connections(Transport& transport) : transport_(transport) {}
  Result<SendConnection*> send(std::uint32_t peer, std::uint16_t lane);
  Result<ReceiveConnection*> receive(std::uint32_t peer, std::uint16_t lane);
  // Frees the slots that hold messages of calls before `call`, on all connections of plans. This is necessary after
  // a failed call: the plan of `call` may use other connections than the failed plan, and its senders may be waiting
  // for the credits of those slots. Called by the driver between steps of `call`.
  void drop_stale(const CallTag& call);

 private:
  using Key = std::pair<std::uint32_t, std::uint16_t>;
  Transport& transport_;
  std::map<Key, std::unique_ptr<SendConnection>> sends_;
  std::map<Key, std::unique_ptr<ReceiveConnection>> receives_;
};

// Builds the plan of `rank` and binds it. Uses only constants of the transport, so any thread may call it. Errors:
// kUnsupported if the transport has too few slots or lanes for the plan.
Result<std::unique_ptr<BoundPlan>> bind(const Generator& generator, std::uint32_t rank, const Transport& transport);

// Opens the connections of the plan, if they are not open yet. Errors: those of the transport, for example kSystem
// (no file descriptors left).
Status open(BoundPlan& plan, Connections& connections);

}  // namespace tutti
