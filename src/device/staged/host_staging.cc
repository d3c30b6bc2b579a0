// HostStaging: finds the buffers of a call in device memory, stages them, and submits the call.
#include "device/staged/host_staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "cuda/pointer.h"
#include "device/staged/staging.h"
#include "tutti/collectives.h"

namespace tutti::detail {
namespace {

// maximum time that the destructor waits for streams that have not finished their calls
constexpr std::chrono::seconds kStreamsLimit{5};

// One buffer of a call, and the memory in which it is.
struct LocatedBuffer {
  std::string name;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  cuda::PointerInfo where{};

  bool on_device() const { return cuda::is_of_device(where.kind); }
  std::string place() const { return on_device() ? fmt::format("memory of GPU {}", where.device) : "host memory"; }
};

// Sets `where` of each buffer. Returns an error unless all buffers are host memory or all are memory of the same
// device.
Status look_at(const cuda::Driver& driver, std::span<LocatedBuffer> buffers) {
  for (LocatedBuffer& buffer : buffers) {
    auto where = cuda::classify(driver, buffer.data);
    if (!where) return where.error();
    buffer.where = *where;
    const LocatedBuffer& first = buffers.front();
    const bool alike =
        buffer.on_device() == first.on_device() && (!first.on_device() || buffer.where.device == first.where.device);
    if (!alike) {
      return invalid_argument(fmt::format("{} is {}, but {} is {}: give all buffers of a call in one place", first.name,
                                          first.place(), buffer.name, buffer.place()));
    }
  }
  return {};
}

// Runs `body`, one step of a call in segments on `rank`, and turns an exception into an error. An exception must
// not leave the loop over the segments, because some segments may already be in streams, and the rest of the
// function must join or cancel them.
template <class Body>
Status without_exception(std::uint32_t rank, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(rank), "a call in segments");
  }
}

bool overlap(const LocatedBuffer& a, const LocatedBuffer& b) {
  return a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// A part of a buffer, in bytes.
struct Range {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Returns the parts of a buffer of `bytes` bytes that the call uses, in the order of their addresses: the whole buffer
// or, if the caller passed displacements for `blocks`, the blocks. Blocks that follow each other without a gap are one
// part, so that one copy is enough for them.
std::vector<Range> ranges_of(const Call& call, BlockSet blocks, std::size_t bytes) {
  const Lengths& lengths = call.lengths;
  if (blocks != BlockSet::kAll || lengths.displacements.empty()) return {{.offset = 0, .bytes = bytes}};
  std::vector<Range> ranges;
  for (std::size_t block = 0; block < lengths.counts.size(); ++block) {
    if (lengths.counts[block] == 0) continue;
    ranges.push_back({.offset = lengths.displacements[block] * call.element_bytes,
                      .bytes = lengths.counts[block] * call.element_bytes});
  }
  std::ranges::sort(ranges, {}, &Range::offset);
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (joined.empty() || range.offset > joined.back().offset + joined.back().bytes) {
      joined.push_back(range);
    } else {  // the blocks of an input may overlap
      joined.back().bytes = std::max(joined.back().bytes, range.offset + range.bytes - joined.back().offset);
    }
  }
  return joined;
}

}  // namespace

HostStaging::HostStaging(const cuda::Driver& driver, Transport& transport, Log& log,
                         std::shared_ptr<ProcessRanks> ranks)
    : driver_(driver), log_(log), ranks_(std::move(ranks)), pool_(std::make_shared<StagingPool>(driver, transport)) {}

HostStaging::~HostStaging() {
  if (pool_->close(kStreamsLimit)) return;
  log_.write(
      LogLevel::kWarn,
      "a communicator ends while streams still have calls of it that did not run: the host memory of these calls "
      "is never freed; synchronize the streams before");
}

bool HostStaging::is_device_memory(const void* data, std::size_t bytes) {
  if (bytes == 0) return false;
  auto where = cuda::classify(data);
  // if the query fails, true, so that stage() queries again and reports the error
  return !where || cuda::is_of_device(where->kind);
}

std::optional<Error> HostStaging::take_error() {
  pool_->look();
  return pool_->take_error();
}

