// What a launch of the evaluator is given, and the words that ranks and host share while it runs. Plain values; the
// host writes them before the first launch, device code keeps the counters in them going from call to call.
//
// Who writes what, and from where it is read:
//   Link        this rank's end of a connection: constants by the host, counters by the block that runs the channel;
//               in this rank's memory
//   Mailbox     what the other end tells this one: how far it has come, and where its output lies; in this rank's
//               memory, so that waiting reads nothing of another GPU's
//   Envelope    of kSimple: what the message in a slot is; in the receiver's memory, written by the sender
//   ChannelState  where a channel stands; in this rank's memory
//   RankStatus  abort flag (the host's) and the first failure (the device's); pinned memory or device memory
//
// A message's number counts the messages of its connection since it was made. It stands for the call too: both ends
// have the same number when a call begins, so nothing about a call's own number is an argument, and a captured launch
// can be replayed. Links belong to the communicator, whichever plans run over them; channel states to one plan.
//
// A plan has one to four channels a rank, a GPU has room for many more blocks. So a call is run by `slices` copies of
// the plan's channels: slice s runs tiles s, s + slices, s + 2 * slices ..., over connections, channel states and
// scratch of its own. Slices never wait for each other, and what a tile adds in which order stays the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/program.h"
#include "tutti/types.h"

namespace tutti::device {

inline constexpr std::uint64_t kForever = ~std::uint64_t{0};
inline constexpr std::uint32_t kNoWindow = ~std::uint32_t{0};
inline constexpr std::uint64_t kNoWindowBase = ~std::uint64_t{0};  // in Link::windows: it is not mapped here
inline constexpr std::size_t kLineBytes = 128;                     // words that different sides write share none

struct alignas(kLineBytes) Mailbox {
  std::uint64_t counter = 0;  // of a sending end: messages released; of a receiving end: messages posted
  // Of a sending end. 1 + the number of the first message of the call in which the peer's output may be written to; it
  // hands over the two words below.
  std::uint64_t offer_number = 0;
  std::uint64_t offer_window = 0;  // index into Link::windows
  std::uint64_t offer_offset = 0;  // bytes
  std::uint64_t unused[12] = {};
};
static_assert(sizeof(Mailbox) == kLineBytes);

struct alignas(16) Envelope {
  std::uint64_t bytes = 0;
  std::uint32_t digest = 0;  // of the call's tag
  Carrier carrier = Carrier::kSlot;
  std::uint8_t unused_bytes[3] = {};
  std::uint32_t window = kNoWindow;  // of kPublished: index into the receiver's Link::windows
  std::uint32_t unused = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(Envelope) == 32);

// Every address is one that this rank's device can use.
struct alignas(16) Link {
  std::uint64_t number = 0;      // messages sent, or received, ever
  std::uint64_t call_begin = 0;  // `number` when the call at hand began
  Mailbox* own = nullptr;        // in this rank's memory
  Mailbox* peer = nullptr;       // the other end's
  std::byte* slots = nullptr;    // in the receiver's memory, like the envelopes; aligned to kLineBytes
  Envelope* envelopes = nullptr;
  // Where the peer's registered memory begins, by window, or kNoWindowBase; null: this connection has no windows. The
  // host may write it between launches.
  const std::uint64_t* windows = nullptr;
  std::uint64_t slot_bytes = 0;    // a multiple of kLineBytes
  std::uint32_t slot_mask = 0;     // slots - 1; their number is a power of two
  std::uint32_t published = 0;     // a message of the call at hand is read in this rank's memory
  std::uint64_t released = 0;      // of a sending end: the counter of `own` when it was last looked at
  std::uint32_t first_window = 0;  // neither end maps the other's windows of lower numbers
  std::uint32_t unused = 0;
};
static_assert(sizeof(Link) == 96);

struct alignas(16) ChannelState {
  std::uint64_t progress = 0;  // epoch and position: see position_word()
  std::uint64_t epoch = 0;     // calls done
  std::uint64_t tile = 0;      // of the next step, while `running`
  std::uint32_t step = 0;
  std::uint32_t running = 0;  // a call has begun and has not ended
};
static_assert(sizeof(ChannelState) == 32);

// What channels of a rank show each other: the call, and the steps that have run in it. A call has at most 2^48 steps;
// epochs are compared over half their range.
inline constexpr int kPositionBits = 48;
TUTTI_HOST_DEVICE constexpr std::uint64_t position_word(std::uint64_t epoch, std::uint64_t steps) {
  return epoch << kPositionBits | steps;
}
// Whether `word` has come to `steps` steps of call `epoch`.
TUTTI_HOST_DEVICE constexpr bool has_reached(std::uint64_t word, std::uint64_t epoch, std::uint64_t steps) {
  return static_cast<std::int64_t>(word - position_word(epoch, steps)) >= 0;
}

enum class Failure : std::uint8_t {
  kNone = 0,
  kAborted = 1,
  kTimedOut = 2,
  kMismatch = 3,  // the peer's message belongs to another call
  kCorrupt = 4,   // the peer's message has a length or a carrier that the step does not allow
  kMisused = 5,   // a call begun before the last one had ended, or too few slots
  kClosed = 6,    // the peer's message lies in a window that this rank has no more
};

// The first failure of a rank in one word.
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
  std::uint64_t failure = 0;  // a FailureWord; every wait of this rank ends
};

