// The device evaluator: a thread block runs slices of one channel of a rank's packed plan, tile by tile and step by
// step. For the same plan and slot size, it gives the same bits as the host (executor/plan_execution.h).
//
// A step has three parts, between block barriers:
//
//   prepare   One thread handles each entry of the step (operand, send, wait for another channel): it waits for the
//             message or the credit and finds the address. A block may stop here, because it has moved no data yet.
//   move      All threads move data from operands to destinations.
//   post      The threads of `prepare` give slots back and hand messages over.
//
// To stop (Outcome::kStopped) is to save the position and exit. Another launch then resumes the block. drain() may
// stop, too. With LL and LL128, `move` waits for data, too, but never stops. Each header is written after `prepare`, so
// a block that has seen all headers of a step waits only for blocks that have completed `prepare`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/block.h"
#include "kernels/device/call.h"
#include "kernels/device/lines.h"
#include "kernels/device/port.h"
#include "kernels/device/reduce.h"
#include "kernels/device/wait.h"

namespace tutti::device {

template <Protocol kProtocol, class Faults = NoFaults>
class Evaluator {
 public:
  TUTTI_DEVICE explicit Evaluator(Shared& shared) : shared_(shared), call_(shared.call) {}

  // The class has more than 40 members, because its data members are registers of a thread, and objects in registers
  // cannot refer to each other. The parts of a run and of a step are functions of their own: otherwise the compiler
  // keeps values of one part in registers during the others, and the loops of `move` need all registers.
  TUTTI_DEVICE void run(const Launch& launch) {
    if (!start(launch, assignment_of(launch, port::block()))) return;
    const bool sums = kSimple && only_sums(call_.arithmetic);
    const SliceEnd end = sums ? run_steps<Moves::kSums>(launch) : run_steps<Moves::kAny>(launch);
    if (end != SliceEnd::kNone) finish(end == SliceEnd::kAllSteps);
  }

 private:
  static constexpr bool kSimple = kProtocol == Protocol::kSimple;

  // Calls that only sum have their own loop: function calls in the other loop would take registers; see reduce_sums().
  enum class Moves { kSums, kAny };

  // What is left to do for the current slice. kNone: nothing, because it has been saved, or the next one cannot begin.
  enum class SliceEnd { kAllSteps, kStopped, kNone };

  // Runs the slice that has begun, and then the further slices of the block.
  template <Moves kMoves>
  TUTTI_DEVICE SliceEnd run_steps(const Launch& launch) {
    for (;;) {
      if (shared_.channel.step_count == 0 || tile_ >= shared_.part.tiles) {
        if (shared_.part.slice + slices_at_once(launch) >= launch.slices) return SliceEnd::kAllSteps;
        if (!next_slice(launch)) return SliceEnd::kNone;
        continue;
      }
      if (!prepare_step()) return SliceEnd::kStopped;
      const Outcome outcome = move<kMoves>(bytes_);
      if (outcome != Outcome::kReady) give_up(outcome, program_->rank, shared_.moved);
      if (!post_step()) return SliceEnd::kStopped;
    }
  }

  // Returns false if the block has nothing to run, or must not run because the last call has not ended.
  TUTTI_DEVICE_APART bool start(const Launch& launch, const BlockAssignment& assignment) {
    last_ = launch.last != 0;
    program_ = load_block(shared_, launch, assignment);
    return program_ != nullptr && begin(launch.resume != 0);
  }

  // Calls drain() if all steps have run (`on`). Then saves the state. Returns whether the slice has ended.
  TUTTI_DEVICE_APART bool finish(bool on) {
    if (on) {
      if constexpr (Faults::kDrains) drain();
      port::block_barrier();
    }
    const bool ended = on && shared_.prepared == kContinue;
    if (ended) save({position_word(epoch_ + 1, 0), epoch_ + 1, 0, 0, 0});
    if (!ended) save({position(), epoch_, tile_, step_index_, 1});
    return ended;
  }

  // Ends the slice, and begins the block's next one. Returns false if the block must not continue.
  TUTTI_DEVICE_APART bool next_slice(const Launch& launch) {
    BlockAssignment next = assignment_of(launch, port::block());
    next.slice = shared_.part.slice + slices_at_once(launch);
    if (!finish(true)) return false;
    port::block_barrier();  // all threads have read the shared memory of this slice
    return start(launch, next);
  }

