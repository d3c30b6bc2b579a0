#include "membership/oob_channel.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.h"

namespace tutti::detail {
namespace {

// Longest gap between two calls of now_ns() that counts as running time. A waiting thread calls now_ns() about
// every 2 ms or more often, so a longer gap normally means that the process was stopped. The value is an estimate.
constexpr std::int64_t kMaxGapNs = 100'000'000;

// The header of each datagram.
struct PartHeader {
  std::uint32_t part = 0;   // index of the datagram in its message
  std::uint32_t parts = 1;  // number of datagrams of the message
};
static_assert(sizeof(PartHeader) == 8);

}  // namespace

std::vector<std::string> split_into_datagrams(std::string_view message) {
  constexpr std::size_t kMostBody = kMostDatagramBytes - sizeof(PartHeader);
  PartHeader header;
  header.parts = static_cast<std::uint32_t>(std::max<std::size_t>(1, (message.size() + kMostBody - 1) / kMostBody));
  TUTTI_ASSERT(header.parts <= kMostOobFragments);
  std::vector<std::string> datagrams;
  for (header.part = 0; header.part < header.parts; ++header.part) {
    datagrams.emplace_back(reinterpret_cast<const char*>(&header), sizeof(header));
    datagrams.back() += message.substr(header.part * kMostBody, kMostBody);
  }
  return datagrams;
}

std::optional<std::string> OobFragments::add(std::string_view datagram) {
  PartHeader header;
  if (datagram.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, datagram.data(), sizeof(header));
  if (header.part == 0) {
    *this = {};
    parts_ = header.parts;
  }
  const bool fits =
      header.parts <= kMostOobFragments && header.part < header.parts && header.part == next_ && header.parts == parts_;
  if (!fits) {
    *this = {};
    return std::nullopt;
  }
  body_ += datagram.substr(sizeof(header));
  if (++next_ < parts_) return std::nullopt;
  return std::exchange(*this, {}).body_;
}

std::int64_t ActiveTimeClock::now_ns() {
  const std::int64_t now_ns = clock_->now_ns();
  skipped_ns_ += std::max<std::int64_t>(0, now_ns - last_ns_ - kMaxGapNs);
  last_ns_ = now_ns;
  return now_ns - skipped_ns_;
}

OobChannel::OobChannel(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
                       std::uint64_t exchange_channel, std::uint64_t tcp_channel)
    : job_context_(std::move(job_context)),
      clock_(job_context_->clock),
      members_(std::move(members)),
      rank_(rank),
      channel_(exchange_channel),
      partial_(members_.size()) {
  std::vector<std::string> addresses(members_.size());
  bool by_tcp = false;
  for (std::uint32_t peer = 0; peer < members_.size(); ++peer) {
    if (on_same_machine(peer)) continue;
    addresses[peer] = job_context_->tcp_addresses[members_[peer]];
    by_tcp = true;
  }
  if (by_tcp)
    tcp_datagrams_ = std::make_unique<TcpOobDatagrams>(job_context_->endpoint, tcp_channel, rank, std::move(addresses));
}

bool OobChannel::on_same_machine(std::uint32_t peer) const {
  return job_context_->machines[members_[peer]] == job_context_->machines[members_[rank_]];
}

void OobChannel::send(std::uint32_t peer, std::string_view message) {
  for (const std::string& datagram : split_into_datagrams(message)) {
    if (on_same_machine(peer)) {
      job_context_->exchange->post(members_[peer], channel_, datagram);
    } else {
      tcp_datagrams_->post(peer, datagram);
    }
  }
}

std::optional<std::string> OobChannel::take(std::uint32_t peer) {
  while (true) {
    auto datagram = on_same_machine(peer) ? job_context_->exchange->take_datagram(members_[peer], channel_)
                                          : tcp_datagrams_->take(peer);
    if (!datagram) return std::nullopt;
    if (auto message = partial_[peer].add(*datagram)) return message;
  }
}

bool OobChannel::gone(std::uint32_t peer) {
  return on_same_machine(peer) ? job_context_->exchange->peer_gone(members_[peer]) : tcp_datagrams_->gone(peer);
}

std::string OobChannel::trouble(std::uint32_t peer) const {
  return on_same_machine(peer) ? "" : tcp_datagrams_->trouble(peer);
}

void OobChannel::pump() {
  job_context_->exchange->pump();
  if (tcp_datagrams_ != nullptr) tcp_datagrams_->pump();
}

bool OobChannel::all_sent_to(std::uint32_t peer) const {
  return on_same_machine(peer) ? job_context_->exchange->all_sent_to({&members_[peer], 1})
                               : tcp_datagrams_->all_sent_to(peer);
}

void OobChannel::hang_up(std::uint32_t peer) {
  if (!on_same_machine(peer)) tcp_datagrams_->hang_up(peer);
}

void BackoffSleep::operator()() const {
  const std::int64_t lasted_ns = clock_.now_ns() - since_ns_;
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::clamp<std::int64_t>(lasted_ns / 16, 50'000, 2'000'000)));
}

std::optional<std::uint64_t> random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != static_cast<ssize_t>(sizeof(number))) return std::nullopt;
  // Set the lowest bit, so that the number is never 0, which means "no number" to callers.
  return number | 1;
}

}  // namespace tutti::detail
