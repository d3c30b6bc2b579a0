// The shared memory of one thread block of the evaluator, how it is filled, and the faults that tests inject into the
// evaluator. This file also contains functions for connections, which transfer.h uses as well.
//
// evaluate.h explains which threads may access which variables between two block barriers. The hardware does not
// initialise shared memory, so the block must set every variable before it reads it.
//
// In a short call, most of the time goes to work that one thread does alone (`prepare` and `post` of evaluate.h), and
// to loads of global memory. docs/results/2026-11-28-gpu.md has the time of each part of one call. The call itself is
// passed as kernel parameters, unless the launch has more than kInlineCalls calls. These loads follow one after the
// other:
//
//   1  the program: if its length is known and is at most kProgramAtOnce bytes, all of it, in loads that do not depend
//      on each other
//   2  links and channel state, in loads that do not depend on each other
//   3  the input. Then the stores into the slots of the peers follow. The counter of released messages is read only if
//      the credits that the last read has shown are used up. With n slots per connection, that is about every n-th
//      message.
//
// Any other program is read in parts: header; channel; ports and steps; links and routes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/lines.h"
#include "kernels/device/port.h"
#include "kernels/device/program.h"
#include "kernels/device/wait.h"

namespace tutti::device {

// Fault injection: tests replace this type by types in which one constant has another value, and check that they notice
// the fault. The values here are those of the correct evaluator. Each comment describes the correct behaviour.
struct NoFaults {
  // All threads of the block have moved their data before a message is handed over or a slot is given back.
  static constexpr bool kBarrierBeforePost = true;
  static constexpr bool kReleasesTail = true;  // a message is visible before the counter that announces it
  // The sender has at most as many messages under way as the connection has slots. With the value n, it may have n
  // more.
  static constexpr std::uint64_t kExtraCredits = 0;
  static constexpr bool kChecksBothFlags = true;  // the receiver checks both flags of each LL line
  static constexpr bool kRenewsLines = true;      // all LL lines of a slot are rewritten before a flag value is reused
  static constexpr bool kOffersToUse = true;      // a slice without tiles does not offer a window
  static constexpr bool kReleasesCredit = true;   // the data of a slot is read before the slot is given back
  static constexpr bool kAcquiresTail = true;     // a message is read only after the counter that announces it
  static constexpr bool kDrains = true;           // a call ends only when peers have read the memory that it published
  static constexpr bool kChecksEveryLine = true;  // the receiver checks the flags of all four LL128 lines of a warp
};

// A program whose length is known, and is at most this many bytes, is loaded into shared memory as a whole. In a block
// of 512 threads, that is at most 16 bytes for each thread.
inline constexpr std::uint32_t kProgramAtOnce = 8192;
// The most steps and, in the next line, the most routes that are in shared memory at a time, if the program is not
// there as a whole.
inline constexpr std::uint32_t kStepsAtOnce = 32;
inline constexpr std::uint32_t kRoutesAtOnce = 128;

// How the current step passes its value to one receiver. There is one Delivery for each send of the step.
struct Delivery {
  Carrier carrier = Carrier::kSlot;
  std::uint64_t bytes_offset = 0;    // for kPublished: offset of the value from the start of the window, in bytes
  std::uint32_t window = kNoWindow;  // for kPublished: this rank's window that contains the value; otherwise kNoWindow
  std::uint32_t unused = 0;
};

// The part of the call that this block works on: its slice, and the memory of that slice.
struct SliceContext {
  ChannelState* channels;
  std::byte* scratch;
  std::uint64_t* scratch_bytes;
  std::uint64_t tiles;
  std::uint32_t slice;
  std::uint32_t slices;
};

// The range of steps and routes that is in shared memory, if the whole program is not. If all members are 0, no step
// and no route is loaded.
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
  std::byte* destinations[kMaxSends + 1];  // the sink of the step (null: no sink), then the sends
  Stream source_streams[kMaxReceives + 1];
  Stream destination_streams[kMaxSends + 1];
  std::uint64_t received_bytes[kMaxReceives];
  std::uint64_t value_bytes;  // length of the step's source or sink, if that is in the call's input or output
  // Indexed by send of the step. Only the thread of a send uses its element.
  Delivery deliveries[kMaxSends];
  // 1: the peer has delivered the step's only received message directly into the sink, so it must not be copied there.
  // Only valid if the step receives one message.
  std::uint32_t delivered;
  // `prepared`: the Outcome of a thread that could not continue before `move`, or in drain(). `moved`: that of a thread
  // that could not continue in `move`. kContinue if all threads can continue. There are two variables, because a thread
  // may already be in the next part before the other threads have read the outcome of this part.
  std::uint32_t prepared;
  std::uint32_t moved;
  std::uint32_t channel_index;
};

// The entries of a step: one for each receive, each send and each wait for another channel (after), and one for
// the source and the sink together (ends).
enum class EntryKind : std::uint32_t { kReceives, kSends, kAfters, kEnds };