// How elements are combined, as kernels/cpu/reduce.h has it.
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

// Where a Link stands in Call::links: connections are numbered alike by all ranks, connection c of a pair is c-th lane
// of the pair over all slices (connection_number()).
TUTTI_HOST_DEVICE constexpr std::uint32_t connection_number(std::uint32_t slice, std::uint32_t lanes,
                                                            std::uint32_t lane) {
  return slice * lanes + lane;
}
TUTTI_HOST_DEVICE constexpr std::uint64_t link_index(std::uint32_t connection, std::uint32_t rank_count,
                                                     std::uint32_t peer, bool sends) {
  return (std::uint64_t{connection} * rank_count + peer) * 2 + (sends ? 1 : 0);
}

// Slice `slice` runs so many tiles of the call: its i-th is the call's slice + i * slices.
TUTTI_HOST_DEVICE constexpr std::uint64_t tiles_of_slice(std::uint64_t tiles, std::uint32_t slice,
                                                         std::uint32_t slices) {
  return tiles > slice ? (tiles - slice - 1) / slices + 1 : 0;
}

// One rank's part of one collective call. Its `arithmetic` has scaled_source -1 and divisor 1: what a step scales or
// divides follows from `op`, the program and `rank_count`.
struct alignas(16) Call {
  const ProgramHeader* program = nullptr;
  ChannelState* channels = nullptr;  // slice * program->channel_count + channel; of this plan alone
  Link* links = nullptr;             // link_index(); only those of the program's ports are looked at
  RankStatus* status = nullptr;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // For each slice scratch_chunks * max_chunk_count elements, one slice's behind the other's; aligned to 16 bytes.
  std::byte* scratch = nullptr;
  // slice * scratch_chunks + chunk: the length of the value that stands there.
  std::uint64_t* scratch_bytes = nullptr;
  Geometry geometry;
  Arithmetic arithmetic;
  std::uint64_t input_offset = 0;   // bytes from the start of input_window
  std::uint64_t output_offset = 0;  // bytes from the start of output_window
  std::uint32_t input_window = kNoWindow;
  std::uint32_t output_window = kNoWindow;  // kNoWindow also where this rank's output may not be written to
  std::uint32_t in_place = 0;
  std::uint32_t digest = 0;                 // of the call's tag; the same on all ranks
  std::uint64_t program_bytes = 0;          // of the whole program; 0: not known, so it is read where it lies
  std::uint64_t least_published_bytes = 0;  // a shorter value is copied rather than read in place
  std::uint64_t patience_ns = kForever;     // of a wait before the block stops, to be resumed; 0: it never waits
  std::uint64_t timeout_ns = kForever;      // of a wait before the call fails
};
static_assert(sizeof(Call) % 16 == 0);

inline constexpr std::uint32_t kInlineCalls = 8;
inline constexpr std::size_t kLaunchBytes = 4096 - 64;  // a kernel's parameters, with room for the driver's own

// One launch: the calls of one rank, or of several that share the GPU. Blocks of one launch wait for each other, so
// all must fit on the device at once, unless no call has patience.
struct Launch {
  Call inline_calls[kInlineCalls];  // where `calls` is null
  const Call* calls = nullptr;      // call_count of them, in memory that the device reads
  std::uint32_t call_count = 0;     // at most kInlineCalls where `calls` is null
  std::uint32_t slices = 1;         // of every call
  std::uint32_t channels = 1;       // the greatest channel_count of the calls' programs
  std::uint32_t resume = 0;         // 1: goes on where the blocks of an earlier launch have stopped, and begins nothing
  std::uint32_t last = 0;           // 1: no launch resumes this one; a block that would stop fails as timed out
};
static_assert(sizeof(Launch) <= kLaunchBytes);

// What a launch's grid has.
TUTTI_HOST_DEVICE constexpr std::uint32_t blocks_of(const Launch& launch) {
  return launch.call_count * launch.slices * launch.channels;
}

// What one block runs. Nothing, where its call's program has no such channel.
struct Place {
  std::uint32_t call = 0;
  std::uint32_t slice = 0;
  std::uint32_t channel = 0;
};

TUTTI_HOST_DEVICE constexpr Place place_of(const Launch& launch, std::uint32_t block) {
  const std::uint32_t copy = block / launch.channels;
  return {copy / launch.slices, copy % launch.slices, block % launch.channels};
}

TUTTI_HOST_DEVICE inline const Call& call_of(const Launch& launch, std::uint32_t call) {
  return launch.calls == nullptr ? launch.inline_calls[call] : launch.calls[call];
}

}  // namespace tutti::device
