// Fuzzes the data on a TCP connection, over real sockets: preambles with and without the job's key, messages, states
// and datagrams. The transport of a rank listens, and a client connects and sends the input. No message may be
// longer than a slot, and after garbage the rank must still have the state of its peers.
#include <memory>
#include <string>
#include <vector>

#include "support.h"
#include "transports/tcp/oob_datagrams.h"
#include "transports/tcp/tcp_transport.h"

namespace {

using namespace tutti;
using fuzz::demand;
using fuzz::Input;

constexpr std::uint32_t kRanks = 3;
constexpr std::uint32_t kSlotBytes = 4096;
constexpr int kLooks = 16;
const Key kKey = {1, 2, 3};

std::shared_ptr<TcpEndpoint> endpoint() {  // shared because the transport requires it
  auto made = TcpEndpoint::listen({.address = "127.0.0.1", .key = kKey});
  demand(made.ok(), "an endpoint listens");
  return *made;
}

// A client that connects. It resets the connection at the end, so that no port stays in use.
class Stranger {
 public:
  explicit Stranger(const PeerAddress& to) {
    auto socket = connect_to(to.socket, 0, 0);
    demand(socket.ok(), "loopback can be reached");
    socket_ = std::move(*socket);
  }
  ~Stranger() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  void say(std::string_view text) {
    if (text.empty()) return;
    iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    send_some(socket_.get(), {&part, 1});
  }
  void hang_up() { shutdown(socket_.get(), SHUT_WR); }

 private:
  Socket socket_;
};

struct Scene {
  std::shared_ptr<TcpEndpoint> listener = endpoint();
  std::shared_ptr<TcpEndpoint> other = endpoint();
  PeerAddress address = PeerAddress::parse(listener->address(), 1).value();
  std::uint64_t communicator = 0;  // different for each input
};

Preamble preamble(Scene& scene, TcpLinkKind kind) {
  Preamble made;
  made.kind = kind;
  made.nonce = scene.address.nonce;
  made.communicator = scene.communicator;
  made.receiver = 1;
  made.ranks = kRanks;
  made.slot_bytes = kSlotBytes;
  scene.other->sign(made);
  return made;
}

void look(Transport& transport, ReceiveConnection& connection, std::uint64_t sequence) {
  const CallTag tag{.sequence = sequence, .count = 10};
  for (int i = 0; i < kLooks; ++i) {
    transport.pump();
    const Arrival arrival = connection.arrival(tag);
    if (arrival == Arrival::kMessage) {
      const Message message = connection.front();
      demand(message.bytes <= kSlotBytes && message.data != nullptr, "a message fits into a slot");
      unsigned sum = 0;
      for (std::uint64_t at = 0; at < message.bytes; ++at) sum += static_cast<unsigned>(message.data[at]);
      demand(sum <= 255 * kSlotBytes, "its bytes can be read");
      connection.release();
    } else if (arrival == Arrival::kMismatch) {
      demand(connection.mismatched_tag() != tag, "a mismatched tag differs from the expected one");
      return;
    } else if (arrival == Arrival::kCorrupt) {
      return;
    }
  }
}

void check_transport(Scene& scene, TcpLinkKind kind, Input input, bool as_it_is) {
  const std::vector<std::string> addresses = {scene.other->address(), scene.listener->address(),
                                              scene.other->address()};
  const TcpTransportOptions options{
      .rank = 1, .ranks = kRanks, .communicator = scene.communicator, .slot_bytes = kSlotBytes};
  auto transport = TcpTransport::create(options, scene.listener, addresses);
  demand(transport.ok(), "a transport is made");
  auto connection = (*transport)->open_receive(0, 0);
  demand(connection.ok(), "a connection is opened");
  Stranger stranger(scene.address);
  Preamble said = preamble(scene, kind);
  if (as_it_is) said = input.take<Preamble>();
  stranger.say(bytes_of(said));
  const std::uint64_t sequence = 1 + input.take<std::uint8_t>() % 4;
  stranger.say(input.rest());
  look(**transport, **connection, sequence);
  stranger.hang_up();
  look(**transport, **connection, sequence);
  for (const std::uint32_t peer : {0U, 2U}) {
    const PeerStatus status = (*transport)->peer_status(peer);
    demand(status.life <= PeerLife::kUnreachable, "the state of a peer is valid");
    if (const auto failure = (*transport)->peer_failure(peer, sequence)) {
      demand(to_string(failure->code) != "unknown error", "failures have known codes");
    }
    if (const auto call = (*transport)->peer_call(peer, sequence))
      demand(call->sequence == sequence, "a call has its sequence number");
  }
  static_cast<void>((*transport)->troubles());
}

void check_notes(Scene& scene, Input input) {
  TcpOobDatagrams datagrams(scene.listener, scene.communicator, 1,
                            {scene.other->address(), "", scene.other->address()});
  Stranger stranger(scene.address);
  stranger.say(bytes_of(preamble(scene, TcpLinkKind::kDatagrams)));
  stranger.say(input.rest());
  stranger.hang_up();
  for (int i = 0; i < kLooks; ++i) {
    datagrams.pump();
    while (const auto datagram = datagrams.take(0))
      demand(datagram->size() <= kMostDatagramBytes, "datagrams are not longer than the limit");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Scene scene;  // reused, because listening sockets are expensive
  ++scene.communicator;
  Input input(data, size);
  switch (input.take<std::uint8_t>() % 4) {
    case 0: check_transport(scene, TcpLinkKind::kData, input, false); break;
    case 1: check_transport(scene, TcpLinkKind::kControl, input, false); break;
    case 2: check_transport(scene, TcpLinkKind::kData, input, true); break;
    default: check_notes(scene, input);
  }
  return 0;
}
