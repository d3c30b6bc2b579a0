// Implements the public classes Work, Memory and Communicator. Each function passes its call to the implementation.
// Functions that return a Status or a Result turn exceptions into errors. The others cannot return an error; those
// that return a string may throw std::bad_alloc.
#include <utility>

#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "membership/consensus_participant.h"
#include "membership/survivor_rendezvous.h"
#include "tutti/communicator.h"

namespace tutti {

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;
Work::Work(std::shared_ptr<detail::WorkImpl> impl) : impl_(std::move(impl)) {}
Status Work::wait() {
  return guarded("Work::wait", [&] { return impl_ == nullptr ? Status() : impl_->wait(); });
}
bool Work::test() { return impl_ == nullptr || impl_->test(); }

Memory::Memory() = default;
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
Memory::~Memory() = default;
Memory::Memory(std::unique_ptr<detail::MemoryImpl> impl) : impl_(std::move(impl)) {}
std::byte* Memory::data() const { return impl_ == nullptr ? nullptr : impl_->data(); }
std::size_t Memory::size() const { return impl_ == nullptr ? 0 : impl_->size(); }

Communicator::Communicator(std::unique_ptr<detail::CommunicatorImpl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() {
  // The copy of a forked child has no threads, and must not send a close notification for the rank, which is still
  // alive in the parent. It is leaked; its resources are freed when the child exits.
  if (impl_ != nullptr && !impl_->own_process()) static_cast<void>(impl_.release());
}
std::int32_t Communicator::rank() const { return static_cast<std::int32_t>(impl_->rank()); }
std::int32_t Communicator::size() const { return static_cast<std::int32_t>(impl_->ranks()); }
std::int32_t Communicator::nodes() const { return static_cast<std::int32_t>(impl_->nodes()); }
bool Communicator::runs_on_devices() const { return impl_->runs_on_devices(); }
std::string Communicator::transport() const { return impl_->transport_name(); }
Algorithm Communicator::auto_algorithm(CollectiveKind kind, std::size_t count, DataType type) const {
  Algorithm algorithm = Algorithm::kAuto;
  runs_through([&] { algorithm = impl_->auto_algorithm(kind, count, type); });
  return algorithm;
}
std::optional<double> Communicator::predicted_us(CollectiveKind kind, std::size_t count, DataType type,
                                                 Algorithm algorithm) const {
  std::optional<double> predicted;
  runs_through([&] { predicted = impl_->predicted_us(kind, count, type, algorithm); });
  return predicted;
}
Status Communicator::run(const CollectiveCall& call, const CallOptions& options) {
  return impl_->guarded([&] { return impl_->run(call, options); });
}
Result<Work> Communicator::start(const CollectiveCall& call, const CallOptions& options) {
  return impl_->guarded([&] { return impl_->start(call, options); });
}
Status Communicator::send(const void* data, std::size_t count, DataType type, std::int32_t peer,
                          const CallOptions& options) {
  return impl_->guarded([&] { return impl_->transfer(Direction::kSend, data, count, type, peer, options); });
}
Status Communicator::receive(void* data, std::size_t count, DataType type, std::int32_t peer,
                             const CallOptions& options) {
  return impl_->guarded([&] { return impl_->transfer(Direction::kReceive, data, count, type, peer, options); });
}
Result<std::int32_t> Communicator::next_sender(const CallOptions& options) {
  return impl_->guarded([&] { return impl_->next_sender(options); });
}
Result<std::optional<std::int32_t>> Communicator::try_next_sender() {
  return impl_->guarded([&] { return impl_->try_next_sender(); });
}
Result<Memory> Communicator::allocate(std::size_t bytes) {
  return guarded("allocate", [&] { return impl_->allocate(bytes); });
}
Result<Memory> Communicator::register_memory(void* data, std::size_t bytes) {
  return guarded("register_memory", [&] { return impl_->register_memory(data, bytes); });
}
Result<std::unique_ptr<Communicator>> Communicator::split(std::int32_t colour, std::int32_t key) {
  return impl_->guarded([&] { return impl_->split(colour, key, "split"); });
}
Result<std::unique_ptr<Communicator>> Communicator::duplicate() {
  return impl_->guarded([&] { return impl_->split(0, 0, "duplicate"); });
}
Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const std::int32_t> excluded) {
  return guarded("shrink", [&] { return impl_->shrink(excluded); });
}
Result<std::unique_ptr<Communicator>> Communicator::shrink() {
  return guarded("shrink", [&] { return impl_->shrink_to_survivors(); });
}
Result<std::unique_ptr<Communicator>> Communicator::grow(std::int32_t size, const std::optional<UniqueId>& id) {
  return guarded("grow", [&] { return impl_->grow(*this, size, id); });
}
Result<Agreement> Communicator::agree(const AgreeOptions& options) {
  return guarded("agree", [&] { return impl_->agree(options); });
}
Status Communicator::use_plan(const UserPlan& plan, const PlanUse& use) {
  return guarded("use_plan", [&] { return impl_->use_plan(plan, use); });
}
Status Communicator::suspend() {
  return impl_->guarded([&] { return impl_->suspend(); });
}
Status Communicator::resume() {
  return impl_->guarded([&] { return impl_->resume(); });
}
std::uint64_t Communicator::device_memory_use() const { return impl_->device_memory_use(); }
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
