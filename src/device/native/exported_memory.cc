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

// Files of one rank that may be open here and there in one round, of all its peers: few beside the 1,024 that a process
// may have open by default.
constexpr std::uint64_t kMostFiles = 128;
// A file is on its way before its owner ends the round; only a full socket or a lack of descriptors holds it up.
constexpr std::chrono::seconds kArrival{10};
constexpr std::chrono::microseconds kLookEvery{200};

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message)}; }

Error from_rank(std::uint32_t rank, Error error) {
  error.message = fmt::format("mapping the registered memory of rank {}: {}", rank, error.message);
  return error;
}

// Whether one end of the piece is memory of this GPU, of whatever kind.
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

// The piece in the one allocation of cuMemAlloc's that it begins in.
Result<ExportedMemory> plain_piece(const RankDevice& device, const void* data, std::size_t bytes) {
  const cuda::Driver& driver = device.driver();
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  cuda::CUdeviceptr base = 0;
  std::size_t length = 0;
  TUTTI_TRY(driver.check(driver.api().mem_get_address_range(&base, &length, address),
                         "finding the allocation that registered memory lies in"));
  ExportedMemory piece{.offset = address - base, .handle = cuda::CUipcMemHandle{}, .parts = {}};
  if (bytes > length - piece.offset) {
    return invalid_argument(fmt::format("{} bytes at {} reach past the end of their allocation", bytes, data));
  }
  TUTTI_TRY(driver.check(driver.api().ipc_get_mem_handle(&*piece.handle, base), "sharing registered memory"));
  return piece;
}

// Nothing where other memory begins there.
Result<std::optional<ExportedPart>> part_at(const cuda::Driver& driver, cuda::CUdeviceptr at, cuda::CUdeviceptr& base) {
  auto memory = cuda::PhysicalMemory::behind(driver, at);
  if (!memory) return memory.error();
  if (!*memory) return std::optional<ExportedPart>();
  std::size_t length = 0;
  TUTTI_TRY(driver.check(driver.api().mem_get_address_range(&base, &length, at),
                         "finding the allocation that registered memory lies in"));
  return std::optional<ExportedPart>(ExportedPart{.memory = std::move(**memory), .bytes = length});
}

// The piece in mapped memory; no parts: it begins in other memory.
Result<ExportedMemory> mapped_piece(const cuda::Driver& driver, std::uint64_t address, std::uint64_t bytes) {
  ExportedMemory piece;
  for (std::uint64_t at = address; at < address + bytes;) {
    cuda::CUdeviceptr base = 0;
    auto part = part_at(driver, at, base);
    if (!part) return part.error();
    if (!*part && piece.parts.empty()) return piece;
    if (!*part) {
      return invalid_argument(fmt::format(
          "{} bytes at {:#x} begin in mapped virtual memory and do not all lie in such: nothing of the kind is mapped "
          "at {:#x}",
          bytes, address, at));
    }
    if (piece.parts.empty()) piece.offset = address - base;
    if (piece.parts.size() == kMostDeviceParts) {
      return unsupported(
          fmt::format("{} bytes at {:#x} lie in more than {} allocations: register shorter pieces, or create longer "
                      "allocations",
                      bytes, address, kMostDeviceParts));
    }
    at = base + (*part)->bytes;
    piece.mapped_bytes += (*part)->bytes;
    piece.parts.push_back(std::move(**part));
  }
  return piece;
}

