// Binding of a plan to the connections of a communicator, in two steps. bind() determines for each send of the plan
// which carriers its message may use (slot, published, delivered, reply). open() opens the connections of the plan's
// ports. bind() is called by the thread that makes the first call with the plan or passes the plan to use_plan(), and
// open() by the engine's driver, because only the driver may use connections. Both need to succeed only once per plan
// and communicator. Any number of calls can then run the bound plan, one after another.
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

// One end of a connection, for one port of a channel. open() sets exactly one of `send` and `receive`; before that,
// both are null.
struct BoundPort {
  SendConnection* send = nullptr;
  ReceiveConnection* receive = nullptr;
  std::uint32_t peer = 0;
  // The connection prefers to send from, or to receive into, the buffers or scratch of the plan without a copy in a
  // slot.
  bool by_memory = false;
  // For a receive: some step of the plan only stores a message of this port to the output (and perhaps forwards it).
  // The peer may therefore write that message directly into the output, if this rank advertises its output to the peer.
  bool pushed = false;
  // The result of the connection's min_aimed_bytes(): the length of the shortest message that the network may write
  // directly into an advertised output.
  std::uint64_t min_aimed_bytes = ~std::uint64_t{0};
  // For a send: the call may end only when the messages have been handed over (SendConnection::handed_over()).
  bool lingers = false;
};

// The value of SendRule::answers for a send that cannot be a reply.
inline constexpr std::uint16_t kNoPort = 0xffff;

// The carriers that the message of one send may use, by the rules of plan/windows.h and plan/replies.h.
struct SendRule {
  // The first carrier to try. If it is kPublished, `unpublished` is the one to use when the value cannot be
  // published.
  Carrier carrier = Carrier::kSlot;
  Carrier unpublished = Carrier::kSlot;
  // The sink of the step that receives the message, in the peer's memory.
  Slice peer_sink;
  // The port on which the same step receives the message that this one may overwrite as a reply. kNoPort: there is
  // none.
  std::uint16_t answers = kNoPort;
};

struct BoundChannel {
  // The ports of the channel, indexed like Channel::ports.
  std::vector<BoundPort> ports;
  // Indexed like Channel::lists. The entries for receives are unused.
  std::vector<SendRule> rules;
};

// This rank's plan and its connections, which are owned by a Connections object.
struct BoundPlan {
  PlanShape shape;
  std::uint32_t rank = 0;
  RankPlan program;
  std::vector<BoundChannel> channels;
  std::size_t most_operands = 1;  // at least the number of operands of any step
  std::size_t most_sends = 0;     // largest number of sends of one step
  // open() has succeeded. Only the driver uses this and the connections of the ports.
  bool opened = false;
};

// All open connections of a communicator, by peer and lane. The plans share those of their lanes, and the exchanges
// those of kPointToPointLane. send() and receive() return the connection, and open it on first use. Only the engine's
// driver may use this class.
class Connections {
 public:
  explicit Connections(Transport& transport) : transport_(transport) {}
  Result<SendConnection*> send(std::uint32_t peer, std::uint16_t lane);
  Result<ReceiveConnection*> receive(std::uint32_t peer, std::uint16_t lane);
  // On all connections that plans use, drops received messages of calls before `call`, so that their slots become
  // free. This is necessary after a failed call: the plan of `call` may use other connections than the failed plan,
  // so it would not drop these messages itself, and peers may still be waiting for the credits of those slots. The
  // driver calls this after `call` has started, if a collective has failed before, and again while `call` waits.
  void drop_stale(const CallTag& call);

 private:
  using Key = std::pair<std::uint32_t, std::uint16_t>;
  Transport& transport_;
  std::map<Key, std::unique_ptr<SendConnection>> sends_;
  std::map<Key, std::unique_ptr<ReceiveConnection>> receives_;
};

// Builds the plan of `rank` and determines the carriers of its messages. Uses only constants of the transport, such
// as the number of slots, so any thread may call it. Errors: kUnsupported if the transport has too few slots or
// lanes for the plan.
Result<std::unique_ptr<BoundPlan>> bind(const Generator& generator, std::uint32_t rank, const Transport& transport);

// Opens the connections of the plan. Does nothing if they are open already. Errors: those of the transport, for
// example kSystem (no file descriptors left).
Status open(BoundPlan& plan, Connections& connections);

}  // namespace tutti