Result<std::shared_ptr<StartCondition>> HostStaging::stage(CheckedCall& checked, const CallOptions& options) {
  Call& call = checked.call;
  LocatedBuffer input{.name = "input", .data = call.input, .bytes = checked.input_bytes};
  LocatedBuffer output{.name = "output", .data = call.output, .bytes = checked.output_bytes};
  std::vector<LocatedBuffer> used;
  if (input.bytes > 0) used.push_back(input);
  if (output.bytes > 0) used.push_back(output);
  TUTTI_TRY(look_at(driver_, used));
  if (used.empty() || !used.front().on_device()) return std::shared_ptr<StartCondition>();
  auto staged = std::make_shared<StagedCall>(driver_, pool_);  // shared by the operation and the streams
  StagedBuffers& buffers = staged->buffers();
  void* stream = options.stream.value_or(nullptr);
  // If the call is in place, input and output overlap, and the longer one contains the other. Then only the longer
  // one is staged.
  const bool overlapping = input.bytes > 0 && output.bytes > 0 && overlap(input, output);
  std::vector<std::size_t> numbers;
  for (const LocatedBuffer& buffer : used) {
    const LocatedBuffer& longest = input.bytes > output.bytes ? input : output;
    if (overlapping && buffer.name != longest.name) continue;
    auto number = staged->add(buffer.where, stream, buffer.data, buffer.bytes);
    if (!number) return number.error();
    numbers.push_back(*number);
  }
  const std::byte* base = overlapping ? std::min(input.data, output.data) : nullptr;
  // offset of a buffer in the staged copy, which covers both if they overlap
  const auto within = [&](const LocatedBuffer& buffer) {
    return overlapping ? static_cast<std::size_t>(buffer.data - base) : std::size_t{0};
  };
  // The memory between blocks with displacements belongs to the caller: it is not copied.
  const CollectiveRow& row = row_of(checked.collective.kind);
  for (const Range& range : ranges_of(call, row.input, input.bytes))
    buffers.copy_in(numbers.front(), within(input) + range.offset, range.bytes);
  // If a broadcast or a scatter is in place at the root, the root's output is a part of its input, so it is not copied
  // back.
  const bool unchanged = overlapping && row.root == RootHas::kTheInput;
  for (const Range& range : unchanged ? std::vector<Range>() : ranges_of(call, row.output, output.bytes))
    buffers.copy_out(numbers.back(), within(output) + range.offset, range.bytes);
  if (ranks_->share_device()) staged->settle_later();
  TUTTI_TRY(staged->allocate());
  if (input.bytes > 0) call.input = buffers.staged(numbers.front()) + within(input);
  if (output.bytes > 0) call.output = buffers.staged(numbers.back()) + within(output);
  return std::shared_ptr<StartCondition>(std::move(staged));
}

// The buffer of each transfer is staged separately, because the memory between blocks with displacements belongs to the
// caller and must not be written.
Result<std::shared_ptr<StartCondition>> HostStaging::stage(CheckedExchange& exchange, const CallOptions& options) {
  std::vector<LocatedBuffer> used;
  std::vector<std::byte**> buffer_pointers;
  const auto use = [&](std::string name, std::byte*& data, std::size_t bytes) {
    if (bytes == 0) return;
    used.push_back({.name = std::move(name), .data = data, .bytes = bytes});
    buffer_pointers.push_back(&data);
  };
  std::size_t inputs = 0;
  for (Transfer& transfer : exchange.transfers) {
    if (transfer.direction == Direction::kSend) {
      use(fmt::format("the data sent to rank {}", transfer.peer), transfer.data, transfer.bytes);
    }
  }
  std::vector<std::byte*> own_inputs;
  own_inputs.reserve(exchange.own.size());
  for (const OwnCopy& copy : exchange.own) {
    own_inputs.push_back(const_cast<std::byte*>(copy.from));  // NOLINT: only read
    use("the data sent to this rank itself", own_inputs.back(), copy.bytes);
  }
  inputs = used.size();
  for (Transfer& transfer : exchange.transfers) {
    if (transfer.direction == Direction::kReceive) {
      use(fmt::format("the buffer for data from rank {}", transfer.peer), transfer.data, transfer.bytes);
    }
  }
  for (OwnCopy& copy : exchange.own) use("the buffer for data from this rank itself", copy.to, copy.bytes);
  TUTTI_TRY(look_at(driver_, used));
  if (used.empty() || !used.front().on_device()) return std::shared_ptr<StartCondition>();
  auto staged = std::make_shared<StagedCall>(driver_, pool_);  // shared by the operation and the streams
  StagedBuffers& buffers = staged->buffers();
  for (std::size_t i = 0; i < used.size(); ++i) {
    auto number = staged->add(used[i].where, options.stream.value_or(nullptr), used[i].data, used[i].bytes);
    if (!number) return number.error();
    if (i < inputs) buffers.copy_in(*number, 0, used[i].bytes);
    if (i >= inputs) buffers.copy_out(*number, 0, used[i].bytes);
  }
  if (ranks_->share_device()) staged->settle_later();
  TUTTI_TRY(staged->allocate());
  for (std::size_t i = 0; i < used.size(); ++i) *buffer_pointers[i] = buffers.staged(i);
  for (std::size_t i = 0; i < exchange.own.size(); ++i) exchange.own[i].from = own_inputs[i];
  return std::shared_ptr<StartCondition>(std::move(staged));
}

