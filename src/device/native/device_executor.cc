// DeviceExecutor: checks the buffers and the stream of a call, chooses protocol and slices, and prepares the launch.
#include "device/native/device_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/leak_until_exit.h"
#include "device/native/device_failure.h"
#include "executor/device_transfers.h"
#include "plan/layout.h"

namespace tutti::detail {
namespace {

// If neither the settings nor rounds decide the protocol, calls with blocks of at most this many bytes use LL, which
// stores every 4 bytes of data together with a flag. That halves the bandwidth, but needs no memory fence. The limit
// is estimated, not measured.
constexpr std::uint64_t kLlBytes = 16 * 1024;
// A call has only so many slices that they get on average at least this many bytes of each chunk of the plan, over all
// of their tiles. (If the blocks have different lengths, their average length counts.) With fewer bytes, another slice
// (another thread block) would cost more time than it saves. Estimated.
constexpr std::uint64_t kLeastSliceBytes = 4 * 1024;
// About the largest number of operations that a call in rounds may put into a stream. The driver blocks the calling
// thread when a stream is full (users of CUDA report this at about 1,000 launches; not measured here). A call must not
// fill the stream, because the same thread may serve other ranks, too, and this stream goes on only when the thread has
// put the calls of those ranks into their streams.
constexpr std::uint64_t kMostStreamOperations = 512;
constexpr std::uint64_t kMostScratchBytes = std::uint64_t{256} << 20;

template <class T>
T* at(const cuda::DeviceMemory& memory) {
  return reinterpret_cast<T*>(memory.address());  // NOLINT: a device's address
}

std::uint64_t to_units(std::uint64_t bytes) {
  return device::divide_up(std::max<std::uint64_t>(bytes, 1), device::kChunkUnitBytes) * device::kChunkUnitBytes;
}

}  // namespace

DeviceExecutor::DeviceExecutor(std::unique_ptr<DeviceResources> resources, std::uint32_t rank, std::uint32_t ranks,
                               VerifiedPlanCache& plan_cache)
    : resources_(std::move(resources)), rank_(rank), ranks_(ranks), plan_cache_(plan_cache) {}

std::uint64_t DeviceExecutor::next_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

DeviceExecutor::~DeviceExecutor() {
  if (resources_->end()) return;
  leak_until_exit(std::move(plans_));  // a launch still runs, and its kernel may use the plans
}

// Whether the buffers, except those without bytes, are memory of this rank's GPU or managed memory. Sets
// BufferUse::plain. Errors: kInvalidArgument, if one is memory of another GPU or context, or if only some are host
// memory; those of the driver.
Result<bool> DeviceExecutor::is_on_device(std::span<BufferUse> buffers) const {
  const char* on_device = nullptr;
  const char* on_host = nullptr;
  const void* last = nullptr;  // the buffer before: the two of an in-place all_reduce, for example, are one
  Result<cuda::PointerInfo> where = cuda::PointerInfo{};
  for (BufferUse& buffer : buffers) {
    if (buffer.bytes == 0) continue;
    if (buffer.data != last) where = cuda::classify(resources_->device().driver(), buffer.data);
    if (!where) return where.error();
    last = buffer.data;
    buffer.plain = where->plain;
    if (!cuda::is_of_device(where->kind)) {
      on_host = buffer.name;
      continue;
    }
    on_device = buffer.name;
    const int device = resources_->device().number();
    if (where->kind == cuda::MemoryKind::kDevice && where->device != device) {
      return invalid_argument(fmt::format("{} is memory of GPU {}, but this communicator's rank has GPU {}",
                                          buffer.name, where->device, device));
    }
    if (where->context != nullptr && where->context != resources_->device().context()) {
      return invalid_argument(
          fmt::format("{} is memory of another context of GPU {} than this communicator's: make the communicator where "
                      "that is current",
                      buffer.name, device));
    }
  }
  if (on_device == nullptr) return false;
  if (on_host == nullptr) return true;
  return invalid_argument(
      fmt::format("{} is memory of GPU {}, but {} is host memory: give all buffers of a call in one place", on_device,
                  resources_->device().number(), on_host));
}

Result<bool> DeviceExecutor::takes(const CheckedCall& checked) {
  std::array<BufferUse, 2> buffers = {BufferUse{"input", checked.call.input, checked.input_bytes},
                                      BufferUse{"output", checked.call.output, checked.output_bytes}};
  auto on_device = is_on_device(buffers);
  windows_ = true;
  if (!on_device || !*on_device || resources_->settings().one_device) return on_device;
  for (const BufferUse& buffer : buffers) windows_ &= buffer.bytes == 0 || buffer.plain;
  return on_device;
}

Result<bool> DeviceExecutor::takes(const CheckedExchange& exchange) const {
  if (!resources_->settings().transfers) return false;
  std::vector<BufferUse> buffers;
  for (const Transfer& transfer : exchange.transfers) {
    const char* const name = transfer.direction == Direction::kSend ? "the data of a send" : "the buffer of a receive";
    buffers.push_back({name, transfer.data, transfer.bytes});
  }
  for (const OwnCopy& own : exchange.own) {
    buffers.push_back({"the data for this rank itself", own.from, own.bytes});
    buffers.push_back({"the buffer for data from this rank itself", own.to, own.bytes});
  }
  return is_on_device(buffers);
}

Result<std::unique_ptr<DeviceExecutor::Plan>> DeviceExecutor::make_plan(const Generator& generator,
                                                                        device::Protocol protocol) {
  TUTTI_TRY(plan_cache_.prove(generator));
  const std::uint32_t connections = resources_->arena().connections(protocol).count;
  const PlanShape& shape = generator.shape;
  std::uint32_t channels = 1;
  std::optional<DeviceProgram> own;
  // Check the programs of all ranks. If one rank cannot run its program, the host carries out the call on all
  // ranks.
  for (std::uint32_t r = 0; r < ranks_; ++r) {
    auto packed = pack_program(generator, r);
    if (!packed) return std::unique_ptr<Plan>();
    channels = std::max(channels, packed->header().channel_count);
    if (r == rank_) own.emplace(std::move(*packed));
  }
  const device::Protocol p = protocol;
  const bool fits = channels <= resources_->settings().kept_blocks && shape.lanes <= connections &&
                    shape.slots <= resources_->arena().connections(p).slots;
  if (!fits) return std::unique_ptr<Plan>();
  const cuda::Driver& driver = resources_->device().driver();
  auto scope = cuda::ContextScope::enter(driver, resources_->device().context());
  if (!scope) return scope.error();
  const cuda::RelaxedCapture relaxed(driver);
  const auto allocate = [&](std::uint64_t bytes) { return cuda::DeviceMemory::allocate(driver, bytes); };
  auto program = allocate(own->bytes().size());
  if (!program) return program.error();
  auto source = cuda::PinnedMemory::allocate(driver, own->bytes().size());
  if (!source) return source.error();
  std::ranges::copy(own->bytes(), source->bytes().begin());
  auto upload = std::make_shared<ProgramUpload>(program->address(), source->bytes());  // shared with the calls
  auto plan = std::make_unique<Plan>(Plan{.shape = shape,
                                          .channels = channels,
                                          .program = std::move(*program),
                                          .program_source = std::move(*source),
                                          .upload = std::move(upload),
                                          .own_states = std::nullopt,
                                          .scratch = std::nullopt,
                                          .scratch_bytes = std::nullopt});
  TUTTI_TRY(add_states(*plan));
  if (shape.scratch_chunks > 0) {
    const std::uint32_t slices = std::max(1u, resources_->settings().blocks);
    const std::uint64_t payload = device::payload_bytes(p, resources_->arena().connections(p).slot_bytes);
    const std::uint64_t chunks = std::uint64_t{slices} * shape.scratch_chunks;
    plan->scratch_room =
        std::min(payload, kMostScratchBytes / chunks / device::kChunkUnitBytes * device::kChunkUnitBytes);
    if (plan->scratch_room == 0) return std::unique_ptr<Plan>();
    auto scratch = allocate(chunks * plan->scratch_room);
    if (!scratch) return scratch.error();
    auto bytes = allocate(chunks * sizeof(std::uint64_t));
    if (!bytes) return bytes.error();
    plan->scratch.emplace(std::move(*scratch));
    plan->scratch_bytes.emplace(std::move(*bytes));
  }
  if (resources_->settings().in_rounds) plan->rounds.emplace(generator, resources_->arena().connections(p).slots);
  return plan;
}

// Gives the plan a ChannelState for each slice and channel, all zero. A call has at most as many of them as blocks, see
// cut(). The set-up of the communicator has zeroed enough of them for the first plans. Those of further plans are
// zeroed here, in a stream that may have to wait for other streams.
Status DeviceExecutor::add_states(Plan& plan) {
  const std::uint64_t count = resources_->settings().blocks;
  if ((states_used_ + count) * sizeof(device::ChannelState) <= DeviceArena::kStatesBytes) {
    plan.states = resources_->states() + states_used_;
    states_used_ += count;
    return {};
  }
  const std::uint64_t bytes = count * sizeof(device::ChannelState);
  const cuda::Driver& driver = resources_->device().driver();
  auto memory = cuda::DeviceMemory::allocate(driver, bytes);
  if (!memory) return memory.error();
  auto stream = cuda::Stream::create(driver);
  if (!stream) return stream.error();
  TUTTI_TRY(driver.check(driver.api().memset_d8_async(memory->address(), 0, bytes, stream->handle()),
                         "zeroing a plan's counters"));
  TUTTI_TRY(stream->synchronize());
  plan.own_states.emplace(std::move(*memory));
  plan.states = at<device::ChannelState>(*plan.own_states);
  return {};
}

Result<DeviceExecutor::Plan*> DeviceExecutor::plan_for(const Generator& generator, std::uint32_t digest,
                                                       device::Protocol protocol) {
  const PlanShape& shape = generator.shape;
  const PlanKey key{shape.collective.kind, shape.algorithm, shape.collective.root, digest, protocol};
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second.get();
  auto made = make_plan(generator, protocol);
  // If the driver of this rank fails, the peers may already have launched the call. The call cannot be repeated
  // then, so the communicator is broken.
  if (!made) return made.error().code == ErrorCode::kDevice ? broken_error(made.error()) : made.error();
  return plans_.emplace(key, std::move(*made)).first->second.get();
}

std::uint64_t DeviceExecutor::rounds_of(const Plan& plan, const device::Call& call, std::uint32_t slices) const {
  if (!plan.rounds) return 0;
  // One round more than the plan needs, because a launch may see a message one round late, although it was posted
  // before the barrier in front of that launch.
  return plan.rounds->of(device::tiles_of_slice(call.geometry.tiles, 0, slices), DeviceRounds::Draining::kPublished) +
         1;
}

std::uint64_t DeviceExecutor::most_rounds() const { return kMostStreamOperations / (3 * (ranks_ - 1) + 1); }

device::Protocol DeviceExecutor::choose_protocol(std::uint64_t bytes) const {
  // In rounds, a block must be able to stop when a message is missing. With the LL protocols it waits in the middle
  // of a step, where it cannot stop.
  if (resources_->settings().in_rounds) return device::Protocol::kSimple;
  switch (resources_->settings().protocol) {
    case DeviceProtocol::kSimple: return device::Protocol::kSimple;
    case DeviceProtocol::kLl: return device::Protocol::kLl;
    case DeviceProtocol::kLl128: return device::Protocol::kLl128;
    case DeviceProtocol::kAuto: break;
  }
  return bytes <= kLlBytes ? device::Protocol::kLl : device::Protocol::kSimple;
}

// Chooses as many slices as the number of thread blocks, the number of connections and the length of the call permit.
// `bytes`: the length of one block of the call's data. Chooses the chunk length so that all slices have about the same
// number of tiles.
DeviceExecutor::Segmentation DeviceExecutor::cut(const Plan& plan, device::Protocol protocol,
                                                 std::uint64_t bytes) const {
  const DeviceArena::Connections& connections = resources_->arena().connections(protocol);
  std::uint64_t room = device::payload_bytes(protocol, connections.slot_bytes);
  if (plan.scratch) room = std::min(room, plan.scratch_room);
  const std::uint64_t chunks = plan.shape.chunks;
  const std::uint64_t most =
      std::min(resources_->settings().blocks / plan.channels, connections.count / plan.shape.lanes);
  const std::uint64_t worth = bytes / (chunks * kLeastSliceBytes);
  const std::uint64_t slices = std::clamp<std::uint64_t>(worth, 1, most);
  const std::uint64_t rounds = std::max<std::uint64_t>(1, device::divide_up(bytes, slices * chunks * room));
  return {.slices = static_cast<std::uint32_t>(slices),
          .max_chunk_bytes = std::min(room, to_units(device::divide_up(bytes, slices * chunks * rounds)))};
}

Status DeviceExecutor::check_stream(cuda::CUstream stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  if (number == 0 || number == cuda::kLegacyStream || number == cuda::kPerThreadStream) return {};
  const cuda::Driver& driver = resources_->device().driver();
  cuda::CUcontext its = nullptr;
  TUTTI_TRY(driver.check(driver.api().stream_get_ctx(stream, &its), "looking at the stream of a call"));
  if (its != resources_->device().context()) {
    return invalid_argument(
        fmt::format("the stream belongs to another context than the buffers, which are memory of GPU {}: make it there",
                    resources_->device().number()));
  }
  return {};
}

// Sets the windows of input and output. A registered buffer is in a window that all ranks know. Other buffers are
// in window 0 if takes() has found that ranks of this process may access them in place. Window 0 begins at address
// 0 and covers all memory; ranks of other processes have no access to it. Otherwise the buffer is in no window
// (kNoWindow).
void DeviceExecutor::place_windows(const CheckedCall& checked, device::Call& call) const {
  const auto place = [&](const void* data, std::size_t bytes) -> DeviceWindows::WindowLocation {
    if (const auto found = resources_->windows()->find(data, bytes)) return *found;
    return {windows_ ? 0 : device::kNoWindow, reinterpret_cast<std::uintptr_t>(data)};
  };
  const DeviceWindows::WindowLocation input = place(call.input, checked.input_bytes);
  call.input_window = input.window;
  call.input_offset = input.offset;
  const DeviceWindows::WindowLocation output = place(call.output, checked.output_bytes);
  call.output_window = output.window;
  call.output_offset = output.offset;
}

// Makes a call, and checks its stream.
Result<std::shared_ptr<DeviceCall>> DeviceExecutor::begin_call(const CallTag& tag, const CallOptions& options,
                                                               std::int64_t timeout_ns) {
  if (auto failed = failure(false)) return *std::move(failed);
  auto made = std::make_shared<DeviceCall>();  // shared by the operation and the LaunchGroup
  made->tag = tag;
  made->executor_id = id_;
  made->timeout_ns = timeout_ns;
  longest_ns_ = std::max(longest_ns_.load(), timeout_ns);
  made->stream = static_cast<cuda::CUstream>(options.stream.value_or(nullptr));
  TUTTI_TRY(check_stream(made->stream));
  return made;
}

Result<std::shared_ptr<DeviceCall>> DeviceExecutor::begin_call(const Call& call, const CallOptions& options,
                                                               std::int64_t timeout_ns) {
  auto made = begin_call(call.tag, options, timeout_ns);
  if (!made) return made;
  device::Call& to = (*made)->call;
  to.input = call.input;
  to.output = call.output;
  to.digest = device_digest(call.tag);
  to.timeout_ns = static_cast<std::uint64_t>(timeout_ns);
  return made;
}

Result<std::shared_ptr<DeviceCall>> DeviceExecutor::prepare(CheckedExchange exchange, std::shared_ptr<Operation> empty,
                                                            const CallOptions& options, std::int64_t timeout_ns) {
  auto made = begin_call(exchange.tag(), options, timeout_ns);
  if (!made) return made;
  const DeviceResources::Settings& settings = resources_->settings();
  const std::uint32_t connections = resources_->arena().transfer_connections().count;
  TransferCall& transfers = (*made)->transfers.emplace();
  transfers.packed = pack_transfers(exchange.transfers, ranks_, connections, resources_->transfer_links());
  transfers.own = std::move(exchange.own);
  (*made)->call.status = resources_->status_on_device();
  transfers.empty = std::move(empty);
  const auto& queues = transfers.packed.queues;
  transfers.blocks = std::min(settings.blocks, static_cast<std::uint32_t>(queues.size()));
  const bool brief = std::ranges::all_of(
      transfers.packed.parts, [](const device::TransferPart& part) { return part.bytes <= kLeastSliceBytes; });
  (*made)->launch.kernel = resources_->transfer_kernel();
  (*made)->launch.threads = brief ? std::min(settings.threads, device::kShortThreads) : settings.threads;
  TUTTI_ASSERT(queues.size() <= std::size_t{settings.kept_blocks} * (*made)->launch.threads);
  return made;
}

Result<std::shared_ptr<DeviceCall>> DeviceExecutor::prepare(const CheckedCall& checked, const Generator& generator,
                                                            std::uint32_t digest, const CallOptions& options,
                                                            std::int64_t timeout_ns) {
  const CopyEngines& copy_engines = resources_->copy_engines();
  if (auto inputs = copy_engines.find_inputs(checked, options)) {
    auto copied = begin_call(checked.call, options, timeout_ns);
    if (copied) copy_engines.copy_between_barriers(**copied, checked, *std::move(inputs));
    return copied;
  }
  auto begun = begin_call(checked.call, options, timeout_ns);
  if (!begun) return begun.error();
  std::shared_ptr<DeviceCall> made = std::move(*begun);
  const Call& call = checked.call;
  const bool variable = !call.lengths.counts.empty();
  // Length of a block in bytes; for blocks of different lengths, their average.
  const std::uint64_t bytes = call.tag.count / (variable ? ranks_ : 1) * call.element_bytes;
  const device::Protocol protocol = choose_protocol(bytes);
  auto plan = plan_for(generator, digest, protocol);
  if (!plan) return plan.error();
  if (*plan == nullptr) return std::shared_ptr<DeviceCall>();
  made->upload = (*plan)->upload;
  const Segmentation segmentation = cut(**plan, protocol, bytes);
  made->launch = {.kernel = resources_->evaluator(protocol),
                  .protocol = protocol,
                  .channels = (*plan)->channels,
                  .slices = segmentation.slices,
                  .threads = protocol == device::Protocol::kSimple
                                 ? resources_->settings().threads
                                 : std::min(resources_->settings().threads, device::kShortThreads)};
  device::Call& to = made->call;
  to.program = at<const device::ProgramHeader>((*plan)->program);
  to.program_bytes = (*plan)->program.bytes();
  to.channels = (*plan)->states;
  to.links = resources_->links(protocol);
  to.status = resources_->status_on_device();
  if ((*plan)->scratch) {
    to.scratch = at<std::byte>(*(*plan)->scratch);
    to.scratch_bytes = at<std::uint64_t>(*(*plan)->scratch_bytes);
  }
  made->tables = pack_geometry((*plan)->shape, rank_, call.lengths, static_cast<std::uint32_t>(call.element_bytes),
                               segmentation.max_chunk_bytes);
  to.geometry = made->tables.geometry;
  to.arithmetic = {
      .type = call.type, .op = call.op, .scale_real = call.scale.real, .scale_integer = call.scale.integer};
  place_windows(checked, to);
  // peers compute addresses in an output with contiguous blocks, so they must not write to this one directly
  if (!call.lengths.displacements.empty()) to.output_window = device::kNoWindow;
  to.in_place = call.in_place ? 1 : 0;
  made->launch.rounds = rounds_of(**plan, to, segmentation.slices);
  if (resources_->settings().in_rounds) to.stop_after_ns = 0;
  if (made->launch.rounds > most_rounds()) return std::shared_ptr<DeviceCall>();
  copy_engines.copy_in_group(*made, checked, options);
  return made;
}

Status DeviceExecutor::submit(const std::shared_ptr<DeviceCall>& call) {
  resources_->copy_engines().set_barrier_value(*call);
  Status submitted = resources_->launch_group().submit(rank_, call);
  if (submitted.ok()) resources_->copy_engines().count(*call);
  return submitted;
}

Status DeviceExecutor::finish() {
  const auto limit = std::chrono::milliseconds(longest_ns_.load() / 1'000'000 + 1000);
  const bool ended = resources_->launch_group().drain(rank_, limit);
  if (auto failed = failure(true)) return *std::move(failed);
  if (ended) return {};
  return Error{ErrorCode::kTimeout, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank_),
               fmt::format("calls on device memory of rank {} still run after {} ms: synchronize its streams before",
                           rank_, limit.count())};
}

void DeviceExecutor::set_abort_flag() noexcept {
  std::atomic_ref<std::uint64_t>(resources_->status().abort).store(1, std::memory_order_release);
}

std::optional<Error> DeviceExecutor::reported_failure() const {
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(resources_->status().failure).load(std::memory_order_acquire);
  const auto found = device::FailureWord::of(word);
  if (found.cause == device::Failure::kNone) return std::nullopt;
  return device_failure(found, rank_, nullptr, 0);
}

void DeviceExecutor::abort() {
  set_abort_flag();
  resources_->launch_group().fail(error_with([&] { return fmt::format("rank {} called abort()", rank_); },
                                             ErrorCode::kAborted, ErrorScope::kCommunicator,
                                             static_cast<std::int32_t>(rank_)));
}

}  // namespace tutti::detail
