// A program: a rank's plan in packed form. A Geometry: the division of one call's buffers into tiles and chunks. The
// host writes both, and device code reads them. The types are plain values without pointers (except for the tables of
// Geometry), with the same layout on host and device. Nothing here accesses user memory.
//
// A program is one block of bytes: a ProgramHeader, followed by arrays. The header contains their offsets.
// executor/device_program.h packs it from a plan, and the terms are those of plan/plan.h. Geometry is the
// counterpart of plan/layout.h for one call: it converts chunks to elements with the same arithmetic. A test
// compares the two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/carrier.h"
#include "tutti/types.h"

#if defined(__CUDACC__)
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif

namespace tutti::device {

// Limits of a plan, mostly because the shared memory of a thread block is small. A plan that exceeds one is refused
// when it is packed. An after is a wait of a step for a step of another channel.
inline constexpr std::uint32_t kMaxPorts = 96;     // ports of one channel
inline constexpr std::uint32_t kMaxReceives = 64;  // receives of one step
inline constexpr std::uint32_t kMaxSends = 64;     // sends of one step
inline constexpr std::uint32_t kMaxAfters = 64;    // afters of one step

inline constexpr std::uint32_t kMaxChannels = 256;    // channels of one rank
inline constexpr std::uint32_t kMaxSteps = 1u << 24;  // steps of one channel
inline constexpr std::uint32_t kMaxRanks = 1u << 20;  // limited by the bits of a FailureWord
inline constexpr std::uint32_t kProgramVersion = 2;   // version of the packed format
inline constexpr std::uint32_t kNoBlocks = 0;         // Blocks::count of an input or output that the rank does not have
inline constexpr std::size_t kProgramAlignment = 16;  // alignment of a program

// The format in which a message is written into a slot.
enum class Protocol : std::uint8_t {
  kSimple = 0,  // the slot contains only data; afterwards a counter in the receiver's Mailbox announces the message
  // Lines of 16 bytes: 4 bytes of data, a 4-byte flag, 4 bytes of data, the flag. No counter announces the message and
  // no fence is needed, but only half of the bytes are data.
  kLl = 1,
  kLl128 = 2,  // lines of 128 bytes: 120 bytes of data and an 8-byte flag; 8 threads of a warp write a line as one
};
// For kLl, then for kLl128: the bytes of a line, and the bytes of data in a line.
inline constexpr std::uint64_t kLlLineBytes = 16;
inline constexpr std::uint64_t kLlLineData = 8;
inline constexpr std::uint64_t kLl128LineBytes = 128;
inline constexpr std::uint64_t kLl128LineData = 120;
// For kLl and kLl128: a slot begins with a line that describes the message, padded to this length.
inline constexpr std::uint64_t kHeaderBytes = 128;
// The maximum length of a chunk (max_chunk_bytes), in bytes, is a multiple of this number (plan/tiling.h).
inline constexpr std::uint64_t kChunkUnitBytes = 64;

// Length of the longest message that fits into a slot, in bytes, rounded down to a multiple of kChunkUnitBytes; 0 if no
// message fits.
constexpr std::uint64_t payload_bytes(Protocol protocol, std::uint64_t slot_bytes) {
  std::uint64_t bytes = slot_bytes;
  if (protocol != Protocol::kSimple) {
    if (slot_bytes < kHeaderBytes) return 0;
    const std::uint64_t lines = slot_bytes - kHeaderBytes;
    bytes = protocol == Protocol::kLl ? lines / kLlLineBytes * kLlLineData : lines / kLl128LineBytes * kLl128LineData;
  }
  return bytes / kChunkUnitBytes * kChunkUnitBytes;
}

// One element of the list of receives and sends of a step. For a receive, only `port` is used.
struct Route {
  std::uint16_t port = 0;  // index into the ports of the channel
  Carrier carrier = Carrier::kSlot;
  Carrier unpublished = Carrier::kSlot;
  std::uint32_t peer_chunk = 0;  // for kDelivered: the chunk in the output of the peer
};
static_assert(sizeof(Route) == 8 && alignof(Route) == 4);

struct PackedStep {
  std::uint32_t source_chunk = 0;
  std::uint32_t sink_chunk = 0;
  std::uint32_t first_route = 0;  // index into the routes of the channel: receives in operand order, then sends
  std::uint32_t first_after = 0;  // index into the afters of the channel
  std::uint16_t receive_count = 0;
  std::uint16_t send_count = 0;
  std::uint16_t source_position = 0;
  std::uint16_t after_count = 0;
  Space source = Space::kNone;
  Space sink = Space::kNone;
  std::uint8_t completes = 0;
  std::uint8_t reserved[5] = {};
};
static_assert(sizeof(PackedStep) == 32 && alignof(PackedStep) == 4);

struct PackedAfter {
  std::uint32_t other_step = 0;
  std::uint16_t other_channel = 0;
  std::uint16_t tiles_before = 0;
};
static_assert(sizeof(PackedAfter) == 8 && alignof(PackedAfter) == 4);

// The data blocks of a buffer (not thread blocks); see Blocks in plan/collective.h.
struct Blocks {
  std::uint32_t count = kNoBlocks;
  std::uint32_t first = 0;
};

struct PackedPort {
  std::uint32_t peer = 0;
  std::uint16_t lane = 0;
  std::uint8_t sends = 0;  // 1: this rank sends messages on the port; 0: it receives them
  std::uint8_t reserved = 0;
  Blocks peer_output;
};
static_assert(sizeof(PackedPort) == 16 && alignof(PackedPort) == 4);

struct PackedChannel {
  std::uint32_t first_step = 0;
  std::uint32_t step_count = 0;
  std::uint32_t first_port = 0;
  std::uint32_t port_count = 0;
  std::uint32_t first_route = 0;
  std::uint32_t route_count = 0;
  std::uint32_t first_after = 0;
  std::uint32_t watched = 0;  // 1: another channel of this rank waits for a step of this channel
};
static_assert(sizeof(PackedChannel) == 32 && alignof(PackedChannel) == 4);

struct ProgramHeader {
  std::uint32_t version = kProgramVersion;
  std::uint32_t total_bytes = 0;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
  std::uint32_t channel_count = 0;
  std::uint32_t port_count = 0;  // number of ports of all channels together
  std::uint32_t chunks = 1;
  std::uint32_t scratch_chunks = 0;
  std::uint32_t least_slots =
      1;  // the number of slots that every connection must at least have, so that the plan cannot deadlock
  std::uint32_t windows_in_place = 1;
  std::uint32_t channels_at = 0;  // offset of the array from the header, in bytes; so are the other fields named _at
  std::uint32_t steps_at = 0;
  std::uint32_t routes_at = 0;
  std::uint32_t afters_at = 0;
  std::uint32_t ports_at = 0;
  std::uint32_t lanes = 1;  // number of lanes of each pair of ranks; see connection_number() in call.h
  Blocks input;
  Blocks output;
};
static_assert(sizeof(ProgramHeader) == 80 && sizeof(ProgramHeader) % kProgramAlignment == 0);

// A unit of memory with the alignment of a program. Memory for a program is allocated as an array of ProgramWord.
struct alignas(kProgramAlignment) ProgramWord {
  unsigned char bytes[kProgramAlignment];
};

template <class T>
TUTTI_HOST_DEVICE const T* array_at(const ProgramHeader* program, std::uint32_t offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(program) + offset);
}

