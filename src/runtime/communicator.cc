#include "tutti/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "runtime/communicator_impl.h"
#include "transports/shm/mapping.h"

namespace tutti {
namespace detail {

constexpr std::size_t kMaxBytes = std::size_t{1} << 56;  // no process has more address space

namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

// Up to here every rank adds all inputs itself: one exchange of messages instead of two. Measured on two cores, see
// docs/results/.
constexpr std::uint64_t kOneShotBytes = 8 * 1024;
constexpr std::uint32_t kMaxDirectRanks = 256;  // beyond, every rank would have to read from too many

}  // namespace

Algorithm choose_algorithm(std::uint64_t bytes, std::uint32_t ranks) {
  if (ranks > kMaxDirectRanks) return bytes <= 64 * 1024 ? Algorithm::kDoubleTree : Algorithm::kRing;
  return bytes <= kOneShotBytes ? Algorithm::kOneShot : Algorithm::kTwoShot;
}

Status check_arguments(const void* input, const void* output, std::size_t count, DataType type, ReduceOp op,
                       const AllReduceOptions& options) {
  if (!is_valid(type)) return invalid(fmt::format("type {} is not one of DataType", static_cast<int>(type)));
  if (!is_valid(op)) return invalid(fmt::format("operation {} is not one of ReduceOp", static_cast<int>(op)));
  if (!is_valid(options.algorithm)) {
    return invalid(fmt::format("algorithm {} is not one of Algorithm", static_cast<int>(options.algorithm)));
  }
  if (options.timeout.count() < 0) return invalid(fmt::format("timeout {} ms is negative", options.timeout.count()));
  const std::size_t element_bytes = size_of(type);
  if (count > kMaxBytes / element_bytes) {
    return invalid(fmt::format("count {} of {} is more than any memory holds", count, to_string(type)));
  }
  if (count == 0) return {};
  if (input == nullptr) return invalid(fmt::format("input is null, but count is {}", count));
  if (output == nullptr) return invalid(fmt::format("output is null, but count is {}", count));
  const auto in = reinterpret_cast<std::uintptr_t>(input);
  const auto out = reinterpret_cast<std::uintptr_t>(output);
  if (in % element_bytes != 0 || out % element_bytes != 0) {
    return invalid(fmt::format("{} is not aligned to the {} bytes of a {}",
                               in % element_bytes != 0 ? "input" : "output", element_bytes, to_string(type)));
  }
  const std::size_t bytes = count * element_bytes;
  if (in != out && in < out + bytes && out < in + bytes) {
    return invalid("input and output overlap without being the same: pass one buffer twice, or two that are apart");
  }
  return {};
}

CommunicatorImpl::CommunicatorImpl(std::uint32_t rank, std::uint32_t ranks, World world,
                                   std::chrono::milliseconds timeout)
    : rank_(rank),
      ranks_(ranks),
      world_(std::move(world)),
      timeout_(timeout),
      connections_(*world_.transport),
      engine_(rank, ranks, world_, connections_) {}

std::unique_ptr<Communicator> CommunicatorImpl::wrap(std::unique_ptr<CommunicatorImpl> impl) {
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));  // private constructor
}

Result<const BoundPlan*> CommunicatorImpl::plan_for(Algorithm algorithm) {
  std::unique_ptr<BoundPlan>& plan = plans_.at(static_cast<std::size_t>(algorithm));
  if (plan == nullptr) {
    auto generator = find_generator({.kind = CollectiveKind::kAllReduce, .ranks = ranks_}, algorithm);
    if (!generator) return generator.error();
    TUTTI_TRY(world_.prover->prove(*generator));
    auto bound = bind(*generator, rank_, *world_.transport, connections_);
    if (!bound) return bound.error();
    plan = std::move(*bound);
  }
  return plan.get();
}

