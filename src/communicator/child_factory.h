// ChildFactory: makes new communicators from one communicator, the parent: split(), duplicate(), shrink() and grow().
// It owns the SurvivorRendezvous, through which the ranks of a shrink() communicate, and the mutex that orders its
// use. It owns no threads. Thread-safe.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "communicator/membership.h"
#include "engine/engine.h"
#include "membership/survivor_rendezvous.h"
#include "tutti/communicator.h"
#include "tutti/unique_id.h"

namespace tutti::detail {

class ChildFactory {
 public:
  using Child = std::unique_ptr<Communicator>;
  using Agree = std::function<Result<Agreement>(const AgreeOptions& options)>;

  // `parent` must outlive this object. The engine must exist during each call of the functions below, but need not
  // exist when this object is made or destroyed. `timeout`: the timeout of calls on the children that have none of
  // their own. `parent_round`: runs one set-up round in which all ranks of the parent take part. The rounds use the
  // parent's engine.
  ChildFactory(const Membership& parent, Engine& engine, std::chrono::milliseconds timeout, Gather parent_round)
      : parent_(parent), engine_(engine), timeout_(timeout), parent_round_(std::move(parent_round)) {}

  // `name`: the public function that was called, for error messages. All ranks of the parent take part in every
  // round, including those that join no child, so the rounds are ordinary collectives of the parent.
  Result<Child> split(std::int32_t colour, std::int32_t key, std::string_view name);
  // Makes a communicator of the same ranks with checksums and without uniform calls.
  Result<Child> with_checksums();
  // Only the remaining ranks take part. They communicate through a SurvivorRendezvous and do not use the engine of
  // the parent, which may be broken.
  Result<Child> shrink(std::span<const std::int32_t> excluded);
  // The surviving ranks find out by `agree` which ranks are left, and make a communicator of them.
  Result<Child> shrink_to_survivors(const Agree& agree);
  // Makes a communicator of the parent's ranks and of newcomers, which call create() with the same unique id.
  // `parent`: the public object of the parent.
  Result<Child> grow(Communicator& parent, std::int32_t size, const std::optional<UniqueId>& id);

 private:
  // A rank of a child. The ranks of a child are numbered in the order of their keys; those with equal keys, in the
  // order of their ranks in the parent.
  struct ChildRank {
    std::int32_t key = 0;
    std::uint32_t parent_rank = 0;
    std::uint64_t id = 0;  // the id that the child gets if this rank becomes its rank 0

    auto operator<=>(const ChildRank&) const = default;
  };

  // `job_context`: that of the child.
  Result<Child> split_into(std::int32_t colour, std::int32_t key, std::string_view name,
                           const std::shared_ptr<JobContext>& job_context);
  Result<Child> try_split(std::int32_t colour, std::int32_t key, const std::shared_ptr<JobContext>& job_context);
  Result<Child> try_shrink(std::span<const std::int32_t> excluded);
  Result<std::vector<std::uint32_t>> remaining_ranks(std::span<const std::int32_t> excluded) const;
  Result<Child> shrink_to(const std::vector<std::uint32_t>& present);
  Result<Child> shrink_to_one();
  Result<Child> shrink_by_rendezvous(const std::vector<std::uint32_t>& present);
  Result<Child> make_child(const std::vector<ChildRank>& chosen, const Gather& among,
                           const std::shared_ptr<JobContext>& job_context) const;
  static Error in_parent_ranks(const std::vector<ChildRank>& chosen, Error error,
                               const std::vector<Error>& round_errors);

  const Membership& parent_;
  Engine& engine_;
  const std::chrono::milliseconds timeout_;
  const Gather parent_round_;
  std::mutex mutex_;
  // Made by the first shrink() that leaves more than one rank. Guarded by mutex_.
  std::unique_ptr<SurvivorRendezvous> rendezvous_;
};

}  // namespace tutti::detail
