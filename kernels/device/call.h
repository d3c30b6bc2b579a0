// The parameters of a launch of the evaluator, and the memory that ranks and host share while it runs. All types are
// plain values. The host writes the parameters before each launch. It initialises the shared memory before the first
// launch that uses it, and changes only the table of windows, RankStatus::abort and RankStatus::left later. Device code
// advances the counters in that memory from call to call.
//
// Each type is written by the following side, and is in this memory:
//
//   Link          This rank's end of a connection. The host writes the constants, such as addresses and sizes, and the
//                 block that uses the connection writes the counters and flags. In this rank's memory.
//   Mailbox       Written by the rank at the other end of the connection: its progress, and the location of its output.
//                 In this rank's memory, so that waiting does not read memory of another GPU.
//   Envelope      Only for Protocol::kSimple and for sends and receives: describes a message. Written by the sender, in
//                 the receiver's memory.
//   ChannelState  The position of a channel. Written by the block that runs the channel, in this rank's memory.
//   RankStatus    The abort flag and the ranks that have left, written by the host, and the first failure, written by
//                 the device. In pinned memory.
//
// The messages of a connection are numbered from 0 over all calls. These numbers also identify the call, because both
// ends of the connection have the same number when a call begins. So a launch needs no call number as an argument, and
// a launch that was captured in a CUDA graph can be replayed. Links belong to the communicator and are used by all its
// plans with the same protocol. Channel states belong to one plan.
//
// Most plans have one to four channels per rank, but a GPU can run many more blocks. So a call is run by `slices`
// copies of the channels of the plan: slice s runs the tiles s, s + slices, s + 2 * slices ..., with its own
// connections, channel states and scratch. No step of a slice waits for a step of another slice, and the order in which
// the values of a tile are added does not change.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/program.h"
#include "tutti/types.h"

