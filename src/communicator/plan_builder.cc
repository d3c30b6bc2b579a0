// PlanDraft, and the public PlanBuilder, which forwards to it.
#include "communicator/plan_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/exceptions.h"
#include "communicator/user_plan.h"
#include "plan/collective.h"

namespace tutti {
namespace detail {

PlanDraft::PlanDraft(PlanDescription description) : description_(std::move(description)) {
  check_description();
  if (!mistake_) ranks_.resize(description_.ranks);
}

void PlanDraft::fail(std::string what) {
  if (!mistake_) mistake_ = {.code = ErrorCode::kInvalidArgument, .message = std::move(what)};
}

void PlanDraft::fail_at(StepPosition position, const std::string& what) {
  if (mistake_) return;
  fail(fmt::format("rank {} channel {} step {}: {}", position.rank, position.channel, position.step, what));
  mistake_->rank = static_cast<std::int32_t>(position.rank);
}

void PlanDraft::check_description() {
  const PlanDescription& d = description_;
  const auto in_range = [&](const char* what, std::uint64_t had, std::uint64_t least, std::uint64_t most) {
    if (had < least || had > most) fail(fmt::format("the plan's {} {} is outside {}..{}", what, had, least, most));
  };
  if (!is_label(d.name, PlanLimits::kNameBytes) || !is_label(d.comment, PlanLimits::kCommentBytes)) {
    fail(
        fmt::format("the plan's name and comment are UTF-8 without control or direction characters, at most {} and {} "
                    "bytes long",
                    PlanLimits::kNameBytes, PlanLimits::kCommentBytes));
  }
  if (!has_plan(d.collective)) {
    fail("the plan's collective is not one that has plans");
  }
  in_range("number of ranks", d.ranks, 1, PlanLimits::kRanks);
  in_range("root", d.root, 0, has_root(d.collective) ? std::max(d.ranks, 1u) - 1 : 0);
  // The upper limit depends on other fields; check_limits() checks it.
  in_range("number of chunks", d.chunks, 1, ~std::uint32_t{0});
  in_range("number of slots", d.slots, 1, PlanLimits::kSlots);
  in_range("number of lanes", d.lanes, 1, PlanLimits::kLanes);
  in_range("order", static_cast<std::uint64_t>(d.order), 0, static_cast<std::uint64_t>(Order::kCyclic));
}

std::uint32_t PlanDraft::add_channel(std::uint32_t rank) {
  if (mistake_) return 0;
  if (rank >= ranks_.size()) {
    fail(fmt::format("cannot add a channel to rank {}: the plan has {} ranks", rank, ranks_.size()));
    return 0;
  }
  const auto channel = static_cast<std::uint32_t>(ranks_[rank].size());
  if (channel == PlanLimits::kChannels) {
    fail(fmt::format("rank {} has more than {} channels", rank, PlanLimits::kChannels));
    return 0;
  }
  ranks_[rank].emplace_back();
  return channel;
}

std::uint32_t PlanDraft::add_step(std::uint32_t rank, std::uint32_t channel) {
  if (mistake_) return 0;
  if (++steps_ > PlanLimits::kSteps) {
    fail(fmt::format("the plan has more than {} steps", PlanLimits::kSteps));
    return 0;
  }
  ChannelDraft& draft = ranks_[rank][channel];
  const std::uint32_t step = draft.builder.steps();
  draft.last.emplace(draft.builder.step());
  draft.operands = draft.sends = 0;
  draft.local = draft.store = false;
  return step;
}

PlanDraft::ChannelDraft* PlanDraft::open(StepPosition position) {
  if (mistake_) return nullptr;
  ChannelDraft& channel = ranks_[position.rank][position.channel];
  if (position.step + 1 == channel.builder.steps()) return &channel;
  fail_at(position, fmt::format("is closed: step {} has begun", channel.builder.steps() - 1));
  return nullptr;
}

bool PlanDraft::check_end(StepPosition position, std::uint32_t peer, std::uint32_t lane) {
  if (peer >= description_.ranks) {
    fail_at(position, fmt::format("there is no rank {} among {}", peer, description_.ranks));
  } else if (peer == position.rank) {
    fail_at(position, "a rank has no connection to itself");
  } else if (lane >= description_.lanes) {
    fail_at(position, fmt::format("there is no lane {} among {}", lane, description_.lanes));
  } else if (++ends_ > 2 * std::uint64_t{PlanLimits::kMessages}) {
    fail_at(position, fmt::format("the plan has more than {} messages", PlanLimits::kMessages));
  }
  return !mistake_;
}

void PlanDraft::receive(StepPosition position, std::uint32_t peer, std::uint32_t lane) {
  ChannelDraft* channel = open(position);
  if (channel == nullptr || !check_end(position, peer, lane)) return;
  if (channel->store || channel->sends > 0)
    return fail_at(position, "operands must be added before the store and the sends");
  if (++channel->operands > PlanLimits::kOperands) {
    return fail_at(position, fmt::format("has more than {} operands", PlanLimits::kOperands));
  }
  channel->last->receive(channel->builder.receive_from(peer, static_cast<std::uint16_t>(lane)));
}

void PlanDraft::local(StepPosition position, Space space, std::uint32_t chunk) {
  ChannelDraft* channel = open(position);
  if (channel == nullptr) return;
  if (space != Space::kInput && space != Space::kOutput && space != Space::kScratch) {
    return fail_at(position, "a local operand is a chunk of input, output or scratch");
  }
  if (channel->store || channel->sends > 0)
    return fail_at(position, "operands must be added before the store and the sends");
  if (channel->local) return fail_at(position, "has a second local operand: at most one");
  if (++channel->operands > PlanLimits::kOperands) {
    return fail_at(position, fmt::format("has more than {} operands", PlanLimits::kOperands));
  }
  channel->local = true;
  channel->last->local(space, chunk);
}

void PlanDraft::store(StepPosition position, Space space, std::uint32_t chunk) {
  ChannelDraft* channel = open(position);
  if (channel == nullptr) return;
  if (space != Space::kOutput && space != Space::kScratch) {
    return fail_at(position, "stores to output or scratch only");
  }
  if (channel->store) return fail_at(position, "has a second store: at most one");
  channel->store = true;
  channel->last->store(space, chunk);
}

void PlanDraft::send(StepPosition position, std::uint32_t peer, std::uint32_t lane) {
  ChannelDraft* channel = open(position);
  if (channel == nullptr || !check_end(position, peer, lane)) return;
  if (++channel->sends > PlanLimits::kOperands) {
    return fail_at(position, fmt::format("has more than {} sends", PlanLimits::kOperands));
  }
  channel->last->send(channel->builder.send_to(peer, static_cast<std::uint16_t>(lane)));
}

void PlanDraft::completes(StepPosition position) {
  if (ChannelDraft* channel = open(position)) channel->last->completes();
}

void PlanDraft::run(StepPosition position, std::uint32_t chunks) {
  ChannelDraft* channel = open(position);
  if (channel == nullptr) return;
  if (chunks == 0) return fail_at(position, "has a run of 0 chunks");
  channel->last->run(chunks);
}

void PlanDraft::after(StepPosition position, std::uint32_t channel, std::uint32_t step, std::uint32_t tiles_before) {
  ChannelDraft* own = open(position);
  if (own == nullptr) return;
  if (channel >= PlanLimits::kChannels || step >= PlanLimits::kSteps) {
    return fail_at(position, fmt::format("there is no channel {} step {} to wait for", channel, step));
  }
  if (tiles_before > 1) return fail_at(position, fmt::format("tiles_before is {}, not 0 or 1", tiles_before));
  if (++waits_ > PlanLimits::kMessages) {
    return fail_at(position, fmt::format("the plan has more than {} waits", PlanLimits::kMessages));
  }
  own->builder.after(static_cast<std::uint16_t>(channel), step, static_cast<std::uint16_t>(tiles_before));
}

Result<UserPlan> PlanDraft::build() const {
  if (mistake_) return *mistake_;
  const PlanDescription& d = description_;
  PlanFile file{.plan = {.shape = {.collective = {.kind = d.collective, .ranks = d.ranks, .root = d.root},
                                   .algorithm = Algorithm::kUser,
                                   .chunks = d.chunks,
                                   .scratch_chunks = d.scratch_chunks,
                                   .slots = d.slots,
                                   .lanes = d.lanes,
                                   .order = d.order},
                         .ranks = {}},
                .name = d.name,
                .comment = d.comment,
                .says_windows_in_place = false};
  for (const std::deque<ChannelDraft>& channels : ranks_) {
    RankPlan& rank = file.plan.ranks.emplace_back();
    for (const ChannelDraft& channel : channels) {
      rank.channels.push_back(ChannelBuilder(channel.builder).build());
      for (const tutti::Step& step : rank.channels.back().steps) {
        file.plan.shape.longest_run = std::max(file.plan.shape.longest_run, step.run);
      }
    }
  }
  return UserPlanData::prove(std::move(file));
}

}  // namespace detail

PlanBuilder::Step& PlanBuilder::Step::receive(std::uint32_t peer, std::uint32_t lane) {
  draft_->receive({rank_, channel_, step_}, peer, lane);
  return *this;
}
PlanBuilder::Step& PlanBuilder::Step::local(Space space, std::uint32_t chunk) {
  draft_->local({rank_, channel_, step_}, space, chunk);
  return *this;
}
PlanBuilder::Step& PlanBuilder::Step::store(Space space, std::uint32_t chunk) {
  draft_->store({rank_, channel_, step_}, space, chunk);
  return *this;
}
PlanBuilder::Step& PlanBuilder::Step::send(std::uint32_t peer, std::uint32_t lane) {
  draft_->send({rank_, channel_, step_}, peer, lane);
  return *this;
}
PlanBuilder::Step& PlanBuilder::Step::completes() {
  draft_->completes({rank_, channel_, step_});
  return *this;
}
PlanBuilder::Step& PlanBuilder::Step::run(std::uint32_t chunks) {
  draft_->run({rank_, channel_, step_}, chunks);
  return *this;
}
PlanBuilder::Step& PlanBuilder::Step::after(std::uint32_t channel, std::uint32_t step, std::uint32_t tiles_before) {
  draft_->after({rank_, channel_, step_}, channel, step, tiles_before);
  return *this;
}

PlanBuilder::Step PlanBuilder::Channel::step() { return {*draft_, rank_, channel_, draft_->add_step(rank_, channel_)}; }

PlanBuilder::PlanBuilder(PlanDescription description)
    : draft_(std::make_unique<detail::PlanDraft>(std::move(description))) {}
PlanBuilder::PlanBuilder(PlanBuilder&&) noexcept = default;
PlanBuilder& PlanBuilder::operator=(PlanBuilder&&) noexcept = default;
PlanBuilder::~PlanBuilder() = default;
PlanBuilder::Channel PlanBuilder::channel(std::uint32_t rank) { return {*draft_, rank, draft_->add_channel(rank)}; }
Result<UserPlan> PlanBuilder::build() const {
  return guarded("PlanBuilder::build", [&] { return draft_->build(); });
}

}  // namespace tutti
