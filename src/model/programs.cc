// Builds the plan of the first rank of each class, and converts its channels to programs in flat arrays.
#include "model/programs.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "model/rotation.h"
#include "plan/collective.h"

namespace tutti {
namespace {

constexpr std::uint32_t kNoThread = ~std::uint32_t{0};  // the thread at this end of a connection is not known yet

class Writer {
 public:
  Writer(const Generator& generator, const CheckFirstRank& check_first)
      : generator_(generator), check_first_(check_first) {
    out_.ranks = generator.shape.collective.ranks;
    out_.rooted = has_root(generator.shape.collective.kind);
    out_.classes = rotation_period(generator);
    out_.slots = generator.shape.slots;
    TUTTI_ASSERT(out_.classes >= 1 && out_.ranks % out_.classes == 0);
  }

  Result<Programs> write() && {
    if (out_.classes > kMostPrograms) {
      return Error{.code = ErrorCode::kUnsupported,
                   .scope = ErrorScope::kCall,
                   .rank = -1,
                   .message = fmt::format("{} has a program of its own for each of {} ranks, and at most {} are held; "
                                          "choose fewer ranks, or ring, whose ranks run one program",
                                          to_string(generator_.shape.algorithm), out_.classes, kMostPrograms)};
    }
    for (std::uint32_t rank = 0; rank < out_.classes; ++rank) {
      const RankPlan plan = generator_.build(generator_.shape, rank);
      out_.first_thread.push_back(static_cast<std::uint32_t>(out_.threads.size()));
      // The plan of rank 0 gives a good estimate of the number of steps of all classes. So a plan that is too large is
      // usually rejected immediately, and not after minutes of building plans.
      std::uint64_t steps = 0;
      for (const Channel& channel : plan.channels) steps += channel.steps.size();
      if (out_.steps.size() + steps > kMostProgramSteps || steps * out_.classes > 4 * kMostProgramSteps) {
        return Error{.code = ErrorCode::kUnsupported,
                     .scope = ErrorScope::kCall,
                     .rank = -1,
                     .message = fmt::format(
                         "{} of {} ranks has about {} steps that are not alike, more than the {} that "
                         "are simulated; choose fewer ranks, or ring, double_tree or hierarchical",
                         to_string(generator_.shape.algorithm), out_.ranks, steps * out_.classes, kMostProgramSteps)};
      }
      if (rank == 0 && check_first_) TUTTI_TRY(check_first_(plan, out_.classes));
      add_rank(rank, plan);
    }
    out_.first_thread.push_back(static_cast<std::uint32_t>(out_.threads.size()));
    for (const ProgramConnection& each : out_.connections) {
      if (each.from != kNoThread && each.to != kNoThread) continue;
      return Error{.code = ErrorCode::kInvalidPlan,
                   .scope = ErrorScope::kCall,
                   .rank = -1,
                   .message = "a connection of the plan has one end only; prove it with `tutti verify`"};
    }
    return std::move(out_);
  }

 private:
  void add_rank(std::uint32_t rank, const RankPlan& plan) {
    std::vector<std::uint32_t> thread_of(plan.channels.size(), kNoThread);
    std::vector<std::uint64_t> first_of(plan.channels.size());
    std::uint64_t next_step = out_.steps.size();
    for (std::size_t c = 0; c < plan.channels.size(); ++c) {
      const Channel& channel = plan.channels[c];
      first_of[c] = next_step;
      next_step += channel.steps.size();
      if (channel.steps.empty()) continue;
      thread_of[c] = static_cast<std::uint32_t>(out_.threads.size());
      out_.threads.push_back({.rank_class = rank,
                              .channel = static_cast<std::uint16_t>(c),
                              .first_step = first_of[c],
                              .steps = static_cast<std::uint32_t>(channel.steps.size())});
    }
    for (std::size_t c = 0; c < plan.channels.size(); ++c) add_channel(rank, plan.channels[c], thread_of[c]);
    for (std::size_t c = 0; c < plan.channels.size(); ++c) {
      add_waits(plan.channels[c], first_of[c], [&](const After& after) {
        ProgramStep& step = out_.steps[first_of[after.other_channel] + after.other_step];
        if (step.mark < 0) {
          step.mark = static_cast<std::int32_t>(out_.mark_threads.size());
          out_.mark_threads.push_back(thread_of[after.other_channel]);
        }
        return static_cast<std::uint32_t>(step.mark);
      });
    }
  }

