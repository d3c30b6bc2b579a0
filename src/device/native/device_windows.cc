// DeviceWindows: the rounds of a registration, and the table of windows in the arena.
#include "device/native/device_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/leak_until_exit.h"
#include "engine/arguments.h"
#include "kernels/device/call.h"

namespace tutti::detail {

// The contribution of each rank to the first round of a registration. Sent as raw bytes, which is possible because all
// ranks of a job run the same build.
struct DeviceWindows::Offer {
  std::uint64_t taken = 0;  // bit n - 1 is set if window n is in use on this rank
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  // Offset of the memory, in bytes, from the start of the allocation that `handle` describes or, for mapped memory,
  // from the start of its first allocation.
  std::uint64_t offset = 0;
  // The number and the total length of the mapped allocations. If the number is 0, the memory is not mapped memory, and
  // peers in other processes use `handle`; or all ranks share one GPU and process, so that nothing is exported.
  ExportedMemory::Size mapped{};
  cuda::CUipcMemHandle handle{};
};

namespace {

static_assert(kMostDeviceWindows <= 64, "numbers are bits of a word");

}  // namespace

Result<std::shared_ptr<DeviceWindows>> DeviceWindows::make(std::shared_ptr<RankDevice> device,
                                                           ExportedMemory::Peers peers, cuda::CUdeviceptr arena) {
  std::shared_ptr<DeviceWindows> made(
      // not make_shared, because the constructor is private
      new DeviceWindows(std::move(device), std::move(peers), arena));
  const cuda::Driver& driver = made->device_->driver();
  const auto ranks = static_cast<std::uint32_t>(made->peers_.reach.size());
  const std::uint64_t first = DeviceArena::window_word(0, 0);
  const std::uint64_t bytes = DeviceArena::window_word(ranks - 1, kMostDeviceWindows) + sizeof(std::uint64_t) - first;
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t), device::kNoWindowBase);
  for (std::uint32_t peer = 0; peer < ranks; ++peer) {
    if (made->peers_.reach[peer] == ExportedMemory::Reach::kOtherProcess) continue;
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
  const cuda::RelaxedCapture relaxed(driver);
  auto scope = cuda::ContextScope::enter(driver, device_->context());
  ExportedMemory exported;
  auto blobs = gather_or_fail(gather, scope ? offer(data, bytes, exported) : scope.error());
  if (!blobs) return blobs.error();
  auto offers = read(*blobs);
  if (!offers) return offers.error();
  std::uint64_t taken = 0;
  std::vector<ExportedMemory::Size> sizes;
  for (const Offer& theirs : *offers) {
    taken |= theirs.taken;
    sizes.push_back(theirs.mapped);
  }
  const auto number = static_cast<std::uint32_t>(std::countr_one(taken)) + 1;
  if (number > kMostDeviceWindows) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 fmt::format("{} registrations of device memory have not ended on all ranks, and a communicator has no "
                             "more: release some on all ranks, or register fewer, longer buffers",
                             kMostDeviceWindows)};
  }
  try {
    ExportedMemory::Rounds parts(*device_, peers_, exported, sizes);
    TUTTI_TRY(exchange(number, *offers, parts, gather));
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    close(number);
    throw;
  }
  const std::scoped_lock lock(mutex_);
  windows_[number].taken = true;
  windows_[number].begin = reinterpret_cast<std::uintptr_t>(data);
  windows_[number].bytes = bytes;
  windows_[number].symmetric = std::ranges::all_of(*offers, [&](const Offer& theirs) { return theirs.bytes == bytes; });
  last_ = std::max(last_, number);
  return number;
}

// Opens the peers' memory as window `number`. If that fails on any rank, all ranks close the window again and return an
// error.
Status DeviceWindows::exchange(std::uint32_t number, const std::vector<Offer>& offers, ExportedMemory::Rounds& parts,
                               const Gather& gather) {
  Status opened;
  TUTTI_TRY(parts.run(gather, opened));
  if (opened.ok()) opened = open(number, offers, parts);
  // A last round, in which each rank reports whether it has opened the window, because a window may be used only if
  // all ranks have opened it.
  auto all = gather_or_fail(gather, opened ? Result<std::string>("+") : opened.error());
  if (all) return {};
  const std::scoped_lock lock(mutex_);
  close(number);
  return all.error();
}

Result<std::string> DeviceWindows::offer(const void* data, std::size_t bytes, ExportedMemory& exported) const {
  auto found = ExportedMemory::find(*device_, data, bytes, *std::ranges::max_element(peers_.reach));
  if (!found) return found.error();
  exported = std::move(*found);
  Offer own;
  own.address = reinterpret_cast<std::uintptr_t>(data);
  own.bytes = bytes;
  own.offset = exported.offset;
  own.mapped = {.parts = exported.parts.size(), .mapped_bytes = exported.mapped_bytes};
  own.handle = exported.handle.value_or(cuda::CUipcMemHandle{});
  {
    const std::scoped_lock lock(mutex_);
    for (std::uint32_t n = 1; n <= last_; ++n) own.taken |= std::uint64_t{windows_[n].taken ? 1u : 0u} << (n - 1);
  }
  static_assert(std::is_trivially_copyable_v<Offer>);
  return std::string(reinterpret_cast<const char*>(&own), sizeof(own));
}

