// Group: collects collectives, sends and receives of one or several communicators, and submits them together.
#include "tutti/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "communicator/point_to_point.h"
#include "communicator/work.h"
#include "engine/arguments.h"

namespace tutti {
namespace detail {
namespace {

constexpr std::size_t kMostCalls = 65536;

// The collectives of a group on one communicator run one after another. They are sorted by this key, so that all
// ranks run them in the same order, whatever the order of the add() calls on each rank. Only calls with equal keys keep
// the order of their add() calls.
auto sort_key(const CallTag& tag) {
  return std::tuple(tag.kind, tag.root, tag.count, tag.type, tag.op, tag.algorithm, tag.digest);
}

// Returns `all`, the options of the group's sends and receives on one communicator so far, together with the options of
// one more. The exchange gets the longest of their timeouts; a call without a timeout of its own has `default_timeout`.
Result<CallOptions> merged_options(CallOptions all, const CallOptions& one, std::chrono::milliseconds default_timeout) {
  if (one.timeout.count() < 0) return invalid_argument(fmt::format("timeout {} ms is negative", one.timeout.count()));
  if (one.uniform || one.checksum) return only_blocking();
  if (one.stream && all.stream && *one.stream != *all.stream) {
    return invalid_argument(
        "sends and receives of one group on one communicator must use one stream: pass the same one for all");
  }
  if (one.stream) all.stream = one.stream;
  if (all.label == 0) all.label = one.label;  // the recording has one entry for all
  all.timeout = std::max(all.timeout, one.timeout.count() > 0 ? one.timeout : default_timeout);
  return all;
}

}  // namespace

class GroupImpl {
 public:
  ~GroupImpl() { forget(); }

  Status add(Communicator& communicator, const CollectiveCall& call, const CallOptions& options);
  Status transfer(Direction direction, Communicator& communicator, const void* data, std::size_t count, DataType type,
                  std::int32_t peer, const CallOptions& options);
  Result<std::vector<WorkImpl::Part>> submit(Engine::Progress progress);
  static CommunicatorImpl& impl_of(Communicator& communicator) { return *communicator.impl_; }
  Result<Work> start();
  static bool has_ended(const Work& work) { return work.impl_ == nullptr || work.impl_->has_ended(); }
  void forget();
  void warn_and_forget();
  std::size_t calls() const { return calls_; }

 private:
  // The calls that the group holds for one communicator.
  struct Member {
    // the collectives, and later the operation of all sends and receives; shared with the engine's queue
    std::vector<std::shared_ptr<Operation>> operations;
    CheckedExchange exchange;
    CallOptions exchange_options;    // the longest timeout of all sends and receives, and their stream
    std::deque<Transfer> own_sends;  // sends to this rank itself that have no matching receive yet
    std::deque<Transfer> own_receives;
    std::thread::id thread = std::this_thread::get_id();  // the thread that added the first call
  };
  Result<Member*> member(CommunicatorImpl& communicator);
  Result<Member*> exchange_member(CommunicatorImpl& communicator, const CallOptions& options);
  static Status match_own(Member& member);
  static Status prepare_member(CommunicatorImpl& communicator, Member& member);
  bool uses_devices() const;
  static Status submit_member(CommunicatorImpl& communicator, Member& member, Engine::Progress progress,
                              std::vector<WorkImpl::Part>& parts);

