#include "transports/tcp/peer_probe.h"

#include <poll.h>

#include <algorithm>
#include <cstddef>

namespace tutti {
namespace {

// Longest time to wait for an answer. Linux repeats the first packet of a connection after 1 s, so this time includes
// the answer to the second packet. So if only the first packet is lost, the machine is not mistaken for one that is
// switched off.
constexpr std::int64_t kAnswerNs = 3'000'000'000;
// Time for which a new connection must stay open, unless kAnswerNs has passed. When a process exits, its listener is
// normally closed within this time after its connections, and the kernel resets connections that the listener had not
// accepted.
constexpr std::int64_t kOpenNs = 100'000'000;

}  // namespace

PeerProbe::PeerProbe(const SocketAddress& listener, std::int64_t now_ns) : since_ns_(now_ns) {
  int error = 0;
  socket_ = try_to_connect(listener, error);
  // A refused connection means that the process has exited. If there is no socket because descriptors have run out, the
  // process is also assumed to have exited, because an exit is the usual reason why connections end.
  if (error != 0) settle(is_network_error(error) ? Finding::kSilence : Finding::kEnded);
}

PeerProbe::Finding PeerProbe::look(std::int64_t now_ns) {
  if (finding_ != Finding::kNone) return finding_;
  pollfd state{.fd = socket_.get(), .events = POLLIN | POLLOUT, .revents = 0};
  poll(&state, 1, 0);
  std::byte byte{};
  if ((state.revents & (POLLIN | POLLERR | POLLHUP)) != 0) {
    const Moved moved = peek_some(socket_.get(), &byte, 1);
    if (moved.ended) settle(is_network_error(moved.error) ? Finding::kSilence : Finding::kEnded);
  }
  // POLLIN counts, too, because a listener may send data first.
  const bool connected = (state.revents & (POLLIN | POLLOUT)) != 0;
  if (finding_ == Finding::kNone && connected && connected_ns_ == 0) connected_ns_ = std::max<std::int64_t>(now_ns, 1);
  if (finding_ == Finding::kNone && connected_ns_ != 0 && now_ns - connected_ns_ >= kOpenNs) settle(Finding::kAccepts);
  if (finding_ == Finding::kNone && now_ns - since_ns_ >= kAnswerNs) {
    settle(connected_ns_ != 0 ? Finding::kAccepts : Finding::kSilence);
  }
  return finding_;
}

void PeerProbe::settle(Finding finding) {
  finding_ = finding;
  socket_.close();
}

std::string describe_finding(PeerProbe::Finding finding) {
  switch (finding) {
    case PeerProbe::Finding::kAccepts:
      return "but something still takes connections at its port: if that is its process, a firewall or another device "
             "between the machines cuts or resets connections, perhaps those that were idle";
    case PeerProbe::Finding::kSilence:
      return "and its machine does not answer: it is switched off, or the network or a firewall between the machines "
             "stops the packets";
    case PeerProbe::Finding::kNone:
    case PeerProbe::Finding::kEnded: break;
  }
  return {};
}

}  // namespace tutti
