// VerbsLane: both directions between this rank and one peer on one lane, by one or several queue pairs. Each side has
// slots into which the other writes. A message is one write (or, when it is long, one for each queue pair) with
// immediate data, which says which slot it fills and of how many parts it is; a header stands in front of the payload.
//
// A long message whose place in the receiver's output is known goes there (landings.h): its header alone is written
// into the slot, behind the first part on the same queue pair, and its completion says that both are there. Such a
// message of a send may be longer than a slot.
//
// Nothing is looked at before the completion that announces it, or that of a later write by its own reliable queue
// pair, so neither the order in which a network delivers nor that in which a bus writes matters (adaptive routing,
// relaxed ordering). A write whose header says that the slot
// before it has been freed saves a message of its own; see owes().
//
// Thread of the driver. Shared by the connections of the two directions and by the path.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/call_tag.h"
#include "transports/rdma/introductions.h"
#include "transports/verbs/landings.h"
#include "transports/verbs/rail.h"

namespace tutti {

struct VerbsLaneOptions {
  std::uint32_t rank = 0;
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t queue_pairs = 1;  // per rail
  bool shows_outputs = true;
};

// Bytes: a shorter message is sooner in a slot, and copied out of it, than in two parts.
inline constexpr std::uint64_t kVerbsLeastAimed = 32 * 1024;
// And the longest: beside its packets nothing else of a message counts any more, and recalls wait no longer for it.
inline constexpr std::uint64_t kVerbsLongestAimed = 4 << 20;

class VerbsLane final : public VerbsUser {
 public:
  struct Header {  // in front of a payload, in a slot
    CallTag tag;
    std::uint64_t bytes = 0;
    std::uint32_t number = 0;    // of the message, from 0, its lower half
    std::uint32_t released = 0;  // likewise: messages of the other direction that have been released, ever
    std::uint64_t landing = Landings::kNowhere;  // in the output that the receiver has shown, bytes
    std::uint32_t seen = 0;                      // of what the receiver has shown, ever, the lower half
    std::uint32_t unused = 0;
  };
  static_assert(sizeof(Header) == 64);

  // One end: ours, and the peer's port that it speaks to.
  struct Rail {
    VerbsRail* rail = nullptr;  // of the path, which outlives the lane's use of it
    VerbsPort remote;
  };

  // Makes queue pairs and memory, and introduces itself. Errors: kSystem, with the device.
  static Result<std::shared_ptr<VerbsLane>> open(const VerbsLaneOptions& options, const std::vector<Rail>& rails,
                                                 Introductions& introductions);
  ~VerbsLane() override;

