#include "membership/mail.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.h"

namespace tutti::detail {
namespace {

constexpr std::int64_t kMostAwayNs = 100'000'000;  // between two looks of a rank that runs, guessed

struct PartHeader {  // of a note; a message is one note or several
  std::uint32_t part = 0;
  std::uint32_t parts = 1;
};
static_assert(sizeof(PartHeader) == 8);

}  // namespace

std::vector<std::string> cut_into_notes(std::string_view message) {
  constexpr std::size_t kMostBody = kMostNoteBytes - sizeof(PartHeader);
  PartHeader header;
  header.parts = static_cast<std::uint32_t>(std::max<std::size_t>(1, (message.size() + kMostBody - 1) / kMostBody));
  TUTTI_ASSERT(header.parts <= kMostMailParts);
  std::vector<std::string> notes;
  for (header.part = 0; header.part < header.parts; ++header.part) {
    notes.emplace_back(reinterpret_cast<const char*>(&header), sizeof(header));
    notes.back() += message.substr(header.part * kMostBody, kMostBody);
  }
  return notes;
}

std::optional<std::string> MailParts::add(std::string_view note) {
  PartHeader header;
  if (note.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, note.data(), sizeof(header));
  if (header.part == 0) {
    *this = {};
    parts_ = header.parts;
  }
  const bool fits =
      header.parts <= kMostMailParts && header.part < header.parts && header.part == next_ && header.parts == parts_;
  if (!fits) {
    *this = {};
    return std::nullopt;
  }
  body_ += note.substr(sizeof(header));
  if (++next_ < parts_) return std::nullopt;
  return std::exchange(*this, {}).body_;
}

std::int64_t RunningClock::now_ns() {
  const std::int64_t now_ns = clock_->now_ns();
  missed_ns_ += std::max<std::int64_t>(0, now_ns - last_ns_ - kMostAwayNs);
  last_ns_ = now_ns;
  return now_ns - missed_ns_;
}

Mail::Mail(std::shared_ptr<JobFabric> fabric, std::vector<std::uint32_t> members, std::uint32_t rank,
           std::uint64_t exchange_channel, std::uint64_t tcp_channel)
    : fabric_(std::move(fabric)),
      clock_(fabric_->clock),
      members_(std::move(members)),
      rank_(rank),
      channel_(exchange_channel),
      partial_(members_.size()) {
  std::vector<std::string> addresses(members_.size());
  bool by_tcp = false;
  for (std::uint32_t peer = 0; peer < members_.size(); ++peer) {
    if (by_exchange(peer)) continue;
    addresses[peer] = fabric_->tcp_addresses[members_[peer]];
    by_tcp = true;
  }
  if (by_tcp) lines_ = std::make_unique<TcpNotes>(fabric_->endpoint, tcp_channel, rank, std::move(addresses));
}

bool Mail::by_exchange(std::uint32_t peer) const {
  return fabric_->machines[members_[peer]] == fabric_->machines[members_[rank_]];
}

void Mail::send(std::uint32_t peer, std::string_view message) {
  for (const std::string& note : cut_into_notes(message)) {
    if (by_exchange(peer)) {
      fabric_->exchange->post(members_[peer], channel_, note);
    } else {
      lines_->post(peer, note);
    }
  }
}

std::optional<std::string> Mail::take(std::uint32_t peer) {
  while (true) {
    auto note = by_exchange(peer) ? fabric_->exchange->take_note(members_[peer], channel_) : lines_->take(peer);
    if (!note) return std::nullopt;
    if (auto message = partial_[peer].add(*note)) return message;
  }
}

bool Mail::gone(std::uint32_t peer) {
  return by_exchange(peer) ? fabric_->exchange->peer_gone(members_[peer]) : lines_->gone(peer);
}

std::string Mail::trouble(std::uint32_t peer) const { return by_exchange(peer) ? "" : lines_->trouble(peer); }

void Mail::pump() {
  fabric_->exchange->pump();
  if (lines_ != nullptr) lines_->pump();
}

bool Mail::all_sent_to(std::uint32_t peer) const {
  return by_exchange(peer) ? fabric_->exchange->all_sent_to({&members_[peer], 1}) : lines_->all_sent_to(peer);
}

void Mail::hang_up(std::uint32_t peer) {
  if (!by_exchange(peer)) lines_->hang_up(peer);
}

void Pause::operator()() const {
  const std::int64_t lasted_ns = clock_.now_ns() - since_ns_;
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::clamp<std::int64_t>(lasted_ns / 16, 50'000, 2'000'000)));
}

std::optional<std::uint64_t> random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != static_cast<ssize_t>(sizeof(number))) return std::nullopt;
  return number | 1;
}

}  // namespace tutti::detail
