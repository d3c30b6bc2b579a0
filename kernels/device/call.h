// The parameters of a launch of the evaluator, and the memory that ranks and host share while it runs. All types are
// plain values. The host writes them before the first launch, and device code advances the counters in them from
// call to call.
//
// Each type is written by the following side, and is in this memory:
//
//   Link          This rank's end of a connection. The host writes the constants, and the block that runs the channel
//                 writes the counters. In this rank's memory.
//   Mailbox       Written by the other end: its progress, and the location of its output. In this rank's memory, so
//                 that waiting does not read memory of another GPU.
//   Envelope      For kSimple: describes the message in a slot. Written by the sender, in the receiver's memory.
//   ChannelState  The position of a channel. In this rank's memory.
//   RankStatus    The abort flag, written by the host, and the first failure, written by the device. In pinned memory
//                 or in device memory.
//
// The number of a message counts all messages of its connection. It identifies the call as well: both ends have the
// same number when a call begins. So the number of the call is not an argument, and a captured launch can be
// replayed. Links belong to the communicator, whichever plans use them. Channel states belong to one plan.
//
// A plan has one to four channels per rank, but a GPU can run many more blocks. So a call is run by `slices` copies
// of the channels of the plan: slice s runs the tiles s, s + slices, s + 2 * slices ..., with its own connections,
// channel states and scratch. Slices never wait for each other, and the order in which the values of a tile are
// added does not change.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/program.h"
#include "tutti/types.h"

namespace tutti::device {

inline constexpr std::uint64_t kForever = ~std::uint64_t{0};
inline constexpr std::uint32_t kNoWindow = ~std::uint32_t{0};
inline constexpr std::uint64_t kNoWindowBase = ~std::uint64_t{0};  // in Link::windows: the window is not mapped here
inline constexpr std::size_t kLineBytes = 128;                     // no two sides write into the same cache line

struct alignas(kLineBytes) Mailbox {
  // At a sending end: messages that the peer has released. At a receiving end: messages that the peer has posted.
  std::uint64_t counter = 0;
  // At a sending end: 1 + the number of the first message of the call in which this rank may write to the peer's
  // output. The store to offer_number publishes the two variables below.
  std::uint64_t offer_number = 0;
  std::uint64_t offer_window = 0;  // index into Link::windows
  std::uint64_t offer_offset = 0;  // in bytes
  std::uint64_t unused[12] = {};
};
static_assert(sizeof(Mailbox) == kLineBytes);

struct alignas(16) Envelope {
  std::uint64_t bytes = 0;
  std::uint32_t digest = 0;  // digest of the call's tag
  Carrier carrier = Carrier::kSlot;
  std::uint8_t unused_bytes[3] = {};
  std::uint32_t window = kNoWindow;  // of kPublished: index into the receiver's Link::windows
  std::uint32_t unused = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(Envelope) == 32);

// All addresses are valid on the device of this rank.
struct alignas(16) Link {
  std::uint64_t number = 0;      // messages sent or received so far
  std::uint64_t call_begin = 0;  // value of `number` when the current call began
  Mailbox* own = nullptr;        // the mailbox of this end, in this rank's memory
  Mailbox* peer = nullptr;       // the mailbox of the other end
  // In the receiver's memory, like the envelopes; aligned to kLineBytes.
  std::byte* slots = nullptr;
  Envelope* envelopes = nullptr;
  // A table with one entry per window: the address at which the peer's registered memory begins, or kNoWindowBase. The
  // host may change the table at any time. If it closes a window during a call that uses the window, the call fails.
  // The pointer is null if the connection has no table.
  const std::uint64_t* windows = nullptr;
  std::uint64_t slot_bytes = 0;    // a multiple of kLineBytes
  std::uint32_t slot_mask = 0;     // slots - 1; the number of slots is a power of two
  std::uint32_t published = 0;     // 1: the peer reads a message of the current call in this rank's memory
  std::uint64_t released = 0;      // at a sending end: the value of own->counter when it was last read
  std::uint32_t first_window = 0;  // neither end has mapped windows of the other with lower numbers
  std::uint32_t unused = 0;
};
static_assert(sizeof(Link) == 96);

struct alignas(16) ChannelState {
  std::uint64_t progress = 0;  // epoch and position; see position_word()
  std::uint64_t epoch = 0;     // number of completed calls
  std::uint64_t tile = 0;      // tile of the next step, if `running`
  std::uint32_t step = 0;
  std::uint32_t running = 0;  // 1: a call has begun and has not ended
};
static_assert(sizeof(ChannelState) == 32);

// The value that a channel publishes to the other channels of its rank: the call, and the number of steps that have
// run in it. A call has at most 2^48 steps. Epochs are compared modulo 2^16, so they may differ by less than 2^15.
inline constexpr int kPositionBits = 48;
TUTTI_HOST_DEVICE constexpr std::uint64_t position_word(std::uint64_t epoch, std::uint64_t steps) {
  return epoch << kPositionBits | steps;
}
// True if `word` has reached `steps` steps of call `epoch`.
TUTTI_HOST_DEVICE constexpr bool has_reached(std::uint64_t word, std::uint64_t epoch, std::uint64_t steps) {
  return static_cast<std::int64_t>(word - position_word(epoch, steps)) >= 0;
}

enum class Failure : std::uint8_t {
  kNone = 0,
  kAborted = 1,
  kTimedOut = 2,
  kMismatch = 3,  // the message of the peer belongs to another call
  kCorrupt = 4,   // the message of the peer has a length or a carrier that the step does not allow
  kMisused = 5,   // a call was started before the last one had ended, or there are too few slots
  kClosed = 6,    // the message of the peer is in a window that this rank does not have any more
};

// The first failure of a rank, packed into a 64-bit word.
struct FailureWord {
  Failure cause = Failure::kNone;
  std::uint32_t channel = 0;  // < kMaxChannels
  std::uint32_t peer = 0;     // < kMaxRanks
  std::uint32_t step = 0;     // < kMaxSteps

