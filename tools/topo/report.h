// What `tutti topo` has found out about this machine, and its two forms: text for people, JSON for machines
// (docs/topo-json.md). Values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "topology/cpus.h"
#include "topology/gpus.h"
#include "topology/host.h"

namespace tutti::tool {

struct Machine {
  HostTopology host;
  std::string simd;  // of the CPU kernels, as Highway names it
  GpuTopology gpus;
  std::vector<int> architectures;  // of the library's device code: kernels::device_architectures()
  Processors processors{};         // without NUMA nodes: not asked for
};

// What of the library's device code a GPU runs.
struct DeviceCode {
  enum class Kind : std::uint8_t {
    kNone,    // this build has no device code
    kBinary,  // machine code of its own major version
    kPtx,     // what the driver compiles when it is loaded
    kTooOld,  // the GPU is older than all of it
  };
  Kind kind = Kind::kNone;
  int architecture = 0;  // of kBinary and kPtx: which part of it

  bool operator==(const DeviceCode&) const = default;
};
DeviceCode device_code_for(const Gpu& gpu, std::span<const int> architectures);

// Where calls on device memory of ranks on these GPUs are carried out, and why.
struct CallWay {
  bool on_device = false;
  std::string reason;
};
CallWay call_way(const Machine& machine);

std::string to_text(const Machine& machine);
nlohmann::json to_json(const Machine& machine);

}  // namespace tutti::tool
