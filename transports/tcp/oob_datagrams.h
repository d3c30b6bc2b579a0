// TcpOobDatagrams: transfers datagrams (transports/oob_datagrams.h) between ranks that reach each other by TCP.
//
// It uses connections of its own: one between each two ranks that exchange datagrams. The rank that posts first opens
// the connection. Both ranks may use it in both directions until one of them closes it. Two ranks must not open a
// connection to each other at the same time, because the later one replaces the earlier one. Datagrams that this rank
// has queued for the earlier one are lost then. Those of the peer that have already arrived on it can still be taken.
//
// A waiting rank calls pump() from time to time; no function blocks. Only one thread at a time may use an object. The
// length of everything received is checked. If anything other than a datagram arrives, the connection counts as
// ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/oob_datagrams.h"
#include "transports/tcp/endpoint.h"

namespace tutti {

class TcpOobDatagrams {
 public:
  // `channel`: a number that takes the place of the communicator in TcpEndpoint::attach(); the same on all ranks.
  // `addresses`: the results of TcpEndpoint::address(), indexed by rank; empty for ranks to which nothing is ever
  // posted.
  TcpOobDatagrams(std::shared_ptr<TcpEndpoint> endpoint, std::uint64_t channel, std::uint32_t rank,
                  std::vector<std::string> addresses);
  ~TcpOobDatagrams();
  TcpOobDatagrams(const TcpOobDatagrams&) = delete;
  TcpOobDatagrams& operator=(const TcpOobDatagrams&) = delete;

  // Queues a datagram of at most kMostDatagramBytes, and sends as much as possible. Opens a connection if there is
  // none. The datagram is lost if the connection has ended. There can be a new connection only after hang_up(), or if
  // the peer connects.
  void post(std::uint32_t peer, const std::string& datagram);
  // Removes and returns the oldest datagram of that peer, if there is any.
  std::optional<std::string> take(std::uint32_t peer);
  void pump();
  bool all_sent_to(std::uint32_t peer) const;
  // Whether the connection has ended: the peer has closed or refused it, the process of the peer has exited, the peer
  // cannot be reached, invalid data has arrived, or this rank could not start the connection (see trouble()). Datagrams
  // that arrived before can still be taken.
  bool gone(std::uint32_t peer) const { return connections_.at(peer).ended; }
  // The reason why this rank could not start a connection to the peer. Empty if it has started one or has not tried,
  // even if the connection was refused or ended later.
  const std::string& trouble(std::uint32_t peer) const { return connections_.at(peer).trouble; }
  // Closes the connection. Datagrams that were passed to the system normally still arrive at the peer. Those that are
  // queued or not taken yet are lost. The next post() opens a new connection.
  void hang_up(std::uint32_t peer);

 private:
  class NullDoorbell final : public Doorbell {  // the endpoint needs a doorbell, but no thread sleeps on this one
   public:
    void arm() override {}
    void disarm() override {}
    void sleep(std::int64_t) override {}
    void ring() override {}
  };
  struct PeerConnection {
    TcpStream socket;
    bool ended = false;
    std::string trouble{};
    std::string unsent{};
    std::string unread{};  // received bytes of an incomplete frame
    OobDatagramQueue datagrams;
  };
  void dial(std::uint32_t peer);
  void accept(PeerConnection& connection, TcpStream socket);
  void send_pending(PeerConnection& connection);
  void receive_pending(PeerConnection& connection);

  const pid_t process_;
  std::shared_ptr<TcpEndpoint> endpoint_;  // can be shared with other ranks and communicators of the process
  const std::uint64_t channel_;
  const std::uint32_t rank_;
  const std::vector<std::string> addresses_;
  NullDoorbell doorbell_;
  std::shared_ptr<TcpMailbox> mailbox_;      // shared with the endpoint
  std::vector<PeerConnection> connections_;  // indexed by rank
};

}  // namespace tutti
