// SurvivorRendezvous: how those ranks of a communicator that go on meet, whatever has become of the communicator
// itself: it may be broken, and ranks that are left out may be dead, stopped, or busy with it. Used by shrink().
//
// A star, as the first set-up is: the lowest rank of those that meet is the host. Everybody sends it a datagram: I have
// come, and I leave these ranks out. When all have come and agree, the host names the meeting, and then carries rounds
// in which each gives a blob and gets all of them. Whatever fails, fails at the host or is told to it, and the host
// tells all who have come: one place decides, and all end alike. A rank's coming has a random number, so that answers
// to an attempt that it has given up are known as such. A rank that comes when the others have failed without it joins
// those who try the same again; where they try something else, it is told how the first attempt ended.
//
// They speak by OobChannel. For one thread at a time. Nothing waits longer than the patience; it is counted for the
// coming and for the rounds.
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
  // Of the communicator with that id, whose rank i is the job rank members[i], and this rank in it.
  SurvivorRendezvous(std::shared_ptr<JobContext> job_context, std::vector<std::uint32_t> members, std::uint32_t rank,
                     std::uint64_t communicator);

  // Comes to the meeting of `present` (ascending, this rank and others among them) and waits for all of them. Returns a
  // number that all of them get and nobody else has. Errors, with ranks of the communicator: kTimeout (who did not
  // come), kPeerLost, kMismatch (another list), kSystem. Everyone who came gets the same one, where the host lives.
  Result<std::uint64_t> meet(const std::vector<std::uint32_t>& present);
  // A round, blobs in the order of `present`. After an error all further ones fail with it.
  Result<std::vector<std::string>> gather(const std::string& blob);
  // The meeting is over, well or not; the next may begin.
  void leave();

 private:
  enum class Kind : std::uint32_t { kCome = 1, kGiveUp, kBlob, kMet, kAll, kRefused };
  struct Header {  // of a message
    Kind kind = Kind::kCome;
    std::uint32_t round = 0;
    std::uint64_t coming = 0;  // of the rank that has come and speaks, or is spoken to
  };
  static_assert(sizeof(Header) == 16);
  struct Message {
    Header header;
    std::string body;
  };
  struct Guest {               // what the host knows of a rank
    std::uint64_t coming = 0;  // 0: it has not come
    bool fresh = false;        // it has come since we last looked
    bool gave_up = false;
    bool went = false;  // it came, and gave up, before we came
    bool ended = false;
    bool missed = false;                // an attempt that failed before it came
    std::string list{};                 // whom it leaves out
    std::optional<std::string> blob{};  // of this round
  };
  bool hosts() const { return present_.front() == rank_; }
  std::int64_t patience_ns() const;
  void send(std::uint32_t peer, const Header& header, std::string_view body);
  std::optional<Message> take(std::uint32_t peer);

  Result<std::uint64_t> meet_as_host();
  Result<std::uint64_t> meet_as_guest();
  void hear(std::uint32_t peer);
  std::optional<Error> find_lost();
  std::optional<Error> find_disagreement() const;
  Result<std::vector<std::string>> gather_as_host(const std::string& blob);
  Result<std::string> answer(Kind wanted, std::int64_t deadline_ns);
  std::vector<std::uint32_t> absent() const;
  bool somebody_gave_up() const;
  Error nobody_came();
  Error lost(std::uint32_t peer) const;
  void refuse(std::uint32_t peer, const Error& error);
  Error fail(Error error);
  Error give_up(Error error);

  OobChannel oob_channel_;
  const std::uint32_t rank_;
  std::vector<Guest> guests_;  // by rank; kept between meetings, for those who come early

  std::vector<std::uint32_t> present_;  // of this meeting
  std::string list_;                    // whom it leaves out, in words
  std::uint64_t coming_ = 0;            // this rank's, as a guest
  std::int64_t came_ns_ = 0;            // when it did, as the host
  std::vector<std::uint64_t> met_;      // the guests' comings, in the order of present_, once all agree
  std::string missed_list_;             // of the attempt that some guests have missed
  Error missed_;                        // how that ended
  std::uint32_t round_ = 0;
  std::int64_t deadline_ns_ = 0;  // of the rounds
  std::optional<Error> failed_;
};

}  // namespace tutti::detail
