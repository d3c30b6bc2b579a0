// ExportedMemory and its rounds: finds the allocations of a range, and passes them between processes as files.
#include "device/native/exported_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/assert.h"
#include "base/exceptions.h"
#include "cuda/pointer.h"
#include "engine/arguments.h"

namespace tutti::detail {
namespace {

// About the largest number of files that a rank has open in one round, its own and those of all its peers together.
// Small compared to the default limit of 1,024 open files for each process.
constexpr std::uint64_t kMostFiles = 128;
// How long to wait for a file. Its owner has sent it before the gather of the round ends, so only a full socket or
// a lack of file descriptors can delay it.
constexpr std::chrono::seconds kArrival{10};
constexpr std::chrono::microseconds kLookEvery{200};

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message)}; }

Error from_rank(std::uint32_t rank, Error error) {
  error.message = fmt::format("mapping the registered memory of rank {}: {}", rank, error.message);
  return error;
}

// Checks that the byte at `at`, the first or the last one of the range, is memory of this GPU or managed memory, and
// that it belongs to this context or, as mapped virtual memory, to none. `data` and `bytes`: the range, for messages.
Status check_end(const RankDevice& device, const void* data, std::size_t bytes, const std::byte* at) {
  auto where = cuda::classify(device.driver(), at);
  if (!where) return where.error();
  if (where->kind != cuda::MemoryKind::kDevice && where->kind != cuda::MemoryKind::kManaged) {
    return invalid_argument(fmt::format("{} bytes at {} are not all memory of a GPU", bytes, data));
  }
  if (where->kind == cuda::MemoryKind::kDevice && where->device != device.number()) {
    return invalid_argument(fmt::format("{} bytes at {} are memory of GPU {}, but this communicator's rank has GPU {}",
                                        bytes, data, where->device, device.number()));
  }
  if (where->context != nullptr && where->context != device.context()) {
    return invalid_argument(
        fmt::format("{} bytes at {} are memory of another context of GPU {} than this "
                    "communicator's: make the communicator where that is current",
                    bytes, data, device.number()));
  }
  return {};
}

// Finds the allocation of cuMemAlloc that contains the range, and makes an IPC handle for it.
Result<ExportedMemory> plain_piece(const RankDevice& device, const void* data, std::size_t bytes) {
  const cuda::Driver& driver = device.driver();
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  cuda::CUdeviceptr base = 0;
  std::size_t length = 0;
  TUTTI_TRY(driver.check(driver.api().mem_get_address_range(&base, &length, address),
                         "finding the allocation that registered memory lies in"));
  ExportedMemory exported{.offset = address - base, .handle = cuda::CUipcMemHandle{}, .parts = {}};
  if (bytes > length - exported.offset) {
    return invalid_argument(fmt::format("{} bytes at {} reach past the end of their allocation", bytes, data));
  }
  TUTTI_TRY(driver.check(driver.api().ipc_get_mem_handle(&*exported.handle, base), "sharing registered memory"));
  return exported;
}

// Returns the allocation that cuMemMap has mapped at address `at`, and stores the address of its start in `base`.
// Returns nothing if the memory at `at` is of another type.
Result<std::optional<ExportedMemory::Part>> part_at(const cuda::Driver& driver, cuda::CUdeviceptr at,
                                                    cuda::CUdeviceptr& base) {
  auto memory = cuda::PhysicalMemory::behind(driver, at);
  if (!memory) return memory.error();
  if (!*memory) return std::optional<ExportedMemory::Part>();
  std::size_t length = 0;
  TUTTI_TRY(driver.check(driver.api().mem_get_address_range(&base, &length, at),
                         "finding the allocation that registered memory lies in"));
  return std::optional<ExportedMemory::Part>(ExportedMemory::Part{.memory = std::move(**memory), .bytes = length});
}

