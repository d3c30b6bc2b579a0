// StagingPool: blocks, events and tickets, and their end.
#include "device/staged/staging_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/exceptions.h"
#include "device/leak_until_exit.h"
#include "device/staged/staging.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kLeastBlock = 64 * 1024;
constexpr std::chrono::milliseconds kLookEvery{5};  // interval at which close() looks for lost contexts

}  // namespace

StagingPool::StagingPool(const cuda::Driver& driver, Transport& transport) : driver_(driver), transport_(transport) {}

StagingPool::~StagingPool() { close(std::chrono::milliseconds(0)); }

Result<StagingPool::Block> StagingPool::take(std::size_t bytes, int device) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kLeastBlock));
  const auto size_class = static_cast<std::size_t>(std::countr_zero(size));
  {
    const std::scoped_lock lock(mutex_);
    std::vector<Block>& free = resources_.free[size_class];
    if (!free.empty()) {
      Block block = std::move(free.back());
      free.pop_back();
      return block;
    }
  }
  auto window = transport_.allocate_window(size);
  if (!window) return window.error();
  if (!resources_.context) {
    auto context = cuda::PrimaryContext::retain(driver_, device);
    if (!context) return context.error();
    resources_.context.emplace(std::move(*context));
  }
  auto scope = cuda::ContextScope::enter(driver_, resources_.context->context());
  if (!scope) return scope.error();
  auto pin = cuda::RegisteredMemory::add(driver_, std::span((*window)->data(), size));
  if (!pin) return pin.error();
  Block block{.window = std::move(*window),
              .pin = std::make_unique<cuda::RegisteredMemory>(std::move(*pin)),
              .size_class = size_class};
  const std::scoped_lock lock(mutex_);
  resources_.free[size_class].reserve(resources_.blocks + 1);
  resources_.retired.reserve(resources_.blocks + 1);
  ++resources_.blocks;
  return block;
}

void StagingPool::give_back(Block block) {
  if (block.window == nullptr) return;
  const std::scoped_lock lock(mutex_);
  if (!closed_) return resources_.free[block.size_class].push_back(std::move(block));
  leak_until_exit(std::move(block));  // the window's transport may already be destroyed
}

void StagingPool::retire(Block block) {
  if (block.window == nullptr) return;
  const std::scoped_lock lock(mutex_);
  if (!closed_) return resources_.retired.push_back(std::move(block));
  leak_until_exit(std::move(block));
}

// The stream is made with CU_STREAM_NON_BLOCKING (the default of StreamOptions), so it does not implicitly wait for
// the caller's default stream.
Result<cuda::CUstream> StagingPool::stream_for(cuda::CUcontext context) {
  const std::scoped_lock lock(mutex_);
  const auto found = resources_.streams.find(context);
  if (found != resources_.streams.end()) return found->second.handle();
  auto made = cuda::Stream::create(driver_);
  if (!made) return made.error();
  return resources_.streams.emplace(context, std::move(*made)).first->second.handle();
}

Result<cuda::Event> StagingPool::take_event(cuda::CUcontext context) {
  {
    const std::scoped_lock lock(mutex_);
    std::vector<cuda::Event>& free = resources_.free_events[context];
    if (!free.empty()) {
      cuda::Event event = std::move(free.back());
      free.pop_back();
      return event;
    }
    free.reserve(resources_.events + 1);
    resources_.retired_events.reserve(resources_.events + 1);
    ++resources_.events;
  }
  return cuda::Event::create(driver_);
}

// May run in a host callback of a stream, which must not call the driver. So no event is destroyed here.
void StagingPool::give_back(cuda::CUcontext context, cuda::Event event) {
  const std::scoped_lock lock(mutex_);
  if (!closed_) return resources_.free_events[context].push_back(std::move(event));
  leak_until_exit(std::move(event));
}

void StagingPool::retire(cuda::Event event) {
  const std::scoped_lock lock(mutex_);
  if (!closed_) return resources_.retired_events.push_back(std::move(event));
  leak_until_exit(std::move(event));
}

StagingPool::Ticket& StagingPool::issue(std::shared_ptr<StagedCall> call, std::size_t part, Use use) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = ++last_number_;
  const bool lasting = use == Use::kInEachReplay;
  auto ticket = std::make_unique<Ticket>(
      Ticket{.pool = shared_from_this(), .number = number, .part = part, .lasting = lasting, .call = std::move(call)});
  if (lasting) return *lasting_.emplace_back(std::move(ticket));
  return *out_.emplace(number, std::move(ticket)).first->second;
}