  // Reads the port from the program at each use, because a copy would occupy registers that the loops of `move` need.
  TUTTI_DEVICE const PackedPort& port_at(std::uint32_t p) const {
    return array_at<PackedPort>(program_, program_->ports_at)[shared_.channel.first_port + p];
  }

  TUTTI_DEVICE bool begin(bool resumes) {
    tile_ = shared_.state.tile;
    step_index_ = shared_.state.step;
    epoch_ = shared_.state.epoch;
    const bool running = shared_.state.running != 0;
    if (resumes) return running;
    if (running) {
      if (port::thread() == 0) report({Failure::kMisused, shared_.channel_index, program_->rank, 0});
      return false;
    }
    tile_ = 0;
    step_index_ = 0;
    // A slice without tiles sends nothing, so the message numbers of its connections do not change. If it offered a
    // window, the next call would mistake that offer for its own.
    const bool offers = kSimple && (shared_.part.tiles > 0 || !Faults::kOffersToUse) &&
                        call_.output_window != kNoWindow && (call_.in_place == 0 || program_->windows_in_place != 0);
    for (std::uint32_t p = port::thread(); p < shared_.channel.port_count; p += port::threads()) {
      Link& link = shared_.links[p];
      link.call_begin = link.number;
      link.published = 0;
      if (link.slot_mask + 1 < program_->least_slots) fail(Failure::kMisused, port_at(p).peer, shared_.prepared);
      if (!offers || port_at(p).sends != 0 || !shares(link, call_.output_window)) continue;
      port::store_relaxed(&link.peer->offer_window, call_.output_window);
      port::store_relaxed(&link.peer->offer_offset, call_.output_offset);
      port::store_release(&link.peer->offer_number, link.call_begin + 1);
    }
    port::block_barrier();  // from here on, other threads read the links
    return true;
  }

  // Waits until the peers have read all messages of this call that were published in this rank's memory.
  TUTTI_DEVICE void drain() {
    for (std::uint32_t p = port::thread(); p < shared_.channel.port_count; p += port::threads()) {
      const Link& link = shared_.links[p];
      if (link.published == 0) continue;
      const Outcome outcome =
          wait_until(bounds_of(call_), [&] { return port::load_acquire(&link.own->counter) >= link.number; });
      if (outcome != Outcome::kReady) give_up(outcome, port_at(p).peer, shared_.prepared);
    }
  }

  TUTTI_DEVICE void save(const ChannelState& state) {
    for (std::uint32_t p = port::thread(); p < shared_.channel.port_count; p += port::threads()) {
      Link& link = call_.links[link_index_of(*program_, port_at(p), shared_.part.slice)];
      port::store(&link.number, shared_.links[p].number);
      port::store(&link.call_begin, shared_.links[p].call_begin);
      port::store(&link.published, shared_.links[p].published);
      port::store(&link.released, shared_.links[p].released);
    }
    if (port::thread() != 0) return;
    ChannelState& to = shared_.part.channels[shared_.channel_index];
    port::store(&to.epoch, state.epoch);
    port::store(&to.tile, state.tile);
    port::store(&to.step, state.step);
    port::store(&to.running, state.running);
    // If no other channel of this rank reads `progress`, the store need not wait until earlier writes are visible.
    if (shared_.channel.watched != 0)
      port::store_release(&to.progress, state.progress);
    else
      port::store(&to.progress, state.progress);
  }

  TUTTI_DEVICE std::uint64_t position() const {
    return position_word(epoch_, tile_ * shared_.channel.step_count + step_index_);
  }

  // --- failures ------------------------------------------------------------

  TUTTI_DEVICE void report(const FailureWord& failure) {
    port::compare_and_swap(&call_.status->failure, 0, failure.word());
  }

  TUTTI_DEVICE void fail(Failure cause, std::uint32_t peer, std::uint32_t& verdict) {
    report({cause, shared_.channel_index, peer, step_index_});
    port::store_together(&verdict, static_cast<std::uint32_t>(Outcome::kFailed));
  }