// The elements [offset, offset + count).
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

// How one data block of a buffer is divided into tiles and chunks; plan/tiling.h explains it. A unit is
// kChunkUnitBytes.
struct Cut {
  std::uint64_t count = 0;
  std::uint64_t unit_count = 1;
  std::uint64_t tiles = 0;
  std::uint64_t tile_units = 0;
  std::uint64_t full_units = 0;   // least units of a chunk, in every tile but the last
  std::uint64_t full_longer = 0;  // number of chunks with one more unit, in these tiles
  std::uint64_t last_units = 0;
  std::uint64_t last_longer = 0;
};
static_assert(sizeof(Cut) == 64);

constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

// `element_bytes` is 1, 2, 4 or 8. `max_chunk_bytes` is a positive multiple of kChunkUnitBytes.
constexpr Cut make_cut(std::uint64_t count, std::uint32_t element_bytes, std::uint32_t chunks,
                       std::uint64_t max_chunk_bytes) {
  Cut cut;
  cut.count = count;
  cut.unit_count = kChunkUnitBytes / element_bytes;
  if (count == 0) return cut;
  const std::uint64_t units = divide_up(count, cut.unit_count);
  const std::uint64_t most_units_per_tile = chunks * (max_chunk_bytes / kChunkUnitBytes);
  cut.tile_units = divide_up(units, divide_up(units, most_units_per_tile));
  cut.tiles = divide_up(units, cut.tile_units);
  const std::uint64_t last = units - (cut.tiles - 1) * cut.tile_units;
  cut.full_units = cut.tile_units / chunks;
  cut.full_longer = cut.tile_units % chunks;
  cut.last_units = last / chunks;
  cut.last_longer = last % chunks;
  return cut;
}