std::shared_ptr<StagedCall> StagingPool::use(Ticket& ticket) {
  if (ticket.lasting) return ticket.call;
  const std::scoped_lock lock(ticket.pool->mutex_);
  return std::exchange(ticket.call, nullptr);
}

void StagingPool::spent(Ticket& ticket) {
  if (ticket.lasting) return;
  // a copy, because the ticket, which end() destroys, may be the last owner of the pool
  const std::shared_ptr<StagingPool> pool = ticket.pool;
  pool->end(ticket.number);
}

void StagingPool::not_handed_out(Ticket& ticket) {
  if (!ticket.lasting) {
    use(ticket).reset();
    return end(ticket.number);
  }
  std::unique_ptr<Ticket> refused;  // declared before the lock, so that the ticket is destroyed after unlocking
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::find_if(lasting_.begin(), lasting_.end(), [&](const auto& one) { return one.get() == &ticket; });
  refused = std::move(*found);
  lasting_.erase(found);
}

void StagingPool::end(std::uint64_t number) {
  std::unique_ptr<Ticket> ended;  // declared before the lock, so that the ticket is destroyed after unlocking
  const std::scoped_lock lock(mutex_);
  const auto found = out_.find(number);
  ended = std::move(found->second);
  out_.erase(found);
  if (out_.empty()) none_out_.notify_all();
}

// The ticket is not destroyed but leaked, because a callback that began before the context was lost may be about to
// use it. That callback then finds no call in the ticket, and does nothing.
bool StagingPool::cut(std::uint64_t number) {
  std::shared_ptr<StagedCall> call;  // declared before the lock, so that the call is released after unlocking
  const std::scoped_lock lock(mutex_);
  const auto found = out_.find(number);
  if (found == out_.end() || found->second->call == nullptr) return false;
  call = std::move(found->second->call);
  leak_until_exit(std::move(found->second));
  out_.erase(found);
  if (out_.empty()) none_out_.notify_all();
  return true;
}

bool StagingPool::has_graphs() {
  const std::scoped_lock lock(mutex_);
  return !lasting_.empty();
}

void StagingPool::ring() {
  const std::scoped_lock lock(mutex_);
  if (!closed_) transport_.doorbell().ring();
}

void StagingPool::look() {
  std::vector<std::shared_ptr<StagedCall>> calls;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [number, ticket] : out_) {
      if (ticket->call != nullptr && (calls.empty() || calls.back() != ticket->call)) calls.push_back(ticket->call);
    }
    for (const auto& ticket : lasting_) {
      if (calls.empty() || calls.back() != ticket->call) calls.push_back(ticket->call);
    }
  }
  for (const std::shared_ptr<StagedCall>& call : calls) call->look();
}

void StagingPool::report(const Error& error) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!error_) error_ = copy_of(error);
}

std::optional<Error> StagingPool::take_error() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(error_, std::nullopt);
}

bool StagingPool::close(std::chrono::milliseconds limit) {
  const auto rounds = limit / kLookEvery;
  std::unique_lock lock(mutex_);
  for (std::int64_t round = 0; round < rounds && !out_.empty(); ++round) {
    lock.unlock();
    runs_through([this] { look(); });  // cancels the tickets in lost contexts, because their callbacks never run
    lock.lock();
    none_out_.wait_for(lock, kLookEvery, [this] { return out_.empty(); });
  }
  const bool all_back = out_.empty();
  closed_ = true;
  std::vector<std::unique_ptr<Ticket>> graphs = std::exchange(lasting_, {});
  Resources resources = std::exchange(resources_, {});
  // Unlocked, because freeing resources, below, may wait for streams, and a stream may wait for its callback, which
  // locks the mutex.
  lock.unlock();
  for (const std::unique_ptr<Ticket>& ticket : graphs) ticket->call->forget();
  if (!all_back) {
    // Destroying the resources would unpin memory, and unpinning waits for all work of the device.
    leak_until_exit(std::move(resources));
  } else if (!graphs.empty() && resources.context) {
    // keeps the context alive, because blocks that graphs use are pinned in it
    leak_until_exit(*std::move(resources.context));
  }
  if (!graphs.empty()) leak_until_exit(std::move(graphs));
  return all_back;
}

}  // namespace tutti::detail