  // Sending. Only when ready().
  bool ready();
  std::byte* slot();
  void send(std::uint64_t bytes, const CallTag& tag);  // what slot() holds
  void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes, const CallTag& tag);
  bool pins_done() const;  // memory that was sent from may change
  // The next message, if it is long enough, goes to that place in the output that the peer has shown for the call.
  // False: the peer has shown none of that length, or not yet.
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset);
  // After that: SendConnection::send_aimed().
  std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag);

  // Receiving.
  const Header* front();  // the next message; null: it has not come
  const std::byte* payload() const;
  bool front_is_placed() const;  // in its slot, or where this rank has shown its output
  void release();
  bool corrupt() const { return corrupt_; }
  // Messages of the call may be written where they are wanted, if that memory can be registered. False: not so.
  bool show_output(const CallTag& call, std::span<std::byte> output);
  // The peer is asked to use that memory no more. True when it has answered, behind all that it had under way.
  bool recall_output();
  // The call has ended; `gave_up`: with messages missing, which no card may write there any more.
  void hide_output(bool gave_up);
  bool connected() const { return stage_ != Stage::kIntroduced && stage_ != Stage::kAnswered; }

  void note_reports();                               // takes what the device has reported of its queue pairs
  void probe();                                      // asks the device how they are
  void hear();                                       // takes what the peer has said of its ends
  bool told_broken() const { return told_broken_; }  // by the peer
  bool poll();                                       // takes what has come; true if anything had
  void pump();                                       // the same; connects; tells what it owes
  const VerbsLaneOptions& options() const { return options_; }
  const std::string& broken() const { return broken_; }  // why; empty: it is not
  std::string way() const;    // "rxe0 port 1, queue pair 17 (to queue pair 18 of rxe0 port 1 at rank 3)"
  bool idle() const;          // everything that was sent has arrived, or never will
  void ask_for_completion();  // so that idle() comes true
  void close();               // the path ends

 private:
  struct Pair {
    Rail rail;
    ibv_qp* pair = nullptr;
    ibv_mr* source = nullptr;         // our slots to send from, with this rail's device
    ibv_mr* target = nullptr;         // ... and to receive into
    std::uint32_t most_inline = 0;    // bytes
    std::uint32_t packet_number = 0;  // first one sent
    std::uint32_t remote_number = 0;
    std::uint32_t remote_key = 0;  // of the peer's slots
    std::uint64_t posted = 0;      // requests, ever
    std::uint64_t done = 0;        // of these
    std::uint64_t asked = 0;       // the last that tells when it is done
    std::uint64_t pinned = 0;      // the last that reads memory that is not ours
    std::deque<std::pair<std::uint64_t, std::shared_ptr<Registrations::Entry>>> uses;
  };
  struct Piece {  // of a message
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t key = 0;
  };

  struct Aim {  // of a request: where it writes
    std::uint64_t address = 0;
    std::uint32_t key = 0;
  };

  // A request. Its completion is wanted where it `tells`; of the others a few tell, so that room comes back.
  struct Write {
    std::span<const Piece> pieces;
    Aim aim;
    std::optional<std::uint32_t> immediate;  // none: the peer need not learn of it
    bool tells = false;
  };
  static constexpr std::size_t kMostChained = 2;

  using Held = Landings::Held;

  struct Payload {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    const Held* held = nullptr;  // by whom it is registered; null: it lies in this message's slot
    bool tells = false;          // somebody is about to wait for its completion
  };

  VerbsLane(const VerbsLaneOptions& options, Introductions& introductions);
  Status prepare(const std::vector<Rail>& rails);
  std::string introduction() const;
  void connect();
  bool accept(const std::string& text);
  void fail(const std::string& why);
  void tell_broken(std::size_t pair, const std::string& words);
  bool owes() const;
  void tell_released();
  bool room() const;
  std::size_t least_parts_of(std::uint64_t bytes) const;
  std::size_t parts_of(std::uint64_t bytes) const;
  std::uint64_t stride() const;
  std::uint64_t half_bytes() const;  // of memory_
  // Requests that a queue pair holds: the parts of each message, what tells of releases, and some that ask for
  // completion.
  std::uint32_t depth() const { return 4 * options_.slots + 16; }
  void take_entry(std::uint32_t number);
  void answer_recall();
  std::byte* send_slot(std::uint64_t number) const;
  const std::byte* receive_slot(std::uint64_t number) const;
  std::optional<Held> hold(VerbsDevice::MemoryUse use, std::span<const std::byte> memory);
  std::optional<Held> hold_source(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes);
  void send_message(const Payload& payload, const CallTag& tag);
  Aim slots_at(std::size_t pair, std::uint64_t offset) const;
  void post(std::size_t pair, std::span<const Write> writes);
  void post_empty(std::size_t pair, std::uint32_t immediate);
  void ask(std::size_t pair);
  void note_released(std::uint64_t more);
  std::string way_of(const Pair& pair) const;

  void on_arrival(std::size_t pair, std::uint32_t immediate) override;
  void on_done(std::size_t pair, std::uint64_t number) override;
  void on_failure(std::size_t pair, const std::string& words) override;

  const VerbsLaneOptions options_;
  Introductions& introductions_;
  std::byte* memory_ = nullptr;  // slots and entries to send from, then slots and entries to receive into
  std::vector<std::pair<VerbsRail*, ibv_mr*>> regions_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> weights_;  // of each: what both ends' ports carry, Mbit/s
  std::uint64_t remote_slots_ = 0;      // address of the peer's receive slots
  enum class Stage : std::uint8_t { kIntroduced, kAnswered, kConnected, kClosed } stage_ = Stage::kIntroduced;
  std::string broken_;
  bool told_broken_ = false;
  bool corrupt_ = false;
  // Sending.
  std::uint64_t sent_ = 0;           // messages, ever
  std::uint64_t peer_released_ = 0;  // of these
  std::size_t next_pair_ = 0;
  std::optional<std::uint64_t> landing_;           // of the next message
  Landings landings_;                              // of both directions
  std::optional<std::uint16_t> recalled_by_peer_;  // to be answered
  // Receiving.
  std::vector<std::uint32_t> parts_;  // by slot: those of its message that have arrived
  std::vector<bool> whole_;           // by slot
  std::optional<Header> front_;       // a copy, checked: what lies in the slot is the peer's
  std::uint64_t arrived_ = 0;         // whole messages, ever
  std::uint64_t released_ = 0;        // of these
  std::uint64_t told_ = 0;            // ... as the peer has been told
};

}  // namespace tutti