  // All ranks must submit the calls of several communicators in the same order: if the calls use one stream, each waits
  // for the one before it, and ranks with different orders would wait for each other. So the order is that of the
  // communicators' ids (Membership::id), which are the same on all ranks.
  struct SameOrder {
    bool operator()(const CommunicatorImpl* a, const CommunicatorImpl* b) const {
      const Membership& first = a->membership();
      const Membership& second = b->membership();
      return std::tie(first.id, first.rank, a) < std::tie(second.id, second.rank, b);
    }
  };
  std::map<CommunicatorImpl*, Member, SameOrder> members_;
  std::size_t calls_ = 0;
};

Result<GroupImpl::Member*> GroupImpl::member(CommunicatorImpl& communicator) {
  if (calls_ >= kMostCalls) return invalid_argument(fmt::format("a group holds at most {} calls", kMostCalls));
  const auto found = members_.find(&communicator);
  if (found != members_.end()) return &found->second;
  // The member is inserted before open() is called, because forget() later calls close() for exactly those
  // communicators that are members. If the insertion threw after open(), the group would stay open for ever.
  Member& made = members_[&communicator];
  bool opened = false;
  try {
    opened = communicator.groups().open(made.thread);
  } catch (...) {
    members_.erase(&communicator);
    throw;
  }
  if (opened) return &made;
  members_.erase(&communicator);
  return invalid_argument(
      "another Group of this thread holds calls on this communicator: run() or drop that one first");
}

// Returns the member to which one more send or receive is to be added, after merging `options`, those of this send or
// receive, into the member's. If `options` are refused, the group is not opened on this communicator.
Result<GroupImpl::Member*> GroupImpl::exchange_member(CommunicatorImpl& communicator, const CallOptions& options) {
  const auto found = members_.find(&communicator);
  auto merged = merged_options(found != members_.end() ? found->second.exchange_options : CallOptions(), options,
                               communicator.operations().default_timeout());
  if (!merged) return merged.error();
  auto to = member(communicator);
  if (to) (*to)->exchange_options = *std::move(merged);
  return to;
}

Status GroupImpl::add(Communicator& communicator, const CollectiveCall& call, const CallOptions& options) {
  CommunicatorImpl& impl = *communicator.impl_;
  const std::scoped_lock lock(impl.submission_mutex());
  if (is_exchange(call)) {
    auto checked = check_exchange(call, options, impl.membership().caller());
    if (!checked) return checked.error();
    auto to = exchange_member(impl, options);
    if (!to) return to.error();
    CheckedExchange& exchange = (*to)->exchange;
    exchange.transfers.reserve(exchange.transfers.size() + checked->transfers.size());
    exchange.own.reserve(exchange.own.size() + checked->own.size());
    exchange.transfers.insert(exchange.transfers.end(), checked->transfers.begin(), checked->transfers.end());
    exchange.own.insert(exchange.own.end(), checked->own.begin(), checked->own.end());
  } else {
    auto prepared = impl.operations().prepare(call, options);
    if (!prepared) return prepared.error();
    auto to = member(impl);
    if (!to) return to.error();
    (*to)->operations.push_back(std::move(*prepared));
  }
  ++calls_;
  return {};
}

Status GroupImpl::transfer(Direction direction, Communicator& communicator, const void* data, std::size_t count,
                           DataType type, std::int32_t peer, const CallOptions& options) {
  CommunicatorImpl& impl = *communicator.impl_;
  auto checked = check_transfer(direction, data, count, type, peer, impl.membership().caller());
  if (!checked) return checked.error();
  const std::scoped_lock lock(impl.submission_mutex());
  auto to = exchange_member(impl, options);
  if (!to) return to.error();
  if (checked->peer == impl.membership().rank) {
    auto& waiting = direction == Direction::kSend ? (*to)->own_sends : (*to)->own_receives;
    waiting.push_back(*checked);
    if (const Status matched = match_own(**to); !matched.ok()) {
      waiting.pop_back();
      return matched;
    }
  } else {
    (*to)->exchange.transfers.push_back(*checked);
  }
  ++calls_;
  return {};
}

// Matches the k-th send to this rank itself with the k-th receive from it.
Status GroupImpl::match_own(Member& member) {
  while (!member.own_sends.empty() && !member.own_receives.empty()) {
    const Transfer& send = member.own_sends.front();
    const Transfer& receive = member.own_receives.front();
    if (send.tag.count != receive.tag.count || send.tag.type != receive.tag.type) {
      const Error error = invalid_argument(fmt::format("a send of {} {} to this rank itself meets a receive of {} {}",
                                                       send.tag.count, to_string(DataType{send.tag.type}),
                                                       receive.tag.count, to_string(DataType{receive.tag.type})));
      return error;
    }
    member.exchange.own.push_back({.from = send.data, .to = receive.data, .bytes = send.bytes});
    member.own_sends.pop_front();
    member.own_receives.pop_front();
  }
  return {};
}

// Sorts the collectives of one communicator, and makes the operation of its sends and receives.
Status GroupImpl::prepare_member(CommunicatorImpl& communicator, Member& member) {
  const std::scoped_lock lock(communicator.submission_mutex());
  std::vector<std::shared_ptr<Operation>>& operations = member.operations;
  std::stable_sort(operations.begin(), operations.end(),
                   [](const auto& a, const auto& b) { return sort_key(a->call.tag) < sort_key(b->call.tag); });
  if (member.exchange.transfers.empty() && member.exchange.own.empty()) return {};
  auto exchange = communicator.operations().prepare_exchange(std::move(member.exchange), member.exchange_options);
  if (!exchange) return exchange.error();
  operations.push_back(std::move(*exchange));
  return {};
}

// Whether some operation is on device memory.
bool GroupImpl::uses_devices() const {
  return std::ranges::any_of(members_, [](const auto& entry) {
    return std::ranges::any_of(entry.second.operations,
                               [](const auto& operation) { return operation->start_condition != nullptr; });
  });
}

// Submits the operations of one communicator and appends those that were submitted to `parts`. If an operation is
// refused, the others are submitted nevertheless.
Status GroupImpl::submit_member(CommunicatorImpl& communicator, Member& member, Engine::Progress progress,
                                std::vector<WorkImpl::Part>& parts) {
  Status first;
  const std::scoped_lock lock(communicator.submission_mutex());
  for (const std::shared_ptr<Operation>& operation : member.operations) {
    Status submitted = communicator.submit(operation, progress);
    if (submitted.ok()) WorkImpl::add(communicator.engine(), operation, parts);
    if (!submitted.ok() && first.ok()) first = std::move(submitted);
  }
  return first;
}

Result<std::vector<WorkImpl::Part>> GroupImpl::submit(Engine::Progress progress) {
  for (auto& [communicator, member] : members_) {
    if (member.own_sends.empty() && member.own_receives.empty()) continue;
    const char* what = member.own_sends.empty() ? "receive from" : "send to";
    return invalid_argument(fmt::format("a {} this rank itself ({}) has no counterpart in the group", what,
                                        communicator->membership().rank));
  }
  std::size_t all_operations = 0;
  for (auto& [communicator, member] : members_) {
    std::size_t needed_operations = 1;  // 1 for the operation that holds all sends and receives
    for (const auto& operation : member.operations) needed_operations += 1 + operation->rest.size();
    if (needed_operations > communicator->engine().capacity()) {
      return invalid_argument(
          fmt::format("{} collectives are more than the communicator of rank {} takes at the moment: "
                      "wait for some first, or make the group smaller",
                      member.operations.size(), communicator->membership().rank));
    }
    all_operations += needed_operations;
  }
  std::vector<WorkImpl::Part> parts;
  // reserved now, because an allocation must not fail once an operation uses the caller's buffers
  parts.reserve(all_operations);
  std::vector<CommunicatorImpl*> owners;  // the communicator of each part
  owners.reserve(all_operations);
  std::optional<Error> refused;
  for (auto& [communicator, member] : members_) {
    CommunicatorImpl& impl = *communicator;
    Member& calls = member;
    const Status prepared = impl.guarded([&] { return prepare_member(impl, calls); });
    if (!prepared.ok() && !refused) refused = copy_of(prepared.error());
  }
  // settle() may wait for other ranks, which may wait for operations of this group on host memory. So these operations
  // must make progress in the background.
  if (uses_devices()) progress = Engine::Progress::kInBackground;
  for (auto& [communicator, member] : members_) {
    CommunicatorImpl& impl = *communicator;
    Member& calls = member;
    const Status submitted = impl.guarded([&] { return submit_member(impl, calls, progress, parts); });
    if (!submitted.ok() && !refused) refused = copy_of(submitted.error());
    owners.resize(parts.size(), &impl);
  }
  // settle() is called only now, after all calls were submitted, because it may wait for the calls of other ranks in
  // this Group.
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const Status settled = owners[part]->guarded([&] { return owners[part]->settle(*parts[part].operation); });
    if (!settled.ok() && !refused) refused = copy_of(settled.error());
  }
  if (!refused) return parts;
  // The operations that did start use the caller's buffers until they have ended.
  WorkImpl(std::move(parts)).wait().ok();
  return *std::move(refused);
}

// The Work is made before the operations are submitted, because an allocation must not fail once the operations use the
// caller's buffers.
Result<Work> GroupImpl::start() {
  const auto shared = std::make_shared<WorkImpl>(std::vector<WorkImpl::Part>());  // Work requires a shared_ptr
  Work work(shared);
  auto parts = submit(Engine::Progress::kInBackground);
  if (!parts) return std::move(parts).error();
  shared->set_parts(std::move(parts).value());
  return work;
}

void GroupImpl::warn_and_forget() {
  members_.begin()->first->environment().log.write(
      LogLevel::kWarn, "a Group with {} calls was destroyed before run(): these calls are not made", calls_);
  forget();
}

void GroupImpl::forget() {
  for (auto& [communicator, member] : members_) {
    const std::scoped_lock lock(communicator->submission_mutex());
    communicator->groups().close(member.thread);
  }
  members_.clear();
  calls_ = 0;
}

bool has_ended(const Work& work) { return GroupImpl::has_ended(work); }

}  // namespace detail

