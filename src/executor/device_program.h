// Packs plans for the device evaluator: converts the plan of one rank and the layout of one call into the format
// that device code reads (kernels/device/program.h). Pure functions of the plan and the lengths; they do not use a
// device.
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

// A device::ProgramHeader and its arrays. The bytes are copied to device memory unchanged, aligned to
// device::kProgramAlignment.
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

// Packs the plan of `rank`. Also builds the plans of its peers, in order to compute where pushed messages are
// stored. Errors: kUnsupported if a step or a channel exceeds the limits of one thread block (device::kMaxPorts and
// the constants next to it).
Result<DeviceProgram> pack_program(const Generator& generator, std::uint32_t rank);

// The device::Geometry of one call. The caller copies the tables to device memory and sets their addresses in
// `geometry`.
struct DeviceGeometry {
  device::Geometry geometry;              // the pointers to the three tables are null
  std::vector<device::Cut> cuts;          // empty if all blocks have the same length
  std::vector<std::uint64_t> contiguous;  // empty if all blocks have the same length
  std::vector<std::uint64_t> starts;      // empty if also no displacements were given

  // Returns the geometry with pointers to the tables in this object, which must outlive it.
  device::Geometry on_host() const;
};

// `max_chunk_bytes`: at most device::payload_bytes() of the connections; the same on all ranks. `element_bytes`: 1,
// 2, 4 or 8.
DeviceGeometry pack_geometry(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths,
                             std::uint32_t element_bytes, std::uint64_t max_chunk_bytes);

}  // namespace tutti
