#include "runtime/device_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/assert.h"
#include "cuda/pointer.h"
#include "kernels/device/call.h"
#include "runtime/arguments.h"

namespace tutti::detail {

// What a rank says of its memory. Ranks of one job run the same build.
struct DeviceWindows::Offer {
  std::uint64_t taken = 0;  // bit n - 1: window n
  std::uint64_t address = 0;
  std::uint64_t offset = 0;  // from the start of what the handle stands for
  cuda::CUipcMemHandle handle{};
};

namespace {

// Nothing here has to do with a capture that is under way, which would forbid some of it.
class Relaxed {
 public:
  explicit Relaxed(const cuda::Driver& driver) : api_(driver.api()) { swap(); }
  ~Relaxed() { swap(); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  void swap() { static_cast<void>(api_.thread_exchange_capture_mode(&mode_)); }
  const cuda::DriverApi& api_;
  cuda::CaptureMode mode_ = cuda::CaptureMode::kRelaxed;
};

static_assert(kMostDeviceWindows <= 64, "numbers are bits of a word");

}  // namespace

Result<std::shared_ptr<DeviceWindows>> DeviceWindows::make(std::shared_ptr<RankDevice> device, std::uint32_t rank,
                                                           std::vector<Reach> reach, cuda::CUdeviceptr arena) {
  std::shared_ptr<DeviceWindows> made(
      new DeviceWindows(std::move(device), rank, std::move(reach), arena));  // private constructor
  const cuda::Driver& driver = made->device_->driver();
  const auto ranks = static_cast<std::uint32_t>(made->reach_.size());
  const std::uint64_t first = DeviceArena::window_word(0, 0);
  const std::uint64_t bytes = DeviceArena::window_word(ranks - 1, kMostDeviceWindows) + sizeof(std::uint64_t) - first;
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t), device::kNoWindowBase);
  for (std::uint32_t peer = 0; peer < ranks; ++peer) {
    if (made->reach_[peer] == Reach::kElsewhere) continue;
    words[(DeviceArena::window_word(peer, 0) - first) / sizeof(std::uint64_t)] = 0;
  }
  auto stream = cuda::Stream::create(driver);
  if (!stream) return stream.error();
  TUTTI_TRY(driver.check(driver.api().memcpy_htod_async(arena + first, words.data(), bytes, stream->handle()),
                         "writing a rank's table of windows"));
  TUTTI_TRY(stream->synchronize());
  return made;
}

Result<std::uint32_t> DeviceWindows::add(const void* data, std::size_t bytes, const Gather& gather) {
  const cuda::Driver& driver = device_->driver();
  const Relaxed relaxed(driver);
  auto scope = cuda::ContextScope::enter(driver, device_->context());
  auto blobs = gather_or_fail(gather, scope ? offer(data, bytes) : scope.error());
  if (!blobs) return blobs.error();
  std::vector<Offer> offers;
  std::uint64_t taken = 0;
  for (std::uint32_t r = 0; r < reach_.size(); ++r) {
    Offer& theirs = offers.emplace_back();
    if ((*blobs)[r].size() != sizeof(theirs)) {
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(r),
                   fmt::format("rank {} said something of its memory that cannot be read", r)};
    }
    std::memcpy(&theirs, (*blobs)[r].data(), sizeof(theirs));
    taken |= theirs.taken;
  }
  const auto number = static_cast<std::uint32_t>(std::countr_one(taken)) + 1;
  if (number > kMostDeviceWindows) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 fmt::format("{} registrations of device memory have not ended on all ranks, and a communicator has no "
                             "more: release some on all ranks, or register longer pieces",
                             kMostDeviceWindows)};
  }
  const Status opened = open(number, offers);
  // Nobody uses the window before everybody has it.
  auto all = gather_or_fail(gather, opened ? Result<std::string>("+") : opened.error());
  const std::scoped_lock lock(mutex_);
  if (!all) {
    close(number);
    return all.error();
  }
  windows_[number].taken = true;
  windows_[number].begin = reinterpret_cast<std::uintptr_t>(data);
  windows_[number].bytes = bytes;
  last_ = std::max(last_, number);
  return number;
}

Status DeviceWindows::check(const void* data, std::size_t bytes) const {
  const cuda::Driver& driver = device_->driver();
  const auto* begin = static_cast<const std::byte*>(data);
  for (const std::byte* at : {begin, begin + (bytes - 1)}) {
    auto where = cuda::classify(driver, at);
    if (!where) return where.error();
    if (where->kind != cuda::MemoryKind::kDevice && where->kind != cuda::MemoryKind::kManaged) {
      return invalid_argument(fmt::format("{} bytes at {} are not all memory of a GPU", bytes, data));
    }
    if (where->kind == cuda::MemoryKind::kDevice && where->device != device_->number()) {
      return invalid_argument(
          fmt::format("{} bytes at {} are memory of GPU {}, but this communicator's rank has GPU {}", bytes, data,
                      where->device, device_->number()));
    }
    if (where->context != nullptr && where->context != device_->context()) {
      return invalid_argument(
          fmt::format("{} bytes at {} are memory of another context of GPU {} than this "
                      "communicator's: make the communicator where that is current",
                      bytes, data, device_->number()));
    }
  }
  const bool others = std::ranges::any_of(reach_, [](Reach reach) { return reach != Reach::kSameDevice; });
  if (!others) return {};
  auto plain = cuda::is_plain_device_memory(driver, data);
  if (!plain) return plain.error();
  if (*plain) return {};
  return Error{
      ErrorCode::kUnsupported, ErrorScope::kCall, -1,
      fmt::format("{} bytes at {} cannot be mapped by other ranks: allocate them with cuMemAlloc (cudaMalloc), "
                  "not as managed memory, from a memory pool or as virtual memory of your own",
                  bytes, data)};
}

