// OobChannel: out-of-band messages of any length between the ranks of a communicator. They do not use the
// communicator's connections, so they also work when the communicator is broken.
//
// Messages are sent as datagrams (transports/oob_datagrams.h). Within a machine the datagrams go through the
// SegmentExchange, which can detect that a process has exited. Between machines they go over TCP connections of
// their own. Messages between two ranks arrive in order. No function blocks: a thread that waits for a message must
// call pump() regularly. Only one thread at a time may use a channel.
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

// Splits a message into datagrams. OobFragments joins them again on the receiving side. It handles the datagrams of
// one peer, which arrive in order.
std::vector<std::string> split_into_datagrams(std::string_view message);
class OobFragments {
 public:
  // Adds a datagram, and returns the message if this datagram completes it. If a datagram does not fit the
  // sequence, it is dropped together with the fragments of its message that arrived before.
  std::optional<std::string> add(std::string_view datagram);

 private:
  // Number of datagrams of the current message, index of the datagram that is expected next, and the bytes so far.
  std::uint32_t parts_ = 0;
  std::uint32_t next_ = 0;
  std::string body_;
};

// A clock that does not count the time during which this rank was suspended. A gap of more than 100 ms between two
// calls of now_ns() counts as 100 ms only. Such a gap means that the process was stopped or that the clock has
// jumped. Without this, a rank that was stopped would find all its timeouts expired when it continues, before the
// other ranks could answer. A thread that waits must therefore call now_ns() often. Only one thread at a time may
// use it.
class ActiveTimeClock final : public Clock {
 public:
  explicit ActiveTimeClock(std::shared_ptr<Clock> clock) : clock_(std::move(clock)), last_ns_(clock_->now_ns()) {}
  std::int64_t now_ns() override;

 private:
  std::shared_ptr<Clock> clock_;  // shared by the ranks of one process
  std::int64_t last_ns_;
  // Sum of the gaps that were not counted.
  std::int64_t skipped_ns_ = 0;
};

class OobChannel {
 public:
  // Rank i of the channel is the job rank members[i], and this rank is `rank`. `exchange_channel` and `tcp_channel`
  // must be the same numbers on all ranks. Nothing else may have attached `tcp_channel` to the endpoint.
  OobChannel(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
             std::uint64_t exchange_channel, std::uint64_t tcp_channel);

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(members_.size()); }
  std::uint32_t rank() const { return rank_; }
  Clock& clock() { return clock_; }
  std::chrono::milliseconds setup_timeout() const {
    return job_context_->config.setup_timeout;
  }  // timeout of the set-up
  // True if the peer is on this machine, so that its messages go through the SegmentExchange.
  bool on_same_machine(std::uint32_t peer) const;
  // Between machines the first message opens the connection. If two ranks open a connection to each other at the
  // same time, both connections are lost. The caller must therefore make sure that only one of two ranks sends
  // first.
  void send(std::uint32_t peer, std::string_view message);
  // The next complete message of the peer, if there is one. Malformed datagrams are dropped. The wait for that
  // message then times out.
  std::optional<std::string> take(std::uint32_t peer);
  // True if the process of the peer has exited. Between machines: the peer has closed the connection or cannot be
  // reached.
  bool gone(std::uint32_t peer);
  // The reason why the peer cannot be reached over TCP. Empty if it can be, or was, reached.
  std::string trouble(std::uint32_t peer) const;
  // Sends and receives the datagrams that are pending.
  void pump();
  // True if all datagrams for the peer have been passed to the operating system.
  bool all_sent_to(std::uint32_t peer) const;
  // Between machines: closes the connection to the peer. The next message opens a new one.
  void hang_up(std::uint32_t peer);

 private:
  std::shared_ptr<JobContext> job_context_;  // shared with the communicators
  ActiveTimeClock clock_;
  const std::vector<std::uint32_t> members_;
  const std::uint32_t rank_;
  const std::uint64_t channel_;
  std::unique_ptr<TcpOobDatagrams> tcp_datagrams_;  // null if all peers are on this machine
  std::vector<OobFragments> partial_;  // indexed by rank: messages of which only some datagrams have arrived
};

// Sleeps between two looks of a waiting thread: 1/16 of the time that the wait has lasted, but 50 us to 2 ms. So a
// short wait ends quickly, and a long wait uses little CPU time.
class BackoffSleep {
 public:
  explicit BackoffSleep(Clock& clock) : clock_(clock), since_ns_(clock.now_ns()) {}
  void operator()() const;

 private:
  Clock& clock_;
  std::int64_t since_ns_;
};

std::optional<std::uint64_t> random_number();  // never 0; empty if the system has no random numbers

}  // namespace tutti::detail