Result<std::shared_ptr<Operation>> CommunicatorImpl::submit(const void* input, void* output, std::size_t count,
                                                            DataType type, ReduceOp op, const AllReduceOptions& options,
                                                            Engine::Progress progress) {
  TUTTI_TRY(check_arguments(input, output, count, type, op, options));
  const std::uint64_t bytes = count * size_of(type);
  const Algorithm algorithm =
      options.algorithm == Algorithm::kAuto ? choose_algorithm(bytes, ranks_) : options.algorithm;
  const std::scoped_lock lock(mutex_);
  if (auto broken = engine_.broken()) return *broken;
  auto plan = plan_for(algorithm);
  if (!plan) return plan.error();
  auto operation = std::make_shared<Operation>();
  operation->plan = *plan;
  const std::chrono::milliseconds timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
  operation->timeout_ns = std::int64_t{std::min(timeout, kLongestTimeout).count()} * 1'000'000;
  operation->call = {.tag = {.sequence = 0,  // the engine gives it
                             .count = count,
                             .kind = static_cast<std::uint8_t>(CollectiveKind::kAllReduce),
                             .type = static_cast<std::uint8_t>(type),
                             .op = static_cast<std::uint8_t>(op),
                             .algorithm = static_cast<std::uint8_t>(algorithm),
                             .tile_bytes = static_cast<std::uint32_t>(world_.transport->slot_bytes())},
                     .type = type,
                     .op = op,
                     .scale = options.scale,
                     .ranks = ranks_,
                     .input = static_cast<const std::byte*>(input),
                     .output = static_cast<std::byte*>(output),
                     .input_window = world_.transport->find_window(input, bytes),
                     .output_window = world_.transport->find_window(output, bytes)};
  TUTTI_TRY(engine_.submit(operation, progress));
  return operation;
}

Status CommunicatorImpl::all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    const AllReduceOptions& options) {
  auto operation = submit(input, output, count, type, op, options, Engine::Progress::kByCaller);
  if (!operation) return operation.error();
  return engine_.wait(**operation);
}

Result<Work> CommunicatorImpl::all_reduce_async(const void* input, void* output, std::size_t count, DataType type,
                                                ReduceOp op, const AllReduceOptions& options) {
  auto operation = submit(input, output, count, type, op, options, Engine::Progress::kInBackground);
  if (!operation) return operation.error();
  return Work(std::make_shared<WorkImpl>(engine_, std::move(*operation)));
}

Result<Memory> CommunicatorImpl::allocate(std::size_t bytes) {
  if (bytes == 0) return invalid("0 bytes cannot be allocated");
  if (bytes > kMaxBytes) return invalid(fmt::format("{} bytes are more than any memory holds", bytes));
  auto window = world_.transport->allocate_window(bytes);
  if (!window) return window.error();
  return Memory(std::make_unique<MemoryImpl>(std::move(*window), bytes));
}

Result<Memory> CommunicatorImpl::register_memory(void* data, std::size_t bytes) {
  if (data == nullptr || bytes == 0) return invalid("there is no memory to register: data is null or bytes is 0");
  const std::size_t page = page_size();
  if (reinterpret_cast<std::uintptr_t>(data) % page != 0 || bytes % page != 0 || bytes > kMaxBytes) {
    return invalid(
        fmt::format("{} bytes at {} are not whole pages of {} bytes: align with aligned_alloc, or use allocate()",
                    bytes, data, page));
  }
  auto window = world_.transport->adopt_window(data, bytes);
  if (!window) return window.error();
  return Memory(std::make_unique<MemoryImpl>(std::move(*window), bytes));
}

}  // namespace detail

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;
Work::Work(std::shared_ptr<detail::WorkImpl> impl) : impl_(std::move(impl)) {}
Status Work::wait() { return impl_ == nullptr ? Status() : impl_->wait(); }
bool Work::test() { return impl_ == nullptr || impl_->test(); }

Memory::Memory() = default;
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
Memory::~Memory() = default;
Memory::Memory(std::unique_ptr<detail::MemoryImpl> impl) : impl_(std::move(impl)) {}
std::byte* Memory::data() const { return impl_ == nullptr ? nullptr : impl_->data(); }
std::size_t Memory::size() const { return impl_ == nullptr ? 0 : impl_->size(); }

Communicator::Communicator(std::unique_ptr<detail::CommunicatorImpl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;
std::int32_t Communicator::rank() const { return static_cast<std::int32_t>(impl_->rank()); }
std::int32_t Communicator::size() const { return static_cast<std::int32_t>(impl_->ranks()); }
Algorithm Communicator::auto_algorithm(std::size_t count, DataType type) const {
  const std::size_t element_bytes = std::max<std::size_t>(size_of(type), 1);
  return detail::choose_algorithm(std::min(count, detail::kMaxBytes / element_bytes) * element_bytes, impl_->ranks());
}
Status Communicator::all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                const AllReduceOptions& options) {
  return impl_->all_reduce(input, output, count, type, op, options);
}
Result<Work> Communicator::all_reduce_async(const void* input, void* output, std::size_t count, DataType type,
                                            ReduceOp op, const AllReduceOptions& options) {
  return impl_->all_reduce_async(input, output, count, type, op, options);
}
Result<Memory> Communicator::allocate(std::size_t bytes) { return impl_->allocate(bytes); }
Result<Memory> Communicator::register_memory(void* data, std::size_t bytes) {
  return impl_->register_memory(data, bytes);
}
void Communicator::abort() { impl_->abort(); }

}  // namespace tutti
