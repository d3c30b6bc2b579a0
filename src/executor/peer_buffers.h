// PeerBuffers: the locations of the inputs and outputs of all ranks in a single-copy collective (single_copy.h). Each
// rank advertises its own memory in its mailbox, and looks up the memory of the others. Only the engine's driver uses
// an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "executor/mailbox_board.h"
#include "executor/work_division.h"
#include "plan/machine_choices.h"

namespace tutti {

class PeerBuffers {
 public:
  // The start of the input or output of a rank.
  struct Location {
    std::byte* data = nullptr;  // address in this process; null: see `address`
    // Address in the process of the owner, for system calls. If `data` is null and this is 0, this rank does not
    // access the memory.
    std::uint64_t address = 0;
    bool needs_calls() const { return data == nullptr && address != 0; }
    bool found() const { return data != nullptr || address != 0; }
  };
  // The result of looking up a peer's memory. kPending: it is not available yet, or a fault was found. kFound: the
  // memory was found, or the peer offers none because it copies its whole block itself. kRunsPlan: the peer runs the
  // plan.
  enum class PeerState : std::uint8_t { kPending, kFound, kRunsPlan };

  // The references must outlive this object. `call` and `work`: the current call. `choices`: see
  // uses_attached_memory().
  // A fault is stored in `bad`.
  PeerBuffers(const Call& call, const WorkDivision& work, MailboxBoard& marks, Transport& transport,
              const MachineChoices& choices, std::optional<BadMessage>& bad);

  void begin();  // forgets the previous call
  // Writes this rank's mailbox, which advertises its memory. Returns false if a single copy is not possible: the blocks
  // are empty, the call is in place and would overwrite blocks that others have yet to read, or the other ranks need
  // memory of this rank that they cannot use. (A rank other than the root in a broadcast, scatter or gather then copies
  // its whole block itself, and the result is true.) If the result is false, the mailbox reports that this rank runs
  // the plan, and the caller must do so.
  bool advertise();
  // Looks up the memory of `peer` that this rank uses. If it is missing because it could not be mapped, see
  // report_loss().
  PeerState look_up(std::uint32_t peer);
  // If the memory of `peer` that was looked up last cannot be mapped, stores the reason as the fault of the call.
  void report_loss(std::uint32_t peer);
  // Call it when the memory of all peers was found: adds the locations of this rank's own buffers.
  void add_own();

  const Location& input(std::uint32_t rank) const { return inputs_[rank]; }
  const Location& output(std::uint32_t rank) const { return outputs_[rank]; }
  // Indexed by rank: the core on which the rank ran when it wrote its mailbox; 0 if the work has no shares.
  const std::vector<std::int32_t>& cpus() const { return cpus_; }

  // Whether other ranks may use the buffers of this one.
  bool own_is_offered() const { return offered_; }
  bool needs_calls() const { return needs_calls_; }  // some memory is accessible only by system calls
  // Whether this rank copies its output from the payload buffers of the others.
  bool own_output_is_fetched() const { return fetches_; }
  // Whether some rank copies its output from the payload buffers, so that results are also stored there.
  bool some_output_is_fetched() const { return to_payload_buffers_; }

 private:
  // Used as a window number: the memory is private, and the offset is an address in the process of its owner.
  static constexpr std::uint32_t kAttached = ~std::uint32_t{0};
  // Used as a window number. For an input: its contents are in the long payload buffer of its owner. For an output: its
  // owner copies each share of the results from the long payload buffer of the rank to which that share belongs
  // (WorkDivision::share_of()).
  static constexpr std::uint32_t kInPayloadBuffer = kAttached - 1;
  // The payload of a mailbox: the location of the memory of a rank.
  struct MemoryAdvert {
    std::uint32_t by_plan;        // 1: this rank runs the plan
    std::uint32_t input_window;   // the window of the input, or a constant above; 0: not offered
    std::uint32_t output_window;  // the same for the output
    std::int32_t cpu;             // the core on which the rank was running; 0 if the work has no shares
    std::uint64_t input_offset;
    std::uint64_t output_offset;
  };
  bool show(const WindowRef& window, const std::byte* data, std::uint32_t& shown_window,
            std::uint64_t& shown_offset) const;
  // Locates the memory of `peer` that `advert` describes, of `bytes` bytes (`which`: 0 for its input, 1 for its
  // output), and stores the result to `location`. Returns false if the memory is not mapped yet or cannot be mapped, or
  // if the advert is invalid, for example an offset outside of the peer's registered memory. If the advert is invalid,
  // bad_ is set.
  bool find(std::uint32_t peer, std::size_t which, const WindowRef& advert, std::uint64_t bytes, Location& location);

  const Call& call_;
  const WorkDivision& work_;
  MailboxBoard& marks_;
  Transport& transport_;
  const MachineChoices choices_;
  std::optional<BadMessage>& bad_;
  std::vector<Location> inputs_;  // indexed by rank, as outputs_ and cpus_
  std::vector<Location> outputs_;
  std::vector<std::int32_t> cpus_;
  bool offered_ = false;
  bool needs_calls_ = false;
  bool fetches_ = false;
  bool to_payload_buffers_ = false;
  std::uint32_t missing_ = 0;  // the window that was looked up last; 0: none
};

}  // namespace tutti
