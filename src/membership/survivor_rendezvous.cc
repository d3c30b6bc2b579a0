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

// While joining, a participant gives up this long before its deadline, or a quarter of the timeout before it if that is
// shorter. In gather rounds the coordinator does so instead. So the other side can still send or receive the error.
constexpr std::int64_t kMaxMarginNs = 500'000'000;
// When the coordinator detects a failure while ranks are missing, it waits up to this time for them to join, so
// that they get the error as well.
constexpr std::int64_t kFailureWaitNs = 500'000'000;
// Maximum time that leave() waits until the last datagrams have been passed to the operating system.
constexpr std::int64_t kFlushTimeoutNs = 1'000'000'000;
// Maximum length of a list of ranks in an error message, in bytes.
constexpr std::size_t kMaxListBytes = 200;

Error given_up(std::uint32_t peer) {
  // The rank of the error is -1 (no culprit), because the peer was itself waiting for this rank or for another one.
  return {ErrorCode::kTimeout, ErrorScope::kCall, -1, fmt::format("rank {} gave up this attempt; call again", peer)};
}

Error no_random_number() { return {ErrorCode::kSystem, ErrorScope::kCall, -1, "no random number can be had"}; }

// Formats the excluded ranks, which are the ranks 0 .. `ranks` - 1 that are not in `survivors`. For example, the ranks
// 2, 3, 4 and 7 give the text "2-4, 7". Equal lists give equal texts, so the texts can be compared.
std::string format_excluded(const std::vector<std::uint32_t>& survivors, std::uint32_t ranks) {
  std::string text;
  std::uint32_t next = 0;
  const auto leave_out = [&](std::uint32_t end) {  // appends the ranks from `next` to end - 1
    if (next == end) return;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", next);
    if (end - next > 1) text += fmt::format("-{}", end - 1);
  };
  for (const std::uint32_t rank : survivors) {
    leave_out(rank);
    next = rank + 1;
  }
  leave_out(ranks);
  return text;
}

std::string abbreviate(const std::string& text) {
  if (text.empty()) return "nobody";
  return text.size() <= kMaxListBytes ? text : text.substr(0, kMaxListBytes) + "...";
}

}  // namespace

// The OobChannel uses ~communicator as its channel number for TCP, because the communicator itself has attached
// `communicator`, its id, to the TcpEndpoint.
SurvivorRendezvous::SurvivorRendezvous(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members,
                                       std::uint32_t rank, std::uint64_t communicator)
    : oob_channel_(std::move(job_context), std::move(members), rank, communicator, ~communicator),
      rank_(rank),
      participants_(oob_channel_.ranks()) {}

