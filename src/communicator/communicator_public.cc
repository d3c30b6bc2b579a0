// Implements the public class Communicator, except for the collectives (collectives.cc) and the functions that create
// the first communicators of a job (create.cc). Each function passes its call to the implementation.
// Functions that return a Status or a Result turn exceptions into errors. The others cannot return an error; those
// that return a string may throw std::bad_alloc.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "communicator/machine_ranks.h"
#include "communicator/point_to_point.h"
#include "device/native/device_calls.h"
#include "tutti/communicator.h"

namespace tutti {
namespace {

Status refuse_in_group(detail::CommunicatorImpl& communicator) {
  const std::scoped_lock lock(communicator.submission_mutex());
  return communicator.groups().refuse();
}

}  // namespace

namespace detail {

std::uint64_t calls_on_device(const Communicator& communicator) {
  return CommunicatorImpl::of(communicator).devices().calls();
}

std::vector<std::int32_t> machine_ranks(const Communicator& communicator) {
  const std::vector<std::uint32_t>& nodes = CommunicatorImpl::of(communicator).environment().nodes;
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(communicator.nodes()), 0);
  for (const std::uint32_t node : nodes) ++ranks[node];
  if (nodes.empty()) ranks.front() = communicator.size();
  return ranks;
}

std::uint64_t communicator_id(const Communicator& communicator) {
  return CommunicatorImpl::of(communicator).membership().id;
}

}  // namespace detail

Communicator::Communicator(std::unique_ptr<detail::CommunicatorImpl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() {
  // The copy of a forked child has no threads, and must not send a close notification for the rank, which is still
  // alive in the parent. It is leaked; its resources are freed when the child exits.
  if (impl_ != nullptr && !impl_->own_process()) static_cast<void>(impl_.release());
}
std::int32_t Communicator::rank() const { return static_cast<std::int32_t>(impl_->membership().rank); }
std::int32_t Communicator::size() const { return static_cast<std::int32_t>(impl_->membership().ranks); }
std::int32_t Communicator::nodes() const {
  const std::vector<std::uint32_t>& nodes = impl_->environment().nodes;  // machines are numbered 0, 1, ...
  return nodes.empty() ? 1 : static_cast<std::int32_t>(*std::max_element(nodes.begin(), nodes.end())) + 1;
}
bool Communicator::runs_on_devices() const { return impl_->devices().runs_on_devices(); }
std::string Communicator::transport() const { return std::string(impl_->environment().transport->name()); }
Algorithm Communicator::auto_algorithm(CollectiveKind kind, std::size_t count, DataType type, bool on_device) const {
  Algorithm algorithm = Algorithm::kAuto;
  runs_through([&] {
    const std::scoped_lock lock(impl_->submission_mutex());
    algorithm = impl_->operations().auto_algorithm(kind, count, type, on_device);
  });
  return algorithm;
}
std::optional<double> Communicator::predicted_us(CollectiveKind kind, std::size_t count, DataType type,
                                                 Algorithm algorithm) const {
  std::optional<double> predicted;
  runs_through([&] {
    const std::scoped_lock lock(impl_->submission_mutex());
    predicted = impl_->operations().predicted_us(kind, count, type, algorithm);
  });
  return predicted;
}
Status Communicator::send(const void* data, std::size_t count, DataType type, std::int32_t peer,
                          const CallOptions& options) {
  return impl_->guarded([&] { return detail::transfer(*impl_, Direction::kSend, data, count, type, peer, options); });
}
Status Communicator::receive(void* data, std::size_t count, DataType type, std::int32_t peer,
                             const CallOptions& options) {
  return impl_->guarded(
      [&] { return detail::transfer(*impl_, Direction::kReceive, data, count, type, peer, options); });
}
Result<std::int32_t> Communicator::next_sender(const CallOptions& options) {
  return impl_->guarded([&] { return detail::next_sender(*impl_, options); });
}
Result<std::optional<std::int32_t>> Communicator::try_next_sender() {
  return impl_->guarded([&] { return detail::try_next_sender(*impl_); });
}
Result<Memory> Communicator::allocate(std::size_t bytes) {
  return guarded("allocate", [&] { return impl_->allocate(bytes); });
}
Result<Memory> Communicator::register_memory(void* data, std::size_t bytes) {
  return guarded("register_memory", [&] { return impl_->register_memory(data, bytes); });
}
Result<std::unique_ptr<Communicator>> Communicator::split(std::int32_t colour, std::int32_t key) {
  return impl_->guarded([&] { return impl_->children().split(colour, key, "split"); });
}
Result<std::unique_ptr<Communicator>> Communicator::duplicate() {
  return impl_->guarded([&] { return impl_->children().split(0, 0, "duplicate"); });
}
Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const std::int32_t> excluded) {
  return guarded("shrink", [&] { return impl_->children().shrink(excluded); });
}
Result<std::unique_ptr<Communicator>> Communicator::shrink() {
  return guarded("shrink", [&] {
    return impl_->children().shrink_to_survivors([&](const AgreeOptions& options) { return impl_->agree(options); });
  });
}
Result<std::unique_ptr<Communicator>> Communicator::grow(std::int32_t size, const std::optional<UniqueId>& id) {
  return guarded("grow", [&] { return impl_->children().grow(*this, size, id); });
}
Result<Agreement> Communicator::agree(const AgreeOptions& options) {
  return guarded("agree", [&] { return impl_->agree(options); });
}
Status Communicator::use_plan(const UserPlan& plan, const PlanUse& use) {
  return guarded("use_plan", [&] {
    const std::scoped_lock lock(impl_->submission_mutex());
    return impl_->operations().plans().use_plan(plan, use);
  });
}
Status Communicator::suspend() {
  return impl_->guarded([&]() -> Status {
    TUTTI_TRY(refuse_in_group(*impl_));
    return impl_->devices().suspend();
  });
}
Status Communicator::resume() {
  return impl_->guarded([&]() -> Status {
    TUTTI_TRY(refuse_in_group(*impl_));
    return impl_->devices().resume();
  });
}
std::uint64_t Communicator::device_memory_use() const { return impl_->devices().memory_use(); }
Status Communicator::async_status() {
  return guarded("async_status", [&] { return impl_->async_status(); });
}
Status Communicator::finalize() {
  return impl_->guarded([&] { return impl_->finalize(); });
}
void Communicator::abort() {
  static_cast<void>(impl_->guarded([&] { return impl_->abort(), Status(); }));
}

}  // namespace tutti
