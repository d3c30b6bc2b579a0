// The shared memory of one thread block of the evaluator, how it is filled, and the faults that tests inject into
// it.
//
// evaluate.h explains which threads may access what between two block barriers. The hardware does not initialise
// shared memory.
//
// The duration of a short call is the sum of those loads of global memory that must wait for each other. Each takes
// about 0.3 to 0.8 us (an estimate from published latencies). The call itself is passed as kernel parameters. The
// loads then are:
//
//   1  the program, all of it at once if it has at most kProgramAtOnce bytes
//   2  links and channel state, all at once
//   3  the input. Then the stores into the slots of the peers follow. The counter of released messages is read only if
//      the credits that were seen last are used up, which happens once in as many messages as a connection has slots.
//
// A longer program is read in parts: header; channel; ports and steps; links and routes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/lines.h"
#include "kernels/device/port.h"
#include "kernels/device/program.h"
#include "kernels/device/wait.h"

namespace tutti::device {

// Fault injection: tests replace this type by types in which one of these constants has another value. These are the
// values of the correct evaluator.
struct NoFaults {
  static constexpr bool kBarrierBeforePost = true;  // all threads have moved their data before anything is handed over
  static constexpr bool kReleasesTail = true;       // data is visible before the counter that announces it
  static constexpr std::uint64_t kExtraCredits = 0;
  static constexpr bool kChecksBothFlags = true;  // of each LL line
  static constexpr bool kRenewsLines = true;      // of LL, before a flag value is used again
  static constexpr bool kOffersToUse = true;      // no window is offered in a call without messages
  static constexpr bool kReleasesCredit = true;   // a slot has been read before it is given back
  static constexpr bool kAcquiresTail = true;     // no message is read before the counter that announces it
  static constexpr bool kDrains = true;           // a call ends only when peers have read the memory that it published
  static constexpr bool kChecksEveryLine = true;  // of the four LL128 lines of a warp
};

inline constexpr std::uint32_t kProgramAtOnce = 8192;  // in bytes: 16 bytes for each of 512 threads
// The parts of a longer program that fit into shared memory at once.
inline constexpr std::uint32_t kStepsAtOnce = 32;
inline constexpr std::uint32_t kRoutesAtOnce = 128;

// How the value of one entry of the current step is delivered.
struct Delivery {
  Carrier carrier;
  std::uint64_t bytes_offset;  // for kPublished: from the start of the window
  std::uint32_t window;
  std::uint32_t unused;
};

// The context of the block: its slice of the call, and the memory of that slice.
struct SliceContext {
  ChannelState* channels;
  std::byte* scratch;
  std::uint64_t* scratch_bytes;
  std::uint64_t tiles;
  std::uint32_t slice;
  std::uint32_t slices;
};

// The range of steps and routes of a longer program that is in shared memory.
struct Fetched {
  std::uint32_t first_step;
  std::uint32_t steps;
  std::uint32_t first_route;
  std::uint32_t routes;
};

inline constexpr auto kContinue = static_cast<std::uint32_t>(Outcome::kReady);

// The shared memory of a block.
struct Shared {
  Call call;
  SliceContext part;
  PackedChannel channel;
  ChannelState state;
  Link links[kMaxPorts];
  ProgramWord program[kProgramAtOnce / kProgramAlignment];
  Fetched fetched;
  PackedStep steps[kStepsAtOnce];
  Route routes[kRoutesAtOnce];
  const std::byte* sources[kMaxReceives + 1];
  std::byte* destinations[kMaxSends + 1];  // the sink, then the sends
  Stream source_streams[kMaxReceives + 1];
  Stream destination_streams[kMaxSends + 1];
  std::uint64_t received_bytes[kMaxReceives];
  Delivery deliveries[kMaxReceives + kMaxSends];  // indexed by entry, so that only the thread of the entry uses it
  std::uint32_t delivered;                        // 1: the only operand of the step is already in the sink
  // Two variables are needed, because a thread may already be in the next part before the others have read the
  // result of this part.
  std::uint32_t prepared;  // the Outcome of a thread that could not continue, else kContinue
  std::uint32_t moved;
  std::uint32_t channel_index;
};

// Copies one word with plain accesses, which is safe because no other thread uses it while the kernel runs.
template <class Word>
TUTTI_DEVICE void copy_word(void* to, const void* from, std::uint64_t at) {
  auto* word = static_cast<unsigned char*>(to) + at;
  const auto* source = static_cast<const unsigned char*>(from) + at;
  __builtin_memcpy(__builtin_assume_aligned(word, sizeof(Word)), __builtin_assume_aligned(source, sizeof(Word)),
                   sizeof(Word));
}
template <class Word = std::uint64_t>
TUTTI_DEVICE void copy_words_of(void* to, const void* from, std::uint64_t bytes) {
  for (std::uint64_t at = sizeof(Word) * port::thread(); at < bytes; at += sizeof(Word) * port::threads())
    copy_word<Word>(to, from, at);
}

TUTTI_DEVICE std::uint64_t link_index_of(const ProgramHeader& program, const PackedPort& port, std::uint32_t slice) {
  return link_index(connection_number(slice, program.lanes, port.lane), program.rank_count, port.peer, port.sends != 0);
}

TUTTI_DEVICE std::byte* slot_of(const Link& link) {
  return link.slots + (link.number & link.slot_mask) * link.slot_bytes;
}

// All connections of a communicator have slots of the same size.
TUTTI_DEVICE std::uint64_t slot_bytes_of(const Shared& shared) {
  return shared.channel.port_count == 0 ? 0 : shared.links[0].slot_bytes;
}

// The number of messages that have arrived so far.
template <class Faults>
TUTTI_DEVICE std::uint64_t tail_of(const Link& link) {
  const std::uint64_t* tail = &link.own->counter;
  return Faults::kAcquiresTail ? port::load_acquire(tail) : port::load_relaxed(tail);
}

TUTTI_DEVICE Bounds bounds_of(const Call& call) { return {call.status, call.stop_after_ns, call.timeout_ns}; }
TUTTI_DEVICE Bounds mid_step_bounds_of(const Call& call) { return {call.status, kForever, call.timeout_ns}; }

TUTTI_DEVICE void read_envelope(const Link& link, Envelope& envelope) {
  const Envelope* from = link.envelopes + (link.number & link.slot_mask);
  const Word16 words[2] = {port::load16(from), port::load16(reinterpret_cast<const std::byte*>(from) + 16)};
  __builtin_memcpy(&envelope, words, sizeof(envelope));
}

TUTTI_DEVICE std::byte* at_address(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// Loads the links and the channel state. They are not contiguous in memory, so each thread loads words of its own,
// and no load waits for another.
TUTTI_DEVICE void load_links(Shared& shared, const ProgramHeader& program, const Call& call,
                             const BlockAssignment& assignment, const PackedChannel& channel) {
  constexpr auto kLinkBytes = static_cast<std::uint32_t>(sizeof(Link));
  const auto* ports = array_at<PackedPort>(&program, program.ports_at) + channel.first_port;
  const ChannelState* state = call.channels + assignment.slice * program.channel_count + assignment.channel;
  const std::uint32_t links_bytes = channel.port_count * kLinkBytes;
  const std::uint32_t all_bytes = links_bytes + static_cast<std::uint32_t>(sizeof(ChannelState));
  for (std::uint32_t at = 16 * port::thread(); at < all_bytes; at += 16 * port::threads()) {
    const std::uint32_t p = at / kLinkBytes;
    const bool of_link = at < links_bytes;
    const void* from = state;
    if (of_link) from = &call.links[link_index_of(program, ports[p], assignment.slice)];
    copy_word<Word16>(of_link ? static_cast<void*>(&shared.links[p]) : &shared.state, from,
                      at - (of_link ? p * kLinkBytes : links_bytes));
  }
}

// Called by all threads. Loads everything that the block executes into `shared`; of the calls of the launch, only
// its own. Returns the program. Returns null, and has no other effect, if the call of this block has no such
// channel.
TUTTI_DEVICE const ProgramHeader* load_block(Shared& shared, const Launch& launch) {
  const BlockAssignment assignment = assignment_of(launch, port::block());
  const Call& call = call_of(launch, assignment.call);
  const ProgramHeader* program = call.program;
  const std::uint64_t bytes = call.program_bytes;
  if (bytes != 0 && bytes <= kProgramAtOnce) {
    copy_words_of<Word16>(shared.program, program, bytes);
    port::block_barrier();
    program = reinterpret_cast<const ProgramHeader*>(shared.program);
  }
  if (assignment.channel >= program->channel_count) return nullptr;
  const PackedChannel& channel = array_at<PackedChannel>(program, program->channels_at)[assignment.channel];
  load_links(shared, *program, call, assignment, channel);
  copy_words_of(&shared.call, &call, sizeof(Call));
  if (port::thread() == 0) {
    const std::uint64_t chunk_bytes = call.geometry.max_chunk_count << call.geometry.element_log2;
    const std::uint32_t first_chunk = assignment.slice * program->scratch_chunks;
    shared.part = {call.channels + assignment.slice * program->channel_count,
                   call.scratch + first_chunk * chunk_bytes,
                   call.scratch_bytes + first_chunk,
                   tiles_of_slice(call.geometry.tiles, assignment.slice, launch.slices),
                   assignment.slice,
                   launch.slices};
    shared.channel = channel;
    shared.fetched = {};
    shared.prepared = kContinue;
    shared.moved = kContinue;
    shared.delivered = 0;
    shared.channel_index = assignment.channel;
  }
  port::block_barrier();
  return program;
}

// True if the other end of the link has mapped that window of this rank.
TUTTI_DEVICE bool shares(const Link& link, std::uint32_t window) {
  return link.windows != nullptr && window != kNoWindow && window >= link.first_window;
}

// True if the peer has offered its output for this call. In most calls it has not, because the output is not
// registered. A relaxed load detects that without the cost of an acquire.
TUTTI_DEVICE bool offered(const Link& link) {
  const std::uint64_t* number = &link.own->offer_number;
  return port::load_relaxed(number) == link.call_begin + 1 && port::load_acquire(number) == link.call_begin + 1;
}

}  // namespace tutti::device