// Finds the mapped allocations that contain the range. Returns no parts if the range does not begin in mapped
// memory.
Result<ExportedMemory> mapped_piece(const cuda::Driver& driver, std::uint64_t address, std::uint64_t bytes) {
  ExportedMemory exported;
  for (std::uint64_t at = address; at < address + bytes;) {
    cuda::CUdeviceptr base = 0;
    auto part = part_at(driver, at, base);
    if (!part) return part.error();
    if (!*part && exported.parts.empty()) return exported;
    if (!*part) {
      return invalid_argument(fmt::format(
          "{} bytes at {:#x} begin in mapped virtual memory and do not all lie in such: nothing of the kind is mapped "
          "at {:#x}",
          bytes, address, at));
    }
    if (exported.parts.empty()) exported.offset = address - base;
    if (exported.parts.size() == kMostDeviceParts) {
      return unsupported(
          fmt::format("{} bytes at {:#x} lie in more than {} allocations: register shorter pieces, or create longer "
                      "allocations",
                      bytes, address, kMostDeviceParts));
    }
    at = base + (*part)->bytes;
    exported.mapped_bytes += (*part)->bytes;
    exported.parts.push_back(std::move(**part));
  }
  return exported;
}

Status check_parts(const RankDevice& device, const void* data, std::size_t bytes, const ExportedMemory& exported,
                   ExportedMemory::Reach farthest) {
  for (const ExportedMemory::Part& part : exported.parts) {
    const auto its = part.memory.properties();
    if (!its) return its.error();
    if (its->device != device.number()) {
      return invalid_argument(
          fmt::format("{} bytes at {} are partly memory of GPU {}, but this communicator's rank has GPU {}", bytes,
                      data, its->device, device.number()));
    }
    if (its->shareable || farthest != ExportedMemory::Reach::kOtherProcess) continue;
    return unsupported(fmt::format(
        "{} bytes at {} lie in virtual memory that was created without a handle type that other processes can map: "
        "give cuMemCreate CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR in requestedHandleTypes, or use cuMemAlloc",
        bytes, data));
  }
  return {};
}

Error of_other_kind(const cuda::Driver& driver, const void* data, std::size_t bytes) {
  const auto where = cuda::classify(driver, data);
  const auto pool = cuda::is_pool_memory(driver, data);
  const char* kind = "memory of a kind";
  if (where.ok() && where->kind == cuda::MemoryKind::kManaged) kind = "managed memory";
  if (pool.ok() && *pool) kind = "memory of a pool (cuMemAllocAsync)";
  return unsupported(
      fmt::format("{} bytes at {} are {}, which other ranks cannot map: allocate them with cuMemAlloc (cudaMalloc), or "
                  "with cuMemCreate and a POSIX file descriptor as handle type",
                  bytes, data, kind));
}

}  // namespace

Result<ExportedMemory> ExportedMemory::find(const RankDevice& device, const void* data, std::size_t bytes,
                                            Reach farthest) {
  const auto* begin = static_cast<const std::byte*>(data);
  TUTTI_TRY(check_end(device, data, bytes, begin));
  TUTTI_TRY(check_end(device, data, bytes, begin + (bytes - 1)));
  if (farthest == ExportedMemory::Reach::kSameDevice) return ExportedMemory{};
  const auto where = cuda::classify(device.driver(), data);
  if (!where) return where.error();
  if (where->plain)
    return farthest == ExportedMemory::Reach::kOtherProcess ? plain_piece(device, data, bytes) : ExportedMemory{};
  auto exported = mapped_piece(device.driver(), reinterpret_cast<std::uintptr_t>(data), bytes);
  if (!exported) return exported.error();
  if (exported->parts.empty()) return of_other_kind(device.driver(), data, bytes);
  TUTTI_TRY(check_parts(device, data, bytes, *exported, farthest));
  return exported;
}

