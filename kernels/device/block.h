// What the threads of one block of the evaluator share, in the GPU's shared memory, how it gets there, and what the
// tests break in it.
//
// Who may touch what between two block barriers stands in evaluate.h. Nothing here is initialised by the hardware.
//
// A short call's time is that of the loads of global memory that wait for one another, some 0.3 to 0.8 us each (a
// guess, from published latencies). The call itself comes as the kernel's parameters. Then it is
//   1  the program, all of it at once where it has at most kProgramAtOnce bytes
//   2  links and channel state, all at once
//   3  the input, and then what is stored into the peers' slots; for credits nobody is asked while those that were seen
//      last suffice, which is once in so many messages as a connection has slots
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

// What the tests break on purpose; this is the evaluator as it should be.
struct Sound {
  static constexpr bool kBarrierBeforePost = true;  // all threads have moved before anything is handed over
  static constexpr bool kReleasesTail = true;       // data is visible before the counter that announces it
  static constexpr std::uint64_t kExtraCredits = 0;
  static constexpr bool kChecksBothFlags = true;  // of a line of LL
  static constexpr bool kRenewsLines = true;      // of LL, before a flag comes again
  static constexpr bool kOffersToUse = true;      // no window is offered in a call without messages
  static constexpr bool kReleasesCredit = true;   // a slot has been read before it is given back
  static constexpr bool kAcquiresTail = true;     // no message is read before the counter that announces it
  static constexpr bool kDrains = true;           // a call ends when peers have read what it published
  static constexpr bool kChecksEveryLine = true;  // of a warp's four of LL128
};

inline constexpr std::uint32_t kProgramAtOnce = 8192;  // bytes: 16 for each of 512 threads
// Of a longer program, in shared memory.
inline constexpr std::uint32_t kStepsAtOnce = 32;
inline constexpr std::uint32_t kRoutesAtOnce = 128;

// How one entry of the step at hand leaves.
struct Way {
  Carrier carrier;
  std::uint64_t bytes_offset;  // of kPublished: from the start of the window
  std::uint32_t window;
  std::uint32_t unused;
};

// The block's part of its call: its slice, and what belongs to that.
struct SlicePart {
  ChannelState* channels;
  std::byte* scratch;
  std::uint64_t* scratch_bytes;
  std::uint64_t tiles;
  std::uint32_t slice;
  std::uint32_t slices;
};

// Which steps and routes of a longer program are in shared memory.
struct Fetched {
  std::uint32_t first_step;
  std::uint32_t steps;
  std::uint32_t first_route;
  std::uint32_t routes;
};

inline constexpr auto kOn = static_cast<std::uint32_t>(Outcome::kReady);

// What the threads of a block share.
struct Shared {
  Call call;
  SlicePart part;
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
  Way ways[kMaxReceives + kMaxSends];  // by entry, so that an entry's thread alone uses it
  std::uint32_t delivered;             // the step's one operand stands in its sink already
  // Two words: a thread may be at the next part before the others have looked at this one's.
  std::uint32_t prepared;  // an Outcome, of one of the threads that did not come on
  std::uint32_t moved;
  std::uint32_t channel_index;
};

// Plain accesses: nobody else uses these words while the kernel runs.
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

// All connections of a communicator have slots of one size.
TUTTI_DEVICE std::uint64_t slot_bytes_of(const Shared& shared) {
  return shared.channel.port_count == 0 ? 0 : shared.links[0].slot_bytes;
}

// How many messages have come, ever.
template <class Faults>
TUTTI_DEVICE std::uint64_t tail_of(const Link& link) {
  const std::uint64_t* tail = &link.own->counter;
  return Faults::kAcquiresTail ? port::load_acquire(tail) : port::load_relaxed(tail);
}

TUTTI_DEVICE Bounds bounds_of(const Call& call) { return {call.status, call.patience_ns, call.timeout_ns}; }
TUTTI_DEVICE Bounds mid_step_bounds_of(const Call& call) { return {call.status, kForever, call.timeout_ns}; }

