#include "runtime/staging.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "base/assert.h"
#include "runtime/arguments.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kPieceAlignment = 4096;  // peers of the machine reach pieces in place, by whole lines
constexpr std::size_t kLeastBlock = 64 * 1024;
constexpr std::uint32_t kGoOn = 1;

std::size_t aligned(std::size_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; }

// Never freed: a stream may still use it.
void abandon(StagingPool::Block block) {
  static_cast<void>(block.pin.release());
  static_cast<void>(block.window.release());
}

}  // namespace

StagingPool::StagingPool(const cuda::Driver& driver, Transport& transport) : driver_(driver), transport_(transport) {}

StagingPool::~StagingPool() { close(std::chrono::milliseconds(0)); }

Result<StagingPool::Block> StagingPool::take(std::size_t bytes, int device) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kLeastBlock));
  const auto size_class = static_cast<std::size_t>(std::countr_zero(size));
  {
    const std::scoped_lock lock(mutex_);
    std::vector<Block>& free = free_[size_class];
    if (!free.empty()) {
      Block block = std::move(free.back());
      free.pop_back();
      return block;
    }
  }
  auto window = transport_.allocate_window(size);
  if (!window) return window.error();
  if (!context_) {
    auto context = cuda::PrimaryContext::retain(driver_, device);
    if (!context) return context.error();
    context_.emplace(std::move(*context));
  }
  auto scope = cuda::ContextScope::enter(driver_, context_->context());
  if (!scope) return scope.error();
  auto pin = cuda::RegisteredMemory::add(driver_, std::span((*window)->data(), size));
  if (!pin) return pin.error();
  return Block{.window = std::move(*window),
               .pin = std::make_unique<cuda::RegisteredMemory>(std::move(*pin)),
               .size_class = size_class};
}

void StagingPool::give_back(Block block) {
  if (block.window == nullptr) return;
  const std::scoped_lock lock(mutex_);
  if (!closed_) return free_[block.size_class].push_back(std::move(block));
  abandon(std::move(block));  // its transport has ended
}

void StagingPool::retire(Block block) {
  const std::scoped_lock lock(mutex_);
  if (!closed_) return retired_.push_back(std::move(block));
  abandon(std::move(block));
}

void StagingPool::begin_call() {
  const std::scoped_lock lock(mutex_);
  ++in_flight_;
}

void StagingPool::end_call() {
  const std::scoped_lock lock(mutex_);
  if (--in_flight_ == 0) none_in_flight_.notify_all();
}

void StagingPool::ring() {
  const std::scoped_lock lock(mutex_);
  if (!closed_) transport_.doorbell().ring();
}

bool StagingPool::close(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const bool all_back = none_in_flight_.wait_for(lock, limit, [this] { return in_flight_ == 0; });
  closed_ = true;
  const auto end = [&](std::vector<Block>& blocks) {
    for (Block& block : blocks) {
      if (!all_back) abandon(std::move(block));  // unpinning would wait for the device's work
    }
    blocks.clear();
  };
  for (std::vector<Block>& blocks : free_) end(blocks);
  end(retired_);
  if (!all_back && context_) new cuda::PrimaryContext(*std::move(context_));  // never released, as the blocks are not
  return all_back;
}

StagedCall::StagedCall(const cuda::Driver& driver, std::shared_ptr<StagingPool> pool,
                       std::function<void(const Error&)> report)
    : driver_(driver), pool_(std::move(pool)), report_(std::move(report)) {}

StagedCall::~StagedCall() { retires_ ? pool_->retire(std::move(block_)) : pool_->give_back(std::move(block_)); }

Result<std::size_t> StagedCall::part_of(const cuda::PointerInfo& where, cuda::CUstream stream) {
  cuda::CUcontext context = where.context;
  if (context == nullptr) {  // mapped virtual memory: any context of its device serves
    TUTTI_TRY(driver_.check(driver_.api().ctx_get_current(&context), "finding the current context"));
    if (context == nullptr) {
      return invalid_argument(fmt::format(
          "the buffers are mapped virtual memory of GPU {}, and no context is current: make one of it current",
          where.device));
    }
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (parts_[part].stream == stream && parts_[part].context == context) return part;
  }
  auto scope = cuda::ContextScope::enter(driver_, context);
  if (!scope) return scope.error();
  if (stream != nullptr) {
    cuda::CUcontext its = nullptr;
    TUTTI_TRY(driver_.check(driver_.api().stream_get_ctx(stream, &its), "looking at the stream of a call"));
    if (its != context) {
      return invalid_argument(fmt::format(
          "the stream belongs to another context than the buffers, which are memory of GPU {}: make it there",
          where.device));
    }
  }
  auto capture = cuda::CaptureStatus::kNone;
  TUTTI_TRY(driver_.check(driver_.api().stream_is_capturing(stream, &capture), "looking at the stream of a call"));
  if (capture != cuda::CaptureStatus::kNone) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 "the stream is capturing a graph: calls that the host carries out cannot be captured; make the call "
                 "outside the graph"};
  }
  parts_.push_back({.stream = stream, .context = context, .device = where.device});
  return parts_.size() - 1;
}

