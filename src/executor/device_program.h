// Packs plans for the device evaluator: converts the plan of one rank and the layout of one call into the format that
// device code reads (kernels/device/program.h). All functions are pure: their results depend only on their arguments,
// and they do not use a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/program.h"
#include "plan/layout.h"
#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// The packed plan of one rank: a device::ProgramHeader and its arrays, in one block of bytes. The bytes are copied
// to device memory unchanged, to an address that is a multiple of device::kProgramAlignment.
class DeviceProgram {
 public:
  explicit DeviceProgram(std::vector<device::ProgramWord> words) : words_(std::move(words)) {}

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)); }
  const device::ProgramHeader& header() const { return *reinterpret_cast<const device::ProgramHeader*>(words_.data()); }
  std::span<const device::PackedChannel> channels() const;
  // Ports of all channels, concatenated in the order of the channels.
  std::span<const device::PackedPort> ports() const;

 private:
  std::vector<device::ProgramWord> words_;
};

// Packs the plan of `rank`. Also builds the plans of the peers, in order to find the chunk of a peer's output into
// which a message can be delivered. Errors: kUnsupported if the plan exceeds a limit of the device (device::kMaxPorts
// and the constants next to it), for example the number of ports of a channel, if a step uses one connection more than
// once, or if a message consists of several chunks (Step::run).
Result<DeviceProgram> pack_program(const Generator& generator, std::uint32_t rank);

// The device::Geometry of one call, and its tables. To use it on a device, the caller copies the tables to memory that
// the device can read, and sets their addresses in a copy of `geometry`.
struct DeviceGeometry {
  device::Geometry geometry;              // its pointers `cuts`, `contiguous` and `starts` are null
  std::vector<device::Cut> cuts;          // the table for Geometry::cuts; empty unless the call is a v-variant
  std::vector<std::uint64_t> contiguous;  // the table for Geometry::contiguous; empty unless the call is a v-variant
  // The table for Geometry::starts. Empty unless the call is a v-variant. Equal to `contiguous` if the caller gave no
  // displacements.
  std::vector<std::uint64_t> starts;

  // Returns the geometry with pointers to the tables in this object, for use on the host. The object must outlive
  // the result.
  device::Geometry on_host() const;
};

// Computes the geometry of one call of `rank`. `max_chunk_bytes`: the longest message, at most
// device::payload_bytes() of the connections, a multiple of device::kChunkUnitBytes, and the same on all ranks.
// `element_bytes`: 1, 2, 4 or 8.
DeviceGeometry pack_geometry(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths,
                             std::uint32_t element_bytes, std::uint64_t max_chunk_bytes);

}  // namespace tutti
