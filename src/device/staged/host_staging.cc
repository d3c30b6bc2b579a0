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

namespace tutti::detail {
namespace {

constexpr std::chrono::seconds kStreamsLimit{5};  // how long the end of a communicator waits for them

bool is_device(cuda::MemoryKind kind) {
  return kind == cuda::MemoryKind::kDevice || kind == cuda::MemoryKind::kManaged;
}

// One buffer of a call.
struct Used {
  std::string name;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  cuda::PointerInfo where{};

  bool on_device() const { return is_device(where.kind); }
  std::string place() const { return on_device() ? fmt::format("memory of GPU {}", where.device) : "host memory"; }
};

// Finds out where the buffers are; an error unless all are the host's or one device's.
Status look_at(const cuda::Driver& driver, std::span<Used> buffers) {
  for (Used& buffer : buffers) {
    auto where = cuda::classify(driver, buffer.data);
    if (!where) return where.error();
    buffer.where = *where;
    const Used& first = buffers.front();
    const bool alike =
        buffer.on_device() == first.on_device() && (!first.on_device() || buffer.where.device == first.where.device);
    if (!alike) {
      return invalid_argument(fmt::format("{} is {}, but {} is {}: give all buffers of a call in one place", first.name,
                                          first.place(), buffer.name, buffer.place()));
    }
  }
  return {};
}

// For steps of a call in pieces on `rank`: streams may have some of them, which have to be finished or taken back.
template <class Body>
Status without_exception(std::uint32_t rank, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(rank), "a call that goes in pieces");
  }
}

bool overlap(const Used& a, const Used& b) { return a.data < b.data + b.bytes && b.data < a.data + a.bytes; }

}  // namespace

HostStaging::HostStaging(const cuda::Driver& driver, Transport& transport, Log& log)
    : driver_(driver), log_(log), pool_(std::make_shared<StagingPool>(driver, transport)) {}

HostStaging::~HostStaging() {
  if (pool_->close(kStreamsLimit)) return;
  log_.write(
      LogLevel::kWarn,
      "a communicator ends while streams still have calls of it that did not run: the host memory of these calls "
      "is never freed; synchronize the streams before");
}

std::shared_ptr<StagedCall> HostStaging::new_call() { return std::make_shared<StagedCall>(driver_, pool_); }

bool HostStaging::is_device_memory(const void* data, std::size_t bytes) {
  if (bytes == 0) return false;
  auto where = cuda::classify(data);
  return !where || is_device(where->kind);  // an error is told where the call is prepared
}

std::optional<Error> HostStaging::take_error() {
  pool_->look();
  return pool_->take_error();
}

Result<std::shared_ptr<StagedCall>> HostStaging::stage(CheckedCall& checked, const CallOptions& options) {
  Call& call = checked.call;
  Used input{.name = "input", .data = call.input, .bytes = checked.input_bytes};
  Used output{.name = "output", .data = call.output, .bytes = checked.output_bytes};
  std::vector<Used> used;
  if (input.bytes > 0) used.push_back(input);
  if (output.bytes > 0) used.push_back(output);
  TUTTI_TRY(look_at(driver_, used));
  if (used.empty() || !used.front().on_device()) return std::shared_ptr<StagedCall>();
  std::shared_ptr<StagedCall> staged = new_call();
  void* stream = options.stream.value_or(nullptr);
  // In place, one of the two lies within the other.
  const bool one_piece = input.bytes > 0 && output.bytes > 0 && overlap(input, output);
  std::vector<std::size_t> numbers;
  for (const Used& buffer : used) {
    const Used& longest = input.bytes > output.bytes ? input : output;
    if (one_piece && buffer.name != longest.name) continue;
    auto number = staged->add(buffer.where, stream, buffer.data, buffer.bytes);
    if (!number) return number.error();
    numbers.push_back(*number);
  }
  const std::byte* base = one_piece ? std::min(input.data, output.data) : nullptr;
  const auto within = [&](const Used& buffer) {  // its offset in its piece
    return one_piece ? static_cast<std::size_t>(buffer.data - base) : std::size_t{0};
  };
  staged->copy_in(numbers.front(), within(input), input.bytes);
  staged->copy_out(numbers.back(), within(output), output.bytes);
  TUTTI_TRY(staged->allocate());
  if (input.bytes > 0) call.input = staged->staged(numbers.front()) + within(input);
  if (output.bytes > 0) call.output = staged->staged(numbers.back()) + within(output);
  return staged;
}