  // After a failed wait: sets `verdict`. Reports a time-out, an abort, and a stop that no launch resumes as a failure.
  TUTTI_DEVICE void give_up(Outcome outcome, std::uint32_t peer, std::uint32_t& verdict) {
    const bool never_resumed = outcome == Outcome::kStopped && last_;
    if (outcome == Outcome::kTimedOut || never_resumed) return fail(Failure::kTimedOut, peer, verdict);
    if (outcome == Outcome::kAborted) return fail(Failure::kAborted, peer, verdict);
    port::store_together(&verdict, static_cast<std::uint32_t>(outcome));
  }

  // --- one step --------------------------------------------------------------

  // prepare_step() and post_step() return false if the block must not continue; `prepared` or `moved` has the reason.
  TUTTI_DEVICE_APART bool prepare_step() {
    step_ = fetched_step();
    const std::uint32_t entries = entry_count();
    for (std::uint32_t e = port::thread(); e < entries; e += port::threads()) prepare(e);
    port::block_barrier();
    if (shared_.prepared != kContinue) return false;
    bytes_ = value_bytes();
    // The thread of each entry counts its message now. Other threads read the number only after a barrier.
    for (std::uint32_t e = port::thread(); e < step_->receive_count + step_->send_count; e += port::threads()) {
      announce(e, bytes_);
      ++link_of(e).number;
    }
    if (port::thread() == 0 && step_->sink == Space::kScratch)
      port::store(&shared_.part.scratch_bytes[step_->sink_chunk], bytes_);
    return true;
  }

  TUTTI_DEVICE_APART bool post_step() {
    if constexpr (Faults::kBarrierBeforePost) port::block_barrier();
    if (!kSimple && shared_.moved != kContinue) return false;
    for (std::uint32_t e = port::thread(); e < step_->receive_count + step_->send_count; e += port::threads()) {
      post(e, bytes_);
    }
    if (port::thread() == 0 && shared_.channel.watched != 0) {
      port::store_release(&shared_.part.channels[shared_.channel_index].progress, position() + 1);
    }
    if constexpr (!Faults::kBarrierBeforePost) port::block_barrier();
    if (++step_index_ == shared_.channel.step_count) {
      step_index_ = 0;
      ++tile_;
    }
    return true;
  }

  // Returns the current step in shared memory. If the program is too long for shared memory, the step is loaded with
  // its routes and with some of the following steps.
  TUTTI_DEVICE const PackedStep* fetched_step() {
    const PackedChannel& channel = shared_.channel;
    const auto* steps = array_at<PackedStep>(program_, program_->steps_at) + channel.first_step;
    if (program_ == reinterpret_cast<const ProgramHeader*>(shared_.program)) return steps + step_index_;
    Fetched fetched = shared_.fetched;
    if (step_index_ - fetched.first_step >= fetched.steps) {
      const auto* routes = array_at<Route>(program_, program_->routes_at) + channel.first_route;
      fetched.first_step = step_index_;
      fetched.steps = static_cast<std::uint32_t>(lesser(kStepsAtOnce, channel.step_count - step_index_));
      fetched.first_route = steps[step_index_].first_route;
      fetched.routes = static_cast<std::uint32_t>(lesser(kRoutesAtOnce, channel.route_count - fetched.first_route));
      port::block_barrier();  // other threads may still read the previous steps
      copy_words_of(shared_.steps, steps + step_index_, fetched.steps * sizeof(PackedStep));
      copy_words_of(shared_.routes, routes + fetched.first_route, fetched.routes * sizeof(Route));
      if (port::thread() == 0) shared_.fetched = fetched;
      port::block_barrier();
    }
    return &shared_.steps[step_index_ - fetched.first_step];
  }

  // The entries of a step: receives, sends, waits for other channels, then the source, then the sink.
  TUTTI_DEVICE std::uint32_t entry_count() const {
    return step_->receive_count + std::uint32_t{step_->send_count} + step_->after_count + 2;
  }

  TUTTI_DEVICE Route route_of(std::uint32_t entry) const {
    const std::uint32_t index = step_->first_route + entry;
    const std::uint32_t fetched = index - shared_.fetched.first_route;  // very large if index < first_route
    if (fetched < shared_.fetched.routes) return shared_.routes[fetched];
    return (array_at<Route>(program_, program_->routes_at) + shared_.channel.first_route)[index];
  }
  TUTTI_DEVICE Link& link_of(std::uint32_t entry) { return shared_.links[route_of(entry).port]; }
  TUTTI_DEVICE std::uint32_t peer_of(std::uint32_t entry) const { return port_at(route_of(entry).port).peer; }