namespace tutti::device {

inline constexpr std::uint64_t kForever = ~std::uint64_t{0};
inline constexpr std::uint32_t kNoWindow = ~std::uint32_t{0};
inline constexpr std::uint64_t kNoWindowBase = ~std::uint64_t{0};  // in Link::windows: the window is not mapped here
// Alignment of memory that ranks share, so that two ranks never write into the same cache line.
inline constexpr std::size_t kLineBytes = 128;

struct alignas(kLineBytes) Mailbox {
  // In the mailbox of a sending end: the number of messages whose slots the receiver has given back. In the mailbox of
  // a receiving end: the number of messages that the sender has posted (not with LL and LL128).
  std::uint64_t counter = 0;
  // In the mailbox of a sending end: the receiver offers that this rank writes into its output, in the call whose first
  // message on this connection has the number offer_number - 1. The peer writes the two variables below first, and then
  // offer_number with a release store.
  std::uint64_t offer_number = 0;
  std::uint64_t offer_window = 0;  // the window that contains the peer's output: index into Link::windows
  std::uint64_t offer_offset = 0;  // start of the output, in bytes from the start of the window
  std::uint64_t unused[12] = {};
};
static_assert(sizeof(Mailbox) == kLineBytes);

struct alignas(16) Envelope {
  std::uint64_t bytes = 0;
  std::uint32_t digest = 0;  // digest of the call's tag
  Carrier carrier = Carrier::kSlot;
  std::uint8_t unused_bytes[3] = {};
  std::uint32_t window = kNoWindow;  // for Carrier::kPublished: index into the receiver's Link::windows
  std::uint32_t unused = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(Envelope) == 32);

// This rank's end of a connection. All addresses are valid on the GPU of this rank.
struct alignas(16) Link {
  std::uint64_t number = 0;      // number of messages that this end has sent or received so far
  std::uint64_t call_begin = 0;  // value of `number` when the current call began
  Mailbox* own = nullptr;        // the mailbox of this end, in this rank's memory
  Mailbox* peer = nullptr;       // the mailbox of the other end
  // Slots and envelopes are in the receiver's memory. Slots are aligned to kLineBytes.
  std::byte* slots = nullptr;
  Envelope* envelopes = nullptr;
  // A table with one entry per window: the address at which the peer's registered memory begins, or kNoWindowBase. The
  // host may change the table at any time. If it closes a window during a call, the call fails when a published message
  // in that window arrives. A message that the call would deliver into the window goes through a slot instead. The
  // pointer is null if the connection has no table.
  const std::uint64_t* windows = nullptr;
  std::uint64_t slot_bytes = 0;  // a multiple of kLineBytes
  std::uint32_t slot_mask = 0;   // slots - 1; the number of slots is a power of two
  // At a sending end. 1: in the current call this rank has published a message, which the peer reads in this rank's
  // memory. So the call must not end before the peer has released it.
  std::uint32_t published = 0;
  std::uint64_t released = 0;  // at a sending end: the value of own->counter when it was last read
  // Windows with lower numbers than this are not mapped on this connection. 0: window 0 stands for all memory of the
  // peer, which this GPU can access at the same addresses. 1: this GPU cannot access all of that memory, so only
  // registered windows are mapped.
  std::uint32_t first_window = 0;
  std::uint32_t running = 0;  // 1: a launch of transfers uses this connection; always 0 for a connection of plans
};
static_assert(sizeof(Link) == 96);

struct alignas(16) ChannelState {
  std::uint64_t progress = 0;  // for other channels of the rank: how far this channel has run; see position_word()
  std::uint64_t epoch = 0;     // number of calls of the plan that this channel has completed
  std::uint64_t tile = 0;      // if `running`: the tile of the next step, counted within the slice
  std::uint32_t step = 0;
  std::uint32_t running = 0;  // 1: the last launch ended before the call did; after a stop, a new launch may resume it
};
static_assert(sizeof(ChannelState) == 32);

// The value that a channel publishes to the other channels of its rank: the epoch of the call in the upper 16 bits, and
// the number of steps that have run in this call in the lower 48 bits. Epochs are compared modulo 2^16, so two epochs
// that are compared must differ by less than 2^15.
inline constexpr int kPositionBits = 48;
TUTTI_HOST_DEVICE constexpr std::uint64_t position_word(std::uint64_t epoch, std::uint64_t steps) {
  return epoch << kPositionBits | steps;
}
// True if a channel whose position_word() is `word` has run at least `steps` steps of the call `epoch`, or is in a
// later call.
TUTTI_HOST_DEVICE constexpr bool has_reached(std::uint64_t word, std::uint64_t epoch, std::uint64_t steps) {
  return static_cast<std::int64_t>(word - position_word(epoch, steps)) >= 0;
}

enum class Failure : std::uint8_t {
  kNone = 0,
  kAborted = 1,
  kTimedOut = 2,
  kMismatch = 3,  // the message of the peer belongs to another call; for transfers also: it has another length
  kCorrupt = 4,   // the message of the peer has a length or a carrier that the step does not allow
  kMisused =
      5,        // a call was started before the last one had ended, or a connection has fewer slots than the plan needs
  kClosed = 6,  // the message of the peer is in a window of the peer that is no longer mapped on this rank
  kLeft = 7,    // for transfers: the peer has left the communicator before it has sent or received this part
};

// The first failure of a rank. word() packs it into 64 bits, and of() unpacks it.
struct FailureWord {
  Failure cause = Failure::kNone;
  std::uint32_t channel = 0;  // < kMaxChannels
  std::uint32_t peer = 0;     // < kMaxRanks
  std::uint32_t step = 0;     // < kMaxSteps; for transfers: index of the part in its queue, modulo kMaxSteps
  bool transfers = false;     // a launch of sends and receives has failed, and not a plan; `channel` is then 0