// Displaced blocks of a v-variant's output leave gaps, which belong to the caller.
Result<std::shared_ptr<StagedCall>> HostStaging::stage(CheckedExchange& exchange, const CallOptions& options) {
  std::vector<Used> used;
  std::vector<std::byte**> places;
  const auto use = [&](std::string name, std::byte*& data, std::size_t bytes) {
    if (bytes == 0) return;
    used.push_back({.name = std::move(name), .data = data, .bytes = bytes});
    places.push_back(&data);
  };
  std::size_t inputs = 0;
  for (Transfer& transfer : exchange.transfers) {
    if (transfer.direction == Direction::kSend) {
      use(fmt::format("what is sent to rank {}", transfer.peer), transfer.data, transfer.bytes);
    }
  }
  std::vector<std::byte*> own_inputs;
  own_inputs.reserve(exchange.own.size());
  for (const OwnCopy& copy : exchange.own) {
    own_inputs.push_back(const_cast<std::byte*>(copy.from));  // NOLINT: only read
    use("what this rank sends to itself", own_inputs.back(), copy.bytes);
  }
  inputs = used.size();
  for (Transfer& transfer : exchange.transfers) {
    if (transfer.direction == Direction::kReceive) {
      use(fmt::format("what is received from rank {}", transfer.peer), transfer.data, transfer.bytes);
    }
  }
  for (OwnCopy& copy : exchange.own) use("what this rank receives from itself", copy.to, copy.bytes);
  TUTTI_TRY(look_at(driver_, used));
  if (used.empty() || !used.front().on_device()) return std::shared_ptr<StagedCall>();
  std::shared_ptr<StagedCall> staged = new_call();
  for (std::size_t i = 0; i < used.size(); ++i) {
    auto number = staged->add(used[i].where, options.stream.value_or(nullptr), used[i].data, used[i].bytes);
    if (!number) return number.error();
    if (i < inputs) staged->copy_in(*number, 0, used[i].bytes);
    if (i >= inputs) staged->copy_out(*number, 0, used[i].bytes);
  }
  TUTTI_TRY(staged->allocate());
  for (std::size_t i = 0; i < used.size(); ++i) *places[i] = staged->staged(i);
  for (std::size_t i = 0; i < exchange.own.size(); ++i) exchange.own[i].from = own_inputs[i];
  return staged;
}

Status HostStaging::submit_piece(Engine& engine, const std::shared_ptr<Operation>& operation,
                                 Engine::Progress progress) {
  if (operation->start_condition == nullptr) return engine.submit(operation, progress);
  auto& staged = static_cast<StagedCall&>(*operation->start_condition);
  const bool by_stream = staged.submits_itself();
  if (by_stream) staged.submit_later(engine.handle(), operation);
  if (Status queued = staged.enqueue(); !queued.ok()) {
    if (queued.error().scope == ErrorScope::kProcess) engine.fail(queued.error());
    return queued;
  }
  if (staged.captured()) operation->done.store(true, std::memory_order_release);  // its replays are others
  if (by_stream) return {};
  try {
    Status submitted = engine.submit(operation, Engine::Progress::kInBackground);
    if (!submitted.ok()) staged.cancel();
    return submitted;
  } catch (...) {
    staged.cancel();
    throw;
  }
}

Status HostStaging::submit(Engine& engine, const std::shared_ptr<Operation>& operation, Engine::Progress progress) {
  if (operation->rest.empty()) return submit_piece(engine, operation, progress);
  std::vector<std::shared_ptr<Operation>> pieces = {operation};
  pieces.insert(pieces.end(), operation->rest.begin(), operation->rest.end());
  if (engine.room() < pieces.size()) {
    return invalid_argument(
        fmt::format("this call goes in {} pieces, and {} operations more are all that the communicator takes at the "
                    "moment: wait for some of them first",
                    pieces.size(), engine.room()));
  }
  const auto staged = [&](std::size_t piece) { return static_cast<StagedCall*>(pieces[piece]->start_condition.get()); };
  Status status;
  std::size_t submitted = 0;
  for (; submitted < pieces.size(); ++submitted) {
    if (staged(submitted) != nullptr)
      status = without_exception(engine.rank(), [&] { return staged(submitted)->part_ways(); });
    if (status)
      status = without_exception(engine.rank(), [&] { return submit_piece(engine, pieces[submitted], progress); });
    if (!status) break;
  }
  for (std::size_t piece = 0; piece < std::min(submitted + 1, pieces.size()); ++piece) {
    if (staged(piece) == nullptr) continue;
    Status joined = without_exception(engine.rank(), [&] { return staged(piece)->join(); });
    if (status) status = std::move(joined);
  }
  if (status || (submitted == 0 && status.error().scope < ErrorScope::kCommunicator)) return status;
  Error error = copy_of(status.error());
  error.scope = std::max(error.scope, ErrorScope::kCommunicator);  // its peers have numbers for all
  engine.fail(error);
  for (std::size_t piece = 0; piece < submitted; ++piece) {  // which have the caller's buffers until they have ended
    if (staged(piece) == nullptr) static_cast<void>(engine.wait(*pieces[piece]));
  }
  return error;
}

}  // namespace tutti::detail
