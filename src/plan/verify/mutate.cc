// Generates mutants, verifies each of them, and uses the interpreter to decide whether those that the verifier
// accepts are harmless.
#include "plan/verify/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "plan/collective.h"
#include "plan/verify/interpret.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

constexpr std::uint64_t kInterleavings = 3;
// relative difference allowed between two sums of the same positive float32 values in different orders
constexpr float kRounding = 1e-4F;

// Generates the mutants of one channel. `channel` is a part of `plan`: each change is made in it, then `visit` is
// called with `plan`, and then the channel is restored.
class ChannelMutator {
 public:
  ChannelMutator(const Plan& plan, Channel& channel, std::string place,
                 const std::function<void(const Plan&, const std::string&)>& visit)
      : plan_(plan), channel_(channel), original_(channel), place_(std::move(place)), visit_(visit) {}

  void mutate_step(std::uint32_t s);
  void mutate_after();

 private:
  void show(std::uint32_t s, const std::string& what) {
    visit_(plan_, fmt::format("{} step {}: {}", place_, s, what));
    channel_ = original_;
  }
  // For each of `values` that differs from the field's current value: sets the field of step `s` to it, and calls
  // `visit`. Negative values are skipped.
  template <class Field, class Member>
  void set_field(std::uint32_t s, const std::string& name, Member member, std::initializer_list<std::int64_t> values) {
    for (const std::int64_t value : values) {
      Field& field = member(channel_.steps[s]);
      if (value < 0 || static_cast<std::int64_t>(field) == value) continue;
      const auto before = static_cast<std::int64_t>(field);
      field = static_cast<Field>(value);
      show(s, fmt::format("{} {} -> {}", name, before, value));
    }
  }
  void mutate_slice(std::uint32_t s, const char* name, Slice Step::*slice);
  void mutate_counts(std::uint32_t s);
  void mutate_ports(std::uint32_t s);
  void mutate_sequence(std::uint32_t s);

  const Plan& plan_;
  Channel& channel_;
  const Channel original_;
  const std::string place_;
  const std::function<void(const Plan&, const std::string&)>& visit_;
};

void ChannelMutator::mutate_slice(std::uint32_t s, const char* name, Slice Step::*slice) {
  const std::string space_name = fmt::format("{} space", name);
  const std::string chunk_name = fmt::format("{} chunk", name);
  set_field<Space>(s, space_name, [&](Step& step) -> Space& { return (step.*slice).space; }, {0, 1, 2, 3, 4});
  const bool blocks = output_blocks(plan_.shape.collective, plan_.shape.collective.root).count > 1 ||
                      input_blocks(plan_.shape.collective, plan_.shape.collective.root).count > 1;
  const std::int64_t in_or_out = std::int64_t{plan_.shape.chunks} * (blocks ? plan_.shape.collective.ranks : 1);
  const std::int64_t chunks = std::max<std::int64_t>(in_or_out, plan_.shape.scratch_chunks);
  for (std::int64_t chunk = 0; chunk <= chunks; ++chunk) {
    set_field<std::uint32_t>(s, chunk_name, [&](Step& step) -> std::uint32_t& { return (step.*slice).chunk; }, {chunk});
  }
  const std::string reserved_name = fmt::format("{} reserved", name);
  set_field<std::uint8_t>(s, reserved_name, [&](Step& step) -> std::uint8_t& { return (step.*slice).reserved[1]; },
                          {1});
}

void ChannelMutator::mutate_counts(std::uint32_t s) {
  const Step step = original_.steps[s];
  const std::int64_t receives = step.receive_count;
  const std::int64_t sends = step.send_count;
  const std::int64_t begin = step.list_begin;
  set_field<std::uint16_t>(s, "receive_count", [](Step& x) -> std::uint16_t& { return x.receive_count; },
                           {receives - 1, receives + 1});
  set_field<std::uint16_t>(s, "send_count", [](Step& x) -> std::uint16_t& { return x.send_count; },
                           {sends - 1, sends + 1});
  set_field<std::uint32_t>(s, "list_begin", [](Step& x) -> std::uint32_t& { return x.list_begin; },
                           {begin - 1, begin + 1});
  for (std::int64_t position = 0; position <= receives + 1; ++position) {
    set_field<std::uint16_t>(s, "source_position", [](Step& x) -> std::uint16_t& { return x.source_position; },
                             {position});
  }
  set_field<std::uint8_t>(s, "completes", [](Step& x) -> std::uint8_t& { return x.completes; }, {0, 1, 2});
  const std::int64_t run = step.run;
  set_field<std::uint32_t>(s, "run", [](Step& x) -> std::uint32_t& { return x.run; }, {run - 1, run + 1});
  set_field<std::uint8_t>(s, "reserved", [](Step& x) -> std::uint8_t& { return x.reserved; }, {1});
}

void ChannelMutator::mutate_ports(std::uint32_t s) {
  const Step step = original_.steps[s];
  const std::uint32_t end = step.list_begin + step.receive_count + step.send_count;
  for (std::uint32_t i = step.list_begin; i < end; ++i) {
    for (std::uint32_t port = 0; port <= original_.ports.size(); ++port) {
      if (original_.lists[i] == port) continue;
      channel_.lists[i] = static_cast<std::uint16_t>(port);
      show(s, fmt::format("port {} of its list -> {}", i - step.list_begin, port));
    }
  }
}