Result<std::vector<DeviceWindows::Offer>> DeviceWindows::read(const std::vector<std::string>& blobs) const {
  std::vector<Offer> offers;
  for (std::uint32_t r = 0; r < peers_.reach.size(); ++r) {
    Offer& theirs = offers.emplace_back();
    if (blobs[r].size() == sizeof(theirs)) std::memcpy(&theirs, blobs[r].data(), sizeof(theirs));
    if (blobs[r].size() == sizeof(theirs) && theirs.mapped.parts <= kMostDeviceParts) continue;
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(r),
                 fmt::format("rank {} sent a malformed description of its memory", r)};
  }
  return offers;
}

// Makes the memory of all ranks accessible as window `number`, which is not in use yet: maps it if map_peer() must do
// so, and writes the addresses into the table in the arena.
Status DeviceWindows::open(std::uint32_t number, const std::vector<Offer>& offers, ExportedMemory::Rounds& parts) {
  std::vector<std::uint64_t> bases(offers.size(), device::kNoWindowBase);
  const std::scoped_lock lock(mutex_);
  for (std::uint32_t r = 0; r < offers.size(); ++r) {
    const auto base = map_peer(r, offers[r], parts, windows_[number]);
    if (!base) {
      Error error = base.error();
      error.message = fmt::format("mapping the registered memory of rank {}: {}", r, error.message);
      return error;
    }
    bases[r] = *base;
  }
  windows_[number].bases = bases;
  return write_bases(number, bases);
}

// Returns the address of the peer's memory as this rank's GPU sees it. Maps it first if necessary, and keeps the
// mapping in `window`.
Result<std::uint64_t> DeviceWindows::map_peer(std::uint32_t peer, const Offer& offer, ExportedMemory::Rounds& parts,
                                              Window& window) const {
  const ExportedMemory::Reach reach = peers_.reach[peer];
  const bool is_mapped = offer.mapped.parts > 0;
  if (reach == ExportedMemory::Reach::kSameDevice || (reach == ExportedMemory::Reach::kSameProcess && !is_mapped))
    return offer.address;
  if (!is_mapped) {
    auto opened = cuda::PeerMemory::open(device_->driver(), offer.handle);
    if (!opened) return opened.error();
    return window.opened.emplace_back(std::move(*opened)).address() + offer.offset;
  }
  // The owner of virtual memory decides which GPUs may access a mapping. Therefore this rank maps the memory of a
  // peer on another GPU once more, at other addresses, with access for its own GPU.
  if (reach == ExportedMemory::Reach::kSameProcess) {
    auto mapped = ExportedMemory::map_again(*device_, offer.address, offer.bytes);
    if (!mapped) return mapped.error();
    return window.mapped.emplace_back(std::move(*mapped)).address() + offer.offset;
  }
  return window.mapped.emplace_back(*parts.take(peer)).address() + offer.offset;
}

Status DeviceWindows::write_bases(std::uint32_t number, std::span<const std::uint64_t> bases) const {
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

// Frees window `number` on this rank, and writes kNoWindowBase into the table instead of the addresses (unless the
// driver fails). If a running call then receives a published message in this window, the call fails. A message that the
// call would deliver into the window goes through a slot instead. Never throws, so that destructors can call it. Hold
// the mutex.
void DeviceWindows::close(std::uint32_t number) noexcept {
  std::array<std::uint64_t, kMostDeviceRanks> none{};
  none.fill(device::kNoWindowBase);
  runs_through([&] { static_cast<void>(write_bases(number, std::span(none).first(peers_.reach.size()))); });
  windows_[number] = {};
  while (last_ > 0 && !windows_[last_].taken) --last_;
}

void DeviceWindows::remove(std::uint32_t number) {
  const std::scoped_lock lock(mutex_);
  if (ended_) return;
  const cuda::RelaxedCapture relaxed(device_->driver());
  const auto scope = cuda::ContextScope::try_enter(device_->driver(), device_->context());
  close(number);
}

std::size_t DeviceWindows::used() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(windows_.begin(), windows_.end(), [](const Window& window) { return window.taken; }));
}

std::optional<DeviceWindows::WindowLocation> DeviceWindows::find_locked(const void* data, std::size_t bytes,
                                                                        WindowFilter wanted) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (std::uint32_t n = 1; n <= last_; ++n) {
    const Window& window = windows_[n];
    if (!window.taken || begin < window.begin || begin - window.begin > window.bytes) continue;
    if (wanted == WindowFilter::kSymmetric && !window.symmetric) continue;
    if (bytes <= window.bytes - (begin - window.begin)) return WindowLocation{n, begin - window.begin};
  }
  return std::nullopt;
}

std::optional<DeviceWindows::WindowLocation> DeviceWindows::find(const void* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  return find_locked(data, bytes, WindowFilter::kAny);
}

std::optional<DeviceWindows::SymmetricLocation> DeviceWindows::find_symmetric(const void* data,
                                                                              std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto place = find_locked(data, bytes, WindowFilter::kSymmetric);
  if (!place) return std::nullopt;
  SymmetricLocation found{.place = *place, .addresses = windows_[place->window].bases};
  for (std::uint64_t& address : found.addresses) address += place->offset;
  return found;
}

void DeviceWindows::end(bool idle) {
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  for (Window& window : windows_) {
    if (idle) {
      window.opened.clear();
      window.mapped.clear();
    } else if (!window.opened.empty() || !window.mapped.empty()) {
      leak_until_exit(std::move(window));  // kernels may still use the mappings
    }
  }
  last_ = 0;
}

}  // namespace tutti::detail