Result<std::size_t> StagedCall::add(const cuda::PointerInfo& where, void* stream, const void* data, std::size_t bytes) {
  auto part = part_of(where, static_cast<cuda::CUstream>(stream));
  if (!part) return part.error();
  const std::size_t offset = pieces_.empty() ? kPieceAlignment : aligned(pieces_.back().offset + pieces_.back().bytes);
  pieces_.push_back(
      {.device = reinterpret_cast<std::uintptr_t>(data), .offset = offset, .bytes = bytes, .part = *part});
  return pieces_.size() - 1;
}

void StagedCall::copy_in(std::size_t piece, std::size_t offset, std::size_t bytes) {
  if (bytes > 0) copies_in_.push_back({.piece = piece, .offset = offset, .bytes = bytes});
}

void StagedCall::copy_out(std::size_t piece, std::size_t offset, std::size_t bytes) {
  if (bytes > 0) copies_out_.push_back({.piece = piece, .offset = offset, .bytes = bytes});
}

// The word stands before the pieces.
Status StagedCall::allocate() {
  auto block = pool_->take(pieces_.back().offset + pieces_.back().bytes, parts_.front().device);
  if (!block) return block.error();
  block_ = std::move(*block);
  word_ = new (block_.window->data()) std::atomic<std::uint32_t>(0);  // placed in the block
  return {};
}

Status StagedCall::enqueue() {
  to_stage_ = to_finish_ = parts_.size();
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    Status queued = enqueue(part);
    if (queued) continue;
    retires_ = true;
    let_streams_go();
    return queued;
  }
  return {};
}

Status StagedCall::enqueue(std::size_t part) {
  auto scope = cuda::ContextScope::enter(driver_, parts_[part].context);
  if (!scope) return scope.error();
  const cuda::CUstream stream = parts_[part].stream;
  TUTTI_TRY(copy(copies_in_, part, true));
  TUTTI_TRY(call_back(stream, on_staged));
  const cuda::CUdeviceptr word = block_.pin->device_address();
  TUTTI_TRY(driver_.check(driver_.api().stream_wait_value32(stream, word, kGoOn, cuda::kWaitEqual),
                          "making the stream wait for the ranks"));
  TUTTI_TRY(copy(copies_out_, part, false));
  return call_back(stream, on_finished);
}

Status StagedCall::copy(const std::vector<Copy>& copies, std::size_t part, bool in) {
  for (const Copy& copy : copies) {
    const Piece& piece = pieces_[copy.piece];
    if (piece.part != part) continue;
    std::byte* host = staged(copy.piece) + copy.offset;
    const cuda::CUdeviceptr device = piece.device + copy.offset;
    const cuda::CUstream stream = parts_[part].stream;
    const cuda::CUresult result = in ? driver_.api().memcpy_dtoh_async(host, device, copy.bytes, stream)
                                     : driver_.api().memcpy_htod_async(device, host, copy.bytes, stream);
    TUTTI_TRY(driver_.check(result, in ? "copying a call's input from the device" : "copying its output back"));
  }
  return {};
}

// The pool counts callbacks, each of which keeps this call and its memory.
Status StagedCall::call_back(cuda::CUstream stream, cuda::CUhostFn function) {
  auto handle = std::make_unique<Handle>(Handle{shared_from_this()});
  pool_->begin_call();
  const cuda::CUresult result = driver_.api().launch_host_func(stream, function, handle.get());
  if (result != cuda::CUresult::kSuccess) {
    pool_->end_call();
    return driver_.check(result, "putting a call into the stream");
  }
  static_cast<void>(handle.release());  // the callback's
  return {};
}

void StagedCall::on_staged(void* user_data) {
  const std::unique_ptr<Handle> handle(static_cast<Handle*>(user_data));
  StagedCall& call = *handle->call;
  if (call.to_stage_.fetch_sub(1, std::memory_order_acq_rel) == 1) call.pool_->ring();
  call.pool_->end_call();
}

void StagedCall::on_finished(void* user_data) {
  std::unique_ptr<Handle> handle(static_cast<Handle*>(user_data));
  const std::shared_ptr<StagingPool> pool = handle->call->pool_;
  handle->call->to_finish_.fetch_sub(1, std::memory_order_acq_rel);
  handle.reset();  // gives the block back, unless the operation still has it
  pool->end_call();
}

void StagedCall::let_streams_go() { word_->store(kGoOn, std::memory_order_release); }

void StagedCall::cancel() { let_streams_go(); }

void StagedCall::ended(const Status& result) {
  if (!result.ok()) report_(result.error());
  let_streams_go();
}

}  // namespace tutti::detail
