#include "executor/direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/reduce.h"

namespace tutti {
namespace {

// Between two looks at the marks: short against the time that a rank which gives up waits for the others.
constexpr std::uint64_t kPartBytes = 1 << 20;
constexpr std::uint64_t kLineBytes = 64;

}  // namespace

DirectRun::DirectRun(SlateMarks& marks, Transport& transport) : marks_(marks), transport_(transport) {
  inputs_.resize(marks.ranks());
  outputs_.resize(marks.ranks());
  sources_.resize(marks.ranks());
  destinations_.resize(marks.ranks());
}

bool DirectRun::takes(const Collective& collective, Algorithm algorithm, ReduceOp op) {
  return collective.kind == CollectiveKind::kAllReduce && algorithm == Algorithm::kTwoShot && collective.ranks > 1 &&
         collective.ranks <= kernels::kMaxSources && op != ReduceOp::kPreMulSum;
}

void DirectRun::start(const Call& call) {
  call_ = call;
  marks_.begin(call.tag);
  plan_->start(call);
  bad_.reset();
  next_ = 0;
  phase_ = Phase::kBeforeWriting;
  // Shares of whole lines, so that no line is written by two ranks.
  const std::uint64_t line = std::max<std::uint64_t>(kLineBytes / call.element_bytes, 1);
  const std::uint64_t lines = (call.lengths.count + line - 1) / line;
  begin_ = std::min(lines * rank() / ranks() * line, call.lengths.count);
  end_ = std::min(lines * (rank() + 1) / ranks() * line, call.lengths.count);
}

bool DirectRun::progress() {
  if (phase_ == Phase::kPlan) return plan_->progress();
  const Phase phase = phase_;
  const std::uint32_t next = next_;
  const std::uint64_t begin = begin_;
  advance();
  return phase_ != phase || next_ != next || begin_ != begin;
}

void DirectRun::advance() {
  if (phase_ == Phase::kBeforeWriting) {
    if (!marks_.may_write()) return marks_.await(Transport::kAnyRank);
    write();
    phase_ = registered() ? Phase::kReading : Phase::kPlan;
  }
  if (phase_ == Phase::kReading && !read()) return;
  if (phase_ == Phase::kSumming) {
    if (!sum_a_part() || begin_ < end_) return;
    marks_.say_finished();
    next_ = 0;
    phase_ = Phase::kAwaiting;
  }
  if (phase_ == Phase::kAwaiting && all_finished()) phase_ = Phase::kDone;
}

void DirectRun::write() {
  const Shown shown = registered() ? Shown{.input_window = call_.input_window.window,
                                           .output_window = call_.output_window.window,
                                           .input_offset = call_.input_window.offset,
                                           .output_offset = call_.output_window.offset}
                                   : Shown{};
  static_assert(sizeof(Shown) <= sizeof(SlateMark::payload));
  marks_.open();
  std::memcpy(marks_.mark(rank()).payload.data(), &shown, sizeof shown);
  marks_.close();
}

// All that the others show; the plan as soon as one of them has no registered memory.
bool DirectRun::read() {
  for (; next_ < ranks(); ++next_) {
    if (next_ == rank()) continue;
    if (!read_of(next_)) {
      marks_.await(next_);
      return false;
    }
    if (phase_ == Phase::kPlan) return true;
  }
  inputs_[rank()] = call_.input;
  outputs_[rank()] = call_.output;
  phase_ = Phase::kSumming;
  return true;
}

bool DirectRun::read_of(std::uint32_t peer) {
  const SlateMarks::Sight sight = marks_.look(peer);
  if (sight == SlateMarks::Sight::kOther) bad_ = BadMessage{.peer = peer, .tag = {}};
  if (sight != SlateMarks::Sight::kThere) return false;
  Shown shown;
  std::memcpy(&shown, marks_.mark(peer).payload.data(), sizeof shown);
  if (!marks_.holds(peer)) return false;
  if (shown.input_window == 0) {
    phase_ = Phase::kPlan;
    return true;
  }
  const std::uint64_t bytes = call_.lengths.count * call_.element_bytes;
  const auto input = transport_.peer_memory(peer, 0, {shown.input_window, shown.input_offset}, bytes);
  const auto output = transport_.peer_memory(peer, 1, {shown.output_window, shown.output_offset}, bytes);
  if (!input || !output) return false;
  const bool aligned = (shown.input_offset | shown.output_offset) % call_.element_bytes == 0;
  if (*input == nullptr || *output == nullptr || shown.output_window == 0 || !aligned) {
    bad_ = BadMessage{.peer = peer, .kind = Arrival::kCorrupt, .tag = {}};
    return false;
  }
  inputs_[peer] = *input;
  outputs_[peer] = *output;
  return true;
}

bool DirectRun::all_hold() {
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (peer == rank() || marks_.holds(peer)) continue;
    bad_ = BadMessage{.peer = peer, .kind = Arrival::kWithdrawn, .tag = {}};
    return false;
  }
  return true;
}

bool DirectRun::sum_a_part() {
  if (begin_ == end_) return true;
  if (!all_hold()) return false;
  const std::uint64_t count = std::min(end_ - begin_, kPartBytes / call_.element_bytes);
  const std::uint64_t offset = begin_ * call_.element_bytes;
  for (std::uint32_t who = 0; who < ranks(); ++who) {
    sources_[who] = inputs_[who] + offset;
    destinations_[who] = outputs_[who] + offset;
  }
  kernels::Reduction how;
  how.type = call_.type;
  how.op = call_.op;
  how.divisor = call_.op == ReduceOp::kAvg ? ranks() : 1;
  how.bytes_until_reuse = call_.lengths.count * call_.element_bytes * ranks();
  kernels::reduce(how, sources_, destinations_, count);
  begin_ += count;
  return all_hold();
}

bool DirectRun::all_finished() {
  for (; next_ < ranks(); ++next_) {
    if (next_ == rank() || marks_.has_finished(next_)) continue;
    marks_.await(next_);
    return false;
  }
  return true;
}

std::string DirectRun::waits_for() {
  switch (phase_) {
    case Phase::kBeforeWriting: return fmt::format("writing, rank {} may still read the last value", marks_.reader());
    case Phase::kReading: return fmt::format("reading, no place of memory from rank {}", next_);
    case Phase::kAwaiting: return fmt::format("the share of rank {}", next_);
    case Phase::kPlan: return plan_->waits_for();
    case Phase::kSumming:
    case Phase::kDone: break;
  }
  return "nothing";
}

}  // namespace tutti
