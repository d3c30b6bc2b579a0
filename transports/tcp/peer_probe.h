// PeerProbe: asks why the connections to a peer ended without a goodbye.
//
// The kernel closes a dead process's connections, but a firewall, a proxy or a broken network can end them as well, and
// the end looks the same. So one more connection is made to the peer's listener, and nothing is sent on it. If it is
// refused, nobody listens any more: the process has ended. If it stays open, somebody listens: the process lives,
// unless another one has got its port since. One thread; nothing blocks.
#pragma once

#include <cstdint>
#include <string>

#include "transports/tcp/socket.h"

namespace tutti {

class PeerProbe {
 public:
  enum class Finding : std::uint8_t {
    kNone,     // not known yet
    kEnded,    // nobody listens there
    kLives,    // a connection was made and stays open, whoever has taken it
    kSilence,  // no answer, or the network says that there is no way
  };

  PeerProbe(const SocketAddress& listener, std::int64_t now_ns);
  // The finding, which does not change any more once there is one: after 0.1 s if the peer's machine answers, at most
  // 3 s after the start otherwise.
  Finding look(std::int64_t now_ns);

 private:
  void settle(Finding finding);

  Socket socket_;
  std::int64_t since_ns_;
  std::int64_t connected_ns_ = 0;  // 0: not yet
  Finding finding_ = Finding::kNone;
};

// The cause, for a sentence about a connection that has ended; empty if the process has ended.
std::string words_of(PeerProbe::Finding finding);

}  // namespace tutti
