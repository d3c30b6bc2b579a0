// Landings: memory of a call's output, shown by the rank that receives, so that the sender's card writes messages where
// they are wanted and not into a slot. Of one lane, both what this rank has shown and what its peer has. Bookkeeping
// only: who registers memory and writes entries is VerbsLane. A value.
//
// The receiver writes an entry into the sender's memory when it enters a call. There are a few, used in turn, and one
// is written again only after a header of the sender's has said that it was seen. A sender that has not seen the entry
// of its call uses slots, so nothing waits for one. A receiver that gives a call up recalls the entry; the answer comes
// behind all that the sender has under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/call_tag.h"
#include "transports/verbs/registrations.h"

namespace tutti {

class Landings {
 public:
  static constexpr std::uint32_t kEntries = 4;
  static constexpr std::size_t kMostKeys = 32;                      // queue pairs of a lane that shows anything
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};      // in place of an offset: the message is in its slot
  using Held = std::vector<std::shared_ptr<Registrations::Entry>>;  // by queue pair

  struct Entry {  // as it travels
    CallTag call;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint32_t number = 0;  // from 1, its lower half
    std::uint32_t unused = 0;
    std::array<std::uint32_t, kMostKeys> keys{};  // by queue pair
  };
  static_assert(sizeof(Entry) == 184);

  // Of this rank's. True when `call` is not shown yet and there is an entry for it.
  bool may_show(const CallTag& call) const;
  // `held`: registrations of `output`, which peers may write; kept until hide(). What was shown before is hidden.
  Entry show(const CallTag& call, std::span<std::byte> output, Held held);
  // Whether a message of the call may say that it lies there.
  bool shown(const CallTag& call, std::uint64_t offset, std::uint64_t bytes) const;
  Held hide();  // what was held
  bool shows() const { return own_.has_value(); }
  // What is shown is asked back, once: its number; nothing if it was asked before.
  std::optional<std::uint16_t> recall();
  void note_answer(std::uint16_t number);
  bool recalled(std::size_t answers) const { return !own_ || own_->answers >= answers; }
  // A header has said that the peer has seen so many.
  void note_seen(std::uint32_t seen);

  // Of the peer's. False: the entry is none that a sound peer writes. It is the peer's words: what it names is
  // checked by this rank's card and the peer's, nobody else.
  bool take(const Entry& entry);
  // Where the peer wants messages of this call, if all of its output is as long as that; null: not shown, or not yet.
  const Entry* find(const CallTag& call, std::uint64_t output_bytes) const;
  void forget(std::uint16_t number);             // which the peer has recalled
  const Entry& peers() const { return peers_; }  // the last one
  std::uint32_t seen() const { return seen_; }

 private:
  struct Own {
    CallTag call;
    std::uint64_t bytes = 0;
    Held held;
    std::uint32_t number = 0;
    bool asked_back = false;
    std::size_t answers = 0;  // one by each queue pair
  };
  std::optional<Own> own_;
  std::uint32_t made_ = 0;          // entries of ours, ever, the lower half
  std::uint32_t seen_by_peer_ = 0;  // of these
  Entry peers_;                     // the last one; number 0: none yet
  std::uint32_t seen_ = 0;          // of the peer's
};

}  // namespace tutti
