// Plans for the device evaluator: packs one rank's plan and one call's layout into what device code reads
// (kernels/device/program.h). Pure functions of plan and lengths; nothing here knows a device.
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

// A device::ProgramHeader and its arrays: to be copied to device memory as it is, aligned to device::kProgramAlignment.
class DeviceProgram {
 public:
  explicit DeviceProgram(std::vector<device::ProgramWord> words) : words_(std::move(words)) {}

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)); }
  const device::ProgramHeader& header() const { return *reinterpret_cast<const device::ProgramHeader*>(words_.data()); }
  std::span<const device::PackedChannel> channels() const;
  std::span<const device::PackedPort> ports() const;  // of all channels, one channel's after the other's

 private:
  std::vector<device::ProgramWord> words_;
};

// Packs `rank`'s plan; builds its peers' plans to learn where pushed messages land. kUnsupported where a step or a
// channel has more than one thread block keeps (device::kMaxPorts and the others beside it).
Result<DeviceProgram> pack_program(const Generator& generator, std::uint32_t rank);

// One call's Geometry. Its tables are for the caller to copy to memory of the device, and to name in `geometry`.
struct DeviceGeometry {
  device::Geometry geometry;              // cuts, contiguous and starts are null
  std::vector<device::Cut> cuts;          // empty: none is needed
  std::vector<std::uint64_t> contiguous;  // empty: none is needed
  std::vector<std::uint64_t> starts;      // empty: none is needed

  // With the tables where they stand on the host. What is pointed to lives as long as this.
  device::Geometry on_host() const;
};

// `max_chunk_bytes` is device::payload_bytes() of the connections, on all ranks the same. element_bytes is 1, 2, 4
// or 8.
DeviceGeometry pack_geometry(const PlanShape& shape, std::uint32_t rank, const Lengths& lengths,
                             std::uint32_t element_bytes, std::uint64_t max_chunk_bytes);

}  // namespace tutti
