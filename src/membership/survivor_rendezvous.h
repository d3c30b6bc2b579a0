// SurvivorRendezvous: the surviving ranks of a communicator meet and exchange data, in order to create a smaller
// communicator. It is used by shrink(). The communicator itself may be broken, and the excluded ranks may be dead,
// stopped, or still busy with a call of the communicator.
//
// The communication is a star, like in the first set-up. The coordinator is the lowest of the surviving ranks. Each
// other survivor (a participant) sends the coordinator a kJoin message with the list of the ranks that it excludes.
// When all survivors have joined with the same list, the coordinator sends them a random number that identifies the
// meeting. After that, gather rounds are possible: each rank sends a blob to the coordinator, and gets the blobs of
// all ranks from it.
//
// The coordinator detects a failure, or a participant reports it, and the coordinator sends the error to all ranks that
// have joined. Because one rank decides, all ranks end with the same result, unless the coordinator itself fails or a
// rank cannot exchange messages with it. Each attempt of a participant has a random number (`attempt_id`), so that the
// participant can ignore replies to an earlier attempt that it has given up. A rank may join late, when the attempt of
// the others has already failed without it. If the others are trying again with the same list, the late rank joins
// their new attempt. If the others exclude other ranks in their new attempt, the late rank gets the error of the
// attempt that it missed; but if they exclude the late rank itself, its timeout passes.
//
// The messages go through an OobChannel. Only one thread at a time may use a SurvivorRendezvous. meet() blocks for
// at most the set-up timeout, all gather rounds together for at most another set-up timeout, and leave() for at
// most kFlushTimeoutNs (survivor_rendezvous.cc), all without the time during which the process is stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "membership/oob_channel.h"

namespace tutti::detail {

class SurvivorRendezvous {
 public:
  // The survivors of the communicator with the id `communicator` meet. Rank i of that communicator is the job rank
  // members[i], and this rank is number `rank` of it.
  SurvivorRendezvous(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
                     std::uint64_t communicator);

  // Joins the meeting of the ranks `survivors`, and waits until all of them have joined. The list must be
  // ascending, and must contain this rank and at least one other rank. Returns a random number, which is the same
  // on all survivors. Errors (their rank numbers are those of the communicator):
  // - kTimeout: some ranks did not join, or gave up while they waited. The message lists them.
  // - kPeerLost: a rank has exited or cannot be reached.
  // - kMismatch: the ranks passed different lists.
  // - kSystem: the system has no random numbers.
  // - kRefused: the coordinator sent a malformed message.
  //
  // If the coordinator survives and its messages arrive in time, every rank that has joined normally gets the same
  // error.
  Result<std::uint64_t> meet(const std::vector<std::uint32_t>& survivors);
  // Runs a gather round. All survivors call it equally often, after meet() has succeeded. Returns the blobs of all
  // survivors, in the order of `survivors`. After an error, all further rounds fail with that error.
  Result<std::vector<std::string>> gather(const std::string& blob);
  // Ends the meeting, whether it succeeded or failed, and waits up to kFlushTimeoutNs until the last messages are sent.
  // After that, meet() may be called again.
  void leave();

 private:
  enum class MessageType : std::uint32_t { kJoin = 1, kGiveUp, kBlob, kAllJoined, kAllBlobs, kRefused };
  // The header of each message. The body, if there is any, follows.
  struct Header {
    MessageType type = MessageType::kJoin;
    std::uint32_t round = 0;
    // Identifies the attempt of the participant that sends the message or, if the coordinator sends it, receives
    // it.
    std::uint64_t attempt_id = 0;
  };
  static_assert(sizeof(Header) == 16);
  struct Message {
    Header header;
    std::string body;
  };
  // The coordinator's record of a participant.
  struct Participant {
    std::uint64_t attempt_id = 0;  // the attempt with which it has joined; 0 if it has not
    bool just_joined = false;      // its kJoin arrived in the current find_lost()
    bool gave_up = false;
    bool gave_up_early = false;  // its kJoin and its kGiveUp were read in one find_lost(), so that attempt is over
    bool gone = false;
    bool missed_attempt = false;        // the coordinator's last failed attempt ended before this participant joined
    std::string list{};                 // the ranks that the participant excludes, as text
    std::optional<std::string> blob{};  // empty until the blob of the current round arrives
  };
  bool is_coordinator() const { return survivors_.front() == rank_; }
  std::int64_t timeout_ns() const;
  void send(std::uint32_t peer, const Header& header, std::string_view body);
  std::optional<Message> take(std::uint32_t peer);

  Result<std::uint64_t> meet_as_coordinator();
  Result<std::uint64_t> meet_as_participant();
  void receive_from(std::uint32_t peer);
  std::optional<Error> find_lost();
  std::optional<Error> find_disagreement() const;
  Result<std::vector<std::string>> gather_as_coordinator(const std::string& blob);
  Result<std::string> answer(MessageType wanted, std::int64_t deadline_ns);
  std::vector<std::uint32_t> absent() const;
  bool any_gave_up() const;
  Error join_timeout_error();
  Error lost_error(std::uint32_t peer) const;
  void send_error(std::uint32_t peer, const Error& error);
  Error fail(Error error);
  Error malformed() const;  // the error if the coordinator sent a malformed message
  Error give_up(Error error);

  OobChannel oob_channel_;
  const std::uint32_t rank_;
  // Indexed by rank. Kept between meetings, because a rank may join before the coordinator calls meet().
  std::vector<Participant> participants_;

  std::vector<std::uint32_t> survivors_;  // the ranks of the current meeting, ascending
  std::string excluded_;                  // the other ranks, which the meeting excludes, as text
  std::uint64_t attempt_id_ = 0;          // the current attempt of this rank, if it is a participant
  std::int64_t meet_started_ns_ = 0;      // time of the call of meet(), if this rank is the coordinator
  // Used by the coordinator: the attempt ids of all survivors, in the order of survivors_ (0 for itself). Empty
  // until all have joined.
  std::vector<std::uint64_t> attempt_ids_;
  // The ranks that the coordinator's last failed attempt excluded. See Participant::missed_attempt.
  std::string missed_excluded_;
  Error missed_error_;  // the error of the coordinator's last failed attempt
  // Number of gather rounds of the meeting that have succeeded on this rank.
  std::uint32_t round_ = 0;
  std::int64_t deadline_ns_ = 0;  // limit for all gather rounds of the meeting together
  // The error with which the meeting has failed. Empty if it has not failed.
  std::optional<Error> failed_;
};

}  // namespace tutti::detail
