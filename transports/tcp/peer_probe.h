// PeerProbe: finds out why the connections to a peer ended without a close frame.
//
// The kernel closes the connections of a dead process. But a firewall, a proxy or a broken network can also end
// connections, which looks the same. So the probe makes one more connection to the listener of the peer and sends
// nothing on it. If the connection is refused, no process listens there (unless a firewall refuses it), so the process
// of the peer counts as exited. If the connection stays open, a process listens there. That is the process of the peer,
// unless another process has taken its port or a proxy has answered. Only one thread at a time may use a PeerProbe; no
// function blocks.
#pragma once

#include <cstdint>
#include <string>

#include "transports/tcp/socket.h"

namespace tutti {

class PeerProbe {
 public:
  enum class Finding : std::uint8_t {
    kNone,     // not known yet
    kEnded,    // no process listens there (also assumed if this process has no descriptor or memory for the probe)
    kAccepts,  // a connection was made and stays open; another process may have accepted it
    kSilence,  // the machine does not answer, or the connection failed with an error of the network or a firewall
  };

  PeerProbe(const SocketAddress& listener, std::int64_t now_ns);
  // Checks the connection of the probe and returns the finding. Once the finding is not kNone, it does not change any
  // more. The first call after one of these events settles it: the connection was refused or has ended, it was open for
  // kOpenNs, or kAnswerNs have passed (peer_probe.cc).
  Finding look(std::int64_t now_ns);

 private:
  void settle(Finding finding);

  Socket socket_;
  std::int64_t since_ns_;
  std::int64_t connected_ns_ = 0;  // time at which the connection was first seen established; 0: not yet
  Finding finding_ = Finding::kNone;
};

// Describes the finding, as the end of a sentence about a connection that has ended. Empty for kEnded and kNone.
std::string describe_finding(PeerProbe::Finding finding);

}  // namespace tutti