Result<std::string> DeviceWindows::offer(const void* data, std::size_t bytes) const {
  TUTTI_TRY(check(data, bytes));
  const cuda::Driver& driver = device_->driver();
  Offer own;
  own.address = reinterpret_cast<std::uintptr_t>(data);
  if (std::ranges::count(reach_, Reach::kElsewhere) > 0) {
    cuda::CUdeviceptr base = 0;
    std::size_t length = 0;
    TUTTI_TRY(driver.check(driver.api().mem_get_address_range(&base, &length, own.address),
                           "finding the allocation that registered memory lies in"));
    own.offset = own.address - base;
    if (bytes > length - own.offset) {
      return invalid_argument(fmt::format("{} bytes at {} reach past the end of their allocation", bytes, data));
    }
    TUTTI_TRY(driver.check(driver.api().ipc_get_mem_handle(&own.handle, base), "sharing registered memory"));
  }
  {
    const std::scoped_lock lock(mutex_);
    for (std::uint32_t n = 1; n <= last_; ++n) own.taken |= std::uint64_t{windows_[n].taken ? 1u : 0u} << (n - 1);
  }
  static_assert(std::is_trivially_copyable_v<Offer>);
  return std::string(reinterpret_cast<const char*>(&own), sizeof(own));
}

// Maps the peers' memory as window `number`, which is nobody's yet.
Status DeviceWindows::open(std::uint32_t number, const std::vector<Offer>& offers) {
  const cuda::Driver& driver = device_->driver();
  std::vector<std::uint64_t> bases(reach_.size(), device::kNoWindowBase);
  const std::scoped_lock lock(mutex_);
  for (std::uint32_t r = 0; r < reach_.size(); ++r) {
    if (reach_[r] != Reach::kElsewhere) {
      bases[r] = offers[r].address;
      continue;
    }
    auto opened = cuda::PeerMemory::open(driver, offers[r].handle);
    if (!opened) {
      Error error = opened.error();
      error.message = fmt::format("mapping the registered memory of rank {}: {}", r, error.message);
      return error;
    }
    bases[r] = opened->address() + offers[r].offset;
    windows_[number].opened.push_back(std::move(*opened));
  }
  return write_bases(number, bases);
}

Status DeviceWindows::write_bases(std::uint32_t number, const std::vector<std::uint64_t>& bases) const {
  const cuda::Driver& driver = device_->driver();
  auto stream = cuda::Stream::create(driver);
  if (!stream) return stream.error();
  for (std::uint32_t r = 0; r < bases.size(); ++r) {
    TUTTI_TRY(driver.check(driver.api().memcpy_htod_async(arena_ + DeviceArena::window_word(r, number), &bases[r],
                                                          sizeof(bases[r]), stream->handle()),
                           "writing where a window begins"));
  }
  return stream->synchronize();
}

// What uses the window nevertheless is told so by its kernel.
void DeviceWindows::close(std::uint32_t number) {
  static_cast<void>(write_bases(number, std::vector<std::uint64_t>(reach_.size(), device::kNoWindowBase)));
  windows_[number] = {};
  while (last_ > 0 && !windows_[last_].taken) --last_;
}

void DeviceWindows::remove(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  if (ended_) return;
  const Relaxed relaxed(device_->driver());
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  close(number);
}

std::size_t DeviceWindows::used() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(windows_.begin(), windows_.end(), [](const Window& window) { return window.taken; }));
}

std::optional<DeviceWindows::Place> DeviceWindows::find(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::scoped_lock lock(mutex_);
  for (std::uint32_t n = 1; n <= last_; ++n) {
    const Window& window = windows_[n];
    if (!window.taken || begin < window.begin || begin - window.begin > window.bytes) continue;
    if (bytes <= window.bytes - (begin - window.begin)) return Place{n, begin - window.begin};
  }
  return std::nullopt;
}

void DeviceWindows::end(bool idle) {
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  for (Window& window : windows_) {
    if (idle) {
      window.opened.clear();
    } else if (!window.opened.empty()) {
      static_cast<void>(new std::vector<cuda::PeerMemory>(std::move(window.opened)));  // kernels may still use it
    }
  }
  last_ = 0;
}

}  // namespace tutti::detail
