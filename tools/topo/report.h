// The report of `tutti topo` about this machine, as text and as JSON (docs/topo-json.md). All functions are pure and
// may be called from any thread.
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
  std::string simd;  // instruction set that the CPU kernels use, with Highway's name: "AVX2", "AVX3", ...
  GpuTopology gpus;
  std::vector<int> architectures;  // of the library's device code: kernels::device_architectures()
  Processors processors{};         // processors.nodes is empty if the processors were not determined
};

// The part of the library's device code that a GPU can execute.
struct DeviceCode {
  enum class Form : std::uint8_t {
    kNone,    // this build has no device code
    kBinary,  // machine code for the GPU's major version of compute capability
    kPtx,     // PTX, which the driver compiles when the code is loaded
    kTooOld,  // the GPU cannot execute any of the device code, because it is too old
  };
  Form kind = Form::kNone;
  int architecture = 0;  // architecture of the code that the GPU runs (90 is sm_90); 0 for kNone and kTooOld

  bool operator==(const DeviceCode&) const = default;
};
DeviceCode device_code_for(const Gpu& gpu, std::span<const int> architectures);

// Whether the GPUs can execute a call on GPU memory by ranks on all GPUs of the machine (on_device), or only the host
// can, and a clause with the reason.
struct CallPlacement {
  bool on_device = false;
  std::string reason;
};
CallPlacement call_placement(const Machine& machine);

std::string to_text(const Machine& machine);
nlohmann::json to_json(const Machine& machine);

}  // namespace tutti::tool