void ChannelMutator::mutate_sequence(std::uint32_t s) {
  std::vector<Step>& steps = channel_.steps;
  if (s + 1 < steps.size() && steps[s] != steps[s + 1]) {
    std::swap(steps[s], steps[s + 1]);
    show(s, "swapped with the next");
  }
  steps.erase(steps.begin() + s);
  show(s, "deleted");
  steps.insert(steps.begin() + s, original_.steps[s]);
  show(s, "repeated");
}

void ChannelMutator::mutate_step(std::uint32_t s) {
  mutate_slice(s, "source", &Step::source);
  mutate_slice(s, "sink", &Step::sink);
  mutate_counts(s);
  mutate_ports(s);
  mutate_sequence(s);
}

void ChannelMutator::mutate_after() {
  for (std::size_t i = 0; i < original_.after.size(); ++i) {
    channel_.after.erase(channel_.after.begin() + static_cast<std::ptrdiff_t>(i));
    show(original_.after[i].step, fmt::format("after {} deleted", i));
    channel_.after[i].tiles_before ^= 1;
    show(original_.after[i].step, fmt::format("after {}: the tile before {}", i, channel_.after[i].tiles_before));
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool gives(const Plan& plan, bool in_place, const std::vector<float>& expected) {
  for (std::uint64_t seed = 1; seed <= kInterleavings; ++seed) {
    const Result<std::vector<float>> got = interpret(plan, {.in_place = in_place, .seed = seed});
    if (!got.ok() || !same_bits(*got, expected)) return false;
  }
  return true;
}

// True if `added`, the ranks whose inputs were added, contains each rank exactly once, in an order that `order`
// allows.
bool keeps_promise(Order order, std::uint32_t ranks, const std::vector<std::uint32_t>& added) {
  if (added.size() != ranks) return false;
  std::vector<bool> seen(ranks);
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (seen[added[i]]) return false;
    seen[added[i]] = true;
    const std::uint32_t first = order == Order::kByRank ? 0 : added[0];
    if (order != Order::kAny && added[i] != (first + i) % ranks) return false;
  }
  return true;
}

// True if the sums of the mutant `plan` have the same operands as those of the original plan, in another order that
// PlanShape::order allows. `expected` are the results of the original plan. Another order is harmless only if a single
// rank receives each sum; otherwise the result is false. Sums in another order differ from the expected ones only by
// rounding. All inputs are positive, so rounding is much smaller than the effect of a wrong operand.
bool gives_in_another_order(const Plan& plan, bool in_place, const std::vector<float>& expected) {
  const CollectiveKind kind = plan.shape.collective.kind;
  if (!reduces(kind) || (!has_root(kind) && row_of(kind).output != BlockSet::kOwn)) return false;
  std::vector<std::vector<std::uint32_t>> orders;
  const Result<std::vector<float>> got = interpret(plan, {.in_place = in_place, .orders = &orders});
  if (!got.ok() || got->size() != expected.size()) return false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs((*got)[i] - expected[i]) <= kRounding * expected[i])) return false;
  }
  return std::all_of(orders.begin(), orders.end(),
                     [&](const std::vector<std::uint32_t>& added) {
                       return keeps_promise(plan.shape.order, plan.shape.collective.ranks, added);
                     }) &&
         gives(plan, in_place, *got);
}

}  // namespace

void for_each_mutant(const Plan& plan, const std::function<void(const Plan& mutant, const std::string& name)>& visit) {
  Plan mutant = plan;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (std::uint32_t c = 0; c < plan.ranks[rank].channels.size(); ++c) {
      ChannelMutator mutator(mutant, mutant.ranks[rank].channels[c], fmt::format("rank {} channel {}", rank, c), visit);
      for (std::uint32_t s = 0; s < plan.ranks[rank].channels[c].steps.size(); ++s) mutator.mutate_step(s);
      mutator.mutate_after();
    }
  }
}

MutationCount& MutationCount::operator+=(const MutationCount& other) {
  tried += other.tried;
  refused += other.refused;
  harmless += other.harmless;
  missed += other.missed;
  missed_names.insert(missed_names.end(), other.missed_names.begin(), other.missed_names.end());
  return *this;
}

MutationCount count_mutations(const Plan& plan) {
  MutationCount count;
  for (const bool in_place : {false, true}) {
    const Result<std::vector<float>> expected = interpret(plan, {.in_place = in_place});
    TUTTI_ASSERT(expected.ok(), "the unmutated plan does not run: {}", expected.error().message);
    for_each_mutant(plan, [&](const Plan& mutant, const std::string& name) {
      ++count.tried;
      if (!verify(mutant, {.in_place = in_place}).ok()) {
        ++count.refused;
      } else if (gives(mutant, in_place, *expected) || gives_in_another_order(mutant, in_place, *expected)) {
        ++count.harmless;
      } else {
        ++count.missed;
        count.missed_names.push_back(name);
      }
    });
  }
  return count;
}

}  // namespace tutti