TUTTI_HOST_DEVICE constexpr std::uint64_t lesser(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

// Returns the elements of a chunk in a tile, relative to the start of the block. Returns an empty range if the block
// has no such tile, because in a v-variant the blocks of other ranks may be longer and have more tiles.
TUTTI_HOST_DEVICE constexpr Range cut_range(const Cut& cut, std::uint64_t tile, std::uint32_t chunk) {
  if (tile >= cut.tiles) return {};
  const bool last = tile + 1 == cut.tiles;
  const std::uint64_t units = last ? cut.last_units : cut.full_units;
  const std::uint64_t longer = last ? cut.last_longer : cut.full_longer;
  const std::uint64_t first_unit = tile * cut.tile_units + chunk * units + lesser(chunk, longer);
  const std::uint64_t begin = lesser(cut.count, first_unit * cut.unit_count);
  return {begin, lesser((units + (chunk < longer ? 1 : 0)) * cut.unit_count, cut.count - begin)};
}

// How the buffers of one call are divided into blocks, and each block into tiles and chunks. Positions and lengths are
// in elements.
struct Geometry {
  Cut cut;  // how every block is divided; only used if `cuts` is null
  // The three tables are null unless the call is a v-variant (all_gather_v, ...). They are indexed by rank, and are in
  // memory that the device can read. The first one: how the block of the rank is divided.
  const Cut* cuts = nullptr;
  // The first element of the rank's block in a buffer in which the blocks follow each other without gaps.
  const std::uint64_t* contiguous = nullptr;
  // The first element of the rank's block in this rank's buffer, for which the caller may have given displacements.
  const std::uint64_t* starts = nullptr;
  std::uint64_t tiles = 1;
  std::uint64_t max_chunk_count = 0;  // elements of the longest chunk; the size of one chunk of scratch
  std::uint32_t chunks = 1;           // number of chunks in one tile of a block
  std::uint32_t element_log2 = 2;     // an element has 1 << element_log2 bytes
  Blocks input;
  Blocks output;
};

TUTTI_HOST_DEVICE inline Range range_of(const Geometry& geometry, const Blocks& blocks, const std::uint64_t* starts,
                                        std::uint64_t tile, std::uint32_t chunk) {
  const std::uint32_t block = geometry.chunks == 1 ? chunk : chunk / geometry.chunks;
  const std::uint32_t rank = blocks.first + block;
  const Cut& cut = geometry.cuts == nullptr ? geometry.cut : geometry.cuts[rank];
  Range range = cut_range(cut, tile, chunk - block * geometry.chunks);
  if (blocks.count > 1) range.offset += starts == nullptr ? rank * geometry.cut.count : starts[rank];
  return range;
}

TUTTI_HOST_DEVICE inline Range input_range(const Geometry& geometry, std::uint64_t tile, std::uint32_t chunk) {
  return range_of(geometry, geometry.input, geometry.starts, tile, chunk);
}

TUTTI_HOST_DEVICE inline Range output_range(const Geometry& geometry, std::uint64_t tile, std::uint32_t chunk) {
  return range_of(geometry, geometry.output, geometry.starts, tile, chunk);
}

// The range of a chunk in the output of a peer, in which the blocks follow each other without gaps.
TUTTI_HOST_DEVICE inline Range peer_output_range(const Geometry& geometry, const Blocks& peer_output,
                                                 std::uint64_t tile, std::uint32_t chunk) {
  return range_of(geometry, peer_output, geometry.contiguous, tile, chunk);
}

}  // namespace tutti::device