Result<cuda::MappedMemory> ExportedMemory::map_again(const RankDevice& device, std::uint64_t address,
                                                     std::uint64_t bytes) {
  auto exported = mapped_piece(device.driver(), address, bytes);
  if (!exported) return exported.error();
  auto mapped = cuda::MappedMemory::reserve(device.driver(), exported->mapped_bytes);
  if (!mapped) return mapped.error();
  for (const ExportedMemory::Part& part : exported->parts) TUTTI_TRY(mapped->map(part.memory, part.bytes));
  const std::array own = {device.number()};
  TUTTI_TRY(mapped->allow(own));
  return mapped;
}

// Describes one allocation in a rank's contribution to a round. `id`: the id of its file in the SegmentExchange.
// Sent as raw bytes, which is possible because all ranks of a job run the same build.
struct ExportedMemory::Rounds::PartHeader {
  std::uint64_t bytes = 0;
  std::uint32_t id = 0;
  std::uint32_t reserved = 0;
};

class ExportedMemory::Rounds::SharedFiles {
 public:
  explicit SharedFiles(const ExportedMemory::Peers& peers) : exchange_(*peers.exchange) {
    for (std::size_t r = 0; r < peers.reach.size(); ++r) {
      if (peers.reach[r] == ExportedMemory::Reach::kOtherProcess) audience_.push_back(peers.job_ranks[r]);
    }
  }
  ~SharedFiles() {
    for (const std::uint32_t id : ids_) runs_through([&] { exchange_.unshare(id, audience_); });
  }
  SharedFiles(const SharedFiles&) = delete;
  SharedFiles& operator=(const SharedFiles&) = delete;

  std::uint32_t add(cuda::FileDescriptor file) {
    const std::uint32_t id = exchange_.share_file(file.release(), audience_);
    TUTTI_ASSERT(id != 0, "ranks of other processes, and no way for files to them");
    return ids_.emplace_back(id);
  }

 private:
  SegmentExchange& exchange_;
  std::vector<std::uint32_t> audience_;
  std::vector<std::uint32_t> ids_;
};

std::uint64_t ExportedMemory::Rounds::parts_of(std::uint32_t rank) const {
  return peers_.reach[rank] == ExportedMemory::Reach::kOtherProcess ? sizes_[rank].parts : 0;
}

Status ExportedMemory::Rounds::run(const Gather& gather, Status& own) {
  std::uint64_t most = 0;
  for (const ExportedMemory::Size& sizes : sizes_) most = std::max(most, sizes.parts);
  // All ranks must run the same number of rounds. If the ranks are in several processes, every rank has peers in
  // other processes, so all ranks compute the same number. If all are in one process, there are no rounds.
  if (std::ranges::count(peers_.reach, ExportedMemory::Reach::kOtherProcess) == 0) most = 0;
  const std::uint64_t count = std::max<std::uint64_t>(1, kMostFiles / sizes_.size());
  own = reserve();
  for (std::uint64_t first = 0; first < most; first += count) {
    // The files that this rank shares with its peers in this round. They stay shared until the gather of the next round
    // has ended (after the last round, until this object is destroyed), because only then all peers are known to have
    // received them.
    std::shared_ptr<SharedFiles> shared_files;
    auto blobs = gather_or_fail(gather, own.ok() ? show(first, count, shared_files) : own.error());
    last_shared_files_ = std::move(shared_files);
    if (!blobs) return blobs.error();
    own = map(first, count, *blobs);
  }
  if (own.ok()) own = allow();
  return {};
}

Status ExportedMemory::Rounds::reserve() {
  for (std::uint32_t r = 0; r < sizes_.size(); ++r) {
    if (parts_of(r) == 0) continue;
    auto memory = cuda::MappedMemory::reserve(device_.driver(), sizes_[r].mapped_bytes);
    if (!memory) return from_rank(r, memory.error());
    imported_.push_back({.rank = r, .memory = std::move(*memory)});
  }
  return {};
}