Status HostStaging::submit_segment(Engine& engine, const std::shared_ptr<Operation>& operation,
                                   Engine::Progress progress) {
  if (operation->start_condition == nullptr) return engine.submit(operation, progress);
  auto& staged = static_cast<StagedCall&>(*operation->start_condition);
  const bool by_stream = staged.submits_itself();
  if (by_stream) staged.submit_later(engine.handle(), operation);
  if (Status queued = staged.enqueue(); !queued.ok()) {
    if (queued.error().scope == ErrorScope::kProcess) engine.fail(queued.error());
    return queued;
  }
  // The captured operation itself is never run: each replay submits a copy of it. So the caller's Work is done now.
  if (staged.captured()) operation->done.store(true, std::memory_order_release);
  if (by_stream) return {};
  try {
    Status submitted = engine.submit(operation, Engine::Progress::kInBackground);
    if (!submitted.ok()) staged.release_streams();
    return submitted;
  } catch (...) {
    staged.release_streams();
    throw;
  }
}

Status HostStaging::settle(Engine& engine, const Operation& operation) {
  if (operation.start_condition == nullptr) return {};
  auto& staged = static_cast<StagedCall&>(*operation.start_condition);
  if (!staged.settles()) return {};
  Status settled = staged.settle();
  if (!settled.ok() && settled.error().scope >= ErrorScope::kCommunicator) engine.fail(settled.error());
  return settled;
}

Status HostStaging::submit(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress) {
  if (operation->rest.empty()) return submit_segment(engine, operation, progress);
  std::vector<std::shared_ptr<Operation>> segments = {operation};
  segments.insert(segments.end(), operation->rest.begin(), operation->rest.end());
  if (engine.capacity() < segments.size()) {
    return invalid_argument(
        fmt::format("this call needs {} segments, but the communicator can take only {} more operations at the "
                    "moment: wait for some of them first",
                    segments.size(), engine.capacity()));
  }
  const auto staged = [&](std::size_t segment) {
    return static_cast<StagedCall*>(segments[segment]->start_condition.get());
  };
  Status status;
  std::size_t submitted = 0;
  for (; submitted < segments.size(); ++submitted) {
    if (staged(submitted) != nullptr && !staged(submitted)->settles())
      status = without_exception(engine.rank(), [&] { return staged(submitted)->use_own_output_stream(); });
    if (status)
      status = without_exception(engine.rank(), [&] { return submit_segment(engine, segments[submitted], progress); });
    if (!status) break;
  }
  for (std::size_t segment = 0; segment < std::min(submitted + 1, segments.size()); ++segment) {
    if (staged(segment) == nullptr || staged(segment)->settles()) continue;
    Status joined = without_exception(engine.rank(), [&] { return staged(segment)->join(); });
    if (status) status = std::move(joined);
  }
  if (status || (submitted == 0 && status.error().scope < ErrorScope::kCommunicator)) return status;
  Error error = copy_of(status.error());
  // The peers use a sequence number for every segment, but this rank has not, so later calls would not match.
  error.scope = std::max(error.scope, ErrorScope::kCommunicator);
  engine.fail(error);
  // Segments without a StagedCall work directly on the caller's buffers until they have ended, so wait for those
  // that were submitted.
  for (std::size_t segment = 0; segment < submitted; ++segment) {
    if (staged(segment) == nullptr) static_cast<void>(engine.wait(*segments[segment]));
  }
  return error;
}

}  // namespace tutti::detail