Status check_parts(const RankDevice& device, const void* data, std::size_t bytes, const ExportedMemory& piece,
                   DeviceReach farthest) {
  for (const ExportedPart& part : piece.parts) {
    const auto its = part.memory.properties();
    if (!its) return its.error();
    if (its->device != device.number()) {
      return invalid_argument(
          fmt::format("{} bytes at {} are partly memory of GPU {}, but this communicator's rank has GPU {}", bytes,
                      data, its->device, device.number()));
    }
    if (its->shareable || farthest != DeviceReach::kElsewhere) continue;
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

Result<ExportedMemory> look_at_piece(const RankDevice& device, const void* data, std::size_t bytes,
                                     DeviceReach farthest) {
  const auto* begin = static_cast<const std::byte*>(data);
  TUTTI_TRY(check_end(device, data, bytes, begin));
  TUTTI_TRY(check_end(device, data, bytes, begin + (bytes - 1)));
  if (farthest == DeviceReach::kSameDevice) return ExportedMemory{};
  auto plain = cuda::is_plain_device_memory(device.driver(), data);
  if (!plain) return plain.error();
  if (*plain) return farthest == DeviceReach::kElsewhere ? plain_piece(device, data, bytes) : ExportedMemory{};
  auto piece = mapped_piece(device.driver(), reinterpret_cast<std::uintptr_t>(data), bytes);
  if (!piece) return piece.error();
  if (piece->parts.empty()) return of_other_kind(device.driver(), data, bytes);
  TUTTI_TRY(check_parts(device, data, bytes, *piece, farthest));
  return piece;
}

Result<cuda::MappedMemory> map_again(const RankDevice& device, std::uint64_t address, std::uint64_t bytes) {
  auto piece = mapped_piece(device.driver(), address, bytes);
  if (!piece) return piece.error();
  auto mapped = cuda::MappedMemory::reserve(device.driver(), piece->mapped_bytes);
  if (!mapped) return mapped.error();
  for (const ExportedPart& part : piece->parts) TUTTI_TRY(mapped->map(part.memory, part.bytes));
  const std::array own = {device.number()};
  TUTTI_TRY(mapped->allow(own));
  return mapped;
}

// Of one part, in a round's blob. Ranks of one job run the same build.
struct ExportRounds::Entry {
  std::uint64_t bytes = 0;
  std::uint32_t id = 0;
  std::uint32_t reserved = 0;
};

class ExportRounds::Shown {
 public:
  explicit Shown(const DevicePeers& peers) : exchange_(*peers.exchange) {
    for (std::size_t r = 0; r < peers.reach.size(); ++r) {
      if (peers.reach[r] == DeviceReach::kElsewhere) audience_.push_back(peers.job_ranks[r]);
    }
  }
  ~Shown() {
    for (const std::uint32_t id : ids_) runs_through([&] { exchange_.unshare(id, audience_); });
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  std::uint32_t add(cuda::File file) {
    const std::uint32_t id = exchange_.share_file(file.release(), audience_);
    TUTTI_ASSERT(id != 0, "ranks of other processes, and no way for files to them");
    return ids_.emplace_back(id);
  }

 private:
  SegmentExchange& exchange_;
  std::vector<std::uint32_t> audience_;
  std::vector<std::uint32_t> ids_;
};

std::uint64_t ExportRounds::parts_of(std::uint32_t rank) const {
  return peers_.reach[rank] == DeviceReach::kElsewhere ? said_[rank].parts : 0;
}

Status ExportRounds::run(const Gather& gather, Status& own) {
  std::uint64_t most = 0;
  for (const Said& said : said_) most = std::max(most, said.parts);
  // Every communicator of several processes has ranks elsewhere for all of its ranks, so all count the same rounds.
  if (std::ranges::count(peers_.reach, DeviceReach::kElsewhere) == 0) most = 0;
  const std::uint64_t count = std::max<std::uint64_t>(1, kMostFiles / said_.size());
  own = reserve();
  for (std::uint64_t first = 0; first < most; first += count) {
    std::shared_ptr<Shown> shown;  // shared by this round and the next
    auto blobs = gather_or_fail(gather, own.ok() ? show(first, count, shown) : own.error());
    last_shown_ = std::move(shown);
    if (!blobs) return blobs.error();
    own = map(first, count, *blobs);
  }
  if (own.ok()) own = allow();
  return {};
}

Status ExportRounds::reserve() {
  for (std::uint32_t r = 0; r < said_.size(); ++r) {
    if (parts_of(r) == 0) continue;
    auto memory = cuda::MappedMemory::reserve(device_.driver(), said_[r].mapped_bytes);
    if (!memory) return from_rank(r, memory.error());
    arriving_.push_back({.rank = r, .memory = std::move(*memory)});
  }
  return {};
}

Result<std::string> ExportRounds::show(std::uint64_t first, std::uint64_t count, std::shared_ptr<Shown>& shown) const {
  std::string blob;
  shown = std::make_shared<Shown>(peers_);
  for (std::uint64_t i = first; i < std::min<std::uint64_t>(first + count, own_.parts.size()); ++i) {
    auto file = own_.parts[i].memory.share();
    if (!file) return file.error();
    const Entry entry{.bytes = own_.parts[i].bytes, .id = shown->add(std::move(*file))};
    blob.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
  }
  return blob;
}

Status ExportRounds::map(std::uint64_t first, std::uint64_t count, const std::vector<std::string>& blobs) {
  for (Arriving& from : arriving_) {
    const std::uint64_t parts = said_[from.rank].parts;
    const std::uint64_t expected = first < parts ? std::min(count, parts - first) : 0;
    const std::string& blob = blobs[from.rank];
    if (blob.size() != expected * sizeof(Entry)) {
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(from.rank),
                   fmt::format("rank {} said something of its memory that cannot be read", from.rank)};
    }
    for (std::uint64_t i = 0; i < expected; ++i) {
      Entry part;
      std::memcpy(&part, blob.data() + i * sizeof(part), sizeof(part));
      if (const Status mapped = map_part(from, part); !mapped) return from_rank(from.rank, mapped.error());
    }
  }
  return {};
}

Status ExportRounds::map_part(Arriving& from, const Entry& part) const {
  if (part.bytes == 0 || part.bytes > from.memory.bytes() - from.memory.mapped()) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(from.rank),
                 "its parts are longer than it said"};
  }
  auto file = receive(from.rank, part.id);
  if (!file) return file.error();
  const auto memory = cuda::PhysicalMemory::import(device_.driver(), *file);
  if (!memory) return memory.error();
  return from.memory.map(*memory, part.bytes);
}

Result<cuda::File> ExportRounds::receive(std::uint32_t rank, std::uint32_t id) const {
  const std::uint32_t peer = peers_.job_ranks[rank];
  const auto deadline = std::chrono::steady_clock::now() + kArrival;
  for (;;) {
    const bool gone = peers_.exchange->peer_gone(peer);  // before the look: what it sent before its end still counts
    if (const int fd = peers_.exchange->take_file(peer, id); fd >= 0) return cuda::File(fd);
    if (const auto loss = peers_.exchange->take_loss(peer, id)) {
      return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                   fmt::format("a file of the memory of rank {} is not to be had here: {}", rank, loss->why)};
    }
    if (gone) {
      return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   fmt::format("rank {} has ended", rank)};
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

Status ExportRounds::allow() const {
  const std::array own = {device_.number()};
  for (const Arriving& from : arriving_) {
    if (from.memory.mapped() != from.memory.bytes()) {
      return from_rank(from.rank, {ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(from.rank),
                                   "its parts are shorter than it said"});
    }
    if (const Status allowed = from.memory.allow(own); !allowed) return from_rank(from.rank, allowed.error());
  }
  return {};
}

std::optional<cuda::MappedMemory> ExportRounds::take(std::uint32_t rank) {
  for (Arriving& from : arriving_) {
    if (from.rank == rank) return std::move(from.memory);
  }
  return std::nullopt;
}

}  // namespace tutti::detail