  TUTTI_DEVICE void prepare(std::uint32_t entry) {
    const std::uint32_t sends_at = step_->receive_count;
    const std::uint32_t afters_at = sends_at + step_->send_count;
    const std::uint32_t source_at = afters_at + step_->after_count;
    if (entry < sends_at) return prepare_receive(entry);
    if (entry < afters_at) return prepare_send(entry);
    if (entry < source_at) return prepare_after(entry - afters_at);
    if (entry == source_at) {
      if (step_->source == Space::kNone) return;
      const std::byte* from = address(step_->source, step_->source_chunk);
      shared_.sources[step_->source_position] = from;
      shared_.source_streams[step_->source_position] = {from, 0, 0, 0};
    } else {
      std::byte* to = step_->sink == Space::kNone ? nullptr : address(step_->sink, step_->sink_chunk);
      shared_.destinations[0] = to;
      shared_.destination_streams[0] = {to, 0, 0, 0};
    }
  }

  TUTTI_DEVICE std::uint32_t operand_of_receive(std::uint32_t receive) const {
    return receive + (step_->source != Space::kNone && receive >= step_->source_position ? 1 : 0);
  }

  TUTTI_DEVICE void prepare_receive(std::uint32_t entry) {
    const Link& link = link_of(entry);
    std::uint64_t bytes = 0;
    std::uint32_t digest = 0;
    Envelope envelope;
    const Outcome outcome = wait_until(bounds_of(call_), [&] {
      if constexpr (kSimple)
        return tail_of<Faults>(link) > link.number;
      else
        return read_header<Faults>(slot_of(link), link.number + 1, bytes, digest);
    });
    if (outcome != Outcome::kReady) return give_up(outcome, peer_of(entry), shared_.prepared);
    const std::byte* data = slot_of(link);
    if constexpr (kSimple) {
      read_envelope(link, envelope);
      bytes = envelope.bytes;
      digest = envelope.digest;
    }
    if (digest != call_.digest) return fail(Failure::kMismatch, peer_of(entry), shared_.prepared);
    const std::uint32_t operand = operand_of_receive(entry);
    if (kSimple && envelope.carrier == Carrier::kPublished) {
      const std::uint64_t base = link.windows[envelope.window];
      if (base == kNoWindowBase) return fail(Failure::kClosed, peer_of(entry), shared_.prepared);
      data = at_address(base + envelope.offset);
    } else if (kSimple && envelope.carrier == Carrier::kDelivered) {
      if (step_->receive_count != 1 || step_->source != Space::kNone || step_->sink != Space::kOutput)
        return fail(Failure::kCorrupt, peer_of(entry), shared_.prepared);
      data = address(step_->sink, step_->sink_chunk);
    }
    if (step_->receive_count == 1) shared_.delivered = envelope.carrier == Carrier::kDelivered ? 1 : 0;
    shared_.sources[operand] = data;
    shared_.source_streams[operand] = {data, 1, 0, link.number + 1};
    shared_.received_bytes[entry] = bytes;
  }

  TUTTI_DEVICE void prepare_send(std::uint32_t entry) {
    Link& link = link_of(entry);
    const Outcome outcome = wait_until(bounds_of(call_), [&] { return has_credit<Faults>(link); });
    if (outcome != Outcome::kReady) return give_up(outcome, peer_of(entry), shared_.prepared);
    const std::uint32_t destination = 1 + entry - step_->receive_count;
    std::byte* slot = slot_of(link);
    if constexpr (kSimple) {
      std::byte* to = nullptr;
      shared_.deliveries[entry] = delivery_of(entry, link, to);
      shared_.destinations[destination] = shared_.deliveries[entry].carrier == Carrier::kSlot ? slot : to;
    } else {
      const std::uint64_t round = link.number / (link.slot_mask + std::uint64_t{1});
      const bool renews = Faults::kRenewsLines && (round & ((1u << kRenewLog2) - 1)) == 0;
      shared_.destination_streams[destination] = {slot, 1, renews ? 1u : 0u, link.number + 1};
    }
  }