Result<std::string> ExportedMemory::Rounds::show(std::uint64_t first, std::uint64_t count,
                                                 std::shared_ptr<SharedFiles>& shared_files) const {
  std::string blob;
  shared_files = std::make_shared<SharedFiles>(peers_);
  for (std::uint64_t i = first; i < std::min<std::uint64_t>(first + count, own_.parts.size()); ++i) {
    auto file = own_.parts[i].memory.share();
    if (!file) return file.error();
    const PartHeader entry{.bytes = own_.parts[i].bytes, .id = shared_files->add(std::move(*file))};
    blob.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
  }
  return blob;
}

Status ExportedMemory::Rounds::map(std::uint64_t first, std::uint64_t count, const std::vector<std::string>& blobs) {
  for (ImportedMemory& from : imported_) {
    const std::uint64_t all = sizes_[from.rank].parts;
    const std::uint64_t expected = first < all ? std::min(count, all - first) : 0;
    const std::string& blob = blobs[from.rank];
    if (blob.size() != expected * sizeof(PartHeader)) {
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(from.rank),
                   fmt::format("rank {} sent a malformed description of its memory", from.rank)};
    }
    for (std::uint64_t i = 0; i < expected; ++i) {
      PartHeader part;
      std::memcpy(&part, blob.data() + i * sizeof(part), sizeof(part));
      if (const Status mapped = map_part(from, part); !mapped) return from_rank(from.rank, mapped.error());
    }
  }
  return {};
}

Status ExportedMemory::Rounds::map_part(ImportedMemory& from, const PartHeader& part) const {
  if (part.bytes == 0 || part.bytes > from.memory.bytes() - from.memory.mapped()) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(from.rank),
                 "its parts are longer than it announced"};
  }
  auto file = receive(from.rank, part.id);
  if (!file) return file.error();
  const auto memory = cuda::PhysicalMemory::import(device_.driver(), *file);
  if (!memory) return memory.error();
  return from.memory.map(*memory, part.bytes);
}

Result<cuda::FileDescriptor> ExportedMemory::Rounds::receive(std::uint32_t rank, std::uint32_t id) const {
  const std::uint32_t peer = peers_.job_ranks[rank];
  const auto deadline = std::chrono::steady_clock::now() + kArrival;
  for (;;) {
    // Read before take_file(), so that a file that the peer sent just before it exited is still found.
    const bool gone = peers_.exchange->peer_gone(peer);
    if (const int fd = peers_.exchange->take_file(peer, id); fd >= 0) return cuda::FileDescriptor(fd);
    if (const auto loss = peers_.exchange->take_loss(peer, id)) {
      return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                   fmt::format("a file of the memory of rank {} could not be received: {}", rank, loss->why)};
    }
    if (gone) {
      return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   fmt::format("the process of rank {} has exited", rank)};
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{ErrorCode::kTimeout, ErrorScope::kCall, static_cast<std::int32_t>(rank),
                   fmt::format("a file of its memory has not arrived after {} s: raise the limit of open files of "
                               "all ranks (ulimit -n)",
                               kArrival.count())};
    }
    peers_.exchange->pump();
    std::this_thread::sleep_for(kLookEvery);
  }
}

Status ExportedMemory::Rounds::allow() const {
  const std::array own = {device_.number()};
  for (const ImportedMemory& from : imported_) {
    if (from.memory.mapped() != from.memory.bytes()) {
      return from_rank(from.rank, {ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(from.rank),
                                   "its parts are shorter than it announced"});
    }
    if (const Status allowed = from.memory.allow(own); !allowed) return from_rank(from.rank, allowed.error());
  }
  return {};
}

std::optional<cuda::MappedMemory> ExportedMemory::Rounds::take(std::uint32_t rank) {
  for (ImportedMemory& from : imported_) {
    if (from.rank == rank) return std::move(from.memory);
  }
  return std::nullopt;
}

}  // namespace tutti::detail
