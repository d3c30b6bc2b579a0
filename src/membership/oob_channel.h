// OobChannel: messages of any length between the ranks of a communicator, beside its connections, whatever has become
// of it. They go as datagrams (transports/oob_datagrams.h): by the exchange inside a machine, where the end of a
// process is noticed, by TCP lines across. Kept in order between two ranks. Nothing blocks; who waits calls pump() now
// and then. For one thread at a time.
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

inline constexpr std::uint32_t kMostOobFragments = 1 << 14;  // datagrams of a message, kMostDatagramBytes each at most

// A message cut into datagrams, and put together again out of those of one peer, which come in order.
std::vector<std::string> split_into_datagrams(std::string_view message);
class OobFragments {
 public:
  // The message that this datagram completes. What does not fit is dropped, with what came of its message before.
  std::optional<std::string> add(std::string_view datagram);

 private:
  std::uint32_t parts_ = 0;
  std::uint32_t next_ = 0;
  std::string body_;
};

// Time as this rank has lived it: where it was stopped, or its clock leapt, between two looks, that is the others' time
// to come and speak, and counts as a moment only. Looked at often by who waits; for one thread at a time.
class RunningClock final : public Clock {
 public:
  explicit RunningClock(std::shared_ptr<Clock> clock) : clock_(std::move(clock)), last_ns_(clock_->now_ns()) {}
  std::int64_t now_ns() override;

 private:
  std::shared_ptr<Clock> clock_;  // shared by the ranks of one process
  std::int64_t last_ns_;
  std::int64_t missed_ns_ = 0;
};

class OobChannel {
 public:
  // Of ranks of which rank i is the job rank members[i]; this one is `rank`. `exchange_channel` is the same on all, and
  // so is `tcp_channel`, which nothing else has attached to the endpoint.
  OobChannel(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
             std::uint64_t exchange_channel, std::uint64_t tcp_channel);

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(members_.size()); }
  std::uint32_t rank() const { return rank_; }
  Clock& clock() { return clock_; }
  std::chrono::milliseconds patience() const { return job_context_->config.setup_timeout; }  // of set-up
  bool by_exchange(std::uint32_t peer) const;
  // Across machines the first message opens the line. Two ranks that open it at the same time lose it: of two, one
  // speaks first.
  void send(std::uint32_t peer, std::string_view message);
  // The next whole message of the peer's. What cannot be read is dropped: its sender is waited for in vain then.
  std::optional<std::string> take(std::uint32_t peer);
  // The peer's process has ended. Across machines: it has hung up, or is not reached.
  bool gone(std::uint32_t peer);
  std::string trouble(std::uint32_t peer) const;  // why it is not reached; empty: it is, or was
  void pump();
  bool all_sent_to(std::uint32_t peer) const;
  void hang_up(std::uint32_t peer);  // across machines: the line ends, the next message opens one

 private:
  std::shared_ptr<JobContext> job_context_;  // shared with the communicators
  RunningClock clock_;
  const std::vector<std::uint32_t> members_;
  const std::uint32_t rank_;
  const std::uint64_t channel_;
  std::unique_ptr<TcpOobDatagrams> lines_;  // null: no peer is reached by TCP
  std::vector<OobFragments> partial_;       // by rank: of messages that have not come as a whole
};

// Sleeps, the longer the longer the wait has lasted.
class Pause {
 public:
  explicit Pause(Clock& clock) : clock_(clock), since_ns_(clock.now_ns()) {}
  void operator()() const;

 private:
  Clock& clock_;
  std::int64_t since_ns_;
};

std::optional<std::uint64_t> random_number();  // never 0

}  // namespace tutti::detail
