#include "communicator/devices/inner_communicators.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/mix_bits.h"
#include "communicator/communicator_impl.h"
#include "device/native/device_resources.h"
#include "device/rank_device.h"
#include "job/job_context.h"

namespace tutti::detail {
namespace {

// The contributions of ranks to a round of agreement.
constexpr std::string_view kAble = "1";
constexpr std::string_view kUnable = "0";

// The id of an inner communicator: the same on all its ranks, and, for all practical purposes, different for each
// `number`.
std::uint64_t inner_id(std::uint64_t outer, std::uint64_t number) {
  return mix_bits(outer + (number + 1) * 0x9e3779b97f4a7c15);
}

// Returns a function that runs a round of `all`, in which all of its ranks take part, and returns only the blobs of the
// ranks `some`. `all` must outlive the result.
Gather among_some(const Gather& all, const std::vector<std::uint32_t>& some) {
  return Gather(
      [&all, some](const std::string& blob) -> Result<std::vector<std::string>> {
        auto blobs = all(blob);
        if (!blobs) return blobs.error();
        std::vector<std::string> chosen;
        for (const std::uint32_t rank : some) chosen.push_back((*blobs)[rank]);
        return chosen;
      },
      all.has_failed());
}

}  // namespace

Error in_ranks_of(Error error, const std::vector<std::uint32_t>& ranks) {
  if (error.rank >= 0 && static_cast<std::size_t>(error.rank) < ranks.size())
    error.rank = static_cast<std::int32_t>(ranks[static_cast<std::size_t>(error.rank)]);
  return error;
}

bool can_run_parts(const DeviceSide& machine) {
  const std::shared_ptr<DeviceExecutor> executor = machine.executor();
  return executor != nullptr && executor->resources().settings().transfers;
}

bool needs_inner_rounds(const JobContext& job_context) {
  return job_context.devices && on_several_machines(job_context);
}

namespace {

// Makes the InnerCommunicators of one rank, in at most kInnerRounds rounds.
class InnerMaker {
 public:
  InnerMaker(const Membership& outer, const Environment& environment, std::chrono::milliseconds timeout,
             const Gather& among)
      : outer_(outer),
        environment_(environment),
        timeout_(timeout),
        among_(
            [this, &among](const std::string& blob) {
              auto blobs = among(blob);
              if (!blobs) round_errors_.push_back(blobs.error());
              return blobs;
            },
            among.has_failed()) {}

  Result<std::unique_ptr<InnerCommunicators>> make() {
    if (!find_ranks()) return std::unique_ptr<InnerCommunicators>();
    auto machine = make_inner(made_->machine_ranks, inner_id(outer_.id, environment_.nodes[outer_.rank]), true);
    const bool able = machine.ok() && can_run_parts((*machine)->devices()) && !shares_device();
    auto agreed = agree(machine.ok() ? Result<bool>(able) : in_outer_ranks(machine.error(), made_->machine_ranks));
    if (!agreed) return agreed.error();
    if (!*agreed) return std::unique_ptr<InnerCommunicators>();
    const std::uint64_t first_rail = outer_.ranks;  // machines have lower numbers
    auto rail = make_inner(made_->rail_ranks, inner_id(outer_.id, first_rail + (*machine)->membership().rank), false);
    agreed = agree(rail.ok() ? Result<bool>(true) : in_outer_ranks(rail.error(), made_->rail_ranks));
    if (!agreed) return agreed.error();
    made_->machine = *std::move(machine);
    made_->rail = *std::move(rail);
    return std::move(made_);
  }