  // How the value is passed on, by the rules of plan/windows.h. Sets `to` to the address in the peer if kDelivered.
  TUTTI_DEVICE Delivery delivery_of(std::uint32_t entry, const Link& link, std::byte*& to) {
    if (link.windows == nullptr) return {Carrier::kSlot, 0, kNoWindow, 0};
    const Route route = route_of(entry);
    const bool input = step_->source == Space::kInput;
    const std::uint32_t own_window = input ? call_.input_window : call_.output_window;
    if (route.carrier == Carrier::kPublished && shares(link, own_window) && may_publish()) {
      const std::uint64_t start = input ? call_.input_offset : call_.output_offset;
      return {Carrier::kPublished, start + (range(step_->source, step_->source_chunk).offset << element_log2()),
              own_window, 0};
    }
    if (route.unpublished == Carrier::kDelivered && offered(link)) {
      const std::uint64_t window = port::load_relaxed(&link.own->offer_window);
      const std::uint64_t offset = port::load_relaxed(&link.own->offer_offset);
      const std::uint64_t base = link.windows[window];
      if (base == kNoWindowBase) return {Carrier::kSlot, 0, kNoWindow, 0};
      const Range there =
          peer_output_range(call_.geometry, port_at(route.port).peer_output, tile_of_call(), route.peer_chunk);
      to = at_address(base + offset + (there.offset << element_log2()));
      return {Carrier::kDelivered, 0, kNoWindow, 0};
    }
    return {Carrier::kSlot, 0, kNoWindow, 0};
  }

  TUTTI_DEVICE bool may_publish() const {
    if (call_.in_place != 0 && program_->windows_in_place == 0) return false;
    if (scaled_operand() >= 0 || divisor() != 1 || step_->receive_count != 0) return false;
    return range(step_->source, step_->source_chunk).count << element_log2() >= call_.least_published_bytes;
  }

  TUTTI_DEVICE void prepare_after(std::uint32_t index) {
    const auto* afters = array_at<PackedAfter>(program_, program_->afters_at) + shared_.channel.first_after;
    const PackedAfter after = afters[step_->first_after + index];
    if (tile_ < after.tiles_before) return;
    const auto* channels = array_at<PackedChannel>(program_, program_->channels_at);
    const std::uint64_t steps =
        (tile_ - after.tiles_before) * channels[after.other_channel].step_count + after.other_step + 1;
    const ChannelState& other = shared_.part.channels[after.other_channel];
    const Outcome outcome =
        wait_until(bounds_of(call_), [&] { return has_reached(port::load_acquire(&other.progress), epoch_, steps); });
    if (outcome != Outcome::kReady) give_up(outcome, program_->rank, shared_.prepared);
  }

  // --- values ----------------------------------------------------------------

  TUTTI_DEVICE std::uint32_t element_log2() const { return call_.geometry.element_log2; }
  TUTTI_DEVICE Range range(Space space, std::uint32_t chunk) const {
    return space == Space::kInput ? input_range(call_.geometry, tile_of_call(), chunk)
                                  : output_range(call_.geometry, tile_of_call(), chunk);
  }
  TUTTI_DEVICE std::uint64_t tile_of_call() const { return shared_.part.slice + tile_ * shared_.part.slices; }
  TUTTI_DEVICE std::uint64_t chunk_bytes() const { return call_.geometry.max_chunk_count << element_log2(); }

  TUTTI_DEVICE std::byte* address(Space space, std::uint32_t chunk) const {
    if (space == Space::kScratch) return shared_.part.scratch + chunk * chunk_bytes();
    const std::uint64_t offset = range(space, chunk).offset << element_log2();
    // Inputs are never written. The cast avoids a second version of the code for sources.
    return (space == Space::kInput ? const_cast<std::byte*>(call_.input) : call_.output) + offset;
  }

  // The length of the step's value in bytes: that of the source if the step has one, otherwise that of the sink if the
  // sink is in the output, otherwise that of the received message, but at most one scratch chunk.
  TUTTI_DEVICE std::uint64_t value_bytes() const {
    if (step_->source == Space::kScratch) return port::load(&shared_.part.scratch_bytes[step_->source_chunk]);
    if (step_->source != Space::kNone) return range(step_->source, step_->source_chunk).count << element_log2();
    if (step_->sink == Space::kOutput) return range(step_->sink, step_->sink_chunk).count << element_log2();
    return lesser(shared_.received_bytes[0], chunk_bytes());
  }

