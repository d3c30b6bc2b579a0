// The device evaluator: a thread block runs slices of one channel of a rank's packed plan, tile by tile and step by
// step. For the same plan, tiles and chunks, it gives the same bits as the host (executor/plan_execution.h).
//
// A step has three parts, between block barriers:
//
//   prepare   One thread handles each entry of the step (EntryKind): it waits for the message, the credit or the other
//             channel, and finds the addresses. A block may stop here, because it has moved no data yet.
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
  // The class has more than 40 members, because each part of a step needs nearly all of the data. The parts of a run
  // and of a step are functions that are called (TUTTI_DEVICE_APART): otherwise the compiler keeps values of one part
  // in registers during the others, and the loops of `move` need all registers. `prepare` must be short: one thread
  // does the work of an entry while the rest of the block waits (docs/results/2026-11-28-gpu.md has times).
  TUTTI_DEVICE void run(const Launch& launch) {
    if (!start(launch, assignment_of(launch, port::block()))) return;
    const bool sums = kSimple && only_sums(call().arithmetic);
    const SliceEnd end = sums ? run_steps<Moves::kSums>(launch) : run_steps<Moves::kAny>(launch);
    if (end != SliceEnd::kNone) finish(end == SliceEnd::kAllSteps);
  }

 private:
  static constexpr bool kSimple = kProtocol == Protocol::kSimple;

  TUTTI_DEVICE Shared& shared() const { return memory_.get(); }
  TUTTI_DEVICE const Call& call() const { return shared().call; }

  // Calls that only sum have a loop of their own, because the function calls in the loop for all other calls would take
  // registers that the unrolled loops of sums need; see reduce_sums().
  enum class Moves { kSums, kAny };

  // What is left to do for the current slice. kNone: nothing, because it has been saved, or the next one cannot begin.
  enum class SliceEnd { kAllSteps, kStopped, kNone };

  // Runs the slice that has begun, and then the further slices of the block.
  template <Moves kMoves>
  TUTTI_DEVICE SliceEnd run_steps(const Launch& launch) {
    for (;;) {
      if (shared().channel.step_count == 0 || tile_ >= shared().part.tiles) {
        if (shared().part.slice + slices_at_once(launch) >= launch.slices) return SliceEnd::kAllSteps;
        if (!next_slice(launch)) return SliceEnd::kNone;
        continue;
      }
      if (!prepare_step()) return SliceEnd::kStopped;
      const Outcome outcome = move<kMoves>(bytes_);
      if (outcome != Outcome::kReady) give_up(outcome, program_->rank, shared().moved);
      if (!post_step()) return SliceEnd::kStopped;
    }
  }

  // Returns false if the block has nothing to run, or must not run because the previous call has not ended.
  TUTTI_DEVICE_APART bool start(const Launch& launch, const BlockAssignment& assignment) {
    last_ = launch.last != 0;
    program_ = load_block(shared(), launch, assignment);
    return program_ != nullptr && begin(launch.resume != 0);
  }

  // Calls drain() if all steps have run (`on`). Then saves the state. Returns whether the slice has ended.
  TUTTI_DEVICE_APART bool finish(bool on) {
    if (on) {
      if constexpr (Faults::kDrains) drain();
      port::block_barrier();
    }
    const bool ended = on && shared().prepared == kContinue;
    if (ended) save({position_word(epoch_ + 1, 0), epoch_ + 1, 0, 0, 0});
    if (!ended) save({position(), epoch_, tile_, step_index_, 1});
    return ended;
  }

  // Ends the slice, and begins the block's next one. Returns false if the block must not continue.
  TUTTI_DEVICE_APART bool next_slice(const Launch& launch) {
    BlockAssignment next = assignment_of(launch, port::block());
    next.slice = shared().part.slice + slices_at_once(launch);
    if (!finish(true)) return false;
    port::block_barrier();  // all threads have read the shared memory of this slice
    return start(launch, next);
  }

  // Reads the port from the program at each use, because a copy would occupy registers that the loops of `move` need.
  TUTTI_DEVICE const PackedPort& port_at(std::uint32_t p) const {
    return array_at<PackedPort>(program_, program_->ports_at)[shared().channel.first_port + p];
  }

  TUTTI_DEVICE bool begin(bool resumes) {
    tile_ = shared().state.tile;
    step_index_ = shared().state.step;
    epoch_ = shared().state.epoch;
    const bool running = shared().state.running != 0;
    if (resumes) return running;
    if (running) {
      if (port::thread() == 0) report({Failure::kMisused, shared().channel_index, program_->rank, 0});
      return false;
    }
    tile_ = 0;
    step_index_ = 0;
    // A slice without tiles sends nothing, so the message numbers of its connections do not change. If it offered a
    // window, the next call would mistake that offer for its own.
    const bool offers = kSimple && (shared().part.tiles > 0 || !Faults::kOffersToUse) &&
                        call().output_window != kNoWindow && (call().in_place == 0 || program_->windows_in_place != 0);
    for (std::uint32_t p = port::thread(); p < shared().channel.port_count; p += port::threads()) {
      Link& link = shared().links[p];
      link.call_begin = link.number;
      link.published = 0;
      if (link.slot_mask + 1 < program_->least_slots) fail(Failure::kMisused, port_at(p).peer, shared().prepared);
      if (!offers || port_at(p).sends != 0 || !shares(link, call().output_window)) continue;
      port::store_relaxed(&link.peer->offer_window, call().output_window);
      port::store_relaxed(&link.peer->offer_offset, call().output_offset);
      port::store_release(&link.peer->offer_number, link.call_begin + 1);
    }
    port::block_barrier();  // from here on, other threads read the links
    return true;
  }

  // Waits until the peers have read the messages that this slice has published in this call, or a bound is reached.
  TUTTI_DEVICE void drain() {
    for (std::uint32_t p = port::thread(); p < shared().channel.port_count; p += port::threads()) {
      const Link& link = shared().links[p];
      if (link.published == 0) continue;
      const Outcome outcome =
          wait_until(bounds_of(call()), [&] { return port::load_acquire(&link.own->counter) >= link.number; });
      if (outcome != Outcome::kReady) give_up(outcome, port_at(p).peer, shared().prepared);
    }
  }

  TUTTI_DEVICE void save(const ChannelState& state) {
    for (std::uint32_t p = port::thread(); p < shared().channel.port_count; p += port::threads()) {
      Link& link = call().links[link_index_of(*program_, port_at(p), shared().part.slice)];
      port::store(&link.number, shared().links[p].number);
      port::store(&link.call_begin, shared().links[p].call_begin);
      port::store(&link.published, shared().links[p].published);
      port::store(&link.released, shared().links[p].released);
    }
    if (port::thread() != 0) return;
    ChannelState& to = shared().part.channels[shared().channel_index];
    port::store(&to.epoch, state.epoch);
    port::store(&to.tile, state.tile);
    port::store(&to.step, state.step);
    port::store(&to.running, state.running);
    // If no other channel of this rank reads `progress`, the store need not wait until earlier writes are visible.
    if (shared().channel.watched != 0)
      port::store_release(&to.progress, state.progress);
    else
      port::store(&to.progress, state.progress);
  }

  TUTTI_DEVICE std::uint64_t position() const {
    return position_word(epoch_, tile_ * shared().channel.step_count + step_index_);
  }

  // --- failures ------------------------------------------------------------

  TUTTI_DEVICE void report(const FailureWord& failure) {
    port::compare_and_swap(&call().status->failure, 0, failure.word());
  }

  TUTTI_DEVICE_APART void fail(Failure cause, std::uint32_t peer, std::uint32_t& verdict) {
    report({cause, shared().channel_index, peer, step_index_});
    port::store_together(&verdict, static_cast<std::uint32_t>(Outcome::kFailed));
  }

  // After a failed wait: sets `verdict`. Reports a time-out, an abort, and a stop that no launch resumes as a failure.
  TUTTI_DEVICE_APART void give_up(Outcome outcome, std::uint32_t peer, std::uint32_t& verdict) {
    const bool never_resumed = outcome == Outcome::kStopped && last_;
    if (outcome == Outcome::kTimedOut || never_resumed) return fail(Failure::kTimedOut, peer, verdict);
    if (outcome == Outcome::kAborted) return fail(Failure::kAborted, peer, verdict);
    port::store_together(&verdict, static_cast<std::uint32_t>(outcome));
  }

  // --- one step --------------------------------------------------------------

  // prepare_step() and post_step() return false if the block must not continue; `prepared` or `moved` has the reason.
  TUTTI_DEVICE_APART bool prepare_step() {
    step_ = fetched_step();
    // A copy in registers. Functions that are not inlined get *step_: a copy with an address would be in local memory.
    const PackedStep step = *step_;
    for_own(EntryKind::kReceives, step.receive_count, [&](std::uint32_t i) { prepare_receive(step, i); });
    for_own(EntryKind::kSends, step.send_count, [&](std::uint32_t i) { prepare_send(step, i); });
    for_own(EntryKind::kAfters, step.after_count, [&](std::uint32_t i) { prepare_after(step, i); });
    for_own(EntryKind::kEnds, 1, [&](std::uint32_t) { prepare_ends(*step_); });
    port::block_barrier();
    if (shared().prepared != kContinue) return false;
    bytes_ = value_bytes(step);
    for_own(EntryKind::kReceives, step.receive_count, [&](std::uint32_t i) { accept(step, i); });
    for_own(EntryKind::kSends, step.send_count, [&](std::uint32_t i) { announce(step, i); });
    if (port::thread() == 0 && step.sink == Space::kScratch)
      port::store(&shared().part.scratch_bytes[step.sink_chunk], bytes_);
    return true;
  }

  TUTTI_DEVICE_APART bool post_step() {
    if constexpr (Faults::kBarrierBeforePost) port::block_barrier();
    if (!kSimple && shared().moved != kContinue) return false;
    const PackedStep step = *step_;
    // With LL and LL128, all loads of data have completed, because their flags were checked. So no fence is needed.
    for_own(EntryKind::kReceives, step.receive_count,
            [&](std::uint32_t i) { tell_peer(link_of(step, i), kSimple && Faults::kReleasesCredit); });
    if constexpr (kSimple) {
      for_own(EntryKind::kSends, step.send_count, [&](std::uint32_t i) { post(step, i); });
    }
    if (port::thread() == 0 && shared().channel.watched != 0) {
      port::store_release(&shared().part.channels[shared().channel_index].progress, position() + 1);
    }
    if constexpr (!Faults::kBarrierBeforePost) port::block_barrier();
    if (++step_index_ == shared().channel.step_count) {
      step_index_ = 0;
      ++tile_;
    }
    return true;
  }

  // Returns the current step in shared memory. If neither the whole program nor this step is there yet, first loads the
  // step, its routes, and some of the following steps.
  TUTTI_DEVICE const PackedStep* fetched_step() {
    const PackedChannel& channel = shared().channel;
    const auto* steps = array_at<PackedStep>(program_, program_->steps_at) + channel.first_step;
    if (program_ == reinterpret_cast<const ProgramHeader*>(shared().program)) return steps + step_index_;
    Fetched fetched = shared().fetched;
    if (step_index_ - fetched.first_step >= fetched.steps) {
      const auto* routes = array_at<Route>(program_, program_->routes_at) + channel.first_route;
      fetched.first_step = step_index_;
      fetched.steps = static_cast<std::uint32_t>(lesser(kStepsAtOnce, channel.step_count - step_index_));
      fetched.first_route = steps[step_index_].first_route;
      fetched.routes = static_cast<std::uint32_t>(lesser(kRoutesAtOnce, channel.route_count - fetched.first_route));
      port::block_barrier();  // other threads may still read the previous steps
      copy_words_of(shared().steps, steps + step_index_, fetched.steps * sizeof(PackedStep));
      copy_words_of(shared().routes, routes + fetched.first_route, fetched.routes * sizeof(Route));
      if (port::thread() == 0) shared().fetched = fetched;
      port::block_barrier();
    }
    return &shared().steps[step_index_ - fetched.first_step];
  }

  // In the list of a step's routes, the receives come first, and the sends follow.
  TUTTI_DEVICE static std::uint32_t entry_of_send(const PackedStep& step, std::uint32_t send) {
    return step.receive_count + send;
  }
  TUTTI_DEVICE Route route_of(const PackedStep& step, std::uint32_t entry) const {
    const std::uint32_t index = step.first_route + entry;
    const std::uint32_t fetched = index - shared().fetched.first_route;  // very large if index < first_route
    if (fetched < shared().fetched.routes) return shared().routes[fetched];
    return (array_at<Route>(program_, program_->routes_at) + shared().channel.first_route)[index];
  }
  TUTTI_DEVICE Link& link_of(const PackedStep& step, std::uint32_t entry) {
    return shared().links[route_of(step, entry).port];
  }
  TUTTI_DEVICE std::uint32_t peer_of(const PackedStep& step, std::uint32_t entry) const {
    return port_at(route_of(step, entry).port).peer;
  }

  TUTTI_DEVICE_APART void prepare_ends(const PackedStep& step) {
    std::byte* const to = find_end(step.sink, step.sink_chunk);
    shared().destinations[0] = to;
    shared().destination_streams[0] = {to, 0, 0, 0};
    if (step.source == Space::kNone) return;
    const std::byte* const from = find_end(step.source, step.source_chunk);
    shared().sources[step.source_position] = from;
    shared().source_streams[step.source_position] = {from, 0, 0, 0};
  }

  // Returns the address of a source or sink. Stores its length, unless it is in scratch.
  TUTTI_DEVICE std::byte* find_end(Space space, std::uint32_t chunk) {
    if (space == Space::kNone) return nullptr;
    if (space == Space::kScratch) return shared().part.scratch + chunk * chunk_bytes();
    const Range elements = range(space, chunk);
    shared().value_bytes = elements.count << element_log2();
    return memory_of(space) + (elements.offset << element_log2());
  }

  TUTTI_DEVICE void prepare_receive(const PackedStep& step, std::uint32_t entry) {
    const Link& link = link_of(step, entry);
    std::uint64_t bytes = 0;
    std::uint32_t digest = 0;
    Envelope envelope;
    const Outcome outcome = wait_until(bounds_of(call()), [&] {
      if constexpr (kSimple)
        return tail_of<Faults>(link) > link.number;
      else
        return read_header<Faults>(slot_of(link), link.number + 1, bytes, digest);
    });
    if (outcome != Outcome::kReady) return give_up(outcome, peer_of(step, entry), shared().prepared);
    const std::byte* data = slot_of(link);
    if constexpr (kSimple) {
      read_envelope(link, envelope);
      bytes = envelope.bytes;
      digest = envelope.digest;
    }
    if (digest != call().digest) return fail(Failure::kMismatch, peer_of(step, entry), shared().prepared);
    const std::uint32_t operand = operand_of_receive(step, entry);
    if (kSimple && envelope.carrier == Carrier::kPublished) {
      const std::uint64_t base = link.windows[envelope.window];
      if (base == kNoWindowBase) return fail(Failure::kClosed, peer_of(step, entry), shared().prepared);
      data = at_address(base + envelope.offset);
    } else if (kSimple && envelope.carrier == Carrier::kDelivered) {
      if (step.receive_count != 1 || step.source != Space::kNone || step.sink != Space::kOutput)
        return fail(Failure::kCorrupt, peer_of(step, entry), shared().prepared);
      data = memory_of(step.sink) + (range(step.sink, step.sink_chunk).offset << element_log2());
    }
    if (step.receive_count == 1) shared().delivered = envelope.carrier == Carrier::kDelivered ? 1 : 0;
    shared().sources[operand] = data;
    shared().source_streams[operand] = {data, 1, 0, link.number + 1};
    shared().received_bytes[entry] = bytes;
  }

  TUTTI_DEVICE void prepare_send(const PackedStep& step, std::uint32_t send) {
    const std::uint32_t entry = entry_of_send(step, send);
    Link& link = link_of(step, entry);
    const Outcome outcome = wait_until(bounds_of(call()), [&] { return has_credit<Faults>(link); });
    if (outcome != Outcome::kReady) return give_up(outcome, peer_of(step, entry), shared().prepared);
    const std::uint32_t destination = 1 + send;  // the first destination is the sink
    std::byte* slot = slot_of(link);
    if constexpr (kSimple) {
      std::byte* to = nullptr;
      Delivery& delivery = shared().deliveries[send];
      delivery = link.windows == nullptr ? Delivery{} : delivery_of(*step_, entry, link, to);
      shared().destinations[destination] = delivery.carrier == Carrier::kSlot ? slot : to;
    } else {
      const std::uint64_t slots = link.slot_mask + std::uint64_t{1};
      const bool renews = Faults::kRenewsLines && (link.number & ((slots << kRenewLog2) - 1)) < slots;
      shared().destination_streams[destination] = {slot, 1, renews ? 1u : 0u, link.number + 1};
    }
  }

  // Returns how the value is passed on (plan/windows.h). For kDelivered, sets `to` to the address in the peer's output.
  TUTTI_DEVICE_APART Delivery delivery_of(const PackedStep& step, std::uint32_t entry, const Link& link,
                                          std::byte*& to) {
    const Route route = route_of(step, entry);
    const bool input = step.source == Space::kInput;
    const std::uint32_t own_window = input ? call().input_window : call().output_window;
    if (route.carrier == Carrier::kPublished && shares(link, own_window) && may_publish(step)) {
      const std::uint64_t start = input ? call().input_offset : call().output_offset;
      return {Carrier::kPublished, start + (range(step.source, step.source_chunk).offset << element_log2()), own_window,
              0};
    }
    if (route.unpublished == Carrier::kDelivered && offered(link)) {
      const std::uint64_t window = port::load_relaxed(&link.own->offer_window);
      const std::uint64_t offset = port::load_relaxed(&link.own->offer_offset);
      const std::uint64_t base = link.windows[window];
      if (base == kNoWindowBase) return {};
      const Range there =
          peer_output_range(call().geometry, port_at(route.port).peer_output, tile_of_call(), route.peer_chunk);
      to = at_address(base + offset + (there.offset << element_log2()));
      return {Carrier::kDelivered, 0, kNoWindow, 0};
    }
    return {};
  }

  TUTTI_DEVICE bool may_publish(const PackedStep& step) const {
    if (call().in_place != 0 && program_->windows_in_place == 0) return false;
    if (scaled_operand(step) >= 0 || divisor(step) != 1 || step.receive_count != 0) return false;
    return range(step.source, step.source_chunk).count << element_log2() >= call().least_published_bytes;
  }

  TUTTI_DEVICE void prepare_after(const PackedStep& step, std::uint32_t index) {
    const auto* afters = array_at<PackedAfter>(program_, program_->afters_at) + shared().channel.first_after;
    const PackedAfter after = afters[step.first_after + index];
    if (tile_ < after.tiles_before) return;
    const auto* channels = array_at<PackedChannel>(program_, program_->channels_at);
    const std::uint64_t steps =
        (tile_ - after.tiles_before) * channels[after.other_channel].step_count + after.other_step + 1;
    const ChannelState& other = shared().part.channels[after.other_channel];
    const Outcome outcome =
        wait_until(bounds_of(call()), [&] { return has_reached(port::load_acquire(&other.progress), epoch_, steps); });
    if (outcome != Outcome::kReady) give_up(outcome, program_->rank, shared().prepared);
  }

  // --- values ----------------------------------------------------------------

  TUTTI_DEVICE std::uint32_t element_log2() const { return call().geometry.element_log2; }
  TUTTI_DEVICE Range range(Space space, std::uint32_t chunk) const {
    return space == Space::kInput ? input_range(call().geometry, tile_of_call(), chunk)
                                  : output_range(call().geometry, tile_of_call(), chunk);
  }
  TUTTI_DEVICE std::uint64_t tile_of_call() const { return shared().part.slice + tile_ * shared().part.slices; }
  TUTTI_DEVICE std::uint64_t chunk_bytes() const { return call().geometry.max_chunk_count << element_log2(); }

  // Length of the step's value: that of the source if there is one, otherwise of a sink in the output, otherwise of the
  // message, but at most a scratch chunk. Call it after the barrier: another channel may have written the scratch.
  TUTTI_DEVICE std::uint64_t value_bytes(const PackedStep& step) const {
    if (step.source == Space::kScratch) return port::load(&shared().part.scratch_bytes[step.source_chunk]);
    if (step.source != Space::kNone || step.sink == Space::kOutput) return shared().value_bytes;
    return lesser(shared().received_bytes[0], chunk_bytes());
  }

  // Inputs are never written. The cast avoids a second version of the code for sources.
  TUTTI_DEVICE std::byte* memory_of(Space space) const {
    return space == Space::kInput ? const_cast<std::byte*>(call().input) : call().output;
  }

  TUTTI_DEVICE std::int32_t scaled_operand(const PackedStep& step) const {
    const bool scales = call().arithmetic.op == ReduceOp::kPreMulSum && step.source == Space::kInput;
    return scales ? static_cast<std::int32_t>(step.source_position) : -1;
  }
  TUTTI_DEVICE std::uint32_t divisor(const PackedStep& step) const {
    return call().arithmetic.op == ReduceOp::kAvg && step.completes != 0 ? program_->rank_count : 1;
  }

  // accept() and announce() count the message. Other threads read the number only after the next barrier. accept()
  // reports Failure::kCorrupt if the message is not as long as the step's value, but the step goes on.
  TUTTI_DEVICE void accept(const PackedStep& step, std::uint32_t entry) {
    if (shared().received_bytes[entry] != bytes_)
      report({Failure::kCorrupt, shared().channel_index, peer_of(step, entry), step_index_});
    ++link_of(step, entry).number;
  }

  // Writes the header (LL and LL128), or notes in the link that the message is published (kSimple).
  TUTTI_DEVICE void announce(const PackedStep& step, std::uint32_t send) {
    Link& link = link_of(step, entry_of_send(step, send));
    if constexpr (!kSimple)
      write_header(slot_of(link), call().digest, static_cast<std::uint32_t>(bytes_), link.number + 1);
    else if (shared().deliveries[send].carrier == Carrier::kPublished)
      link.published = 1;
    ++link.number;
  }

  template <Moves kMoves>
  TUTTI_DEVICE Outcome move(std::uint64_t bytes) {
    const PackedStep step = *step_;
    const std::uint32_t sources = step.receive_count + (step.source != Space::kNone ? 1u : 0u);
    Arithmetic how = call().arithmetic;
    how.scaled_source = scaled_operand(step);
    how.divisor = divisor(step);
    if constexpr (kSimple) {
      const std::uint32_t skipped = step.receive_count == 1 && shared().delivered != 0 ? 1 : 0;  // skips the sink
      const Work work{shared().sources,
                      shared().destinations + skipped,
                      sources,
                      step.send_count + 1 - skipped,
                      bytes >> element_log2(),
                      how,
                      ReduceMode::kFast};
      const Team team{port::anew(port::thread()), port::anew(port::threads())};
      if (kMoves == Moves::kSums && bytes > 0) reduce_sums(work, team);
      if (kMoves == Moves::kAny && bytes > 0) reduce_any(work, team);
      return Outcome::kReady;
    } else {
      const bool copies = sources == 1 && how.scaled_source < 0 && how.divisor == 1;
      const LineWork work = {shared().source_streams,
                             shared().destination_streams,
                             sources,
                             step.send_count + 1u,
                             bytes,
                             slot_bytes_of(shared()),
                             how,
                             copies};
      Outcome outcome = Outcome::kReady;
      with_element(how.type, [&](auto element) {
        using E = decltype(element);
        if constexpr (kProtocol == Protocol::kLl)
          outcome = run_ll<E, Faults>(work, mid_step_bounds_of(call()));
        else
          outcome = run_ll128<E, Faults>(work, mid_step_bounds_of(call()));
      });
      return outcome;
    }
  }

  // Used with kSimple only. The thread of a send calls it after all data has moved.
  TUTTI_DEVICE void post(const PackedStep& step, std::uint32_t send) {
    const Delivery& delivery = shared().deliveries[send];
    post_message<Faults>(link_of(step, entry_of_send(step, send)),
                         {bytes_, call().digest, delivery.carrier, {}, delivery.window, 0, delivery.bytes_offset});
  }

  port::BlockMemory<Shared> memory_;
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
  if (launch.call_count > 0) Evaluator<kProtocol, Faults>().run(launch);
}

}  // namespace tutti::device