// Calls work(i) for each i below `count` that this thread handles. In all parts of a step, a thread handles the same
// entries. Each kind has its own warps, because threads of a warp that do different things do them one after the other.
// A block of fewer than 4 warps handles several kinds in one warp.
template <class Work>
TUTTI_DEVICE void for_own(EntryKind kind, std::uint32_t count, Work work) {
  const std::uint32_t warps = port::threads() / 32;
  // The logarithm of the number of groups. The lines below shift by it, because divisions by that number would take
  // long.
  const std::uint32_t groups_log2 = warps >= 4 ? 2 : warps >= 2 ? 1 : 0;
  const std::uint32_t groups = 1u << groups_log2;
  const std::uint32_t group = static_cast<std::uint32_t>(kind) & (groups - 1);
  const std::uint32_t warp = port::thread() / 32;
  if ((warp & (groups - 1)) != group) return;
  const std::uint32_t stride = ((warps - group + groups - 1) >> groups_log2) * 32;
  for (std::uint32_t i = (warp >> groups_log2) * 32 + port::thread() % 32; i < count; i += stride) work(i);
}

// The position of a received message among the operands of the step.
TUTTI_DEVICE std::uint32_t operand_of_receive(const PackedStep& step, std::uint32_t receive) {
  return receive + (step.source != Space::kNone && receive >= step.source_position ? 1 : 0);
}

// Copies the word at offset `at` (in bytes) with plain accesses. They suffice, because no other block, rank or host
// thread writes the word while the kernel runs.
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

// The size of the slots of the channel's connections, in bytes; 0 if the channel has no connections. All connections
// of a communicator's plans that use the same protocol have slots of the same size.
TUTTI_DEVICE std::uint64_t slot_bytes_of(const Shared& shared) {
  return shared.channel.port_count == 0 ? 0 : shared.links[0].slot_bytes;
}

// The number of messages that have arrived on the connection so far. `link` must be its receiving end.
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

// Whether the connection has a free slot for the next message. `link` must be its sending end. link.released is the
// number of slots that the receiver had given back when this end last looked. The function looks again only if no slot
// is free according to this number.
template <class Faults>
TUTTI_DEVICE bool has_credit(Link& link) {
  const std::uint64_t slots = link.slot_mask + std::uint64_t{1} + Faults::kExtraCredits;
  if (link.released + slots > link.number) return true;
  link.released = port::load_acquire(&link.own->counter);
  return link.released + slots > link.number;
}

// Stores in the mailbox of the peer how many messages this end has posted or, at a receiving end, how many slots it has
// given back. `releases`: earlier stores and loads of this thread, and those of the block before its last barrier, take
// effect before this store.
TUTTI_DEVICE void tell_peer(const Link& link, bool releases) {
  if (releases)
    port::store_release(&link.peer->counter, link.number);
  else
    port::store_relaxed(&link.peer->counter, link.number);
}

// Hands over the newest message of the connection, which link.number already counts.
template <class Faults>
TUTTI_DEVICE void post_message(const Link& link, const Envelope& envelope) {
  Word16 words[2];
  __builtin_memcpy(words, &envelope, sizeof(words));
  Envelope* to = link.envelopes + ((link.number - 1) & link.slot_mask);
  port::store16(to, words[0]);
  port::store16(reinterpret_cast<std::byte*>(to) + 16, words[1]);
  tell_peer(link, Faults::kReleasesTail);
}

TUTTI_DEVICE std::byte* at_address(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// Loads the channel's links and its state into shared memory. They are not contiguous in global memory, so each thread
// finds the addresses of its own 16-byte words. No load waits for another if the program is in shared memory and the
// call is a kernel parameter (Launch::inline_calls).
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

// Called by all threads of the block. Loads the call, the channel, the links and the state of `assignment` into
// `shared`, and the program if its length is known and at most kProgramAtOnce. Returns the program, in shared or in
// global memory. Returns null if the program of the call does not have this channel, so that this block has nothing to
// run. This can happen because the launch has blocks for the largest number of channels of all its calls.
TUTTI_DEVICE const ProgramHeader* load_block(Shared& shared, const Launch& launch, const BlockAssignment& assignment) {
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
    const bool aborted = call.checks_abort != 0 && port::load_relaxed(&call.status->abort) != 0;
    const std::uint64_t chunk_bytes = call.geometry.max_chunk_count << call.geometry.element_log2;
    const std::uint32_t first_chunk = assignment.slice * program->scratch_chunks;
    shared.part = {call.channels + assignment.slice * program->channel_count,
                   call.scratch + first_chunk * chunk_bytes,
                   call.scratch_bytes + first_chunk,
                   aborted ? 0 : tiles_of_slice(call.geometry.tiles, assignment.slice, launch.slices),
                   assignment.slice,
                   launch.slices};
    shared.channel = channel;
    shared.fetched = {};
    shared.prepared = kContinue;
    if (aborted) {  // part.tiles is 0, so the block sends nothing and offers no window
      shared.prepared = static_cast<std::uint32_t>(Outcome::kFailed);
      const FailureWord failure{Failure::kAborted, assignment.channel, program->rank, 0};
      port::compare_and_swap(&call.status->failure, 0, failure.word());
    }
    shared.moved = kContinue;
    shared.delivered = 0;
    shared.channel_index = assignment.channel;
  }
  port::block_barrier();
  return program;
}

// True if messages on this link may refer to the window `window` of this rank. (The peer may have closed it since.)
TUTTI_DEVICE bool shares(const Link& link, std::uint32_t window) {
  return link.windows != nullptr && window != kNoWindow && window >= link.first_window;
}

// True if the peer has offered its output in this call, so that this rank may write into it. In most calls the peer has
// not, because its output is not registered. A relaxed load detects this without the cost of an acquire.
TUTTI_DEVICE bool offered(const Link& link) {
  const std::uint64_t* number = &link.own->offer_number;
  return port::load_relaxed(number) == link.call_begin + 1 && port::load_acquire(number) == link.call_begin + 1;
}

}  // namespace tutti::device