  void add_channel(std::uint32_t rank, const Channel& channel, std::uint32_t thread) {
    std::vector<std::uint32_t> connection_of;
    for (const Port& port : channel.ports) {
      const bool sends = port.direction == Direction::kSend;
      const std::uint32_t from = sends ? rank : port.peer, to = sends ? port.peer : rank;
      const std::uint32_t offset = (to + out_.ranks - from) % out_.ranks;
      const std::uint32_t from_class = from % out_.classes;
      const std::uint64_t key = std::uint64_t{from_class} << 40 | std::uint64_t{offset} << 16 | port.lane;
      const auto [place, added] = connections_.try_emplace(key, static_cast<std::uint32_t>(out_.connections.size()));
      if (added) {
        out_.connections.push_back({.from = kNoThread,
                                    .to = kNoThread,
                                    .offset = offset,
                                    .places = (from_class + offset) / out_.classes % out_.places()});
      }
      ProgramConnection& connection = out_.connections[place->second];
      (sends ? connection.from : connection.to) = thread;
      connection_of.push_back(place->second);
    }
    for (const Step& step : channel.steps) {
      const std::uint32_t operands = step.receive_count + (step.source.space != Space::kNone ? 1u : 0u);
      const bool only_received = step.send_count == 0 && step.source.space == Space::kNone;
      out_.steps.push_back(
          {.list_begin = static_cast<std::uint32_t>(out_.lists.size()),
           .receives = step.receive_count,
           .sends = step.send_count,
           .operands = static_cast<std::uint16_t>(operands),
           .copies = step.sink.space != Space::kNone || only_received ? std::uint8_t{1} : std::uint8_t{0},
           .run = step.run});
      for (const std::uint16_t port : channel.receives(step)) out_.lists.push_back(connection_of[port]);
      for (const std::uint16_t port : channel.sends(step)) {
        out_.lists.push_back(connection_of[port]);
        ++out_.connections[connection_of[port]].per_tile;
        out_.connections[connection_of[port]].chunks_per_tile += step.run;
        if (generator_.shape.longest_run == 1) continue;
        out_.runs.resize(out_.connections.size());
        out_.runs[connection_of[port]].push_back(step.run);
      }
    }
  }

  template <class MarkOf>
  void add_waits(const Channel& channel, std::uint64_t first_step, MarkOf mark_of) {
    for (std::size_t i = 0; i < channel.after.size();) {
      ProgramStep& step = out_.steps[first_step + channel.after[i].step];
      step.wait_begin = static_cast<std::uint32_t>(out_.waits.size());
      for (const std::uint32_t number = channel.after[i].step;
           i < channel.after.size() && channel.after[i].step == number; ++i) {
        out_.waits.push_back({.mark = mark_of(channel.after[i]), .tiles_before = channel.after[i].tiles_before});
        ++step.waits;
      }
    }
  }

  const Generator& generator_;
  const CheckFirstRank& check_first_;
  Programs out_;
  // Maps (class of the sender, offset, lane) to an index into Programs::connections.
  std::unordered_map<std::uint64_t, std::uint32_t> connections_;
};

}  // namespace

std::uint64_t Programs::messages_of_tile() const {
  std::uint64_t messages = 0;
  for (const ProgramConnection& each : connections) messages += each.per_tile;
  return messages * places();
}

Result<Programs> make_programs(const Generator& generator, const CheckFirstRank& check_first) {
  return Writer(generator, check_first).write();
}

}  // namespace tutti
