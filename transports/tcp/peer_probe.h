// PeerProbe: finds out why the connections to a peer ended without a close frame.
//
// The kernel closes the connections of a dead process. But a firewall, a proxy or a broken network can also end
// connections, which looks the same. So the probe makes one more connection to the listener of the peer and sends
// nothing on it. If it is refused, no process listens there, so the process of the peer has exited. If it stays open,
// a process listens there. That is the process of the peer, unless another process has taken its port. Only one
// thread may use it; no function blocks.
#pragma once

#include <cstdint>
#include <string>

#include "transports/tcp/socket.h"

namespace tutti {

class PeerProbe {
 public:
  enum class Finding : std::uint8_t {
    kNone,     // not known yet
    kEnded,    // no process listens there
    kAccepts,  // a connection was made and stays open; another process may have accepted it
    kSilence,  // no answer, or the network reports that there is no route
  };

  PeerProbe(const SocketAddress& listener, std::int64_t now_ns);
  // Returns the finding. Once it is not kNone, it does not change any more. That takes 0.1 s if the machine of the
  // peer answers, and at most 3 s otherwise.
  Finding look(std::int64_t now_ns);

 private:
  void settle(Finding finding);

  Socket socket_;
  std::int64_t since_ns_;
  std::int64_t connected_ns_ = 0;  // 0: not yet
  Finding finding_ = Finding::kNone;
};

// Describes the finding, for a sentence about a connection that has ended. Empty if the process has exited.
std::string describe_finding(PeerProbe::Finding finding);

}  // namespace tutti