Group::Group() : impl_(std::make_unique<detail::GroupImpl>()) {}

Group::~Group() {
  if (impl_->calls() > 0) impl_->warn_and_forget();
}

Status Group::add(Communicator& communicator, const CollectiveCall& call, const CallOptions& options) {
  return guarded("Group::add", [&] { return impl_->add(communicator, call, options); });
}

Status Group::send(Communicator& communicator, const void* data, std::size_t count, DataType type, std::int32_t peer,
                   const CallOptions& options) {
  return guarded("Group::send",
                 [&] { return impl_->transfer(Direction::kSend, communicator, data, count, type, peer, options); });
}

Status Group::receive(Communicator& communicator, void* data, std::size_t count, DataType type, std::int32_t peer,
                      const CallOptions& options) {
  return guarded("Group::receive",
                 [&] { return impl_->transfer(Direction::kReceive, communicator, data, count, type, peer, options); });
}

Status Group::run() {
  auto parts = guarded("Group::run", [&] { return impl_->submit(Engine::Progress::kByCaller); });
  impl_->forget();
  if (!parts) return std::move(parts).error();
  std::erase_if(*parts, [](const auto& part) { return part.operation->start_condition != nullptr; });
  detail::WorkImpl work(std::move(parts).value());
  return guarded("Group::run", [&] { return work.wait(); });
}

Result<Work> Group::start() {
  auto work = guarded("Group::start", [&] { return impl_->start(); });
  impl_->forget();
  return work;
}

Result<Work> start_send(Communicator& communicator, const void* data, std::size_t count, DataType type,
                        std::int32_t peer, const CallOptions& options) {
  detail::CommunicatorImpl& impl = detail::GroupImpl::impl_of(communicator);
  return impl.guarded([&] { return detail::start_transfer(impl, Direction::kSend, data, count, type, peer, options); });
}

Result<Work> start_receive(Communicator& communicator, void* data, std::size_t count, DataType type, std::int32_t peer,
                           const CallOptions& options) {
  detail::CommunicatorImpl& impl = detail::GroupImpl::impl_of(communicator);
  return impl.guarded(
      [&] { return detail::start_transfer(impl, Direction::kReceive, data, count, type, peer, options); });
}

}  // namespace tutti