  TUTTI_HOST_DEVICE constexpr std::uint64_t word() const {
    return static_cast<std::uint64_t>(cause) | static_cast<std::uint64_t>(channel & 0xffu) << 8 |
           static_cast<std::uint64_t>(peer & 0xfffffu) << 16 | static_cast<std::uint64_t>(step & 0xffffffu) << 36;
  }
  static constexpr FailureWord of(std::uint64_t word) {
    return {static_cast<Failure>(word & 0xffu), static_cast<std::uint32_t>(word >> 8 & 0xffu),
            static_cast<std::uint32_t>(word >> 16 & 0xfffffu), static_cast<std::uint32_t>(word >> 36 & 0xffffffu)};
  }
};

struct alignas(kLineBytes) RankStatus {
  std::uint64_t abort = 0;    // not 0: every wait ends
  std::uint64_t failure = 0;  // a FailureWord; if it is not 0, every wait of this rank ends
};

// How elements are combined; see Reduction in kernels/cpu/reduce.h.
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

// The index of a Link in Call::links. All ranks number connections in the same way: the connections of a pair of
// ranks are numbered by slice and lane (connection_number()).
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

// The part of one rank in one collective call. In `arithmetic`, scaled_source is -1 and divisor is 1, because `op`,
// the program and `rank_count` determine what a step scales or divides.
struct alignas(16) Call {
  const ProgramHeader* program = nullptr;
  // Index: slice * program->channel_count + channel. Used by this plan only.
  ChannelState* channels = nullptr;
  // Index: link_index(). Only the links of the program's ports are used.
  Link* links = nullptr;
  RankStatus* status = nullptr;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // scratch_chunks * max_chunk_count elements for each slice, one slice after the other; aligned to 16 bytes.
  std::byte* scratch = nullptr;
  // Index: slice * scratch_chunks + chunk. The length of the value in that chunk of scratch.
  std::uint64_t* scratch_bytes = nullptr;
  Geometry geometry;
  Arithmetic arithmetic;
  std::uint64_t input_offset = 0;   // in bytes from the start of input_window
  std::uint64_t output_offset = 0;  // in bytes from the start of output_window
  std::uint32_t input_window = kNoWindow;
  std::uint32_t output_window = kNoWindow;  // kNoWindow also if peers must not write to this rank's output
  std::uint32_t in_place = 0;
  std::uint32_t digest = 0;  // digest of the call's tag; the same on all ranks
  // Length of the whole program. 0: unknown, so the program is read from global memory.
  std::uint64_t program_bytes = 0;
  std::uint64_t least_published_bytes = 0;  // shorter values are copied instead of being read in place
  // How long a wait may last before the block stops, to be resumed by another launch. 0: never wait.
  std::uint64_t stop_after_ns = kForever;
  std::uint64_t timeout_ns = kForever;  // how long a wait may last before the call fails
};
static_assert(sizeof(Call) % 16 == 0);

inline constexpr std::uint32_t kInlineCalls = 8;
inline constexpr std::size_t kLaunchBytes = 4096 - 64;  // limit for kernel parameters, minus space for the driver

// One launch: the calls of one rank, or of several ranks that share the GPU. Blocks of one launch wait for each
// other, so all of them must fit on the device at once, unless all calls have stop_after_ns 0.
struct Launch {
  Call inline_calls[kInlineCalls];  // used if `calls` is null
  const Call* calls = nullptr;      // call_count calls, in memory that the device can read
  std::uint32_t call_count = 0;     // at most kInlineCalls if `calls` is null
  std::uint32_t slices = 1;         // for every call
  std::uint32_t channels = 1;       // the maximum of channel_count of the calls' programs
  // 1: continue where the blocks of an earlier launch have stopped, and begin no call.
  std::uint32_t resume = 0;
  // 1: no launch will resume this one, so a block that would stop fails with kTimedOut instead.
  std::uint32_t last = 0;
};
static_assert(sizeof(Launch) <= kLaunchBytes);

// The number of blocks in the grid of a launch.
TUTTI_HOST_DEVICE constexpr std::uint32_t blocks_of(const Launch& launch) {
  return launch.call_count * launch.slices * launch.channels;
}

// What one block runs. The block does nothing if the program of its call has no such channel.
struct BlockAssignment {
  std::uint32_t call = 0;
  std::uint32_t slice = 0;
  std::uint32_t channel = 0;
};

TUTTI_HOST_DEVICE constexpr BlockAssignment assignment_of(const Launch& launch, std::uint32_t block) {
  const std::uint32_t copy = block / launch.channels;
  return {copy / launch.slices, copy % launch.slices, block % launch.channels};
}

TUTTI_HOST_DEVICE inline const Call& call_of(const Launch& launch, std::uint32_t call) {
  return launch.calls == nullptr ? launch.inline_calls[call] : launch.calls[call];
}

}  // namespace tutti::device