 private:
  // Finds the ranks of this rank's machine, and those of its rail. Returns false if the machines have different numbers
  // of ranks, or one rank each, or if there is only one machine.
  bool find_ranks() {
    const std::vector<std::uint32_t>& nodes = environment_.nodes;  // machines are numbered 0, 1, ...
    if (nodes.empty()) return false;
    std::vector<std::vector<std::uint32_t>> machines(*std::ranges::max_element(nodes) + std::size_t{1});
    for (std::uint32_t rank = 0; rank < nodes.size(); ++rank) machines[nodes[rank]].push_back(rank);
    const std::size_t size = machines.front().size();
    if (size < 2 || std::ranges::any_of(machines, [&](const auto& ranks) { return ranks.size() != size; }))
      return false;
    made_->machine_ranks = machines[nodes[outer_.rank]];
    const auto me = std::ranges::find(made_->machine_ranks, outer_.rank) - made_->machine_ranks.begin();
    for (const auto& ranks : machines) made_->rail_ranks.push_back(ranks[static_cast<std::size_t>(me)]);
    return true;
  }

  // Makes an inner communicator of `ranks`. If `on_devices`, the GPUs carry out its calls, unless that is impossible.
  Result<std::unique_ptr<CommunicatorImpl>> make_inner(const std::vector<std::uint32_t>& ranks, std::uint64_t id,
                                                       bool on_devices) {
    const JobContext& job_context = *outer_.job_context;
    Membership inner{.ranks = static_cast<std::uint32_t>(ranks.size()), .job_context = outer_.job_context, .id = id};
    for (const std::uint32_t rank : ranks) {
      if (rank == outer_.rank) inner.rank = static_cast<std::uint32_t>(inner.members.size());
      inner.members.push_back(outer_.members[rank]);
    }
    const int device = job_context.device == nullptr ? ProcessRanks::kUnknownDevice : job_context.device->number();
    inner.process_ranks = ProcessRanks::join(id, inner.rank, device);
    const Gather gather = among_some(among_, ranks);
    auto environment = make_environment(inner.job_context, inner.members, inner.rank, id, gather);
    if (!environment) return environment.error();
    environment->choices = choices_of(job_context.tuning.get(), inner.ranks, environment->cores);
    std::unique_ptr<DeviceResources> resources;
    if (on_devices) {
      auto made = make_device_resources(job_context, inner.members, inner.rank, id, *environment, gather);
      if (!made) return made.error();
      resources = std::move(*made);
    }
    return std::make_unique<CommunicatorImpl>(std::move(inner), *std::move(environment), timeout_,
                                              std::move(resources));
  }

  // Returns `error`, an error of make_inner(), with a rank of the outer communicator. An error of a round names such a
  // rank already, and is returned unchanged.
  Error in_outer_ranks(Error error, const std::vector<std::uint32_t>& ranks) const {
    const bool of_a_round = std::ranges::find(round_errors_, error) != round_errors_.end();
    return of_a_round ? error : in_ranks_of(std::move(error), ranks);
  }

  // Whether another rank of this process has the same GPU. If so, the parts would have to wait for that rank. It can be
  // a rank of another machine, because TUTTI_NODE_ID can divide one machine into several.
  bool shares_device() const { return outer_.process_ranks->share_device(); }

  // A round of all ranks. Returns whether all of them are able to go on.
  Result<bool> agree(const Result<bool>& able) {
    const auto own = able.ok() ? Result<std::string>(std::string(*able ? kAble : kUnable)) : able.error();
    auto all = gather_or_fail(among_, own, outer_.rank);
    if (!all) return all.error();
    return std::ranges::all_of(*all, [](const std::string& one) { return one == kAble; });
  }

  const Membership& outer_;
  const Environment& environment_;
  const std::chrono::milliseconds timeout_;
  const Gather among_;
  std::vector<Error> round_errors_;  // the errors of all failed rounds
  std::unique_ptr<InnerCommunicators> made_ = std::make_unique<InnerCommunicators>();
};

}  // namespace

Result<std::unique_ptr<InnerCommunicators>> make_inner_communicators(const Membership& outer,
                                                                     const Environment& environment,
                                                                     std::chrono::milliseconds timeout,
                                                                     const Gather& among) {
  static_assert(kInnerRounds == 2 * kEnvironmentRounds + kDeviceRounds + 2);
  if (!needs_inner_rounds(*outer.job_context)) return std::unique_ptr<InnerCommunicators>();
  return InnerMaker(outer, environment, timeout, among).make();
}

}  // namespace tutti::detail
