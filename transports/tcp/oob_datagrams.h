// TcpOobDatagrams: passes datagrams (transports/oob_datagrams.h) between ranks that reach each other by TCP, on lines
// of their own: one connection between two ranks that speak, made by the one that speaks first, good for both ways
// until either hangs up.
//
// Who waits calls pump() now and then; nothing blocks. For one thread at a time. What comes is length-checked; a line
// that says anything else than datagrams is ended.
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
  // `channel`: a number for TcpEndpoint::attach(), the same on all ranks. `addresses` by rank, as their endpoints gave
  // them; empty for those that are never spoken to.
  TcpOobDatagrams(std::shared_ptr<TcpEndpoint> endpoint, std::uint64_t channel, std::uint32_t rank,
                  std::vector<std::string> addresses);
  ~TcpOobDatagrams();
  TcpOobDatagrams(const TcpOobDatagrams&) = delete;
  TcpOobDatagrams& operator=(const TcpOobDatagrams&) = delete;

  // At most kMostDatagramBytes. Dials where there is no line. Lost where the line has ended.
  void post(std::uint32_t peer, const std::string& datagram);
  std::optional<std::string> take(std::uint32_t peer);
  void pump();
  bool all_sent_to(std::uint32_t peer) const;
  // The peer has hung up or its process has ended (what it said before may still be taken), or it cannot be reached.
  bool gone(std::uint32_t peer) const { return lines_.at(peer).ended; }
  // Why it cannot be reached; empty: it can, or was.
  const std::string& trouble(std::uint32_t peer) const { return lines_.at(peer).trouble; }
  // Ends the line; what was sent arrives. The next post() dials anew.
  void hang_up(std::uint32_t peer);

 private:
  class SilentBell final : public Doorbell {  // nobody sleeps here
   public:
    void arm() override {}
    void disarm() override {}
    void sleep(std::int64_t) override {}
    void ring() override {}
  };
  struct Line {
    TcpStream socket;
    bool ended = false;
    std::string trouble{};
    std::string unsent{};
    std::string unread{};  // what is no whole frame yet
    OobDatagramQueue datagrams;
  };
  void dial(std::uint32_t peer);
  void send_pending(Line& line);
  void receive_pending(Line& line);

  const pid_t process_;
  std::shared_ptr<TcpEndpoint> endpoint_;  // shared by all of the process
  const std::uint64_t channel_;
  const std::uint32_t rank_;
  const std::vector<std::string> addresses_;
  SilentBell bell_;
  std::shared_ptr<TcpMailbox> mailbox_;  // shared with the endpoint
  std::vector<Line> lines_;              // by rank
};

}  // namespace tutti