  TUTTI_HOST_DEVICE constexpr std::uint64_t word() const {
    return static_cast<std::uint64_t>(cause) | static_cast<std::uint64_t>(channel & 0xffu) << 8 |
           static_cast<std::uint64_t>(peer & 0xfffffu) << 16 | static_cast<std::uint64_t>(step & 0xffffffu) << 36 |
           (transfers ? kTransfersBit : 0);
  }
  static constexpr FailureWord of(std::uint64_t word) {
    return {static_cast<Failure>(word & 0xffu), static_cast<std::uint32_t>(word >> 8 & 0xffu),
            static_cast<std::uint32_t>(word >> 16 & 0xfffffu), static_cast<std::uint32_t>(word >> 36 & 0xffffffu),
            (word & kTransfersBit) != 0};
  }
  static constexpr std::uint64_t kTransfersBit = std::uint64_t{1} << 60;
};

struct alignas(kLineBytes) RankStatus {
  std::uint64_t abort = 0;    // if it is not 0, every wait of this rank ends; written by the host
  std::uint64_t failure = 0;  // a FailureWord; if it is not 0, every wait of this rank ends
  // For transfers: bit r is 1 if the host has seen that rank r has left the communicator. That rank posts nothing more.
  std::uint64_t left = 0;
};

// How elements are combined. The fields have the meaning of those of Reduction in kernels/cpu/reduce.h.
struct Arithmetic {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint16_t reserved = 0;
  std::int32_t scaled_source = -1;
  std::uint32_t divisor = 1;
  std::uint32_t reserved2 = 0;
  double scale_real = 1.0;
  std::int64_t scale_integer = 1;
};
static_assert(sizeof(Arithmetic) == 32);

// connection_number() gives the number of a connection, and link_index() the index of its Link in Call::links. A pair
// of ranks has one connection in each direction for every slice and lane. All ranks number these connections in the
// same way.
TUTTI_HOST_DEVICE constexpr std::uint32_t connection_number(std::uint32_t slice, std::uint32_t lanes,
                                                            std::uint32_t lane) {
  return slice * lanes + lane;
}
TUTTI_HOST_DEVICE constexpr std::uint64_t link_index(std::uint32_t connection, std::uint32_t rank_count,
                                                     std::uint32_t peer, bool sends) {
  return (std::uint64_t{connection} * rank_count + peer) * 2 + (sends ? 1 : 0);
}

// The number of tiles that slice `slice` runs. Its i-th tile is tile slice + i * slices of the call.
TUTTI_HOST_DEVICE constexpr std::uint64_t tiles_of_slice(std::uint64_t tiles, std::uint32_t slice,
                                                         std::uint32_t slices) {
  return tiles > slice ? (tiles - slice - 1) / slices + 1 : 0;
}

// One rank's part of one collective call. In `arithmetic`, scaled_source is -1 and divisor is 1: for each step,
// the kernel (evaluate.h) sets both in a copy, from the op, the step and the program's rank_count.
struct alignas(16) Call {
  const ProgramHeader* program = nullptr;
  // Index: slice * program->channel_count + channel. Only calls of the same plan use these states.
  ChannelState* channels = nullptr;
  // Index: link_index(). Only the links of the program's ports are used.
  Link* links = nullptr;
  RankStatus* status = nullptr;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // scratch_chunks * max_chunk_count elements for each slice, one slice after the other; aligned to 16 bytes.
  std::byte* scratch = nullptr;
  // Index: slice * scratch_chunks + chunk. The length of the value in this chunk of scratch, in bytes.
  std::uint64_t* scratch_bytes = nullptr;
  Geometry geometry;
  Arithmetic arithmetic;
  std::uint64_t input_offset = 0;   // in bytes from the start of input_window
  std::uint64_t output_offset = 0;  // in bytes from the start of output_window
  std::uint32_t input_window = kNoWindow;
  // kNoWindow: peers must not access the output. (If peers can access all memory of this rank, an output that is not
  // registered can be in window 0.)
  std::uint32_t output_window = kNoWindow;
  std::uint16_t in_place = 0;
  // 1: a block that begins after RankStatus::abort was set fails at once. Otherwise only waits look at it, and a block
  // that need not wait still sends its values.
  std::uint16_t checks_abort = 0;
  std::uint32_t digest = 0;  // digest of the call's tag; the same on all ranks
  // Length of the whole program. 0: unknown, so the program is not copied into shared memory as a whole.
  std::uint64_t program_bytes = 0;
  std::uint64_t least_published_bytes = 0;  // shorter values are not published, but copied into a slot or delivered
  // How long a wait of a block may last before the block stops, so that another launch can resume it. (Waits in the
  // middle of a step do not stop.) 0: a block that would have to wait stops at once. kForever: it never stops.
  std::uint64_t stop_after_ns = kForever;
  std::uint64_t timeout_ns = kForever;  // how long a wait may last before the call fails
};
static_assert(sizeof(Call) % 16 == 0);

// Number of threads per block in a launch with the protocol LL or LL128, or with transfers that are all short, unless
// the settings say fewer.
inline constexpr std::uint32_t kShortThreads = 128;

inline constexpr std::uint32_t kInlineCalls = 8;
// The limit of CUDA before 12.1 for kernel parameters, minus 64 bytes in reserve.
inline constexpr std::size_t kLaunchBytes = 4096 - 64;

// One launch: the calls of one rank, or of several ranks that share the GPU. Blocks of one launch wait for each
// other, so all of them must fit on the device at once, unless all calls have stop_after_ns 0.
struct Launch {
  Call inline_calls[kInlineCalls];  // used if `calls` is null
  const Call* calls = nullptr;   // null: inline_calls; otherwise call_count calls, in memory that the device can read
  std::uint32_t call_count = 0;  // at most kInlineCalls if `calls` is null
  std::uint32_t slices = 1;      // number of slices of each call, the same on all ranks
  // The maximum of channel_count of the calls' programs, also of those that other ranks launch for the same call.
  std::uint32_t channels = 1;
  // 0: begin the calls. 1: continue the blocks of an earlier launch that have stopped; all other blocks do nothing.
  std::uint32_t resume = 0;
  // 1: no launch will resume this one, so a block that would stop fails with Failure::kTimedOut instead.
  std::uint32_t last = 0;
  // How many slices of a call run at the same time, each in one block per channel; 0: all of them. A block runs every
  // at_once-th slice, in ascending order. Ranks may have different numbers, and the call still ends. Proof: Let s be
  // the lowest slice that is unfinished on some rank. All ranks have finished the slices below s. Therefore each rank
  // that has not finished s is running it, and does not wait for other slices. If the blocks of a call may stop
  // (stop_after_ns), all of its slices must run at the same time.
  std::uint32_t at_once = 0;
};
static_assert(sizeof(Launch) <= kLaunchBytes);

TUTTI_HOST_DEVICE constexpr std::uint32_t slices_at_once(const Launch& launch) {
  return launch.at_once == 0 ? launch.slices : launch.at_once;
}

// The number of blocks in the grid of a launch.
TUTTI_HOST_DEVICE constexpr std::uint32_t blocks_of(const Launch& launch) {
  return launch.call_count * slices_at_once(launch) * launch.channels;
}

// The call, the channel and the first slice of one block. The block goes on with every slices_at_once()-th slice. It
// runs nothing if the program of its call does not have this channel.
struct BlockAssignment {
  std::uint32_t call = 0;
  std::uint32_t slice = 0;
  std::uint32_t channel = 0;
};

TUTTI_HOST_DEVICE constexpr BlockAssignment assignment_of(const Launch& launch, std::uint32_t block) {
  const std::uint32_t number = block / launch.channels;
  return {number / slices_at_once(launch), number % slices_at_once(launch), block % launch.channels};
}

TUTTI_HOST_DEVICE inline const Call& call_of(const Launch& launch, std::uint32_t call) {
  return launch.calls == nullptr ? launch.inline_calls[call] : launch.calls[call];
}

}  // namespace tutti::device
