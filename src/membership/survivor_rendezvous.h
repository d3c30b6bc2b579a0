// SurvivorRendezvous: the surviving ranks of a communicator meet and exchange data. It is used by shrink(). The
// communicator itself may be broken, and the excluded ranks may be dead, stopped, or still busy with it.
//
// The communication is a star, like in the first set-up. The coordinator is the lowest of the surviving ranks. Each
// of the others sends it a kJoin message with the list of the ranks that it excludes. When all have joined with the
// same list, the coordinator sends a random number that identifies the meeting. After that it carries out gather
// rounds: each rank sends a blob, and gets the blobs of all.
//
// The coordinator detects every failure, or is notified of it, and reports it to all ranks that have joined.
// Because one rank decides, all ranks end with the same result. Each attempt of a rank has a random number
// (`attempt_id`), so that the rank can recognize replies to an attempt that it has given up. If a rank joins late,
// when the attempt of the others has already failed without it, there are two cases. If the others are trying again
// with the same list, it joins their new attempt. If they exclude other ranks now, it gets the error of the first
// attempt.
//
// The messages go through an OobChannel. Only one thread at a time may use a SurvivorRendezvous. No function blocks
// longer than the set-up timeout. The timeout is counted once for joining, and once for all gather rounds together.
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
  // `communicator` is the id of the communicator. Its rank i is the job rank members[i], and this rank is `rank`.
  SurvivorRendezvous(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
                     std::uint64_t communicator);

  // Joins the meeting of the ranks `survivors`, and waits until all of them have joined. The list must be
  // ascending, and must contain this rank and at least one other. Returns a random number that is the same on all
  // of them. Errors, with ranks of the communicator:
  // - kTimeout: some ranks did not join. The message lists them.
  // - kPeerLost: a rank has exited or cannot be reached.
  // - kMismatch: the ranks passed different lists.
  // - kSystem: the system has no random numbers.
  //
  // Every rank that joined gets the same error if the coordinator survives.
  Result<std::uint64_t> meet(const std::vector<std::uint32_t>& survivors);
  // A gather round. Returns the blobs in the order of `survivors`. After an error, all further rounds fail with
  // that error.
  Result<std::vector<std::string>> gather(const std::string& blob);
  // Ends the meeting, whether it succeeded or failed. After that, meet() may be called again.
  void leave();

 private:
  enum class MessageType : std::uint32_t { kJoin = 1, kGiveUp, kBlob, kAllJoined, kAllBlobs, kRefused };
  // The header of each message.
  struct Header {
    MessageType type = MessageType::kJoin;
    std::uint32_t round = 0;
    std::uint64_t attempt_id = 0;  // attempt of the participant that sends or receives the message
  };
  static_assert(sizeof(Header) == 16);
  struct Message {
    Header header;
    std::string body;
  };
  struct Participant {             // coordinator's record of a participant
    std::uint64_t attempt_id = 0;  // 0 if it has not joined
    bool just_joined = false;      // it has joined since the last look
    bool gave_up = false;
    bool gave_up_early = false;  // it joined and gave up before this rank started to meet
    bool gone = false;
    bool missed_attempt = false;        // an attempt failed before it joined
    std::string list{};                 // the ranks that it excludes
    std::optional<std::string> blob{};  // its blob of the current round
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

  std::vector<std::uint32_t> survivors_;  // of the current meeting, ascending
  std::string excluded_;                  // the ranks that it excludes, as text
  std::uint64_t attempt_id_ = 0;          // of this rank, if it is a participant
  std::int64_t meet_started_ns_ = 0;      // time when this rank called meet(), if it is the coordinator
  // Attempt ids of the participants, in the order of survivors_. Set when all have joined.
  std::vector<std::uint64_t> attempt_ids_;
  std::string missed_excluded_;  // excluded ranks of the attempt that some participants were too late for
  Error missed_error_;           // the error of that attempt
  std::uint32_t round_ = 0;
  std::int64_t deadline_ns_ = 0;  // for all rounds together
  std::optional<Error> failed_;
};

}  // namespace tutti::detail
