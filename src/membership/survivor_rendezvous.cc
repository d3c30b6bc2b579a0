#include "membership/survivor_rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "bootstrap/bootstrap_wire.h"

namespace tutti::detail {
namespace {

constexpr std::int64_t kMostMarginNs = 500'000'000;   // guests and host do not give up in the same moment
constexpr std::int64_t kAllFailNs = 500'000'000;      // longest wait for the others where the attempt has failed
constexpr std::int64_t kLastNotesNs = 1'000'000'000;  // longest wait until the last datagrams are on their way
constexpr std::size_t kMostWords = 200;               // bytes of a list in a message

Error given_up(std::uint32_t peer) {
  return {ErrorCode::kTimeout, ErrorScope::kCall, -1,  // it has waited, for us or for another
          fmt::format("rank {} has given this attempt up; call again", peer)};
}

Error no_random_number() { return {ErrorCode::kSystem, ErrorScope::kCall, -1, "no random number can be had"}; }

// "2-4, 7": of those below `ranks`, all but these. Equal texts, equal lists.
std::string words_of_others(const std::vector<std::uint32_t>& present, std::uint32_t ranks) {
  std::string words;
  std::uint32_t next = 0;
  const auto leave_out = [&](std::uint32_t end) {  // next .. end - 1
    if (next == end) return;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", next);
    if (end - next > 1) words += fmt::format("-{}", end - 1);
  };
  for (const std::uint32_t rank : present) {
    leave_out(rank);
    next = rank + 1;
  }
  leave_out(ranks);
  return words;
}

std::string in_short(const std::string& words) {
  if (words.empty()) return "nobody";
  return words.size() <= kMostWords ? words : words.substr(0, kMostWords) + "...";
}

}  // namespace

// The communicator itself has attached its number to the endpoint.
SurvivorRendezvous::SurvivorRendezvous(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members,
                                       std::uint32_t rank, std::uint64_t communicator)
    : oob_channel_(std::move(job_context), std::move(members), rank, communicator, ~communicator),
      rank_(rank),
      guests_(oob_channel_.ranks()) {}

std::int64_t SurvivorRendezvous::patience_ns() const {
  return std::int64_t{oob_channel_.patience().count()} * 1'000'000;
}

void SurvivorRendezvous::send(std::uint32_t peer, const Header& header, std::string_view body) {
  oob_channel_.send(peer, std::string(reinterpret_cast<const char*>(&header), sizeof(header)).append(body));
}

std::optional<SurvivorRendezvous::Message> SurvivorRendezvous::take(std::uint32_t peer) {
  while (auto text = oob_channel_.take(peer)) {
    Message message;
    if (text->size() < sizeof(message.header)) continue;
    std::memcpy(&message.header, text->data(), sizeof(message.header));
    message.body = text->substr(sizeof(message.header));
    return message;
  }
  return std::nullopt;
}

Result<std::uint64_t> SurvivorRendezvous::meet(const std::vector<std::uint32_t>& present) {
  TUTTI_ASSERT(present.size() > 1 && std::is_sorted(present.begin(), present.end()));
  present_ = present;
  list_ = words_of_others(present, oob_channel_.ranks());
  round_ = 0;
  failed_.reset();
  met_.clear();
  auto met = hosts() ? meet_as_host() : meet_as_guest();
  deadline_ns_ = oob_channel_.clock().now_ns() + patience_ns();
  return met;
}

Result<std::vector<std::string>> SurvivorRendezvous::gather(const std::string& blob) {
  if (failed_) return *failed_;
  if (hosts()) return gather_as_host(blob);
  send(present_.front(), {.kind = Kind::kBlob, .round = round_, .coming = coming_}, blob);
  auto body = answer(Kind::kAll, deadline_ns_);
  if (!body) return body.error();
  ++round_;
  auto blobs = wire::unpack(*body, present_.size());
  if (blobs) return *std::move(blobs);
  return give_up({ErrorCode::kRefused, ErrorScope::kCall, static_cast<std::int32_t>(present_.front()),
                  fmt::format("rank {} said something that cannot be read", present_.front())});
}

// Only the guest hangs up: the host's end of the line may be that of the guest's next coming by now.
void SurvivorRendezvous::leave() {
  const std::int64_t until_ns = oob_channel_.clock().now_ns() + kLastNotesNs;
  Pause pause(oob_channel_.clock());
  const auto on_its_way = [this](std::uint32_t peer) {
    if (peer == rank_) return true;
    return oob_channel_.all_sent_to(peer);
  };
  while (true) {
    oob_channel_.pump();
    if (std::all_of(present_.begin(), present_.end(), on_its_way)) break;
    if (oob_channel_.clock().now_ns() >= until_ns) break;
    pause();
  }
  if (!hosts()) oob_channel_.hang_up(present_.front());
  for (std::size_t i = 0; i < present_.size(); ++i) {
    Guest& guest = guests_[present_[i]];
    const bool came_again = !met_.empty() && guest.coming != met_[i];
    if (hosts() && !came_again) guest = {.missed = guest.missed};
  }
}

// As the host.

Result<std::uint64_t> SurvivorRendezvous::meet_as_host() {
  Clock& clock = oob_channel_.clock();
  came_ns_ = clock.now_ns();
  const std::int64_t deadline_ns = came_ns_ + patience_ns();
  std::optional<Error> trouble;  // told when the others are there, too, so that all end alike
  std::int64_t trouble_until_ns = 0;
  Pause pause(clock);
  while (true) {
    oob_channel_.pump();
    const std::int64_t now_ns = clock.now_ns();
    auto found = find_lost();
    if (!found) found = find_disagreement();
    if (found && !trouble) {
      trouble = std::move(found);
      trouble_until_ns = now_ns + kAllFailNs;
    }
    const bool all_came = absent().empty();
    const bool over = now_ns >= deadline_ns || somebody_gave_up();
    if (trouble && (all_came || over || now_ns >= trouble_until_ns)) return fail(*trouble);
    if (over) return fail(nobody_came());
    if (all_came && !trouble) break;
    pause();
  }
  const auto id = random_number();
  if (!id) return fail(no_random_number());
  const std::string body(reinterpret_cast<const char*>(&*id), sizeof(*id));
  for (const std::uint32_t peer : present_) {
    met_.push_back(guests_[peer].coming);
    if (peer != rank_) send(peer, {.kind = Kind::kMet, .coming = guests_[peer].coming}, body);
  }
  return *id;
}

// Takes what a guest says. One that gives up ends the attempt for all: they end alike, and may try anew alike.
void SurvivorRendezvous::hear(std::uint32_t peer) {
  Guest& guest = guests_[peer];
  while (auto message = take(peer)) {
    const Header& header = message->header;
    if (header.kind == Kind::kCome) {
      const bool late = guest.missed && message->body == missed_list_ && message->body != list_;
      guest = {.coming = header.coming, .fresh = true, .list = std::move(message->body)};
      if (late) {  // for the attempt that failed without it
        refuse(peer, missed_);
        guest = {};
      }
    } else if (header.coming != guest.coming) {
      continue;
    } else if (header.kind == Kind::kBlob && header.round == round_) {
      guest.blob = std::move(message->body);
    } else if (header.kind == Kind::kGiveUp) {
      if (guest.fresh) {  // before we came
        guest = {.went = true};
      } else {
        guest.gave_up = true;
      }
    }
  }
}

// Hears all guests. The error: of the first that has ended.
std::optional<Error> SurvivorRendezvous::find_lost() {
  std::optional<Error> first;
  for (const std::uint32_t peer : present_) {
    if (peer == rank_) continue;
    const bool ended = oob_channel_.gone(peer);  // before we hear it: what it said before its end still counts
    hear(peer);
    Guest& guest = guests_[peer];
    guest.fresh = false;
    // The end of a line tells something only of a guest that is here, and has not given up.
    guest.ended = ended && (oob_channel_.by_exchange(peer) || (guest.coming != 0 && !guest.gave_up));
    if (guest.ended && !first) first = lost(peer);
  }
  return first;
}

std::optional<Error> SurvivorRendezvous::find_disagreement() const {
  for (const std::uint32_t peer : present_) {
    const Guest& guest = guests_[peer];
    if (guest.coming == 0 || guest.list == list_) continue;
    return Error{ErrorCode::kMismatch, ErrorScope::kCall, static_cast<std::int32_t>(peer),
                 fmt::format("the ranks disagree on whom to leave out: rank {} excludes {}, rank {} excludes {}; give "
                             "the same ranks on all that remain",
                             rank_, in_short(list_), peer, in_short(guest.list))};
  }
  return std::nullopt;
}

std::vector<std::uint32_t> SurvivorRendezvous::absent() const {
  std::vector<std::uint32_t> absent;
  for (const std::uint32_t peer : present_) {
    const Guest& guest = guests_[peer];
    if (peer != rank_ && guest.coming == 0 && !guest.ended) absent.push_back(peer);
  }
  return absent;
}

bool SurvivorRendezvous::somebody_gave_up() const {
  return std::any_of(present_.begin(), present_.end(), [this](std::uint32_t peer) { return guests_[peer].gave_up; });
}

// Names those who did not come. Who came and gave up has waited, for us or for another, and is only told of.
Error SurvivorRendezvous::nobody_came() {
  const auto names = [](const std::vector<std::uint32_t>& ranks) {
    return in_short(fmt::format("{}", fmt::join(ranks, ", ")));
  };
  std::vector<std::uint32_t> away;
  std::vector<std::uint32_t> weary;
  for (const std::uint32_t peer : present_) {
    const Guest& guest = guests_[peer];
    if (peer == rank_ || guest.ended) continue;
    if (guest.coming == 0 && !guest.went) away.push_back(peer);
    if (guest.gave_up || guest.went) weary.push_back(peer);
  }
  if (away.empty()) {
    return {ErrorCode::kTimeout, ErrorScope::kCall, -1,
            fmt::format("rank(s) {} gave up before all were there; call again", names(weary))};
  }
  // Others may have had enough after we were stopped: we have not waited then, and cannot blame who was not heard yet.
  const bool waited = oob_channel_.clock().now_ns() - came_ns_ >= patience_ns() / 4;
  return {ErrorCode::kTimeout, ErrorScope::kCall, waited ? static_cast<std::int32_t>(away.front()) : -1,
          fmt::format("rank(s) {} did not come; exclude them, too, or see what holds them up", names(away))};
}

Error SurvivorRendezvous::lost(std::uint32_t peer) const {
  const std::string trouble = oob_channel_.trouble(peer);
  return {ErrorCode::kPeerLost, ErrorScope::kCall, static_cast<std::int32_t>(peer),
          fmt::format("rank {} {}; exclude it, too", peer,
                      trouble.empty() ? "has ended, or has dropped this communicator" : "is not reached: " + trouble)};
}

Result<std::vector<std::string>> SurvivorRendezvous::gather_as_host(const std::string& blob) {
  Clock& clock = oob_channel_.clock();
  const std::int64_t deadline_ns = deadline_ns_ - std::min(patience_ns() / 4, kMostMarginNs);
  Pause pause(clock);
  std::vector<std::uint32_t> awaited;
  while (true) {
    oob_channel_.pump();
    if (auto error = find_lost()) return fail(*std::move(error));
    awaited.clear();
    for (std::size_t i = 0; i < present_.size(); ++i) {
      const std::uint32_t peer = present_[i];
      if (peer == rank_) continue;
      if (guests_[peer].coming != met_[i] || guests_[peer].gave_up) {
        return fail(given_up(peer));
      }
      if (!guests_[peer].blob) awaited.push_back(peer);
    }
    if (awaited.empty()) break;
    if (clock.now_ns() >= deadline_ns) {
      return fail(
          {ErrorCode::kTimeout, ErrorScope::kCall, static_cast<std::int32_t>(awaited.front()),
           fmt::format("rank(s) {} did not finish the set-up", in_short(fmt::format("{}", fmt::join(awaited, ", "))))});
    }
    pause();
  }
  std::vector<std::string> blobs;
  for (const std::uint32_t peer : present_) {
    blobs.push_back(peer == rank_ ? blob : *std::exchange(guests_[peer].blob, std::nullopt));
  }
  const std::string body = wire::pack(blobs);
  for (std::size_t i = 0; i < present_.size(); ++i) {
    if (present_[i] != rank_) send(present_[i], {.kind = Kind::kAll, .round = round_, .coming = met_[i]}, body);
  }
  ++round_;
  return blobs;
}

void SurvivorRendezvous::refuse(std::uint32_t peer, const Error& error) {
  send(peer, {.kind = Kind::kRefused, .coming = guests_[peer].coming}, wire::pack_failure(error));
}

// Tells all who have come; those who are late are told when they come to a next attempt.
Error SurvivorRendezvous::fail(Error error) {
  for (Guest& guest : guests_) guest.missed = false;
  for (const std::uint32_t peer : present_) {
    Guest& guest = guests_[peer];
    guest.missed = guest.coming == 0;
    if (peer != rank_ && !guest.missed) refuse(peer, error);
  }
  missed_list_ = list_;
  missed_ = error;
  failed_ = error;
  return error;
}

// As a guest.

Result<std::uint64_t> SurvivorRendezvous::meet_as_guest() {
  const std::uint32_t host = present_.front();
  const auto coming = random_number();
  if (!coming) return no_random_number();
  coming_ = *coming;
  oob_channel_.hang_up(host);  // a line of before
  send(host, {.kind = Kind::kCome, .coming = coming_}, list_);
  auto body = answer(Kind::kMet, oob_channel_.clock().now_ns() + patience_ns());
  if (!body) return body.error();
  std::uint64_t id = 0;
  if (body->size() == sizeof(id)) std::memcpy(&id, body->data(), sizeof(id));
  return id;
}

// Waits for what the host has to say. Shortly before the deadline the guest gives up and asks for the reason.
Result<std::string> SurvivorRendezvous::answer(Kind wanted, std::int64_t deadline_ns) {
  Clock& clock = oob_channel_.clock();
  const std::uint32_t host = present_.front();
  const std::int64_t give_up_ns = deadline_ns - std::min(patience_ns() / 4, kMostMarginNs);
  bool asked = false;
  Pause pause(clock);
  while (true) {
    oob_channel_.pump();
    const bool ended = oob_channel_.gone(host);  // before the look: what it said before its end still counts
    while (auto message = take(host)) {
      const Header& header = message->header;
      if (header.coming != coming_) continue;
      if (header.kind == Kind::kRefused) {
        failed_ = wire::unpack_failure(message->body, ErrorScope::kCall);
        return *failed_;
      }
      if (header.kind == wanted && header.round == round_ && !asked) return std::move(message->body);
    }
    if (ended) {
      failed_ = lost(host);
      return *failed_;
    }
    const std::int64_t now_ns = clock.now_ns();
    const bool in_rounds = wanted == Kind::kAll;  // whose host gives up first
    if (!asked && !in_rounds && now_ns >= give_up_ns) {
      send(host, {.kind = Kind::kGiveUp, .coming = coming_}, "");
      asked = true;
    }
    if (now_ns >= deadline_ns) break;
    pause();
  }
  const Error error{ErrorCode::kTimeout, ErrorScope::kCall, static_cast<std::int32_t>(host),
                    fmt::format("rank {} did not come; exclude it, too, or see what holds it up", host)};
  if (!asked) return give_up(error);
  failed_ = error;
  return error;
}

Error SurvivorRendezvous::give_up(Error error) {
  send(present_.front(), {.kind = Kind::kGiveUp, .coming = coming_}, "");
  failed_ = error;
  return error;
}

}  // namespace tutti::detail