TUTTI_DEVICE void read_envelope(const Link& link, Envelope& envelope) {
  const Envelope* from = link.envelopes + (link.number & link.slot_mask);
  const Word16 words[2] = {port::load16(from), port::load16(reinterpret_cast<const std::byte*>(from) + 16)};
  __builtin_memcpy(&envelope, words, sizeof(envelope));
}

TUTTI_DEVICE std::byte* at_address(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// Links and state lie apart: each word is one thread's, so that no load waits for another's.
TUTTI_DEVICE void load_links(Shared& shared, const ProgramHeader& program, const Call& call, const Place& place,
                             const PackedChannel& channel) {
  constexpr auto kLinkBytes = static_cast<std::uint32_t>(sizeof(Link));
  const auto* ports = array_at<PackedPort>(&program, program.ports_at) + channel.first_port;
  const ChannelState* state = call.channels + place.slice * program.channel_count + place.channel;
  const std::uint32_t links_bytes = channel.port_count * kLinkBytes;
  const std::uint32_t all_bytes = links_bytes + static_cast<std::uint32_t>(sizeof(ChannelState));
  for (std::uint32_t at = 16 * port::thread(); at < all_bytes; at += 16 * port::threads()) {
    const std::uint32_t p = at / kLinkBytes;
    const bool of_link = at < links_bytes;
    const void* from = state;
    if (of_link) from = &call.links[link_index_of(program, ports[p], place.slice)];
    copy_word<Word16>(of_link ? static_cast<void*>(&shared.links[p]) : &shared.state, from,
                      at - (of_link ? p * kLinkBytes : links_bytes));
  }
}

// By all threads: brings what the block runs into `shared`, of the launch's calls no more than its own, and returns the
// program. Null, and nothing else: the block's call has no such channel.
TUTTI_DEVICE const ProgramHeader* load_block(Shared& shared, const Launch& launch) {
  const Place place = place_of(launch, port::block());
  const Call& call = call_of(launch, place.call);
  const ProgramHeader* program = call.program;
  const std::uint64_t bytes = call.program_bytes;
  if (bytes != 0 && bytes <= kProgramAtOnce) {
    copy_words_of<Word16>(shared.program, program, bytes);
    port::block_barrier();
    program = reinterpret_cast<const ProgramHeader*>(shared.program);
  }
  if (place.channel >= program->channel_count) return nullptr;
  const PackedChannel& channel = array_at<PackedChannel>(program, program->channels_at)[place.channel];
  load_links(shared, *program, call, place, channel);
  copy_words_of(&shared.call, &call, sizeof(Call));
  if (port::thread() == 0) {
    const std::uint64_t chunk_bytes = call.geometry.max_chunk_count << call.geometry.element_log2;
    const std::uint32_t first_chunk = place.slice * program->scratch_chunks;
    shared.part = {call.channels + place.slice * program->channel_count,
                   call.scratch + first_chunk * chunk_bytes,
                   call.scratch_bytes + first_chunk,
                   tiles_of_slice(call.geometry.tiles, place.slice, launch.slices),
                   place.slice,
                   launch.slices};
    shared.channel = channel;
    shared.fetched = {};
    shared.prepared = kOn;
    shared.moved = kOn;
    shared.delivered = 0;
    shared.channel_index = place.channel;
  }
  port::block_barrier();
  return program;
}

// Whether this rank's memory of that window is mapped at the link's other end.
TUTTI_DEVICE bool shares(const Link& link, std::uint32_t window) {
  return link.windows != nullptr && window != kNoWindow && window >= link.first_window;
}

// Whether the peer has offered its output for this call. Mostly it has not, where it is not registered: then without
// the cost of an acquire.
TUTTI_DEVICE bool offered(const Link& link) {
  const std::uint64_t* number = &link.own->offer_number;
  return port::load_relaxed(number) == link.call_begin + 1 && port::load_acquire(number) == link.call_begin + 1;
}

}  // namespace tutti::device