  TUTTI_DEVICE std::int32_t scaled_operand() const {
    const bool scales = call_.arithmetic.op == ReduceOp::kPreMulSum && step_->source == Space::kInput;
    return scales ? static_cast<std::int32_t>(step_->source_position) : -1;
  }
  TUTTI_DEVICE std::uint32_t divisor() const {
    return call_.arithmetic.op == ReduceOp::kAvg && step_->completes != 0 ? program_->rank_count : 1;
  }

  // One thread per entry calls it before it moves data. For a receive: reports a failure if the message is not `bytes`
  // long. For a send: writes the header (LL and LL128), or notes in the link that the message is published (kSimple).
  TUTTI_DEVICE void announce(std::uint32_t entry, std::uint64_t bytes) {
    if (entry < step_->receive_count) {
      if (shared_.received_bytes[entry] != bytes)
        report({Failure::kCorrupt, shared_.channel_index, peer_of(entry), step_index_});
      return;
    }
    Link& link = link_of(entry);
    if constexpr (kSimple) {
      if (shared_.deliveries[entry].carrier == Carrier::kPublished) link.published = 1;
    } else {
      write_header(slot_of(link), call_.digest, static_cast<std::uint32_t>(bytes), link.number + 1);
    }
  }

  template <Moves kMoves>
  TUTTI_DEVICE Outcome move(std::uint64_t bytes) {
    const std::uint32_t sources = step_->receive_count + (step_->source != Space::kNone ? 1u : 0u);
    Arithmetic how = call_.arithmetic;
    how.scaled_source = scaled_operand();
    how.divisor = divisor();
    if constexpr (kSimple) {
      const std::uint32_t skipped = step_->receive_count == 1 && shared_.delivered != 0 ? 1 : 0;  // skips the sink
      const Work work{shared_.sources,
                      shared_.destinations + skipped,
                      sources,
                      step_->send_count + 1 - skipped,
                      bytes >> element_log2(),
                      how,
                      ReduceMode::kFast};
      const Team team{port::anew(port::thread()), port::anew(port::threads())};
      if (kMoves == Moves::kSums && bytes > 0) reduce_sums(work, team);
      if (kMoves == Moves::kAny && bytes > 0) reduce_any(work, team);
      return Outcome::kReady;
    } else {
      const bool copies = sources == 1 && how.scaled_source < 0 && how.divisor == 1;
      const LineWork work = {shared_.source_streams,
                             shared_.destination_streams,
                             sources,
                             step_->send_count + 1u,
                             bytes,
                             slot_bytes_of(shared_),
                             how,
                             copies};
      Outcome outcome = Outcome::kReady;
      with_element(how.type, [&](auto element) {
        using E = decltype(element);
        if constexpr (kProtocol == Protocol::kLl)
          outcome = run_ll<E, Faults>(work, mid_step_bounds_of(call_));
        else
          outcome = run_ll128<E, Faults>(work, mid_step_bounds_of(call_));
      });
      return outcome;
    }
  }

  // One thread per entry calls it after all data has moved: frees a receive's slot, or (only kSimple) announces a send.
  TUTTI_DEVICE void post(std::uint32_t entry, std::uint64_t bytes) {
    Link& link = link_of(entry);
    if (entry < step_->receive_count) {
      // With LL and LL128, all loads of data have completed, because their flags were checked. So no fence is needed.
      return tell_peer(link, kSimple && Faults::kReleasesCredit);
    }
    if constexpr (kSimple) {
      const Delivery& delivery = shared_.deliveries[entry];
      post_message<Faults>(link,
                           {bytes, call_.digest, delivery.carrier, {}, delivery.window, 0, delivery.bytes_offset});
    }
  }

  Shared& shared_;
  const Call& call_;
  const ProgramHeader* program_ = nullptr;
  const PackedStep* step_ = nullptr;
  std::uint64_t tile_ = 0;  // number of the current tile, counted within the slice
  std::uint64_t epoch_ = 0;
  std::uint64_t bytes_ = 0;  // length of the current step's value
  std::uint32_t step_index_ = 0;
  bool last_ = false;
};

// The body of a kernel, for all threads of a block (a multiple of 32). A launch without calls does nothing.
template <Protocol kProtocol, class Faults = NoFaults>
TUTTI_DEVICE void evaluate(const Launch& launch) {
  TUTTI_SHARED(Shared, shared);
  if (launch.call_count > 0) Evaluator<kProtocol, Faults>(shared).run(launch);
}

}  // namespace tutti::device
