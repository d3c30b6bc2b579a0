// OobChannel: out-of-band messages between the ranks of a communicator, of any length up to kMostOobFragments
// datagrams. They do not use the communicator's connections, so they also work when the communicator is broken.
//
// Messages are sent as datagrams (transports/oob_datagrams.h). Within a machine the datagrams go through the
// SegmentExchange, which can detect that a process has exited. Between machines the datagrams go over separate TCP
// connections, which are used for nothing else. Messages between two ranks arrive in order, but can be lost
// (transports/oob_datagrams.h). No function of a channel blocks. A thread that waits for a message must call pump()
// regularly, because pump() continues the transfers that could not be completed at once. Only one thread at a time may
// use a channel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "job/job_context.h"
#include "transports/tcp/oob_datagrams.h"

namespace tutti::detail {

// Maximum number of datagrams in one message. Each has at most kMostDatagramBytes bytes.
inline constexpr std::uint32_t kMostOobFragments = 1 << 14;

// split_into_datagrams() splits a message into datagrams, each with a small header. On the receiving side, an
// OobFragments object joins them again. It handles the datagrams of one peer, which arrive in order.
std::vector<std::string> split_into_datagrams(std::string_view message);
class OobFragments {
 public:
  // Adds a datagram, and returns the message if this datagram completes one. The first datagram of a message always
  // starts anew. If another datagram does not follow the previous one, it is dropped together with the fragments
  // that arrived before. A datagram without a complete header is ignored.
  std::optional<std::string> add(std::string_view datagram);

 private:
  std::uint32_t parts_ = 0;  // number of datagrams of the current message
  std::uint32_t next_ = 0;   // index of the datagram that is expected next
  std::string body_;         // joined contents of the datagrams that have arrived
};

// A clock that does not count the time during which this rank was suspended. A gap of more than kMaxGapNs
// (oob_channel.cc) between two calls of now_ns() counts as kMaxGapNs only. While a thread waits, such a gap normally
// means that the process was stopped or that the clock has jumped. If such a gap counted in full, a rank that was
// stopped and continues would find all its timeouts expired before the other ranks could answer. A thread that waits
// must therefore call now_ns() often. Only one thread at a time may use it.
class ActiveTimeClock final : public Clock {
 public:
  explicit ActiveTimeClock(std::shared_ptr<Clock> clock) : clock_(std::move(clock)), last_ns_(clock_->now_ns()) {}
  std::int64_t now_ns() override;

 private:
  std::shared_ptr<Clock> clock_;  // the clock of the JobContext, shared by the ranks of one create_all()
  std::int64_t last_ns_;
  // Sum of the gaps that were not counted.
  std::int64_t skipped_ns_ = 0;
};

class OobChannel {
 public:
  // Rank i of the channel is the job rank members[i], and this rank is number `rank` of the channel.
  // `exchange_channel` (in a machine) and `tcp_channel` (between machines) identify the channel, and must be the
  // same on all ranks. No other object may have attached `tcp_channel` for this rank to the TcpEndpoint, for example a
  // communicator with that id.
  OobChannel(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
             std::uint64_t exchange_channel, std::uint64_t tcp_channel);

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(members_.size()); }
  std::uint32_t rank() const { return rank_; }
  Clock& clock() { return clock_; }
  // The set-up timeout of the job's configuration.
  std::chrono::milliseconds setup_timeout() const { return job_context_->config.setup_timeout; }
  // True if the peer is on this machine, so that its messages go through the SegmentExchange.
  bool on_same_machine(std::uint32_t peer) const;
  // Sends a message to the peer. The datagrams that cannot be sent at once are queued, and pump() sends them.
  // Between machines, the first message opens the connection. If two ranks open a connection to each other at the
  // same time, messages can be lost. The callers must therefore arrange for each two ranks which one sends
  // first.
  void send(std::uint32_t peer, std::string_view message);
  // Removes and returns the oldest complete message of the peer. Returns nothing if none is complete. Malformed
  // datagrams are dropped, so that a wait for their message times out.
  std::optional<std::string> take(std::uint32_t peer);
  // For a peer on this machine: SegmentExchange::peer_gone(), which is true, for example, if the process of the peer
  // has exited. For a peer on another machine: true if the connection to the peer has ended, or the peer cannot be
  // reached. Messages that arrived before can still be taken.
  bool gone(std::uint32_t peer);
  // The reason why no TCP connection to the peer could be opened. Empty if one was opened or none was tried, and
  // for a peer on this machine.
  std::string trouble(std::uint32_t peer) const;
  // Sends the queued datagrams and receives those that have arrived, as far as possible without blocking.
  void pump();
  // True if no datagram for the peer is queued: all have been passed to the operating system, or were dropped because
  // the peer is gone or cannot be reached.
  bool all_sent_to(std::uint32_t peer) const;
  // Closes the TCP connection to the peer. The next message opens a new connection. No effect for a peer on this
  // machine.
  void hang_up(std::uint32_t peer);

 private:
  std::shared_ptr<JobContext> job_context_;  // shared with the communicators of this rank
  ActiveTimeClock clock_;
  const std::vector<std::uint32_t> members_;
  const std::uint32_t rank_;
  const std::uint64_t channel_;
  std::unique_ptr<TcpOobDatagrams> tcp_datagrams_;  // null if all peers are on this machine
  std::vector<OobFragments> partial_;  // indexed by rank: messages of which only some datagrams have arrived
};

// The pause of a thread that waits by polling: each call sleeps for 1/16 of the time since the object was created,
// but at least 50 us and at most 2 ms. So a short wait ends soon after its event, and a long wait uses little CPU
// time.
class BackoffSleep {
 public:
  explicit BackoffSleep(Clock& clock) : clock_(clock), since_ns_(clock.now_ns()) {}
  void operator()() const;

 private:
  Clock& clock_;
  std::int64_t since_ns_;
};

// A number from the system's random generator, never 0. Empty if the system has no random numbers.
std::optional<std::uint64_t> random_number();

}  // namespace tutti::detail