std::int64_t SurvivorRendezvous::timeout_ns() const {
  return std::int64_t{oob_channel_.setup_timeout().count()} * 1'000'000;
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

Result<std::uint64_t> SurvivorRendezvous::meet(const std::vector<std::uint32_t>& survivors) {
  TUTTI_ASSERT(survivors.size() > 1 && std::is_sorted(survivors.begin(), survivors.end()));
  survivors_ = survivors;
  excluded_ = format_excluded(survivors, oob_channel_.ranks());
  round_ = 0;
  failed_.reset();
  attempt_ids_.clear();
  auto met = is_coordinator() ? meet_as_coordinator() : meet_as_participant();
  deadline_ns_ = oob_channel_.clock().now_ns() + timeout_ns();
  return met;
}

Result<std::vector<std::string>> SurvivorRendezvous::gather(const std::string& blob) {
  if (failed_) return *failed_;
  if (is_coordinator()) return gather_as_coordinator(blob);
  send(survivors_.front(), {.type = MessageType::kBlob, .round = round_, .attempt_id = attempt_id_}, blob);
  auto body = answer(MessageType::kAllBlobs, deadline_ns_);
  if (!body) return body.error();
  ++round_;
  auto blobs = wire::unpack(*body, survivors_.size());
  if (blobs) return *std::move(blobs);
  return give_up(malformed());
}

// Only a participant closes the connection to the coordinator. The coordinator does not close connections, because
// its end may already belong to the participant's next attempt.
void SurvivorRendezvous::leave() {
  const std::int64_t until_ns = oob_channel_.clock().now_ns() + kFlushTimeoutNs;
  BackoffSleep pause(oob_channel_.clock());
  const auto on_its_way = [this](std::uint32_t peer) {
    if (peer == rank_) return true;
    return oob_channel_.all_sent_to(peer);
  };
  while (true) {
    oob_channel_.pump();
    if (std::all_of(survivors_.begin(), survivors_.end(), on_its_way)) break;
    if (oob_channel_.clock().now_ns() >= until_ns) break;
    pause();
  }
  if (!is_coordinator()) oob_channel_.hang_up(survivors_.front());
  for (std::size_t i = 0; i < survivors_.size(); ++i) {
    Participant& participant = participants_[survivors_[i]];
    const bool came_again = !attempt_ids_.empty() && participant.attempt_id != attempt_ids_[i];
    if (is_coordinator() && !came_again) participant = {.missed_attempt = participant.missed_attempt};
  }
}

// The following functions are used by the coordinator only, except for lost_error().

Result<std::uint64_t> SurvivorRendezvous::meet_as_coordinator() {
  Clock& clock = oob_channel_.clock();
  meet_started_ns_ = clock.now_ns();
  const std::int64_t deadline_ns = meet_started_ns_ + timeout_ns();
  // The first failure that was found. It is reported when the other ranks have joined, when the attempt is over, or
  // after kFailureWaitNs, whichever is first, so that normally all ranks get the same error.
  std::optional<Error> trouble;
  std::int64_t trouble_until_ns = 0;
  BackoffSleep pause(clock);
  while (true) {
    oob_channel_.pump();
    const std::int64_t now_ns = clock.now_ns();
    auto found = find_lost();
    if (!found) found = find_disagreement();
    if (found && !trouble) {
      trouble = std::move(found);
      trouble_until_ns = now_ns + kFailureWaitNs;
    }
    const bool all_came = absent().empty();
    const bool over = now_ns >= deadline_ns || any_gave_up();
    if (trouble && (all_came || over || now_ns >= trouble_until_ns)) return fail(*trouble);
    if (over) return fail(join_timeout_error());
    if (all_came && !trouble) break;
    pause();
  }
  const auto id = random_number();
  if (!id) return fail(no_random_number());
  const std::string body(reinterpret_cast<const char*>(&*id), sizeof(*id));
  for (const std::uint32_t peer : survivors_) {
    attempt_ids_.push_back(participants_[peer].attempt_id);
    if (peer != rank_)
      send(peer, {.type = MessageType::kAllJoined, .attempt_id = participants_[peer].attempt_id}, body);
  }
  return *id;
}

// Handles the messages of a participant. If one participant gives up, the coordinator ends the attempt for all, so
// that all of them get the same error and can try again together.
void SurvivorRendezvous::receive_from(std::uint32_t peer) {
  Participant& participant = participants_[peer];
  while (auto message = take(peer)) {
    const Header& header = message->header;
    if (header.type == MessageType::kJoin) {
      const bool late = participant.missed_attempt && message->body == missed_excluded_ && message->body != excluded_;
      participant = {.attempt_id = header.attempt_id, .just_joined = true, .list = std::move(message->body)};
      // The kJoin belongs to the attempt that failed without this participant, and the current attempt excludes
      // other ranks.
      if (late) {
        send_error(peer, missed_error_);
        participant = {};
      }
    } else if (header.attempt_id != participant.attempt_id) {
      continue;
    } else if (header.type == MessageType::kBlob && header.round == round_) {
      participant.blob = std::move(message->body);
    } else if (header.type == MessageType::kGiveUp) {
      // kJoin and kGiveUp were read together: the participant gave up before this rank called meet() or while this rank
      // was stopped, so its attempt does not count as part of this one.
      if (participant.just_joined) {
        participant = {.gave_up_early = true};
      } else {
        participant.gave_up = true;
      }
    }
  }
}

// Handles the messages of all participants. Returns an error for the lowest participant that has exited or cannot be
// reached. Returns nothing if there is none.
std::optional<Error> SurvivorRendezvous::find_lost() {
  std::optional<Error> first;
  for (const std::uint32_t peer : survivors_) {
    if (peer == rank_) continue;
    // Check for the exit before reading the messages, so that those that the peer sent before its exit are read.
    const bool gone = oob_channel_.gone(peer);
    receive_from(peer);
    Participant& participant = participants_[peer];
    participant.just_joined = false;
    // Between machines, a closed connection proves an exit only if the participant has joined and has not given up,
    // because a participant that gives up closes its connection as well.
    participant.gone =
        gone && (oob_channel_.on_same_machine(peer) || (participant.attempt_id != 0 && !participant.gave_up));
    if (participant.gone && !first) first = lost_error(peer);
  }
  return first;
}

std::optional<Error> SurvivorRendezvous::find_disagreement() const {
  for (const std::uint32_t peer : survivors_) {
    const Participant& participant = participants_[peer];
    if (participant.attempt_id == 0 || participant.list == excluded_) continue;
    return Error{
        ErrorCode::kMismatch, ErrorScope::kCall, static_cast<std::int32_t>(peer),
        fmt::format("the ranks disagree on the ranks to exclude: rank {} excludes {}, rank {} excludes {}; give "
                    "the same list on all remaining ranks",
                    rank_, abbreviate(excluded_), peer, abbreviate(participant.list))};
  }
  return std::nullopt;
}

std::vector<std::uint32_t> SurvivorRendezvous::absent() const {
  std::vector<std::uint32_t> absent;
  for (const std::uint32_t peer : survivors_) {
    const Participant& participant = participants_[peer];
    if (peer != rank_ && participant.attempt_id == 0 && !participant.gone) absent.push_back(peer);
  }
  return absent;
}

bool SurvivorRendezvous::any_gave_up() const {
  return std::any_of(survivors_.begin(), survivors_.end(),
                     [this](std::uint32_t peer) { return participants_[peer].gave_up; });
}

// Makes the error for an attempt in which not all ranks have joined in time. It lists the ranks that did not join.
// A rank that joined and gave up was itself waiting for this rank or for another one, so such ranks are listed only
// if no rank is absent.
Error SurvivorRendezvous::join_timeout_error() {
  const auto names = [](const std::vector<std::uint32_t>& ranks) {
    return abbreviate(fmt::format("{}", fmt::join(ranks, ", ")));
  };
  std::vector<std::uint32_t> absent_ranks;
  std::vector<std::uint32_t> gave_up_ranks;
  for (const std::uint32_t peer : survivors_) {
    const Participant& participant = participants_[peer];
    if (peer == rank_ || participant.gone) continue;
    if (participant.attempt_id == 0 && !participant.gave_up_early) absent_ranks.push_back(peer);
    if (participant.gave_up || participant.gave_up_early) gave_up_ranks.push_back(peer);
  }
  if (absent_ranks.empty()) {
    return {ErrorCode::kTimeout, ErrorScope::kCall, -1,
            fmt::format("rank(s) {} gave up before all ranks had joined; call again", names(gave_up_ranks))};
  }
  // If this rank was stopped, other ranks may have given up meanwhile although this rank has hardly waited.
  // Messages of the absent ranks may then still be in transit, so the error names no culprit (rank -1).
  const bool waited = oob_channel_.clock().now_ns() - meet_started_ns_ >= timeout_ns() / 4;
  return {ErrorCode::kTimeout, ErrorScope::kCall, waited ? static_cast<std::int32_t>(absent_ranks.front()) : -1,
          fmt::format("rank(s) {} did not come; exclude them, too, or see what holds them up", names(absent_ranks))};
}

Error SurvivorRendezvous::lost_error(std::uint32_t peer) const {
  const std::string trouble = oob_channel_.trouble(peer);
  return {ErrorCode::kPeerLost, ErrorScope::kCall, static_cast<std::int32_t>(peer),
          fmt::format(
              "rank {} {}; exclude it, too", peer,
              trouble.empty() ? "has exited, or has destroyed this communicator" : "cannot be reached: " + trouble)};
}

Result<std::vector<std::string>> SurvivorRendezvous::gather_as_coordinator(const std::string& blob) {
  Clock& clock = oob_channel_.clock();
  const std::int64_t deadline_ns = deadline_ns_ - std::min(timeout_ns() / 4, kMaxMarginNs);
  BackoffSleep pause(clock);
  std::vector<std::uint32_t> awaited;
  while (true) {
    oob_channel_.pump();
    if (auto error = find_lost()) return fail(*std::move(error));
    awaited.clear();
    for (std::size_t i = 0; i < survivors_.size(); ++i) {
      const std::uint32_t peer = survivors_[i];
      if (peer == rank_) continue;
      if (participants_[peer].attempt_id != attempt_ids_[i] || participants_[peer].gave_up) {
        return fail(given_up(peer));
      }
      if (!participants_[peer].blob) awaited.push_back(peer);
    }
    if (awaited.empty()) break;
    if (clock.now_ns() >= deadline_ns) {
      return fail({ErrorCode::kTimeout, ErrorScope::kCall, static_cast<std::int32_t>(awaited.front()),
                   fmt::format("rank(s) {} did not finish the set-up",
                               abbreviate(fmt::format("{}", fmt::join(awaited, ", "))))});
    }
    pause();
  }
  std::vector<std::string> blobs;
  for (const std::uint32_t peer : survivors_) {
    blobs.push_back(peer == rank_ ? blob : *std::exchange(participants_[peer].blob, std::nullopt));
  }
  const std::string body = wire::pack(blobs);
  for (std::size_t i = 0; i < survivors_.size(); ++i) {
    if (survivors_[i] != rank_)
      send(survivors_[i], {.type = MessageType::kAllBlobs, .round = round_, .attempt_id = attempt_ids_[i]}, body);
  }
  ++round_;
  return blobs;
}

void SurvivorRendezvous::send_error(std::uint32_t peer, const Error& error) {
  send(peer, {.type = MessageType::kRefused, .attempt_id = participants_[peer].attempt_id}, wire::pack_failure(error));
}

// Ends the coordinator's attempt with the error: sends it to all ranks that have joined, and keeps it, until the next
// attempt fails, for late ranks, whose kJoin for this attempt has not come yet. If such a kJoin arrives during a later
// attempt with the same list of excluded ranks, the late rank joins that attempt. If the list is another one and does
// not contain the late rank, the late rank gets the error. If the list contains the late rank, it gets no answer, and
// its own timeout passes.
Error SurvivorRendezvous::fail(Error error) {
  for (Participant& participant : participants_) participant.missed_attempt = false;
  for (const std::uint32_t peer : survivors_) {
    Participant& participant = participants_[peer];
    participant.missed_attempt = participant.attempt_id == 0;
    if (peer != rank_ && !participant.missed_attempt) send_error(peer, error);
  }
  missed_excluded_ = excluded_;
  missed_error_ = error;
  failed_ = error;
  return error;
}

// The following functions are used by participants only.

Result<std::uint64_t> SurvivorRendezvous::meet_as_participant() {
  const std::uint32_t coordinator = survivors_.front();
  const auto attempt_id = random_number();
  if (!attempt_id) {
    failed_ = no_random_number();
    return *failed_;
  }
  attempt_id_ = *attempt_id;
  oob_channel_.hang_up(coordinator);  // close a connection of an earlier attempt
  send(coordinator, {.type = MessageType::kJoin, .attempt_id = attempt_id_}, excluded_);
  auto body = answer(MessageType::kAllJoined, oob_channel_.clock().now_ns() + timeout_ns());
  if (!body) return body.error();
  std::uint64_t id = 0;
  if (body->size() != sizeof(id)) return give_up(malformed());
  std::memcpy(&id, body->data(), sizeof(id));
  return id;
}

// Waits for a message of type `wanted` from the coordinator, and returns its body. While joining, the participant sends
// kGiveUp to the coordinator shortly before the deadline, and then waits for the coordinator's error until the
// deadline, because that error states the reason. In a gather round the participant sends kGiveUp only at the deadline,
// because the coordinator gives up before.
Result<std::string> SurvivorRendezvous::answer(MessageType wanted, std::int64_t deadline_ns) {
  Clock& clock = oob_channel_.clock();
  const std::uint32_t coordinator = survivors_.front();
  const std::int64_t give_up_ns = deadline_ns - std::min(timeout_ns() / 4, kMaxMarginNs);
  bool asked = false;
  BackoffSleep pause(clock);
  while (true) {
    oob_channel_.pump();
    // Check for the exit before reading the messages, so that those that the peer sent before its exit are read.
    const bool gone = oob_channel_.gone(coordinator);
    while (auto message = take(coordinator)) {
      const Header& header = message->header;
      if (header.attempt_id != attempt_id_) continue;
      if (header.type == MessageType::kRefused) {
        failed_ = wire::unpack_failure(message->body, ErrorScope::kCall);
        return *failed_;
      }
      if (header.type == wanted && header.round == round_ && !asked) return std::move(message->body);
    }
    if (gone) {
      failed_ = lost_error(coordinator);
      return *failed_;
    }
    const std::int64_t now_ns = clock.now_ns();
    const bool in_rounds = wanted == MessageType::kAllBlobs;  // a gather round, in which the coordinator gives up first
    if (!asked && !in_rounds && now_ns >= give_up_ns) {
      send(coordinator, {.type = MessageType::kGiveUp, .attempt_id = attempt_id_}, "");
      asked = true;
    }
    if (now_ns >= deadline_ns) break;
    pause();
  }
  const Error error{ErrorCode::kTimeout, ErrorScope::kCall, static_cast<std::int32_t>(coordinator),
                    fmt::format("rank {} did not come; exclude it, too, or see what holds it up", coordinator)};
  if (!asked) return give_up(error);
  failed_ = error;
  return error;
}

Error SurvivorRendezvous::malformed() const {
  return {ErrorCode::kRefused, ErrorScope::kCall, static_cast<std::int32_t>(survivors_.front()),
          fmt::format("rank {} sent a malformed message", survivors_.front())};
}

Error SurvivorRendezvous::give_up(Error error) {
  send(survivors_.front(), {.type = MessageType::kGiveUp, .attempt_id = attempt_id_}, "");
  failed_ = error;
  return error;
}

}  // namespace tutti::detail
